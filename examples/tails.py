"""log E[p(y|f)] where it is hard: the usual recipe against directgp, in both precisions.

The usual recipe averages p(y|f) over 20 Gauss-Hermite nodes of q(f) and takes the log.
"""

import torch
from torch import Tensor

import directgp
from directgp.diagnostics.exact import exact_log_expectation
from directgp.diagnostics.text_table import text_table
from directgp.likelihoods import Likelihood, Logistic, Poisson, Probit, StudentT
from directgp.numerics.hermite import gauss_hermite

CASES: list[tuple[str, Likelihood, float, float, float]] = [
    ("Poisson", Poisson(), 300.0, 0.5, 0.3),
    ("Poisson", Poisson(), 5000.0, 2.0, 1.0),
    ("probit", Probit(), 1.0, -20.0, 0.5),
    ("logistic", Logistic(), 1.0, -120.0, 4.0),
    ("logistic", Logistic(), 1.0, 40.0, 4.0),
    ("Student's t", StudentT(df=4.0, scale=0.3), 60.0, 0.0, 100.0),
]


def usual(likelihood: Likelihood, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Exponentiate, average, take the log."""
    nodes, log_weights = gauss_hermite(20, mean.dtype)
    f = mean + torch.sqrt(variance) * nodes[:, None]
    return torch.log((torch.exp(log_weights)[:, None] * likelihood.log_prob(y, f).exp()).sum(0))


def describe(value: Tensor, mean: Tensor) -> str:
    """The value and its gradient in the mean."""
    (slope,) = torch.autograd.grad(value.sum(), mean)
    return f"{value.item():.6g} ({slope.item():.6g})"


def main() -> None:
    """Print a line for each case."""
    head = ("likelihood", "y", "q(f)", "precision", "usual recipe", "directgp", "truth")
    lines: list[tuple[str, ...]] = [head]
    for name, likelihood, y, mean, variance in CASES:
        exact = exact_log_expectation(likelihood, y, mean, variance)
        truth = f"{float(exact.value):.6g} ({float(exact.mean_slope):.6g})"
        for dtype in (torch.float32, torch.float64):
            target, m, v = (torch.tensor([x], dtype=dtype) for x in (y, mean, variance))
            m.requires_grad_()
            recipe = describe(usual(likelihood, target, m, v), m)
            ours = describe(directgp.log_expectation(likelihood, target, m, v), m)
            where = f"N({mean:g}, {variance:g})"
            precision = str(dtype).removeprefix("torch.")
            lines.append((name, f"{y:g}", where, precision, recipe, ours, truth))
    print("log E[p(y|f)] under q(f), with its gradient in the mean of q:\n")
    print(text_table(lines))


if __name__ == "__main__":
    main()

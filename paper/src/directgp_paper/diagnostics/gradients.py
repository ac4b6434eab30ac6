"""Measure gradient draws around the exact gradient; compute the expected gradient of bMC."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Num
from torch import Tensor

from directgp.errors import NumericalError, require
from directgp.likelihoods import Likelihood
from directgp.log_expectations import Rule, resolve_rule
from directgp.shapes import Marginals, Row
from directgp_paper.diagnostics.bounds import density_derivatives


@dataclass(frozen=True)
class Measurement:
    """A number from repeated draws, and its standard error."""

    value: float
    standard_error: float

    def over(self, scale: float) -> "Measurement":
        """Divide the number and its standard error by a positive constant."""
        return Measurement(self.value / scale, self.standard_error / scale)


@dataclass(frozen=True)
class GradientStatistics:
    """Statistics of draws g of one block's gradient around the exact gradient g*."""

    alignment: Measurement
    """Condition (i): ⟨g, g*⟩/‖g*‖²."""

    squared_norm_ratio: Measurement
    """Condition (ii): ‖g‖²/‖g*‖²."""

    squared_error: Measurement
    """E‖g − g*‖² of one draw: variance + squared bias."""

    variance: Measurement
    """E‖g − E g‖² of one draw."""

    squared_bias: Measurement
    """‖E g − g*‖² without the Monte Carlo floor; the estimate may be negative."""

    exact_squared_norm: float
    """‖g*‖²."""

    repeats: int

    def relative(self) -> "GradientStatistics":
        """Measure squared error, variance and squared bias in units of ‖g*‖²."""
        norm = self.exact_squared_norm
        return replace(
            self,
            squared_error=self.squared_error.over(norm),
            variance=self.variance.over(norm),
            squared_bias=self.squared_bias.over(norm),
            exact_squared_norm=1.0,
        )


@dataclass(frozen=True)
class EachDraw:
    """⟨g, g*⟩, ‖g‖² and ‖g − g*‖² of each draw g of one block's gradient, in units of ‖g*‖²."""

    alignment: Float[Tensor, " r"]
    squared_norm: Float[Tensor, " r"]
    squared_error: Float[Tensor, " r"]

    @classmethod
    def of(cls, draws: Float[Tensor, "r p"], exact: Float[Tensor, " p"]) -> "EachDraw":
        """Compute the statistics of these draws around the exact gradient."""
        norm = exact.square().sum()
        error = (draws - exact).square().sum(dim=1)
        return cls(draws @ exact / norm, draws.square().sum(dim=1) / norm, error / norm)


def block_statistics(draws: Float[Tensor, "r p"], exact: Float[Tensor, " p"]) -> GradientStatistics:
    """Summarise draws of one block's gradient; standard errors of the last two by jackknife.

    With errors e_r = g_r − g*, the variance is Σ‖e_r − ē‖²/(R−1) and the squared bias is
    ‖ē‖² − variance/R; their sum is the mean squared error. Without draw r, ē becomes
    ē − d_r/(R−1), d_r = e_r − ē, and the sum of squares around it falls by ‖d_r‖² R/(R−1). Where
    the bias is 0 the jackknife overstates the standard error of its square by about √2.
    """
    R = len(draws)
    norm = exact.square().sum()
    statistics = EachDraw.of(draws, exact)
    errors = draws - exact
    mean = errors.mean(dim=0)
    deviations = errors - mean
    squares = deviations.square().sum(dim=1)
    variance = squares.sum() / (R - 1)
    variance_without = (squares.sum() - squares * R / (R - 1)) / (R - 2)
    mean_square = mean.square().sum()
    shift = squares / (R - 1) ** 2 - 2 * (deviations @ mean) / (R - 1)
    bias_without = mean_square + shift - variance_without / (R - 1)
    return GradientStatistics(
        _mean(statistics.alignment),
        _mean(statistics.squared_norm),
        _mean(norm * statistics.squared_error),
        _jackknife(variance, variance_without),
        _jackknife(mean_square - variance / R, bias_without),
        float(norm),
        R,
    )


def _mean(values: Float[Tensor, " r"]) -> Measurement:
    """Return the average of independent values."""
    return Measurement(float(values.mean()), float(values.std() / len(values) ** 0.5))


def _jackknife(value: Float[Tensor, ""], without: Float[Tensor, " r"]) -> Measurement:
    """Return the standard error from the values without each draw: √((R−1)/R · Σ(θ_r − θ̄)²)."""
    spread = without.var(correction=0) * (len(without) - 1)
    return Measurement(float(value), float(torch.sqrt(spread)))


Gradients = Mapping[str, Float[Tensor, "r ..."]]
"""Draws of the gradient of each parameter block, along the first axis."""

Pullback = Callable[[Float[Tensor, "r *batch n"], Float[Tensor, "r *batch n"]], Gradients]
"""From draws of ∂_μ and ∂_v to draws of the gradients of named parameter blocks."""

_ELEMENTS_AT_ONCE = 2**16
"""Elements of one call of a rule: 50 MB with a hundred samples a draw."""


def marginal_blocks(
    by_mean: Float[Tensor, "r *batch n"], by_variance: Float[Tensor, "r *batch n"]
) -> Gradients:
    """Return the gradients of the marginals as blocks ``mean`` and ``variance``: no pullback."""
    return {"mean": by_mean, "variance": by_variance}


def compare_gradients(
    rule: Rule,
    likelihood: Likelihood,
    y: Num[Tensor, "..."],
    marginals: Marginals,
    *,
    repeats: int = 100,
    generator: torch.Generator | None = None,
    pullback: Pullback = marginal_blocks,
    exact: Rule | None = None,
    step: int = 0,
) -> dict[str, GradientStatistics]:
    """Compare draws g of a rule's gradient of Σ_i log E_q[p(y_i given f)] with the exact g*.

    Parameters
    ----------
    rule : Rule
        The rule to measure.
    likelihood : Likelihood
        Its parameters are constants.
    y : tensor
        Targets (..., n).
    marginals : Marginals
        Where the gradients are taken, shape (..., n).
    repeats : int
        Number R ≥ 3 of independent draws. All stay in memory: R numbers for each parameter.
    generator : torch.Generator, optional
        Source of the draws.
    pullback : callable
        Maps draws of the gradients with respect to means and variances, each (r, ..., n), to
        named blocks, each (r, ...), for instance to ``u_mean`` and ``u_chol`` of a posterior. It
        may add the gradient of a KL term.
    exact : Rule, optional
        The rule for g*; the closed form or quadrature by default.
    step : int
        Training step, for rules with schedules.

    Returns
    -------
    dict
        `GradientStatistics` of each block.
    """
    require(repeats >= 3, "repeats", "at least 3", repeats)
    judge = exact or resolve_rule("auto", likelihood)
    truth = gradient_draws(judge, likelihood, y, marginals, 1, generator, step)
    draws = gradient_draws(rule, likelihood, y, marginals, repeats, generator, step)
    exact_blocks = pullback(*truth)
    blocks = pullback(*draws)
    return {
        name: block_statistics(blocks[name].flatten(1), exact_blocks[name].flatten())
        for name in blocks
    }


def gradient_draws(
    rule: Rule,
    likelihood: Likelihood,
    y: Num[Tensor, "..."],
    marginals: Marginals,
    repeats: int = 1,
    generator: torch.Generator | None = None,
    step: int = 0,
) -> tuple[Float[Tensor, "r *batch n"], Float[Tensor, "r *batch n"]]:
    """Draw a rule's gradient of Σ_i log E_q[p(y_i given f)] in the means and the variances.

    The arguments are as in `compare_gradients`. A deterministic rule is evaluated once and its
    result repeated; another one in as many calls as memory needs.
    """
    likelihood = likelihood.frozen()
    shape = marginals.mean.shape
    drawn = 1 if rule.deterministic else repeats
    at_once = max(1, _ELEMENTS_AT_ONCE // marginals.mean.numel())
    parts = []
    for start in range(0, drawn, at_once):
        count = min(at_once, drawn - start)
        mean, variance = (
            x.detach().double().expand(count, *shape).clone().requires_grad_()
            for x in (marginals.mean, marginals.variance)
        )
        with torch.enable_grad():
            value = rule(likelihood, y, mean, variance, generator=generator, step=step)
            parts.append(torch.autograd.grad(value.sum(), (mean, variance)))
    by_mean, by_variance = (
        torch.cat(column).expand(repeats, *shape) for column in zip(*parts, strict=True)
    )
    return by_mean, by_variance


_NODES = 97
"""Nodes of ε; the spacing is fine enough for standard deviations up to 2."""

_REACH = 9.0
"""Largest node of ε; the smallest is its negative."""

_LOG_STEP = 0.25
"""Spacing of log s; the relative error of the sum is about exp(−π²/0.25)."""

_MAX_LOG = 600.0
"""Largest log s: beyond it s overflows."""


@torch.no_grad()
def expected_bmc(
    likelihood: Likelihood,
    y: Num[Tensor, " n"],
    marginals: Marginals,
    num_samples: int,
    gradient: Literal["pathwise", "second_derivative"] = "pathwise",
) -> tuple[Row, Row, Row]:
    """Compute the expected value of bMC with L samples, and its expected slopes, by quadrature.

    The value is the L-sample bound E log((1/L) Σ φ(f_l)). With X = Σ φ(f_l) and
    M(s) = E e^{−sφ(f)},

    E log X = ∫ (e^{−s} − M(s)^L) ds/s,   E[Σ d(f_l)/X] = L ∫ E[d(f) e^{−sφ(f)}] M(s)^{L−1} ds

    over s > 0, for any derivative d of φ: two integrals, whatever L is. The slopes of
    ``"pathwise"`` are the derivatives of the value. With ``"second_derivative"`` the slope in the
    variance, ½E[Σφ″/Σφ], is the derivative of no bound, and differs by O(1/L).

    Returns
    -------
    tuple
        The value of each example, and the slopes in its mean and in its variance.

    Examples
    --------
    >>> import torch
    >>> from directgp import expected_log_prob
    >>> from directgp.likelihoods import Logistic
    >>> y, mean, variance = torch.ones(1), torch.zeros(1), torch.ones(1)
    >>> expected_bmc(Logistic(), y, Marginals(mean, variance), 1)[0]
    tensor([-0.8061], dtype=torch.float64)
    >>> expected_log_prob(Logistic(), y, mean, variance)
    tensor([-0.8061])
    """
    require(num_samples >= 1, "num_samples", "at least 1", num_samples)
    likelihood.check_targets(y)
    mean = marginals.mean.double()
    deviation = torch.sqrt(marginals.variance.double())
    eps = torch.linspace(-_REACH, _REACH, _NODES, dtype=mean.dtype)[:, None]
    weights = torch.softmax(-0.5 * eps**2, 0)
    density, first, second = density_derivatives(likelihood, y.double(), mean + deviation * eps)
    top = density.amax()
    density = density / top
    # The largest s is 40/φ at the least likely node: no node contributes beyond it.
    last = math.log(40.0) - float(torch.log(density).min())
    if not last < _MAX_LOG:
        raise NumericalError(
            "expected_bmc cannot reach the smallest p(y|f) within 9 standard deviations. "
            "Use smaller variances."
        )
    s = torch.exp(torch.arange(-37.0, last + _LOG_STEP, _LOG_STEP, dtype=mean.dtype))[:, None]
    kernel = weights * torch.exp(-s[..., None] * density)
    M = kernel.sum(1)
    value = _LOG_STEP * (torch.exp(-s) - M**num_samples).sum(0)
    scale = _LOG_STEP * s * num_samples * M ** (num_samples - 1) / top
    by_variance = first * eps / (2 * deviation) if gradient == "pathwise" else second / 2
    by_mean, by_variance = ((scale * (kernel * d).sum(1)).sum(0) for d in (first, by_variance))
    return value + torch.log(top) - math.log(num_samples), by_mean, by_variance

"""The paper's scores of test rows: exact NLL, and MSE, error rate or MRE."""

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.datasets.problem import Task
from directgp.likelihoods.base import Likelihood
from directgp.posteriors.sparse import SparsePosterior
from directgp.predictive import predictive_log_density, predictive_mean
from directgp.shapes import Marginals

SECOND: dict[Task, str] = {"regression": "mse", "classification": "error", "count": "mre"}
"""By the names of `directgp.metrics`."""


@torch.no_grad()
def row_scores(
    task: Task,
    posterior: SparsePosterior,
    likelihood: Likelihood,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
) -> dict[str, Float[Tensor, " n"]]:
    """NLL and the second score of each row, on the CPU, in float64."""
    q = posterior.predict(X)
    wide = Marginals(q.mean.double(), q.variance.double())
    targets = y.double()
    mean = predictive_mean(likelihood, wide)
    second = {
        "regression": (mean - targets).square(),
        "classification": ((mean > 0.5) != (targets > 0.5)).to(mean),
        "count": (mean - targets).abs() / targets.clamp(min=1),
    }[task]
    nll = -predictive_log_density(likelihood, targets, wide)
    return {"nll": nll.cpu(), SECOND[task]: second.cpu()}


def mean_scores(rows: dict[str, Float[Tensor, " n"]]) -> dict[str, float]:
    """Means over the rows."""
    return {name: float(values.mean()) for name, values in rows.items()}

"""Compute exact scores of predictions for test rows; they do not depend on the training rule."""

import math
from dataclasses import dataclass
from typing import Literal, final

import torch

from directgp.likelihoods.base import Likelihood
from directgp.predictive import (
    predictive_cdf,
    predictive_crps,
    predictive_interval,
    predictive_log_density,
    predictive_mean,
)
from directgp.shapes import Marginals, Row

COVERAGE = 0.9
"""Probability of the intervals whose coverage is reported."""


@final
@dataclass(frozen=True)
class Score:
    """Description of a score."""

    name: str
    label: str
    about: str
    """The definition, in one sentence."""

    better: Literal["lower", "nominal"] = "lower"
    share: bool = False
    """"nominal" if values near `COVERAGE` are better; whether it is a share of the rows."""


NLL = Score("nll", "NLL", "Mean negative log density or probability of the targets.")
RMSE = Score(
    "rmse", "RMSE", "Root of the mean squared error of the predicted mean, in the target's units."
)
MSE = Score("mse", "MSE", "Mean squared error of the predicted mean.")
ERROR = Score(
    "error", "error", "Share of rows whose more probable class is not the true one.", share=True
)
MRE = Score("mre", "MRE", "Mean of |predicted mean − y| / max(1, y).")
CRPS = Score(
    "crps", "CRPS", "Mean continuous ranked probability score, in the units of the target."
)
BRIER = Score(
    "brier", "Brier", "Mean squared difference between the probability of class 1 and the label."
)
COVERED = Score(
    "coverage",
    "coverage",
    "Share of rows whose target lies in the central 90 % interval.",
    "nominal",
    True,
)

SCORES = {
    "regression": (NLL, RMSE, MSE, CRPS, COVERED),
    "classification": (NLL, ERROR, BRIER),
    "count": (NLL, RMSE, MRE, CRPS, COVERED),
}
"""Scores by task; NLL first, then those common for the task."""


@final
@dataclass(frozen=True)
class Judged:
    """Test rows and their predictions, each of shape (n,), in the units of y."""

    actual: Row
    mean: Row
    """Predicted mean; for labels the probability of class 1."""

    lower: Row
    upper: Row
    below: Row
    up_to: Row
    """P(Y < y) and P(Y ≤ y)."""

    scores: dict[str, Row]
    """Values of each row, by the name of the score; RMSE has the squares, of the name "mse"."""

    def means(self) -> dict[str, float]:
        """Return the mean of each score, and the root of the mean squared error."""
        means = {name: float(values.mean()) for name, values in self.scores.items()}
        return {"rmse": math.sqrt(means["mse"]), **means} if "mse" in means else means


@torch.no_grad()
def judge(
    task: str,
    likelihood: Likelihood,
    y: Row,
    marginals: Marginals,
    offset: float = 0.0,
    scale: float = 1.0,
) -> Judged:
    """Score predictions of y, whose units are ``offset + scale·y``."""
    mean = predictive_mean(likelihood, marginals)
    lower, upper = predictive_interval(likelihood, marginals, COVERAGE)
    up_to = predictive_cdf(likelihood, y, marginals)
    steps = likelihood.task != "regression"
    below = predictive_cdf(likelihood, y - 1, marginals) if steps else up_to
    nll = -predictive_log_density(likelihood, y, marginals)
    every = {
        "nll": nll + math.log(scale),
        "mse": (scale * (mean - y)).square(),
        "error": ((mean > 0.5) != (y > 0.5)).to(mean),
        "mre": (mean - y).abs() / y.clamp(min=1),
        "crps": scale * predictive_crps(likelihood, y, marginals),
        "brier": (mean - y).square(),
        "coverage": ((lower <= y) & (y <= upper)).to(mean),
    }
    named = ["mse" if score is RMSE else score.name for score in SCORES[task]]
    scores = {name: every[name] for name in named}

    def in_units(values: Row) -> Row:
        return offset + scale * values

    return Judged(
        actual=in_units(y),
        mean=in_units(mean),
        lower=in_units(lower),
        upper=in_units(upper),
        below=below,
        up_to=up_to,
        scores=scores,
    )

"""Scores of predictions for the test rows of a table.

Each function returns a subset of: ``nll``, ``crps``, ``error``, ``coverage``, ``tenths`` (the share
of tenths of the rows, by predicted mean, of which 80 to 97 % are covered) and ``width``. Intervals
of counts have whole ends and cover more than 90 %, so for counts coverage is the central share of
each probability. The NLL of a regression is that of the target divided by its training standard
deviation. CRPS, RMSE (``error``) and width are in units of this deviation, of counts too. For
labels ``error`` is the share of wrong ones and CRPS is Brier's score.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import nbinom, norm, poisson

from benchmarks.problems import Table

Array = NDArray[np.float64]
Scores = dict[str, float]

COVERAGE = 0.9
TAILS = (0.5 - COVERAGE / 2, 0.5 + COVERAGE / 2)

_ROWS_PER_PART = 20
"""Test rows of a part whose coverage is measured."""

_DROPPED = 1e-9
"""Probability of counts that the CRPS leaves out."""


def unit(data: Table) -> float:
    """Return the standard deviation of the training targets."""
    return float(data.y.std()) or 1.0


def interval_scores(
    data: Table, mean: Array, lower: Array, upper: Array, inside: Array | None = None
) -> Scores:
    """Score predictions without a density.

    `inside` is the share of each row that its interval covers; by default both ends belong to it.
    """
    if inside is None:
        inside = ((lower <= data.y_test) & (data.y_test <= upper)).astype(np.float64)
    return {
        "error": float(np.sqrt(np.mean((data.y_test - mean) ** 2))) / unit(data),
        "coverage": float(np.mean(inside)),
        "tenths": float(np.mean([0.8 <= each.mean() <= 0.97 for each in _tenths(mean, inside)])),
        "width": float(np.mean(upper - lower)) / unit(data),
    }


def _tenths(mean: Array, inside: Array) -> list[Array]:
    """Return `inside` for tenths of the rows by predicted mean; fewer parts below 200 rows."""
    parts = max(1, min(10, len(mean) // _ROWS_PER_PART))
    return np.array_split(inside[np.argsort(mean, kind="stable")], parts)


def normal_scores(data: Table, mean: Array, std: Array) -> Scores:
    """Score normal predictions.

    CRPS = σ (z (2 Φ(z) − 1) + 2 φ(z) − 1/√π) with z = (y − μ)/σ.
    """
    z = (data.y_test - mean) / std
    crps = std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
    ends = (norm.ppf(tail, mean, std) for tail in TAILS)
    return {
        "nll": -float(norm.logpdf(data.y_test, mean, std).mean()) - float(np.log(unit(data))),
        "crps": float(crps.mean()) / unit(data),
        **interval_scores(data, mean, *ends),
    }


def label_scores(data: Table, probability: Array) -> Scores:
    """Score the probabilities of class 1."""
    true = np.where(data.y_test == 1, probability, 1 - probability)
    with np.errstate(divide="ignore"):
        nll = -float(np.log(true).mean())
    crps = float(np.mean((1 - true) ** 2))
    return {"nll": nll, "crps": crps, "error": float(np.mean(true <= 0.5))}


def central_share(below: Array, up_to: Array) -> Array:
    """Return the share of P(Y < y) to P(Y ≤ y) between the tails; its mean is 0.9 if calibrated.

    As `directgp.metrics.central_share`, which the environment of the other libraries cannot import.
    """
    low, high = TAILS
    central = np.minimum(up_to, high) - np.maximum(below, low)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.maximum(central, 0) / (up_to - below)
    # A count without probability is central or not as a whole.
    whole = (low <= up_to) & (up_to <= high)
    return np.where(up_to > below, share, whole.astype(np.float64))


def count_scores(data: Table, distribution: Any) -> Scores:
    """Score a frozen distribution of scipy with one count per test row.

    CRPS = Σ_k (P(Y ≤ k) − 1{y ≤ k})².
    """
    y = data.y_test
    last = max(y.max(), np.max(distribution.ppf(1 - _DROPPED)))
    crps = np.zeros(len(y))
    for k in range(int(last) + 1):
        crps += (distribution.cdf(k) - (y <= k)) ** 2
    lower, upper = (distribution.ppf(tail) for tail in TAILS)
    inside = central_share(distribution.cdf(y - 1), distribution.cdf(y))
    return {
        "nll": -float(distribution.logpmf(y).mean()),
        "crps": float(crps.mean()) / unit(data),
        **interval_scores(data, distribution.mean(), lower, upper, inside),
    }


def poisson_or_wider(mean: Array, dispersion: float) -> Any:
    """Return counts of variance mean + dispersion·mean²: Poisson if the dispersion is 0."""
    if dispersion == 0:
        return poisson(mean)
    return nbinom(1 / dispersion, 1 / (1 + dispersion * mean))

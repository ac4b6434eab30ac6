"""Test on examples whether intervals are wide enough, and whether the noise is constant."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int
from scipy.special import bdtr, chdtrc

from directgp.errors import NumericalError, UnsupportedError
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import observed_range
from directgp.metrics import COVERAGE
from directgp.objectives.base import PointLoss
from directgp.posteriors.prior import Prior
from directgp.predictive.api import predictive_cdf
from directgp.predictive.moments import centre
from directgp.training.data import Data
from directgp.training.result import TrainingResult

_TOO_FEW = 0.8
"""Intervals with at least this share of the targets inside are wide enough."""

_FALSE_ALARMS = 0.01
"""Probability that intervals of the right width are called too narrow, over all groups."""

_CLEARLY = 30.0
"""A model covers clearly better if the probability of its worst group is at least this many times
that of the other model."""

_MAX_GROUPS = 10
"""Largest number of groups; groups have about equal numbers of examples."""

_ROWS_PER_GROUP = 20
"""Fewest examples of a group; smaller tables have fewer groups."""

_NOISE_GROUPS = 8
"""Largest number of groups between which noise is compared."""

_FEWEST_GROUPS = 3
"""Smallest number of groups between which noise is compared."""

_CHANCE = 0.01
"""Probability of a false alarm: constant noise is called dependent on the inputs."""

_GAIN = 0.02
"""Fall of the mean log loss, in nats, that a noise level for each group must bring."""

_LARGEST = 6.0
"""Larger |z| are replaced by this: P(Y ≤ y) near 1 does not resolve them."""

_MAX_EXAMPLES = 10_000
"""Largest number of examples of a part; of more, every k-th is used."""

Examples = tuple[TrainingResult, Data, Likelihood]
"""A trained model, examples, and a likelihood with their row values."""


class Group(NamedTuple):
    """Examples with neighbouring values of the predicted mean, or of a feature."""

    feature: int | None
    """Index of the feature; None for the predicted mean."""

    low: float
    """Smallest value of the group."""

    high: float
    """Largest value of the group."""

    inside: int
    """Number of examples with the target inside the interval."""

    number: int
    """Number of examples."""

    @property
    def probability(self) -> float:
        """P(at most `inside`) for 90 % intervals; 1 if at least 80 % of the targets are inside."""
        enough = self.inside >= _TOO_FEW * self.number
        return 1.0 if enough else float(bdtr(self.inside, self.number, COVERAGE))


@final
@dataclass(frozen=True)
class Coverage:
    """Numbers of targets inside central 90 % intervals, by predicted mean and main feature."""

    groups: tuple[Group, ...] = ()
    """The groups, the least probable first; empty where y has no quantiles."""

    @property
    def narrow(self) -> tuple[Group, ...]:
        """The groups whose intervals are too narrow, by a binomial test."""
        level = _FALSE_ALARMS / max(1, len(self.groups))
        return tuple(group for group in self.groups if group.probability < level)

    @property
    def inside(self) -> int:
        """The number of targets inside, of all examples."""
        return sum(group.inside for group in self.groups if group.feature is None)

    def clearly_better(self, than: "Coverage") -> bool:
        """Return whether the worst group is far more probable, and no fewer targets are inside."""
        if not self.groups or not than.groups or self.inside < than.inside:
            return False
        return self.groups[0].probability >= _CLEARLY * than.groups[0].probability

    @classmethod
    def of(cls, parts: Sequence[Examples], loss: PointLoss) -> "Coverage":
        """Return the coverage of examples in parts, each with a model of its own.

        It is empty for labels, which have no intervals, and for a loss that is not a log density:
        such a loss does not train the width of intervals.
        """
        labels = parts[0][0].likelihood.task == "classification"
        if labels or not loss.validation_loss().log_density:
            return cls()
        try:
            checked = [_checked(*part) for part in parts]
        except (NumericalError, UnsupportedError):
            return cls()
        inside, mean, X = (np.concatenate(arrays) for arrays in zip(*checked, strict=True))
        groups = [*_groups(None, mean, inside)]
        feature = _main_feature(parts[0][0].posterior.prior, X.shape[1])
        if feature is not None:
            groups += _groups(feature, X[:, feature], inside)
        return cls(tuple(sorted(groups, key=lambda group: group.probability)))


@torch.no_grad()
def _checked(
    result: TrainingResult, data: Data, likelihood: Likelihood
) -> tuple[Bool[np.ndarray, " n"], Float64[np.ndarray, " n"], Float64[np.ndarray, "n d"]]:
    """Return whether each target is inside its interval, its predicted mean, and the inputs."""
    data, likelihood = _thinned(data, likelihood)
    q = result.posterior.predict(data.X)
    y = data.y
    # Compare both ends of the observed range: an interval of counts includes its upper end, and a
    # censored value may be anywhere in its range.
    low, high = observed_range(likelihood, y)
    up_to = predictive_cdf(likelihood, high, q)
    below = up_to if low is high else predictive_cdf(likelihood, low, q)
    tail = 0.5 * (1 - COVERAGE)
    inside = (up_to >= tail) & (below < 1 - tail)
    mean = centre(likelihood, q)
    return inside.cpu().numpy(), mean.double().cpu().numpy(), data.X.double().cpu().numpy()


def _thinned(data: Data, likelihood: Likelihood) -> tuple[Data, Likelihood]:
    rows = torch.arange(0, len(data), -(-len(data) // _MAX_EXAMPLES), device=data.X.device)
    return data.take(rows), likelihood.for_rows(rows)


@torch.no_grad()
def noise_depends_on_inputs(parts: Sequence[Examples]) -> bool:
    """Return whether the spread of targets about predictions depends on the inputs.

    Let z be the normal quantile of P(Y ≤ y); |z| has the same distribution everywhere if the
    predictive distribution is right. Kruskal and Wallis's test compares the ranks of |z|, which
    outliers do not move, between groups of neighbouring values of each feature and of the
    predicted mean. The answer is yes if the smallest p-value is below 1 % divided by the number
    of tests (Bonferroni), and a variance of z for each group of that test lowers the mean log
    loss by 0.02 nats.
    """
    tables = []
    for result, data, likelihood in parts:
        subset, likelihood = _thinned(data, likelihood)
        try:
            q = result.posterior.predict(subset.X)
            z = torch.special.ndtri(predictive_cdf(likelihood, subset.y, q)).abs()
        except (NumericalError, UnsupportedError):
            return False
        columns = z.clamp(max=_LARGEST), centre(likelihood, q), *subset.X.mT
        tables.append(torch.stack([column.double() for column in columns]).cpu().numpy())
    residuals, *places = np.concatenate(tables, axis=1)
    number = min(_NOISE_GROUPS, len(residuals) // _ROWS_PER_GROUP)
    if number < _FEWEST_GROUPS or not np.isfinite(residuals).all():
        return False
    tests = [_scatter(residuals, _places(values, number)) for values in places]
    chance, gain = min(tests)
    return chance < _CHANCE / len(tests) and gain > _GAIN


def _scatter(
    residuals: Float64[np.ndarray, " n"], places: Int[np.ndarray, " n"]
) -> tuple[float, float]:
    """Return the p-value of equal spread, and the gain in log loss of a variance per group."""
    n = len(residuals)
    _, groups = np.unique(places, return_inverse=True)
    sizes = np.bincount(groups)
    _, inverse, ties = np.unique(residuals, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - 0.5 * (ties - 1))[inverse]
    sums, squares = (np.bincount(groups, values) for values in (ranks, residuals**2))
    statistic = 12 / (n * (n + 1)) * (sums**2 / sizes).sum() - 3 * (n + 1)
    with np.errstate(divide="ignore"):
        within = float((sizes * np.log(squares / sizes)).sum()) / n
        gain = 0.5 * (float(np.log(squares.sum() / n)) - within)
    return float(chdtrc(max(1, len(sizes) - 1), max(0.0, statistic))), gain


def _places(values: Float64[np.ndarray, " n"], number: int) -> Int[np.ndarray, " n"]:
    """Return the index of each value's group; equal values share a group."""
    edges = np.quantile(values, np.arange(1, number) / number)
    return np.searchsorted(edges, values, side="right")


def _groups(
    feature: int | None, values: Float64[np.ndarray, " n"], inside: Bool[np.ndarray, " n"]
) -> Iterable[Group]:
    """Yield the groups; equal values share a group."""
    number = max(1, min(_MAX_GROUPS, len(values) // _ROWS_PER_GROUP))
    places = _places(values, number)
    for place in np.unique(places):
        here = places == place
        members = values[here]
        counts = int(inside[here].sum()), int(here.sum())
        yield Group(feature, float(members.min()), float(members.max()), *counts)


def _main_feature(prior: Prior, d: int) -> int | None:
    """Return the feature with the smallest lengthscale; None for a common lengthscale."""
    if d == 1:
        return 0
    scales = prior.length_scales()
    return None if scales is None or len(scales) < 2 else int(scales.argmin())

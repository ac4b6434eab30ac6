"""Check on examples that the intervals of a model hold as many targets as they should."""

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
"""Share of targets inside from which on intervals are wide enough, however many examples."""

_FALSE_ALARMS = 0.01
"""Probability that intervals of the right width are called too narrow, over all groups."""

_CLEARLY = 30.0
"""Factor of the probability of the worst group from which another model covers clearly better."""

_MAX_GROUPS = 10
_ROWS_PER_GROUP = 20
"""Groups of about equal numbers of examples: tenths, or fewer where they would be smaller."""

_NOISE_GROUPS = 8
_FEWEST_GROUPS = 3
"""Largest and smallest number of groups by which noise is compared."""

_CHANCE = 0.01
"""Probability that noise of one level is taken for one that depends on the inputs."""

_GAIN = 0.02
"""Fall of the mean log loss, in nats, from which a noise level for each group pays."""

_LARGEST = 6.0
"""|z| that counts for larger ones, which P(Y ≤ y) near 1 cannot tell apart."""

_MAX_EXAMPLES = 10_000
"""Examples of each part that are checked, evenly spaced."""

Examples = tuple[TrainingResult, Data, Likelihood]
"""A trained model, examples, and a likelihood with their row values."""


class Group(NamedTuple):
    """Examples with neighbouring values of the predicted mean, or of a feature."""

    feature: int | None
    """None for the predicted mean."""

    low: float
    high: float
    inside: int
    number: int
    """How many of the examples have their targets inside the interval, and how many there are."""

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
    """The one that is least probable first; none where y has no quantiles."""

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
        """Return the coverage of examples that may have a model for each part of them.

        Labels have no intervals, and a loss that is not judged by a density does not train them.
        """
        labels = parts[0][0].likelihood.task == "classification"
        if labels or not loss.validation_loss().log_density:
            return cls()
        try:
            checked = [_checked(*part) for part in parts]
        except (NumericalError, UnsupportedError):
            return cls()
        inside, mean, X = (np.concatenate(each) for each in zip(*checked, strict=True))
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
    q, y = result.posterior.predict(data.X), data.y
    # The interval of counts includes its upper end; a censored value may be anywhere in its range.
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
    """Return whether targets scatter about predictions more in some places than in others.

    With z the normal quantile of P(Y ≤ y), so that |z| has one distribution if the predictive one
    is right, Kruskal and Wallis's test compares the ranks of |z| between groups of neighbouring
    values of each feature, and of the predicted mean. The smallest p-value has to be below 1 %
    over the number of these tests (Bonferroni); ranks are not moved by outliers. And with a
    variance of z for each group of that test in place of one, the mean log loss has to fall by 0.02
    nats.
    """
    found = []
    for result, data, likelihood in parts:
        some, likelihood = _thinned(data, likelihood)
        try:
            q = result.posterior.predict(some.X)
            z = torch.special.ndtri(predictive_cdf(likelihood, some.y, q)).abs()
        except (NumericalError, UnsupportedError):
            return False
        columns = z.clamp(max=_LARGEST), centre(likelihood, q), *some.X.mT
        found.append(torch.stack([each.double() for each in columns]).cpu().numpy())
    residuals, *places = np.concatenate(found, axis=1)
    number = min(_NOISE_GROUPS, len(residuals) // _ROWS_PER_GROUP)
    if number < _FEWEST_GROUPS or not np.isfinite(residuals).all():
        return False
    tests = [_scatter(residuals, _places(values, number)) for values in places]
    chance, gain = min(tests)
    return chance < _CHANCE / len(tests) and gain > _GAIN


def _scatter(
    residuals: Float64[np.ndarray, " n"], places: Int[np.ndarray, " n"]
) -> tuple[float, float]:
    """Return the p-value of equal scatter in all groups, and the gain of a variance for each."""
    n = len(residuals)
    _, groups = np.unique(places, return_inverse=True)
    sizes = np.bincount(groups)
    _, inverse, ties = np.unique(residuals, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - 0.5 * (ties - 1))[inverse]
    sums, squares = (np.bincount(groups, each) for each in (ranks, residuals**2))
    statistic = 12 / (n * (n + 1)) * (sums**2 / sizes).sum() - 3 * (n + 1)
    with np.errstate(divide="ignore"):
        own = float((sizes * np.log(squares / sizes)).sum()) / n
        gain = 0.5 * (float(np.log(squares.sum() / n)) - own)
    return float(chdtrc(max(1, len(sizes) - 1), max(0.0, statistic))), gain


def _places(values: Float64[np.ndarray, " n"], number: int) -> Int[np.ndarray, " n"]:
    """Return the group of each value; equal values are in one."""
    edges = np.quantile(values, np.arange(1, number) / number)
    return np.searchsorted(edges, values, side="right")


def _groups(
    feature: int | None, values: Float64[np.ndarray, " n"], inside: Bool[np.ndarray, " n"]
) -> Iterable[Group]:
    """Yield the groups; equal values are in one, so that none is selected by its targets."""
    number = max(1, min(_MAX_GROUPS, len(values) // _ROWS_PER_GROUP))
    places = _places(values, number)
    for place in np.unique(places):
        here = places == place
        some = values[here]
        numbers = int(inside[here].sum()), int(here.sum())
        yield Group(feature, float(some.min()), float(some.max()), *numbers)


def _main_feature(prior: Prior, d: int) -> int | None:
    """Return the feature of the smallest lengthscale; None where all have the same."""
    if d == 1:
        return 0
    scales = prior.length_scales()
    return None if scales is None or len(scales) < 2 else int(scales.argmin())

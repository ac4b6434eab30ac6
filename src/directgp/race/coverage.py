"""Test on examples whether the intervals of a mixture are wide enough."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int
from scipy.special import bdtr

from directgp.errors import NumericalError, UnsupportedError
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import observed_range
from directgp.metrics import COVERAGE
from directgp.objectives.base import PointLoss
from directgp.posteriors.prior import Prior
from directgp.posteriors.sparse import SparsePosterior
from directgp.predictive.api import predictive_cdf
from directgp.predictive.moments import centre
from directgp.training.data import Data

_TOO_FEW = 0.8
"""Intervals with at least this share of the targets inside are wide enough."""

_FALSE_ALARMS = 0.01
"""Probability that intervals of the right width are called too narrow, over all groups."""

_MAX_GROUPS = 10
"""Largest number of groups; groups have about equal numbers of examples."""

_ROWS_PER_GROUP = 20
"""Fewest examples of a group; smaller tables have fewer groups."""

_MAX_EXAMPLES = 10_000
"""Largest number of examples of a part; of more, every k-th is used."""


class MemberExamples(NamedTuple):
    """A member of a mixture, and the examples that it predicts."""

    weight: float
    """Weight of the member."""

    posterior: SparsePosterior
    """q(f) of the member."""

    likelihood: Likelihood
    """Its likelihood, with the row values of the examples."""

    data: Data
    """The examples, with the features of the member."""


Part = Sequence[MemberExamples]
"""The members of a mixture, for the same examples."""


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

    @classmethod
    def of(cls, parts: Sequence[Part], loss: PointLoss, num_features: int) -> "Coverage":
        """Return the coverage of examples in parts, each with models of its own.

        It is empty for labels, which have no intervals, and for a loss that is not a log density:
        such a loss does not train the width of intervals. Inputs after the features are columns of
        a stack.
        """
        first = parts[0][0]
        if first.likelihood.task == "classification" or not loss.validation_loss().log_density:
            return cls()
        try:
            checked = [_checked(part) for part in parts]
        except (NumericalError, UnsupportedError):
            return cls()
        inside, mean, X = (np.concatenate(arrays) for arrays in zip(*checked, strict=True))
        groups = [*_groups(None, mean, inside)]
        feature = _main_feature(first.posterior.prior, num_features)
        if feature is not None:
            groups += _groups(feature, X[:, feature], inside)
        return cls(tuple(sorted(groups, key=lambda group: group.probability)))


@torch.no_grad()
def _checked(
    part: Part,
) -> tuple[Bool[np.ndarray, " n"], Float64[np.ndarray, " n"], Float64[np.ndarray, "n d"]]:
    """Return whether each target is inside its interval, its predicted mean, and the inputs."""
    up_to, below, mean = (torch.zeros((), dtype=torch.float64) for _ in range(3))
    for weight, posterior, likelihood, data in part:
        data, likelihood = _thinned(data, likelihood)
        q = posterior.predict(data.X)
        # Compare both ends of the observed range: an interval of counts includes its upper end,
        # and a censored value may be anywhere in its range.
        low, high = observed_range(likelihood, data.y)
        cdf = predictive_cdf(likelihood, high, q)
        up_to = up_to + weight * cdf.double().cpu()
        cdf = cdf if low is high else predictive_cdf(likelihood, low, q)
        below = below + weight * cdf.double().cpu()
        mean = mean + weight * centre(likelihood, q).double().cpu()
    tail = 0.5 * (1 - COVERAGE)
    inside = (up_to >= tail) & (below < 1 - tail)
    fewest = min((each.data for each in part), key=lambda data: data.X.shape[1])
    X = _thinned(fewest, part[0].likelihood)[0].X
    return inside.numpy(), mean.numpy(), X.double().cpu().numpy()


def _thinned(data: Data, likelihood: Likelihood) -> tuple[Data, Likelihood]:
    rows = torch.arange(0, len(data), -(-len(data) // _MAX_EXAMPLES), device=data.X.device)
    return data.take(rows), likelihood.for_rows(rows)


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
    return None if scales is None or len(scales) < 2 else int(scales[:d].argmin())

"""Candidates of a path of β, and the range of losses in which they are compared."""

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

_ABOVE = 3.0
"""A curve leaves the picture this many median distances above the best loss."""


_BAND = 1.4
"""The range is widened up to this factor to hold standard errors."""


@runtime_checkable
class Candidate(Protocol):
    """What is drawn of a `directgp.training.PathPoint`."""

    @property
    def beta(self) -> float:
        """Factor of KL."""

    @property
    def hyperparameters(self) -> str:
        """Held as the ELBO left them, trained too, or the ELBO: "fixed", "joint" or "elbo"."""

    @property
    def validation_loss(self) -> float:
        """Mean over the validation examples."""

    @property
    def validation_error(self) -> float:
        """Its standard error."""

    @property
    def difference_error(self) -> float:
        """Standard error of the difference from the best candidate, example by example."""


def loss_range(points: Sequence[Candidate], chosen: int) -> tuple[float, float]:
    """From the best loss up to where a loss is far above most others; NaN where none is finite.

    The chosen candidate and the ELBO are always inside.
    """
    losses = np.array([point.validation_loss for point in points])
    finite = losses[np.isfinite(losses)]
    if not len(finite):
        return math.nan, math.nan
    best = float(finite.min())
    gaps = finite - best
    usual = min(_ABOVE * float(np.median(gaps)), float(gaps.max()))
    elbo = [point for point in points if point.hyperparameters == "elbo"]
    kept = [point.validation_loss - best for point in (points[chosen], *elbo)]
    span = 1.1 * max([usual, *(gap for gap in kept if math.isfinite(gap))])
    span = span or _width_of_one(best, points[chosen].validation_error)
    return best, best + max(span, min(_band_above(points, best, span), _BAND * span))


def _band_above(points: Sequence[Candidate], best: float, span: float) -> float:
    """How far above the best loss the standard errors of what is inside reach."""
    inside = [point for point in points if point.validation_loss <= best + span]
    ends = [point.validation_loss + point.difference_error - best for point in inside]
    return max((end for end in ends if math.isfinite(end)), default=0.0)


def _width_of_one(loss: float, error: float) -> float:
    """A range for losses that are all equal."""
    return 2 * error if 0 < error < math.inf else 0.1 * abs(loss) or 1.0

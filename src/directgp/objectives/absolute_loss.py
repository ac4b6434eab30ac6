"""Absolute-loss DLM: the absolute error of the predictive median."""

from dataclasses import dataclass
from typing import final

from typing_extensions import override

from directgp.errors import UnsupportedError
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import ClosedFormMedian
from directgp.objectives.base import DeterministicLoss, Values


@final
@dataclass(frozen=True)
class AbsoluteLoss(DeterministicLoss):
    """The distance of y from ŷ, the predictive median: μ for a Gaussian."""

    name = "absolute_loss"

    @override
    def uses_variance(self, likelihood: Likelihood) -> bool:
        return False

    @override
    def check(self, likelihood: Likelihood) -> None:
        _with_median(likelihood)

    @override
    def _evaluate(
        self, likelihood: Likelihood, y: Values, mean: Values, variance: Values
    ) -> Values:
        return (y - _with_median(likelihood).predictive_median(mean, variance)).abs()


def _with_median(likelihood: Likelihood) -> ClosedFormMedian:
    """The likelihood, refused where it lacks the median."""
    if isinstance(likelihood, ClosedFormMedian):
        return likelihood
    raise UnsupportedError(
        f"AbsoluteLoss needs a likelihood with a closed-form predictive median. Got "
        f"{type(likelihood).__name__}. Use Gaussian, or log_loss."
    )

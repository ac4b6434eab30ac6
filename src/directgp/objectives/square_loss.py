"""Square-loss DLM: half the squared error of the predictive mean."""

from dataclasses import dataclass
from typing import final

from typing_extensions import override

from directgp.errors import UnsupportedError
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import ClosedFormMoments
from directgp.likelihoods.gaussian import GaussianNoise
from directgp.likelihoods.student_t import StudentTNoise
from directgp.objectives.base import DeterministicLoss, Values


@final
@dataclass(frozen=True)
class SquareLoss(DeterministicLoss):
    """½(ŷ − y)² with ŷ = E[y], the predictive mean: μ for a Gaussian, e^{μ+v/2} for counts."""

    name = "square_loss"

    @override
    def uses_variance(self, likelihood: Likelihood) -> bool:
        return not isinstance(likelihood, GaussianNoise)

    @override
    def check(self, likelihood: Likelihood) -> None:
        _with_mean(likelihood)

    @override
    def _evaluate(
        self, likelihood: Likelihood, y: Values, mean: Values, variance: Values
    ) -> Values:
        return 0.5 * (_with_mean(likelihood).predictive_mean(mean, variance) - y) ** 2


def _with_mean(likelihood: Likelihood) -> ClosedFormMoments:
    """The likelihood, refused where the loss cannot serve it."""
    if isinstance(likelihood, StudentTNoise):
        raise UnsupportedError(
            "SquareLoss does not see Student's t noise, neither its scale nor its tails. Got "
            "StudentT. Use Gaussian, or log_loss."
        )
    if isinstance(likelihood, ClosedFormMoments):
        return likelihood
    raise UnsupportedError(
        f"SquareLoss needs a likelihood with a closed-form predictive mean. Got "
        f"{type(likelihood).__name__}. Use Probit for labels, Poisson(link='exp') for "
        f"counts, or log_loss."
    )

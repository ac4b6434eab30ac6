"""CRPS DLM: the continuous ranked probability score of the predictive distribution."""

from dataclasses import dataclass
from typing import final

from typing_extensions import override

from directgp.errors import UnsupportedError
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import ClosedFormCRPS
from directgp.objectives.base import DeterministicLoss, Values


@final
@dataclass(frozen=True)
class CRPSLoss(DeterministicLoss):
    """∫ (F(t) − 1{y ≤ t})² dt with F the predictive distribution function, in the units of y.

    For a Gaussian it is s(z(2Φ(z) − 1) + 2φ(z) − 1/√π) with s = √(v + σ²), z = (y − μ)/s: a far
    target costs its distance, where the log loss charges the square (Gneiting and Raftery, 2007).

    Examples
    --------
    >>> import torch
    >>> from directgp import Marginals
    >>> from directgp.likelihoods import Gaussian
    >>> q = Marginals(torch.zeros(2), torch.full((2,), 0.5))
    >>> CRPSLoss()(Gaussian(0.5), torch.tensor([0.0, 100.0]), q).detach()
    tensor([ 0.2337, 99.4358])
    """

    name = "crps"

    @override
    def check(self, likelihood: Likelihood) -> None:
        _with_crps(likelihood)

    @override
    def _evaluate(
        self, likelihood: Likelihood, y: Values, mean: Values, variance: Values
    ) -> Values:
        return _with_crps(likelihood).predictive_crps(y, mean, variance)


def _with_crps(likelihood: Likelihood) -> ClosedFormCRPS:
    """The likelihood, refused where it lacks the score."""
    if isinstance(likelihood, ClosedFormCRPS):
        return likelihood
    raise UnsupportedError(
        f"CRPSLoss needs a likelihood with a closed-form CRPS. Got {type(likelihood).__name__}. "
        f"Use Gaussian, or log_loss."
    )

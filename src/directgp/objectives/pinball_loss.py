"""Pinball-loss DLM: the loss whose best prediction is a quantile."""

from dataclasses import dataclass
from typing import final

import torch
from typing_extensions import override

from directgp.errors import UnsupportedError, require
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import ClosedFormQuantiles
from directgp.objectives.base import DeterministicLoss, Values


@final
@dataclass(frozen=True)
class PinballLoss(DeterministicLoss):
    """ρ_τ(y − ŷ) with ŷ the predictive τ-quantile and ρ_τ(r) = max(τr, (τ−1)r).

    A target above ŷ costs τ a unit, one below it 1 − τ. At τ = ½ it is half the absolute loss.

    Parameters
    ----------
    level : float
        τ, strictly between 0 and 1.

    Examples
    --------
    >>> import torch
    >>> from directgp import Marginals
    >>> from directgp.likelihoods import Gaussian
    >>> q = Marginals(torch.zeros(2), torch.zeros(2))
    >>> PinballLoss(level=0.9)(Gaussian(1.0), torch.tensor([2.2816, 0.2816]), q).detach()
    tensor([0.9000, 0.1000])
    """

    level: float = 0.5

    name = "pinball_loss"

    def __post_init__(self) -> None:
        """Refuse a level that is none."""
        inside = 0 < self.level < 1
        require(inside, "level of PinballLoss", "strictly between 0 and 1", self.level)

    @override
    def uses_variance(self, likelihood: Likelihood) -> bool:
        return self.level != 0.5

    @override
    def check(self, likelihood: Likelihood) -> None:
        _with_quantiles(likelihood)

    @override
    def _evaluate(
        self, likelihood: Likelihood, y: Values, mean: Values, variance: Values
    ) -> Values:
        level = torch.full_like(mean, self.level)
        residual = y - _with_quantiles(likelihood).predictive_quantile(level, mean, variance)
        return torch.maximum(self.level * residual, (self.level - 1) * residual)


def _with_quantiles(likelihood: Likelihood) -> ClosedFormQuantiles:
    """The likelihood, refused where it lacks quantiles."""
    if isinstance(likelihood, ClosedFormQuantiles):
        return likelihood
    raise UnsupportedError(
        f"PinballLoss needs a likelihood with closed-form predictive quantiles. Got "
        f"{type(likelihood).__name__}. Use Gaussian, or log_loss."
    )

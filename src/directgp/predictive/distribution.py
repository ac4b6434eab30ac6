"""What a predictive distribution answers, and the two families that need no integral."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import ClosedFormQuantiles
from directgp.predictive.moments import label_probability

Values = Float[Tensor, "..."]

_ROUNDING = 2e-11


class Distribution(ABC):
    """The distribution of y for q(f) = N(mean, variance), in float64."""

    @abstractmethod
    def cdf(self, y: Values) -> Values:
        """P(Y ≤ y)."""

    @abstractmethod
    def quantile(self, level: Values) -> Values:
        """The smallest y with P(Y ≤ y) ≥ level."""


def forgiving(level: Values) -> Values:
    """A level lowered by the rounding of a distribution function, so that a tie counts as reached.

    Ties are common: a fair coin has P(Y ≤ 0) = ½, and its median is 0.
    """
    return level - _ROUNDING * torch.minimum(level, 1 - level)


@final
@dataclass(frozen=True)
class FormulaDistribution(Distribution):
    """Both ways by the likelihood's own formulas."""

    likelihood: ClosedFormQuantiles
    mean: Values
    variance: Values

    @override
    def cdf(self, y: Values) -> Values:
        return self.likelihood.predictive_cdf(y, self.mean, self.variance)

    @override
    def quantile(self, level: Values) -> Values:
        return self.likelihood.predictive_quantile(level, self.mean, self.variance)


@final
@dataclass(frozen=True)
class LabelDistribution(Distribution):
    """Two labels: the distribution function steps at 0 and at 1."""

    likelihood: Likelihood
    mean: Values
    variance: Values

    @override
    def cdf(self, y: Values) -> Values:
        below_one = torch.where(y < 0, 0.0, self._zero())
        return torch.where(y < 1, below_one, 1.0)

    @override
    def quantile(self, level: Values) -> Values:
        return (self._zero() < forgiving(level)).double()

    def _zero(self) -> Values:
        """P(Y = 0)."""
        return label_probability(self.likelihood, 0.0, self.mean, self.variance)

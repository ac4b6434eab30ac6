"""Define the base of the predictive distributions."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from directgp.shapes import Values


@dataclass(frozen=True)
class Distribution(ABC):
    """The distribution of y for q(f) = N(mean, variance), in float64.

    `distribution_of` chooses the class by the capabilities of the likelihood.
    """

    likelihood: Any
    mean: Values
    variance: Values

    @abstractmethod
    def cdf(self, y: Values) -> Values:
        """Return P(Y ≤ y)."""

    def tail(self, y: Values, above: bool) -> Values:
        """Return P(Y > y) if `above`, else P(Y ≤ y), with the digits of small values if known."""
        below = self.cdf(y)
        return 1 - below if above else below

    @abstractmethod
    def quantile(self, level: Values) -> Values:
        """Return the smallest y with P(Y ≤ y) ≥ level."""

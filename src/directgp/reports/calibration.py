"""How far probabilities are from how often things came, in numbers."""

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def pit_bars(below: Array, up_to: Array, bins: int) -> Array:
    """Heights of the non-randomised PIT histogram, shape (bins,): all 1 if calibrated.

    Each row spreads its weight evenly from P(Y < y) to P(Y ≤ y) (Czado, Gneiting and Held, 2009);
    where the two are equal this is the usual histogram.
    """
    edges = np.linspace(0, 1, bins + 1)[1:-1, None]
    reached = (edges >= up_to).astype(np.float64)
    within = (edges > below) & (edges < up_to)
    np.divide(edges - below, up_to - below, out=reached, where=within)
    return np.asarray(np.diff(reached.mean(1), prepend=0.0, append=1.0) * bins)


@final
@dataclass(frozen=True)
class Reliability:
    """Predicted probabilities in bins of equal width; empty bins left out."""

    count: Array
    predicted: Array
    """Mean probability in each bin."""

    observed: Array
    """Share of ones in each bin."""

    @property
    def expected_error(self) -> float:
        """Mean distance of the two, weighted by counts."""
        distance = np.abs(self.predicted - self.observed)
        return float(np.average(distance, weights=self.count))

    def error_by_chance(self, times: float = 1.0) -> float:
        """What the expected error of right probabilities seldom exceeds.

        The distance of a bin is |N(0, σ²)| with σ² = p(1 − p)/n: this is the mean of their sum, and
        two of its standard deviations more. Rows that come several times, as in repeats that share
        them, tell less: σ² grows by `times`.
        """
        share = self.count / self.count.sum()
        spread = self.predicted * (1 - self.predicted)
        part = share * np.sqrt(times * spread / self.count)
        mean, variance = math.sqrt(2 / math.pi) * part.sum(), (1 - 2 / math.pi) * (part**2).sum()
        return float(mean + 2 * math.sqrt(variance))


def reliability(ones: Array, probability: Array, bins: int = 10) -> Reliability:
    """How often a one came for each predicted probability."""
    index = np.minimum((probability * bins).astype(int), bins - 1)
    count = np.bincount(index, minlength=bins).astype(np.float64)
    kept = count > 0
    sums = (np.bincount(index, weights=each, minlength=bins) for each in (probability, ones))
    predicted, observed = (each[kept] / count[kept] for each in sums)
    return Reliability(count[kept], predicted, observed)

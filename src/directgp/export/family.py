"""Evaluate the likelihood of a fitted model for tables of its predictions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from directgp.export.latents import Latent
from directgp.export.program import Value
from directgp.export.tables import Axis, Interpolant, tabulate
from directgp.likelihoods.base import Likelihood
from directgp.shapes import Marginals

TOLERANCE = 1e-8
"""Error of the tables: of logs, or in units of scaled targets."""

Outputs = dict[str, Value]
"""Maps the name of an output to its value."""

Rows = Float64[np.ndarray, "j k"]
"""j values at k points."""

Evaluate = Callable[[Likelihood, Marginals], Sequence[Tensor]]
"""A function of the library, from marginals of f to values at each."""


@dataclass(frozen=True)
class TargetFamily:
    """The likelihood of a fitted model for rows of one constant, and the units of its targets."""

    likelihood: Likelihood
    """The trained likelihood."""

    row_value: float | None
    """The constant of every row, in the units of training."""

    unit: float
    """Factor of the user's targets, unit·y + offset."""

    offset: float
    """Offset of the user's targets."""

    levels: tuple[float, ...]
    """Levels of the quantiles."""

    def evaluate(
        self, function: Evaluate, mean: np.ndarray[Any, Any], variance: np.ndarray[Any, Any]
    ) -> Rows:
        """Return values of the library for marginals of shape (k,), or (P, k) for P latents."""
        with torch.no_grad():
            q = Marginals(torch.from_numpy(mean), torch.from_numpy(variance))
            results = function(self.for_rows(mean.shape[-1]), q)
            return np.stack([result.double().numpy() for result in results])

    def for_rows(self, rows: int) -> Likelihood:
        """Return the likelihood of this many rows."""
        if self.row_value is None:
            return self.likelihood
        values = torch.full((rows,), self.row_value, dtype=torch.float64)
        return self.likelihood.with_row_values(values)

    def in_units(self, y: Value) -> Value:
        """Return scaled targets in the units of the user."""
        return y * self.unit + self.offset


def table_over_f(family: TargetFamily, q: Latent, function: Evaluate) -> Interpolant:
    """Tabulate over mean and deviation of f."""

    def values(mean: Any, deviation: Any) -> Rows:
        return family.evaluate(function, mean, deviation**2)

    axes = Axis(q.lower, q.upper), Axis(0.0, q.largest_deviation)
    return tabulate(values, axes, TOLERANCE)


def deviation_of_gaussian(family: TargetFamily, q: Latent) -> Value:
    """Return √(v + σ²), the deviation of scaled targets with Gaussian noise."""
    one = torch.zeros(1, dtype=torch.float64)
    with torch.no_grad():
        noise = float(family.for_rows(1).conditional_variance(one)[0])
    return (q.variance + noise).sqrt()

"""Write mean, standard deviation and quantiles of counts as a program."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from directgp.errors import UnsupportedError
from directgp.export.family import TOLERANCE, Outputs, Rows, TargetFamily, table_over_f
from directgp.export.latents import Latent
from directgp.export.program import Value, concatenate
from directgp.export.tables import Axis, Interpolant, tabulate
from directgp.integration.contract import has
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import BoundedCounts
from directgp.numerics.roots import OUTSIDE, increasing_root, rounded_down
from directgp.predictive import predictive_cdf, predictive_quantiles, predictive_variance
from directgp.predictive.api import point_prediction
from directgp.shapes import Marginals

_FARTHEST = 300.0
"""|f| beyond which no count changes."""

_EXPLICIT = 24
"""Number of counts whose thresholds are tabulated one by one."""

_RATIO = 1.2
"""Ratio of neighbouring large counts whose thresholds are computed."""

_NEIGHBOURS = 10
"""Number of computed thresholds between which a threshold is interpolated."""


def counts(family: TargetFamily, q: Latent) -> Outputs:
    """Mean and deviation by their logs, and quantiles."""

    def moments(likelihood: Likelihood, q: Marginals) -> Sequence[Tensor]:
        variance = predictive_variance(likelihood, q)
        return [point_prediction(likelihood, q).log(), 0.5 * variance.log()]

    moments_of_y = table_over_f(family, q, moments).evaluate(q.mean, q.deviation).exp()
    outputs = {"mean": moments_of_y.column(0), "std": moments_of_y.column(1)}
    if family.levels:
        columns = [_CountQuantile(family, level).written(q) for level in family.levels]
        outputs["quantiles"] = concatenate(columns)
    return outputs


@dataclass(frozen=True)
class _CountQuantile:
    """The quantile of a count, as a function of mean and deviation of f.

    It is above k where the mean of f is above t_k(s), at which P(Y ≤ k) falls to the level. A table
    has t_k for small k, and the quantile is the number of thresholds below the mean. Beyond the
    last threshold another table has log κ, with t_κ interpolated between whole numbers; the
    quantile is κ rounded up.
    """

    family: TargetFamily
    """The likelihood and the units of its targets."""

    level: float
    """Level of the quantile."""

    def written(self, q: Latent) -> Value:
        """Return the quantile as a program."""
        spread = q.largest_deviation * np.linspace(1e-3, 1.0, 17)
        self._check_order(q)
        largest = int(self._quantiles(np.full_like(spread, q.upper), spread).max())
        if largest == 0:
            return 0.0 * q.mean
        # Tabulate every count if there is a largest one: near it t_k is not smooth in k.
        bounded = has(self.family.likelihood, BoundedCounts)
        number = largest if bounded else min(largest, _EXPLICIT)
        s = q.deviation
        axis = Axis(0.0, q.largest_deviation)
        table = tabulate(lambda s: self.thresholds(np.arange(float(number)), s), [axis], TOLERANCE)
        explicit = table.count_below(q.mean, s)
        if number == largest:
            return explicit
        last = Interpolant(table.axes, table.coefficients[:, -1:])
        (ends,) = self.thresholds(np.array([number - 1.0]), spread)
        farthest = q.upper - ends.min()
        # Cover a rectangle, which includes means of f beyond their bound.
        reached = self._quantiles(ends + farthest, spread).max()
        counts = _growing(number - 1, int(reached))

        def log_count(beyond: Any, s: Any) -> Rows:
            values, rows = np.unique(s, return_inverse=True)
            all_thresholds = self.thresholds(counts, values)
            logs: Rows = np.empty((1, len(beyond)))
            for i, thresholds in enumerate(all_thresholds.T):
                members = rows == i
                logs[0, members] = _interpolate(
                    thresholds, np.log(counts), thresholds[0] + beyond[members]
                )
            return logs

        beyond = q.mean - last.evaluate(s)
        # Bend the axis where a deviation of f begins to matter, at about 1/√κ.
        bends = [ratio / math.sqrt(reached) for ratio in (0.3, 3.0, 30.0)]
        far = tabulate(log_count, [Axis(0.0, farthest), axis], TOLERANCE, bends)
        large = 0.0 - (0.0 - far.evaluate(beyond.maximum(0.0), s).exp()).floor()
        return (beyond > 0.0).where(large, explicit)

    def _check_order(self, q: Latent) -> None:
        """Raise `UnsupportedError` unless counts grow with f, as those of directgp do."""
        mean = np.linspace(q.lower, q.upper, 33)

        def below(likelihood: Likelihood, q: Marginals) -> Sequence[Tensor]:
            return [predictive_cdf(likelihood, torch.zeros_like(q.mean), q)]

        (chances,) = self.family.evaluate(below, mean, np.full_like(mean, q.largest_variance))
        if (np.diff(chances) > 1e-9).any():
            raise UnsupportedError(
                f"Quantiles of {type(self.family.likelihood).__name__} are not exported, because "
                "its counts do not grow with f. Export with levels=()."
            )

    def _quantiles(self, mean: Any, s: Any) -> Any:
        def quantiles(likelihood: Likelihood, q: Marginals) -> Sequence[Tensor]:
            return list(predictive_quantiles(likelihood, q, [self.level]))

        return self.family.evaluate(quantiles, mean, s**2)[0]

    def thresholds(self, counts: Any, s: Any) -> Rows:
        """Return t_k(s), one row for each count."""
        k, deviations = (grid.reshape(-1) for grid in np.meshgrid(counts, s, indexing="ij"))
        target = rounded_down(torch.tensor(self.level, dtype=torch.float64))
        probit = torch.special.ndtri(target)

        def fallen(index: Tensor, mean: Tensor) -> Tensor:
            rows = index.numpy()

            def below(likelihood: Likelihood, q: Marginals) -> Sequence[Tensor]:
                return [predictive_cdf(likelihood, torch.from_numpy(k[rows]), q)]

            (value,) = self.family.evaluate(below, mean.numpy(), deviations[rows] ** 2)
            gap: Tensor = probit - torch.special.ndtri(torch.from_numpy(value))
            return gap.clamp(-OUTSIDE, OUTSIDE)

        start = np.log(k + 0.5) - float(probit) * np.sqrt(deviations**2 + 1 / (k + 1))
        step = torch.full((len(k),), 0.2, dtype=torch.float64)
        roots = increasing_root(fallen, torch.from_numpy(start), step, _FARTHEST)
        return roots.reshape(len(counts), len(s)).numpy()


def _growing(first: int, last: int) -> Float64[np.ndarray, " k"]:
    """Return whole numbers from the first to well beyond the last, in growing steps."""
    number = math.ceil(math.log(last / first) / math.log(_RATIO)) + 2
    return np.unique(np.round(first * _RATIO ** np.arange(max(number, 2 * _NEIGHBOURS))))


def _interpolate(x: Any, y: Any, at: Any) -> Any:
    """Interpolate y(x) by the polynomial through the nearest of increasing x."""
    first = np.clip(np.searchsorted(x, at) - _NEIGHBOURS // 2, 0, len(x) - _NEIGHBOURS)
    rows = first[:, None] + np.arange(_NEIGHBOURS)
    nodes = x[rows] - at[:, None]
    values = y[rows]
    # Neville's scheme at 0.
    for size in range(1, _NEIGHBOURS):
        left = nodes[:, :-size]
        right = nodes[:, size:]
        values = (right * values[:, :-1] - left * values[:, 1:]) / (right - left)
    return values[:, 0]

"""Seasons: Periodic."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.errors import refuse, require
from directgp.kernels.columns import ColumnFacts
from directgp.kernels.expression import ColumnName
from directgp.kernels.parts.base import Evaluation, Link, Part, PartGradient, Values
from directgp.numerics.arrays import Array, exp_in_place, library_of, limit_to_zero, special_of

# With φ = 2πa/p, ψ = 2πb/p and z = 1/ℓ²,
#
# e = exp(−z (1 − cos(φ − ψ))),     κ = (e − c)/(1 − c),     c = e^−z I₀(z), the mean of e
#
# so that the mean of a function over a period is 0: levels and trends belong to other parts.
# Products of (cos φ, sin φ) and (cos ψ, sin ψ) give cos(φ − ψ) and sin(φ − ψ), without a sine of
# each pair. For the gradient G in κ and W = z G ∘ e/(1 − c):
#
# d log ℓ = 2 ΣW ∘ (1 − cos(φ − ψ)) + 2z c′ ΣG ∘ (1 − κ)/(1 − c),     c′ = dc/dz = e^−z (I₁ − I₀)

_DAYS = {"y": 365.2425, "q": 365.2425 / 4, "mo": 365.2425 / 12, "w": 7.0, "d": 1.0}
"""Days of the units of a period: year, quarter, month, week, day."""

_UNITS = {**_DAYS, "h": 1 / 24, "min": 1 / 1440, "s": 1 / 86400}


def period_in_days(text: str) -> float:
    """Return the days of a period such as "1y", "3mo", "2w", "1d" or "12h"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)?\s*([a-z]+)\s*", text)
    number = float(match[1] or 1) if match else 0.0
    if match is None or match[2] not in _UNITS or not number > 0:
        allowed = f"a number and one of {', '.join(_UNITS)}, such as '1y' or '12h'"
        refuse("period of Periodic", allowed, repr(text))
    return number * _UNITS[match[2]]


@final
class Periodic(Part):
    """Functions that repeat after each period, with the mean 0 over a period.

    The covariance is exp(−2 sin²(π(x − x′)/period)/ℓ²), less its mean and scaled to 1 at x = x′;
    for long ℓ it is a cosine. The period is in the unit of the column, or a text such as "1y",
    "1mo", "1w", "1d", "12h" for a column of dates. A given period is not trained; without one it
    starts at the range of the column and is trained.
    """

    parameters: ClassVar[Mapping[str, Link]] = {"lengthscale": "positive", "period": "positive"}
    least_columns = 1
    most_columns = 1

    def __init__(self, column: ColumnName, *, period: float | str | None = None) -> None:
        super().__init__(column)
        if isinstance(period, str):
            period_in_days(period)
        elif period is not None:
            number = isinstance(period, int | float) and not isinstance(period, bool)
            valid = number and bool(0 < period < math.inf)
            allowed = "a positive number, or a text such as '1y'"
            require(valid, "period of Periodic", allowed, repr(period))
        self.period = period

    @override
    def check(self, columns: Sequence[ColumnFacts]) -> None:
        super().check(columns)
        if isinstance(self.period, str):
            (column,) = columns
            who = f"period of Periodic({column.name!r})"
            allowed = "a number for a column that is not of dates"
            require(column.unit == "days", who, allowed, repr(self.period))

    @property
    @override
    def trained(self) -> tuple[str, ...]:
        return ("lengthscale", "period") if self.period is None else ("lengthscale",)

    @property
    @override
    def fixed(self) -> tuple[str, ...]:
        return () if self.period is None else ("period",)

    @override
    def start(
        self, X: Float[Tensor, "n k"], columns: Sequence[ColumnFacts]
    ) -> dict[str, Float[Tensor, "..."]]:
        (column,) = columns
        if self.period is None:
            period = float(X.max() - X.min()) or 1.0
        else:
            text = isinstance(self.period, str)
            number = period_in_days(str(self.period)) if text else float(self.period)
            period = number / abs(column.scale)
        return {"lengthscale": X.new_ones(1), "period": X.new_tensor([period])}

    @override
    def covariance(
        self, a: Float[Tensor, "*#batch m k"], b: Float[Tensor, "*#batch n k"], values: Values
    ) -> Float[Tensor, "*batch m n"]:
        sine = torch.sin(math.pi * (a - b.mT) / values["period"])
        lengthscale = values["lengthscale"]
        mean = torch.special.i0e(1 / lengthscale**2)
        e = torch.exp(-2 * (sine / lengthscale).square())
        covariance: Tensor = (e - mean) / (1 - mean)
        return covariance

    @override
    def evaluate(self, a: Array, b: Array, values: Values, exact: bool) -> Evaluation:
        xp = library_of(b)
        lengthscale = values["lengthscale"]
        period = values["period"]
        turn = 2 * math.pi / period
        phase_a = a * turn
        phase_b = b * turn
        cos_a = xp.cos(phase_a)
        sin_a = xp.sin(phase_a)
        cos_b = xp.cos(phase_b)
        sin_b = xp.sin(phase_b)
        right = xp.concatenate([cos_b, sin_b], -1)
        cosine = xp.matmul(xp.concatenate([cos_a, sin_a], -1), right.swapaxes(-1, -2))
        z = 1 / lengthscale**2
        cosine -= 1.0
        cosine *= z
        # Rounding may give a cosine above 1.
        e = exp_in_place(limit_to_zero(cosine))
        special = special_of(b)
        mean = special.i0e(z)
        K = (e - mean) / (1 - mean)

        def backward(G: Array) -> PartGradient:
            W = G * e * (z / (1 - mean))
            columns = xp.concatenate([right, b * right], -1)
            by_cos, by_sin, moved_cos, moved_sin = (
                part[..., None] for part in xp.moveaxis(xp.matmul(W, columns), -1, 0)
            )
            # Σ_j W_ij sin(φ_i − ψ_j)
            sines = sin_a * by_cos - cos_a * by_sin
            cosines = (cos_a * by_cos + sin_a * by_sin).sum(-2)[..., None, :]
            total = W.sum(-1).sum(-1)[..., None, None]
            by_mean = (G * (1 - K)).sum(-1).sum(-1)[..., None, None] / (1 - mean)
            by_log = 2 * (total - cosines) + 2 * z * (special.i1e(z) - mean) * by_mean
            gradients = {"lengthscale": by_log / lengthscale}
            if "period" in self.trained:
                gaps = a * sines - (sin_a * moved_cos - cos_a * moved_sin)
                gradients["period"] = turn / period * gaps.sum(-2)[..., None, :]
            return PartGradient(-turn * sines, gradients)

        return Evaluation(K, backward)

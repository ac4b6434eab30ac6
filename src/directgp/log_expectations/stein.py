"""Control variates for slopes from draws of q̃, with coefficients from a few nodes.

With s(f) = ℓ′(f) − (f−μ)/v, the slope of log q̃, Stein's identity says E_q̃[ψ′ + ψ·s] = 0 for every
smooth ψ. In x = (f−f̂)/τ, measured from the peak in its width, ψ = 1 and ψ = x give

    c₁ = τ·s,   c₂ = 1 + x·τ·s,

and subtracting any multiple of them from an unbiased slope leaves it unbiased. The multiples are
those of a least-squares fit of the slope over q̃, done on nodes: they do not see the draw.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.log_expectations.product_density import Peak

Values = Float[Tensor, "..."]
Points = Float[Tensor, "k ..."]

_RIDGE = 1e-3
"""Keeps the fit tame where so few nodes carry weight that they cannot tell c₁ from c₂."""


class Variates(NamedTuple):
    """c₁ and c₂ at some points."""

    first: Points
    second: Points


def variates(delta: Points, slope: Points, variance: Values, peak: Peak) -> Variates:
    """The control variates at f = μ + δ, given ℓ′(f)."""
    tilt = torch.addcmul(slope, delta, 1 / variance, value=-1)
    return Variates(peak.width * tilt, (delta - peak.delta).mul_(tilt).add_(1))


class Fit(NamedTuple):
    """Least-squares coefficients of a slope on c₁ and c₂."""

    first: Values
    second: Values

    def reduce(self, slope: Points, at: Variates) -> Points:
        """The slope less its fitted multiples of the control variates."""
        return slope - self.first * at.first - self.second * at.second


def fit(slopes: tuple[Points, Points], at: Variates, weights: Points) -> tuple[Fit, Fit]:
    """Fits of both slopes over nodes whose weights sum to 1."""
    weighted = Variates(weights * at.first, weights * at.second)
    m11 = (1 + _RIDGE) * (weighted.first * at.first).sum(0)
    m12 = (weighted.first * at.second).sum(0)
    m22 = (1 + _RIDGE) * (weighted.second * at.second).sum(0)
    determinant = m11 * m22 - m12 * m12

    def one(slope: Points) -> Fit:
        # Any constant would do, since the variates average to 0; this one spares digits.
        centred = slope - slope[len(slope) // 2]
        r1, r2 = (weighted.first * centred).sum(0), (weighted.second * centred).sum(0)
        return Fit((r1 * m22 - r2 * m12) / determinant, (r2 * m11 - r1 * m12) / determinant)

    return one(slopes[0]), one(slopes[1])

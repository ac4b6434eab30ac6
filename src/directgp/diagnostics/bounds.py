"""Bounds of φ = p(y given f) and of its first two derivatives in f."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.likelihoods import Likelihood

Values = Float[Tensor, "..."]


@dataclass(frozen=True)
class DerivativeBounds:
    """0 ≤ φ ≤ B, b′ ≤ φ′ ≤ B′ and b″ ≤ φ″ ≤ B″ for every f, one set of numbers for each target."""

    density_upper: Float[Tensor, "*shape"]
    """B."""

    slope_lower: Float[Tensor, "*shape"]
    """b′."""

    slope_upper: Float[Tensor, "*shape"]
    """B′."""

    curvature_lower: Float[Tensor, "*shape"]
    """b″."""

    curvature_upper: Float[Tensor, "*shape"]
    """B″."""

    @property
    def slope_range(self) -> Float[Tensor, "..."]:
        """B′ − b′."""
        return self.slope_upper - self.slope_lower

    @property
    def curvature_range(self) -> Float[Tensor, "..."]:
        """B″ − b″."""
        return self.curvature_upper - self.curvature_lower

    def stacked(self) -> Float[Tensor, "5 ..."]:
        """B, b′, B′, b″, B″ along a new first axis."""
        slopes = [self.slope_lower, self.slope_upper]
        curvatures = [self.curvature_lower, self.curvature_upper]
        return torch.stack([self.density_upper, *slopes, *curvatures])


def density_derivatives(
    likelihood: Likelihood, y: Values, f: Values
) -> tuple[Values, Values, Values]:
    """φ = e^ℓ, φ′ = ℓ′ e^ℓ and φ″ = (ℓ″ + ℓ′²) e^ℓ, the products taken in log space."""
    kernel, first, second = likelihood.derivatives(y, f)
    log_density = kernel + likelihood.log_base(y)
    return (
        torch.exp(log_density),
        _times_exp(first, log_density),
        _times_exp(second + first**2, log_density),
    )


def _times_exp(factor: Values, exponent: Values) -> Values:
    """Multiply by e^exponent, which is 0 for exponent −∞ whatever the factor."""
    product = torch.sign(factor) * torch.exp(torch.log(torch.abs(factor)) + exponent)
    return torch.where(exponent == -torch.inf, 0.0, product)

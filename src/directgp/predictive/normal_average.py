"""Averages over q(f) = N(μ, v) by a trapezoid sum."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

Values = Float[Tensor, "..."]


def normal_average(
    function: Callable[[Values], Values],
    mean: Values,
    variance: Values,
    number: int,
    reach: float,
) -> Values:
    """E_q[function(f)] over equal steps in (f − μ)/√v; differentiable."""
    z = (torch.arange(number, dtype=mean.dtype, device=mean.device) + 0.5) / number
    z = (reach * (2 * z - 1)).reshape(-1, *([1] * mean.dim()))
    weight = torch.exp(-0.5 * z**2)
    return (weight * function(mean + torch.sqrt(variance) * z)).sum(0) / weight.sum()

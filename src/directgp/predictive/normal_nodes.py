"""Averages over q(f) = N(μ, v) by a trapezoid sum."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.log_expectations.nodes import trapezoid_step

Values = Float[Tensor, "..."]


def normal_nodes_needed(variance: Values, width: Values, strip: float, reach: float) -> Values:
    """Nodes for E_q[g] where g varies on a scale of `width`, from μ − reach·√v to μ + reach·√v."""
    narrowest = torch.rsqrt(1 / variance + 1 / width**2)
    return 2 * reach * torch.sqrt(variance) / trapezoid_step(narrowest, strip)


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

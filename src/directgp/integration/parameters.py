"""Differentiate integrals in the parameters of a density, without a graph where it has formulas."""

from typing import Any, cast

import torch
from torch import Tensor

from directgp.integration.capabilities import LinearSlopes, ParameterSlopes, has
from directgp.integration.contract import Density
from directgp.numerics.autograd import Slopes
from directgp.shapes import LatentPoints, Points, Row, Values


def linear_slopes(density: Density) -> LinearSlopes | None:
    """Return the density, if its slopes in the constants are linear in f, ℓ and ℓ′."""
    if not has(density, LinearSlopes):
        return None
    linear = cast(LinearSlopes, density)
    return linear if linear.has_linear_slopes() else None


def average_slopes(density: Density, y: Row, f: LatentPoints, weights: Points) -> Slopes:
    """Return Σ_k w_k `parameter_slopes` (y, f_k); () if no constant needs a gradient.

    Without `parameter_slopes` it is Σ_k w_k log p(y given f_k), with a graph. By Fisher's identity
    ∂_θ log E_q[p] = E_q̃[∂_θ log p(y given f)], with f_k and w_k standing for q̃.
    """
    if not density.learned():
        return ()
    slopes = None
    if has(density, ParameterSlopes):
        slopes = cast(ParameterSlopes, density).parameter_slopes(y, f)
    if slopes is not None:
        return tuple((weights * slope).sum(0) for slope in slopes)
    with torch.enable_grad():
        kernel = (weights * density.log_kernel(y, f)).sum(0)
        term = kernel + weights.sum(0) * density.log_base(y)
    return (term,) if term.requires_grad else ()


def parameter_gradient(density: Any, slopes: Slopes, grad: Values | float) -> tuple[Tensor, ...]:
    """Return Σ_i grad_i·∂value_i/∂ρ for each learned ρ, given `average_slopes`."""
    learned: list[Tensor] = density.learned()
    if not learned or not slopes:
        return tuple(torch.zeros_like(constant) for constant in learned)
    if slopes[0].requires_grad:
        seed = grad * torch.ones_like(slopes[0])
        options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        return torch.autograd.grad(slopes[0], learned, seed, **options)
    constants = (*density._parameters.items(), *density._buffers.items())
    return tuple(
        _chain(slope, grad, constant, name.startswith("raw_"))
        for slope, (name, constant) in zip(slopes, constants, strict=False)
        if constant is not None and constant.requires_grad
    )


def _chain(slopes: Values, grad: Values | float, constant: Tensor, raw: bool) -> Tensor:
    """Return the gradient in a raw parameter ρ from slopes in log(1 + e^ρ), or in a constant."""
    if constant.dim():
        total = (grad * slopes).sum_to_size(constant.shape)
    elif isinstance(grad, Tensor):
        total = (grad * slopes).sum()
    else:
        # `sum_to_size` is slow.
        total = slopes.sum().mul_(grad)
    if total.dtype != constant.dtype:
        total = total.to(constant.dtype)
    return total * torch.sigmoid(constant) if raw else total

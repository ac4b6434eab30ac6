"""Evaluate a method on examples of any shape, in blocks, with slopes as gradients."""

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Int
from torch import Tensor
from torch.autograd import Function

from directgp.errors import require
from directgp.integration.contract import (
    Density,
    Estimate,
    FlatExamples,
    IntegrationMethod,
    LinearSlopes,
    ParameterSlopes,
    has,
)
from directgp.numerics.autograd import Slopes, first_order
from directgp.numerics.fixed_sizes import recording
from directgp.shapes import BatchedRow, LatentPoints, Points, Row, Targets, Values


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
        return tuple((weights * without_overflow(weights, slope)[0]).sum(0) for slope in slopes)
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


Rows = tuple[Values, Values, Values]
"""Targets, means and variances: floating tensors of one shape.

With P latents targets have shape (..., n), and means and variances (..., P, n)."""


def of_one_shape(y: Targets, mean: Values, variance: Values, num_latent: int = 1) -> Rows:
    """Return floating targets and marginals, broadcast to one shape.

    Tensors that already have that shape are returned as they are, so that no node joins the graph.
    """
    target = y if y.is_floating_point() else y.double()
    if num_latent > 1:
        shape = tuple(mean.shape)
        fits = len(shape) >= 2 and shape[-2] == num_latent and variance.shape == mean.shape
        allowed = f"of one shape (..., {num_latent}, n), with an axis of latents"
        require(fits, "mean and variance of f", allowed, f"{shape} and {tuple(variance.shape)}")
        return target.expand(*shape[:-2], shape[-1]), mean, variance
    if target.shape == mean.shape == variance.shape:
        return target, mean, variance
    target, mean, variance = torch.broadcast_tensors(target, mean, variance)
    return target, mean, variance


def gather(parts: "list[tuple[Int[Tensor, ' _'], Slopes]]") -> Slopes:
    """Combine the columns of parts of the examples, given with their indices."""
    index = torch.cat([index for index, _ in parts])
    with torch.enable_grad():
        columns = [
            torch.cat(pieces, -1) for pieces in zip(*(part for _, part in parts), strict=True)
        ]
        return tuple(torch.empty_like(column).index_copy(-1, index, column) for column in columns)


def without_overflow(weights: LatentPoints, *slopes: LatentPoints) -> Slopes:
    """Replace slopes by 0 at points of weight 0 if the last one, the steepest, overflows."""
    # On a GPU this check would wait for the device, which costs more than it saves.
    last = slopes[-1]
    if not (last.is_cuda or recording()) and math.isfinite(last.sum()):
        return slopes
    weightless = weights == 0
    return tuple(slope.masked_fill(weightless, 0.0) for slope in slopes)


_CPU_ELEMENTS = 80_000
"""Elements of an array, 640 KB: the array stays in the cache and its memory is used again."""

_DEVICE_ELEMENTS = 1 << 27

_CPU_EXAMPLES = 8192
"""Examples of a block; more gain nothing, however few points each has."""


def rows_for(points: int, device: torch.device) -> int:
    """Return the block size for examples with this many points each."""
    if device.type != "cpu":
        return max(1, _DEVICE_ELEMENTS // points)
    return min(max(256, _CPU_ELEMENTS // points), _CPU_EXAMPLES)


def row_blocks(
    num_rows: int, points: int, device: torch.device
) -> list[tuple[slice, Int[Tensor, " r"]]]:
    """Return successive blocks of examples, each as a slice and as indices."""
    size = rows_for(points, device)
    index = torch.arange(num_rows, device=device)
    slices = [slice(start, start + size) for start in range(0, max(num_rows, 1), size)]
    return [(block, index[block]) for block in slices]


def estimate_rows(method: IntegrationMethod, likelihood: Density, rows: Rows) -> Slopes:
    """Return the columns of the estimate for examples of any shape and dtype, in float64.

    The number of points of the method for each example sets the block size.
    """
    shape = rows[0].shape
    number = rows[0].numel()
    device = rows[0].device
    with torch.no_grad():
        wide = [tensor.detach().double() for tensor in rows]
        if len(shape) != 1:
            wide = [_flat(row, shape) for row in wide]
            likelihood = likelihood.take(shape)
        examples = FlatExamples(likelihood, *wide)
        if number <= rows_for(method.points, device):
            estimate = method.estimate(examples)
        else:
            blocks = row_blocks(number, method.points, device)
            estimate = Estimate.join(method.estimate(examples.take(index)) for _, index in blocks)
    if len(shape) == 1:
        return estimate.columns
    with torch.enable_grad():
        return tuple(_unflat(column, shape) for column in estimate.columns)


def _flat(row: Values, shape: torch.Size) -> BatchedRow:
    """Return examples of this shape along one axis, after that of the latents if there is one."""
    return row.reshape(-1) if row.shape == shape else row.movedim(-2, 0).flatten(1)


def _unflat(column: BatchedRow, shape: torch.Size) -> Values:
    """Undo `_flat`."""
    if column.dim() == 1:
        return column.reshape(shape)
    return column.reshape(len(column), *shape).movedim(0, -2)


def per_latent(values: Values, template: Values) -> Values:
    """Return values of examples with an axis of latents, if the template has one more axis."""
    return values if values.dim() == template.dim() else values.unsqueeze(-2)


def evaluate(method: IntegrationMethod, likelihood: Density, rows: Rows) -> Values:
    """Return the values of `estimate_rows`, with its slopes as gradients, in the mean's dtype."""
    if not torch.is_grad_enabled():
        likelihood = likelihood.frozen()
    slopes = estimate_rows(method, likelihood, rows)
    apply: Callable[..., Tensor] = _Attach.apply
    return apply(slopes, likelihood, *rows[1:], *likelihood.learned())


class _Attach(Function):
    """The value of an estimate, with its slopes as first derivatives; there are no second ones."""

    @staticmethod
    def forward(
        ctx: Any, slopes: Slopes, likelihood: Density, mean: Tensor, *others: Tensor
    ) -> Tensor:
        ctx.likelihood = likelihood
        ctx.parameters = slopes[3:]
        ctx.slopes = [slope.to(mean.dtype) for slope in slopes[1:3]]
        return slopes[0].to(mean.dtype, copy=True)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        shares = parameter_gradient(ctx.likelihood, ctx.parameters, grad.double())
        products = (per_latent(grad, slope) * slope for slope in ctx.slopes)
        return None, None, *products, *shares

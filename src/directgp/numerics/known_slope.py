"""Elementwise functions whose derivative is written by hand."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

__all__ = ["Elementwise", "with_slope"]

Elementwise = Callable[[Tensor], Tensor]


def with_slope(x: Tensor, value: Elementwise, slope: Elementwise) -> Tensor:
    """Evaluate ``value(x)`` and let autograd use ``slope(x)`` as its derivative.

    Differentiable as often as `slope` is; works under `torch.func` transforms.
    """
    transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    if not transformed and not (x.requires_grad and torch.is_grad_enabled()):
        return value(x)
    # One that works under transforms takes longer to call than most values to compute.
    apply: Callable[..., Tensor] = (_KnownSlope if transformed else _Plain).apply
    return apply(x, value, slope)


class _Plain(Function):
    """The chain rule with a given derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Elementwise, slope: Elementwise) -> Tensor:
        ctx.slope = slope
        ctx.save_for_backward(x)
        return value(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return grads[0] * ctx.slope(x), None, None


class _KnownSlope(Function):
    """The chain rule with a given derivative, in reverse and in forward mode."""

    @staticmethod
    def forward(x: Tensor, value: Elementwise, slope: Elementwise) -> Tensor:
        return value(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, _, ctx.slope = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return grads[0] * ctx.slope(x), None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, *functions: Elementwise
    ) -> tuple[Tensor, int | None]:
        # An elementwise function needs no batching rule of the operations inside it, and some
        # (torch.special.log_ndtr) have none.
        return with_slope(x, *functions), in_dims[0]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        (x,) = ctx.saved_tensors
        tangent: Tensor = tangents[0] * ctx.slope(x)
        return tangent

"""Helpers for autograd functions with hand-written gradients."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from directgp.errors import UnsupportedError

Gradients = tuple[Tensor | None, ...]
"""Gradient in each argument of a function; None for a constant."""


def first_order(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """Raise `UnsupportedError` if the backward pass is itself differentiated.

    torch's own `once_differentiable` does not raise if the incoming gradients are constants, and
    the second derivatives are then silently wrong.
    """

    @wraps(backward)
    def checked(ctx: Any, *gradients: Tensor | None) -> Gradients:
        if torch.is_grad_enabled():
            raise UnsupportedError(
                "The gradients of log expectations and of sparse posteriors cannot be "
                "differentiated again. Take them without create_graph=True."
            )
        return backward(ctx, *gradients)

    return checked


Formula = Callable[..., Tensor]
"""Constants and arguments → value, in operations that autograd follows."""

Slopes = tuple[Tensor, ...]
"""A value, and its slopes in the arguments."""

Sloped = Callable[..., Slopes]
"""Constants and arguments → value and slopes in the arguments, in few operations."""


def in_float64(formula: Formula, sloped: Sloped, y: Tensor, *arguments: Tensor) -> Tensor:
    """Compute an elementwise formula in float64; return the dtype of the first argument.

    The first argument has the shape of the result, others may broadcast. Derivatives, of the first
    order alone, use the slopes; values and `torch.func` transforms use the formula.
    """
    followed = torch.is_grad_enabled() and any(a.requires_grad for a in arguments)
    if not followed or torch._C._are_functorch_transforms_active():
        wide = formula(y.double(), *(argument.double() for argument in arguments))
        return wide.to(arguments[0].dtype)
    apply: Callable[..., Tensor] = _InFloat64.apply
    return apply(sloped, y, *arguments)


class _InFloat64(Function):
    """Chain rule with slopes that were computed together with the value."""

    @staticmethod
    def forward(ctx: Any, sloped: Sloped, y: Tensor, *arguments: Tensor) -> Tensor:
        dtype = arguments[0].dtype
        ctx.types = [(argument.shape, argument.dtype) for argument in arguments]
        value, *slopes = sloped(y.double(), *(argument.double() for argument in arguments))
        # Convert slopes by identity: arguments with a common slope need it only once.
        narrow = {key: slope.to(dtype) for key, slope in {id(s): s for s in slopes}.items()}
        ctx.slopes = [narrow[id(slope)] for slope in slopes]
        return value.to(dtype)

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        wanted = ctx.needs_input_grad[2:]
        needed = {id(slope): slope for slope, want in zip(ctx.slopes, wanted, strict=True) if want}
        products = {key: grads[0] * slope for key, slope in needed.items()}
        gradients = (
            products[id(slope)].sum_to_size(shape).to(dtype) if want else None
            for (shape, dtype), slope, want in zip(ctx.types, ctx.slopes, wanted, strict=True)
        )
        return None, None, *gradients

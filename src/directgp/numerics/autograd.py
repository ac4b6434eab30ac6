"""Helpers for autograd functions with hand-written gradients."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from directgp.errors import UnsupportedError

Gradients = tuple[Tensor | None, ...]


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
Sloped = Callable[..., Slopes]
"""Constants and arguments → value and slopes in the arguments, in few operations."""


def in_float64(formula: Formula, sloped: Sloped, y: Tensor, *arguments: Tensor) -> Tensor:
    """Compute an elementwise formula in float64; return the dtype of the first argument.

    The first argument has the shape of the result, others may broadcast. First derivatives use the
    slopes; higher ones and `torch.func` transforms use the formula.
    """
    followed = torch.is_grad_enabled() and any(a.requires_grad for a in arguments)
    if not followed or torch._C._are_functorch_transforms_active():
        wide = formula(y.double(), *(argument.double() for argument in arguments))
        return wide.to(arguments[0].dtype)
    apply: Callable[..., Tensor] = _InFloat64.apply
    return apply(formula, sloped, y, *arguments)


class _InFloat64(Function):
    """Chain rule with slopes that were computed together with the value."""

    @staticmethod
    def forward(
        ctx: Any, formula: Formula, sloped: Sloped, y: Tensor, *arguments: Tensor
    ) -> Tensor:
        ctx.formula, dtype = formula, arguments[0].dtype
        ctx.save_for_backward(y, *arguments)
        value, *slopes = sloped(y.double(), *(argument.double() for argument in arguments))
        # By identity: a slope that two arguments have in common is converted and multiplied once.
        narrow = {key: slope.to(dtype) for key, slope in {id(s): s for s in slopes}.items()}
        ctx.slopes = [narrow[id(slope)] for slope in slopes]
        return value.to(dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        y, *arguments = ctx.saved_tensors
        wanted = ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():
            return None, None, None, *_with_graph(ctx.formula, y, arguments, wanted, grads[0])
        needed = {id(slope): slope for slope, want in zip(ctx.slopes, wanted, strict=True) if want}
        products = {key: grads[0] * slope for key, slope in needed.items()}
        found = (
            products[id(slope)].sum_to_size(argument.shape).to(argument.dtype) if want else None
            for argument, slope, want in zip(arguments, ctx.slopes, wanted, strict=True)
        )
        return None, None, None, *found


def _with_graph(
    formula: Formula, y: Tensor, arguments: list[Tensor], wanted: tuple[bool, ...], grad: Tensor
) -> list[Tensor | None]:
    """Compute the first derivatives as part of a graph."""
    # Views, so that an argument that was computed from another one is independent of it.
    arguments = [argument.view_as(argument) for argument in arguments]
    wide = formula(y.double(), *(argument.double() for argument in arguments))
    some = [argument for argument, needed in zip(arguments, wanted, strict=True) if needed]
    found = iter(torch.autograd.grad(wide, some, grad.double(), create_graph=True))
    return [next(found) if needed else None for needed in wanted]

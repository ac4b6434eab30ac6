"""Formulas computed in float64 with slopes written by hand, for arguments of any dtype."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

__all__ = ["Formula", "Sloped", "in_float64"]

Formula = Callable[..., Tensor]
"""Constants and arguments → value, in operations that autograd follows."""

Sloped = Callable[..., tuple[Tensor, ...]]
"""Constants and arguments → the same value and its slopes in the arguments, in few operations."""


def in_float64(formula: Formula, sloped: Sloped, y: Tensor, *arguments: Tensor) -> Tensor:
    """An elementwise formula of y and some arguments, in the dtype of the first argument.

    The first argument has the shape of the result, others may be broadcast. The slopes serve the
    first derivatives; those of higher order, and transforms of `torch.func`, go by the formula.
    """
    followed = torch.is_grad_enabled() and any(a.requires_grad for a in arguments)
    if not followed or torch._C._are_functorch_transforms_active():
        wide = formula(y.double(), *(argument.double() for argument in arguments))
        return wide.to(arguments[0].dtype)
    apply: Callable[..., Tensor] = _InFloat64.apply
    return apply(formula, sloped, y, *arguments)


class _InFloat64(Function):
    """The chain rule with slopes that were computed beside the value."""

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
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        y, *arguments = ctx.saved_tensors
        wanted = ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():
            return None, None, None, *_again(ctx.formula, y, arguments, wanted, grads[0])
        products: dict[int, Tensor] = {}
        shares: list[Tensor | None] = []
        for argument, slope, needed in zip(arguments, ctx.slopes, wanted, strict=True):
            if needed and id(slope) not in products:
                products[id(slope)] = grads[0] * slope
            shares.append(_share(products[id(slope)], argument) if needed else None)
        return None, None, None, *shares


def _share(product: Tensor, argument: Tensor) -> Tensor:
    """What a broadcast argument gets of the products for each element."""
    if product.shape != argument.shape:
        product = product.sum_to_size(argument.shape)
    return product.to(argument.dtype)


def _again(
    formula: Formula, y: Tensor, arguments: list[Tensor], wanted: tuple[bool, ...], grad: Tensor
) -> list[Tensor | None]:
    """The first derivatives as part of a graph."""
    # Views, so that none counts for what another was made from.
    arguments = [argument.view_as(argument) for argument in arguments]
    wide = formula(y.double(), *(argument.double() for argument in arguments))
    some = [argument for argument, needed in zip(arguments, wanted, strict=True) if needed]
    found = iter(torch.autograd.grad(wide, some, grad.double(), create_graph=True))
    return [next(found) if needed else None for needed in wanted]

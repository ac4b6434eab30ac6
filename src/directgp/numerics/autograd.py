"""Define differentiable functions with hand-written gradients."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from directgp.errors import UnsupportedError

Gradients = tuple[Tensor | None, ...]


def first_order(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """Refuse a backward pass that is to be part of a graph itself.

    torch's own `once_differentiable` lets those pass whose incoming gradients are constants, and
    their second derivatives are then silently wrong.
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

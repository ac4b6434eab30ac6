"""Backward passes that cannot be differentiated again, and say so."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

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

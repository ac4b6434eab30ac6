"""Large arrays that are kept from one step to the next."""

from typing import final

import torch
from torch import Tensor


@final
class Workspace:
    """Arrays by name and shape: new ones, with pages not yet touched, cost as much as a product.

    What an array was taken for is lost when it is taken again. None is let go: a CUDA graph may
    write to it.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An array with whatever it holds, of the dtype and device of another."""
        key = name, shape, like.dtype, like.device
        if key not in self._kept:
            self._kept[key] = torch.empty(shape, dtype=like.dtype, device=like.device)
        return self._kept[key]

    def identity(self, m: int, like: Tensor) -> Tensor:
        """The identity matrix; not to be written to."""
        key = "identity", m, like.dtype, like.device
        if key not in self._kept:
            self._kept[key] = torch.eye(m, dtype=like.dtype, device=like.device)
        return self._kept[key]

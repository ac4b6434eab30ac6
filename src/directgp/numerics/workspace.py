"""Large arrays that are kept from one step to the next."""

from typing import final

import torch
from torch import Tensor


@final
class Workspace:
    """Arrays by name: new ones, each page touched for the first time, cost as much as a product.

    What a name was taken for is lost when it is taken again.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An array with whatever it holds, of the dtype and device of another."""
        kept = self._kept.get(name)
        fits = kept is not None and kept.shape == shape and kept.dtype == like.dtype
        if kept is None or not fits or kept.device != like.device:
            kept = torch.empty(shape, dtype=like.dtype, device=like.device)
            self._kept[name] = kept
        return kept

"""Index the constants of a likelihood by the examples that were taken of it."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor


@final
@dataclass(frozen=True)
class ExampleView:
    """Which examples a likelihood is for, and whether its parameters get gradients."""

    taken: tuple[Tensor | torch.Size, ...] = ()
    """Masks, shapes and indices of the examples, in the order in which they were taken."""

    frozen: bool = False
    """Whether the parameters get no gradients."""

    def of(self, value: Tensor) -> Tensor:
        """Return a constant that broadcasts with (..., n) for the examples taken."""
        if self.frozen:
            value = value.detach()
        for index in self.taken:
            if value.numel() == 1:
                break
            if isinstance(index, torch.Size):
                value = value.expand(index).reshape(-1)
            else:
                wide = value.expand(index.shape) if index.dtype == torch.bool else value
                value = wide[index]
        return value

"""Batches of examples: each epoch takes every example once, in an order of its own."""

from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from directgp.errors import require


@final
class Batches:
    """Indices of the examples of each step.

    Parameters
    ----------
    num_data : int
        N.
    batch_size : int
        Examples a step; the last step of an epoch takes what is left.
    generator : torch.Generator
        Permutes each epoch, on its own device.
    """

    def __init__(self, num_data: int, batch_size: int, generator: torch.Generator) -> None:
        require(batch_size >= 1, "batch_size", "at least 1", batch_size)
        self._num_data = num_data
        self.size = min(batch_size, num_data)
        """Examples of each step but the last of an epoch."""
        self._generator = generator
        self._epoch = torch.empty(0, dtype=torch.int64, device=generator.device)
        self._taken = 0

    def next(self) -> Int[Tensor, " n"]:
        """The examples of the next step."""
        if self._taken >= len(self._epoch):
            self._epoch = torch.randperm(
                self._num_data, generator=self._generator, device=self._generator.device
            )
            self._taken = 0
        batch = self._epoch[self._taken : self._taken + self.size]
        self._taken += len(batch)
        return batch

    def tensors(self) -> dict[str, Tensor]:
        """Where in which epoch the batches are; the generator's state is its owner's to keep."""
        return {"epoch": self._epoch, "taken": torch.tensor(self._taken)}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Go to a place that `tensors` has told."""
        self._epoch = tensors["epoch"].to(self._generator.device)
        self._taken = int(tensors["taken"])

"""A number of nodes that stays, for steps that are recorded once and replayed."""

import math
from contextvars import ContextVar
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

_ROOM = 1.5
"""Nodes that a recorded step has for each that the steps before it needed."""


@final
class FixedNodes:
    """Learns how many nodes are needed, then gives as many to every example and step.

    It watches whether they are enough.

    Parameters
    ----------
    at_least : int
        Nodes, whatever the steps before the recorded one need.
    """

    def __init__(self, at_least: int = 0) -> None:
        self.number = at_least
        self._short: Tensor | None = None

    @property
    def recording(self) -> bool:
        """Whether the number is final, and no question may be asked about the numbers."""
        return self._short is not None

    def record(self, device: torch.device) -> None:
        """From now on the number is final. What watches it must be there before the recording."""
        self._short = torch.zeros((), dtype=torch.bool, device=device)

    def note(self, needed: float) -> None:
        """So many were needed by some example."""
        self.number = max(self.number, math.ceil(_ROOM * needed))

    def take(self, needed: Float[Tensor, " n"]) -> int:
        """The number for all; remembers, on the device, whether one needed more."""
        if self._short is not None:
            self._short.logical_or_((needed > self.number).any())
        return self.number

    def exceeded(self) -> bool:
        """Whether an example needed more, in any step since it was recorded."""
        return self._short is not None and bool(self._short)


fixed_nodes: ContextVar[FixedNodes | None] = ContextVar("fixed_nodes", default=None)
"""What the steps that are being recorded go by; None for steps that are taken as they come."""

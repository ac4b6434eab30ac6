"""Sizes of quadratures that stay the same in every replay of a CUDA graph."""

import math
from collections.abc import Callable
from contextvars import ContextVar
from typing import final

import torch
from torch import Tensor

_MARGIN = 1.5
"""Sizes of a recorded step, relative to the needs of earlier steps."""


@final
class FixedSizes:
    """Named sizes, such as a number of nodes: learned from steps, then the same for every step.

    A graph cannot read numbers on the host: it records the needs of later examples on the device.
    """

    def __init__(self, at_least: dict[str, float] | None = None) -> None:
        self.sizes = dict(at_least or {})
        self._needed: Tensor | None = None
        self.constants: dict[object, Tensor] = {}
        """Tensors made before the graph, not to be written to."""

    @property
    def recording(self) -> bool:
        """Whether the sizes are final and no value may be read from the device."""
        return self._needed is not None

    def record(self, device: torch.device) -> None:
        """Make the sizes final."""
        self._needed = torch.zeros(len(self.sizes), dtype=torch.float64, device=device)

    def take(self, name: str, needed: Tensor) -> float | None:
        """Return the fixed size while recording; otherwise learn it and return None."""
        if self._needed is not None:
            most = self._needed[list(self.sizes).index(name)]
            # Use `fmax`, which ignores NaN: the loss shows NaN anyway.
            torch.fmax(most, needed.amax() if needed.dim() else needed, out=most)
            return self.sizes[name]
        if needed.numel():
            learned = _MARGIN * float(needed.max())
            self.sizes[name] = max(self.sizes.get(name, 0.0), learned)
        return None

    def outgrown(self) -> dict[str, float]:
        """Return the sizes for the next recording if some were too small; else an empty dict."""
        needed = [] if self._needed is None else self._needed.tolist()
        for name, most in zip(self.sizes, needed, strict=False):
            if self.sizes[name] < most < math.inf:
                # Discard later sizes: they came from a truncated result.
                return self.sizes | {name: _MARGIN * most}
        return {}


fixed_sizes: ContextVar[FixedSizes | None] = ContextVar("fixed_sizes", default=None)
"""The sizes of steps that a CUDA graph records; None for other steps."""


def recording() -> bool:
    """Return whether a step is recorded: then no value may be read by the host."""
    fixed = fixed_sizes.get()
    return fixed is not None and fixed.recording


def fixed_size(name: str, needed: Tensor) -> float | None:
    """Return the size to record; None for other steps, which learn it before a recording."""
    fixed = fixed_sizes.get()
    return None if fixed is None else fixed.take(name, needed)


def constant(key: object, make: Callable[[], Tensor]) -> Tensor:
    """Return a tensor that depends on the key alone; a recording makes it once."""
    fixed = fixed_sizes.get()
    if fixed is None or not fixed.recording:
        return make()
    if key not in fixed.constants:
        fixed.constants[key] = make()
    return fixed.constants[key]

"""How many examples a computation takes on at a time."""

import torch
from jaxtyping import Int
from torch import Tensor

_CPU_ELEMENTS = 40_000
"""Arrays of some 320 KB, which stay in a near cache and are not fetched from the system anew."""

_DEVICE_ELEMENTS = 1 << 27

_CPU_EXAMPLES = 8192
"""More examples than this gain nothing, however few points each has."""


def rows_for(points: int, device: torch.device) -> int:
    """Examples at a time for a computation with this many points for each."""
    if device.type != "cpu":
        return max(1, _DEVICE_ELEMENTS // points)
    return min(max(256, _CPU_ELEMENTS // points), _CPU_EXAMPLES)


def row_blocks(
    num_rows: int, points: int, device: torch.device
) -> list[tuple[slice, Int[Tensor, " r"]]]:
    """Successive blocks of examples, as a slice and as indices."""
    size = rows_for(points, device)
    index = torch.arange(num_rows, device=device)
    slices = [slice(start, start + size) for start in range(0, max(num_rows, 1), size)]
    return [(block, index[block]) for block in slices]

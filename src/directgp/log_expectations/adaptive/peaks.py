"""Where a function of one place per example is largest, from its values alone."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from directgp.errors import NumericalError

Row = Float[Tensor, " n"]
Points = Float[Tensor, "k n"]

Height = Callable[[Points], Points]

_GOLDEN = (math.sqrt(5) - 1) / 2
_SHRINKINGS = 40
_DOUBLINGS = 40
_MOST = 12
"""Local maxima of a scan that are looked into."""


class Scan(NamedTuple):
    """Heights on a grid of places that all examples share."""

    grid: Float[Tensor, " k"]
    heights: Points

    def unfinished(self, nats: float) -> Bool[Tensor, " n"]:
        """Where an end of the grid is less than so far below the largest height."""
        return self.heights[[0, -1]].amax(0) > self.heights.amax(0) - nats


def scan(height: Height, like: Row) -> Scan:
    """Heights from −8 to 8 in eighths, for as many examples as the row has."""
    grid = torch.linspace(-8, 8, 129, dtype=like.dtype, device=like.device)
    heights = _heights(height, grid, len(like))
    if bool(torch.isnan(heights).any()):
        raise NumericalError(
            "log p(y given f) is NaN. Check mean, variance and the likelihood's parameters."
        )
    return Scan(grid, heights)


def widened(height: Height, found: Scan, nats: float) -> Scan:
    """A scan that goes on, doubling, until both ends are so far below the largest height."""
    for _ in range(_DOUBLINGS):
        if not bool(found.unfinished(nats).any()):
            return found
        ends = 2 * found.grid[[0, -1]]
        # Where a density breaks down so far out, it is taken to be nothing.
        more = _heights(height, ends, found.heights.shape[1]).nan_to_num(nan=-torch.inf)
        found = Scan(
            torch.cat([ends[:1], found.grid, ends[1:]]),
            torch.cat([more[:1], found.heights, more[1:]]),
        )
    number = int(found.unfinished(nats).sum())
    raise NumericalError(
        f"No peak of q(f)·p(y given f) was found for {number} examples. Check that "
        "log p(y given f) is finite near the mean of q, and does not outgrow f²."
    )


def peaks(height: Height, found: Scan) -> Points:
    """The highest place near each local maximum of the scan, the best one first.

    Examples with fewer than others have their best one again.
    """
    inner, grid = found.heights[1:-1], found.grid
    top = (inner >= found.heights[:-2]) & (inner > found.heights[2:])
    ranked = torch.where(top, inner, -torch.inf).sort(0, descending=True)
    best = found.heights.argmax(0).clamp(1, len(grid) - 2)
    places = [climb(height, grid[best - 1], grid[best + 1])]
    for values, index in zip(ranked.values[1:_MOST], ranked.indices[1:_MOST], strict=True):
        if bool((values == -torch.inf).all()):
            break
        # The scan is in the order of the grid, whose inner places begin at 1.
        at = torch.where(values > -torch.inf, index + 1, best)
        places.append(climb(height, grid[at - 1], grid[at + 1]))
    return torch.stack(places)


def climb(height: Height, low: Row, high: Row) -> Row:
    """The highest place between two, by golden sections."""
    span = _GOLDEN * (high - low)
    places = torch.stack([high - span, low + span])
    heights = height(places)
    for _ in range(_SHRINKINGS):
        left = heights[0] >= heights[1]
        low, high = torch.where(left, low, places[0]), torch.where(left, places[1], high)
        span = _GOLDEN * (high - low)
        kept, at_kept = torch.where(left, places[0], places[1]), heights.amax(0)
        fresh = torch.where(left, high - span, low + span)
        at_fresh = height(fresh[None])[0]
        places = torch.where(left, torch.stack([fresh, kept]), torch.stack([kept, fresh]))
        heights = torch.where(
            left, torch.stack([at_fresh, at_kept]), torch.stack([at_kept, at_fresh])
        )
    return torch.where(heights[0] >= heights[1], places[0], places[1])


def _heights(height: Height, grid: Tensor, num_examples: int) -> Points:
    return height(grid[:, None].expand(-1, num_examples))

"""Choose the number of nodes of trapezoid sums, and sum examples of like numbers together."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from directgp.errors import NumericalError
from directgp.integration.evaluate import row_blocks, rows_for
from directgp.numerics.arrays import Array, array_of, tensor_of
from directgp.numerics.fixed_sizes import fixed_size, fixed_sizes
from directgp.shapes import Row, Values

NATS = 27.0
"""The sum ends where the density has fallen by e^−27, and errs by as much."""

MIN_NODES = 16
"""Smallest number of nodes of an example."""

MAX_NODES = 32_000
"""Largest number of nodes of an example; one that needs more is summed with a wider step. Examples
are sorted by it in int16."""

_CPU_WASTE = 6000
"""Extra nodes accepted before examples are sorted by node count; sorting costs more than these."""

_CPU_WASTE_PER_EXAMPLE = 5
"""Additional nodes of each example that may be summed in vain."""

_CPU_GROWTH = 1.15
"""Largest ratio of the numbers of nodes of examples summed together."""

_DEVICE_GROWTH = 2.0
"""Largest ratio on a GPU, where the number of passes costs more than the number of nodes."""


def nats_for(width: Values) -> Values:
    """Return the fall at which the nodes of a peak of width τ end: NATS + 1.5·log(1 + τ⁴).

    The slope in v of a wide peak is a small difference of what is summed for it.
    """
    square = width * width
    return torch.log1p(square * square).mul_(1.5).add_(NATS)


def step_for(width: Values, strip: float | Values, nats: float | Values) -> Values:
    """Return the step h at which a trapezoid sum over a peak of width τ errs by e^−nats.

    The error is exp(d²/(2τ²) − 2πd/h) for any d up to the half-width of the strip in which the
    integrand is analytic and tame; the best d is τ√(2·nats), or the half-width.
    """
    d = ((2 * nats) ** 0.5 * width).clamp_(max=strip)
    share = d / width
    return d.mul_(2 * math.pi).div_((share * share).mul_(0.5).add_(nats))


def trapezoid_step(width: Values, strip: float | Values, more_nats: float = 0.0) -> Values:
    """Return `step_for` with the nats of `nats_for` this width, plus `more_nats`."""
    return step_for(width, strip, nats_for(width) + more_nats)


def nodes_for_all(needed: Array) -> int | None:
    """Return the number of nodes of every example where all are summed at once; else None.

    All are summed at once while a step is recorded, and where sorting them would cost more.
    """
    if fixed_sizes.get() is not None:
        recorded = fixed_size("nodes", tensor_of(needed).clamp(MIN_NODES, MAX_NODES))
        if recorded is not None:
            return math.ceil(recorded)
    device = needed.device if isinstance(needed, Tensor) else torch.device("cpu")
    number, alike = _most_nodes(needed, device)
    return number if alike and len(needed) <= rows_for(number, device) else None


def blocks_by_nodes(needed: Row) -> Iterator[tuple[int, Int[Tensor, " r"]]]:
    """Yield blocks of examples that need about the same number of nodes: number and indices.

    No block is smaller than a tenth of the examples for the sake of a few nodes saved.
    """
    device = needed.device
    number, alike = _most_nodes(array_of(needed), device)
    if alike:
        for _, index in row_blocks(len(needed), number, device):
            yield number, index
        return
    order, ordered = _sorted(needed.clamp(MIN_NODES, MAX_NODES).ceil_().short())
    start = 0
    growth = _growth(device)
    while start < len(order):
        last = int(np.searchsorted(ordered, int(growth * ordered[start]), "right"))
        stop = min(len(order), max(last, start + len(order) // 10 + 1))
        number = int(ordered[stop - 1])
        pieces = max(1, round((stop - start) / rows_for(number, device)))
        for index in order[start:stop].tensor_split(pieces):
            yield number, index
        start = stop


def _sorted(numbers: Int[Tensor, " n"]) -> tuple[Int[Tensor, " n"], NDArray[np.int16]]:
    """Return the order of small numbers, and what they are in that order."""
    if numbers.is_cuda:
        ordered, order = torch.sort(numbers)
        return order, ordered.cpu().numpy()
    # For these numbers numpy's stable sort is by radix, and much faster.
    array = numbers.numpy()
    places = np.argsort(array, kind="stable")
    return torch.from_numpy(places), array[places]


def _most_nodes(needed: Array, device: torch.device) -> tuple[int, bool]:
    """Return the largest number of nodes, and whether all examples may as well have as many."""
    if not len(needed):
        return MIN_NODES, True
    bounded = needed.clip(MIN_NODES, MAX_NODES)
    most = float(bounded.max())
    mean = float(bounded.sum()) / len(needed)
    if math.isnan(mean):
        raise NumericalError(
            "Quadrature met NaN or infinity. Check mean, variance and the likelihood's parameters."
        )
    waste = (most - mean - _CPU_WASTE_PER_EXAMPLE) * len(needed)
    few = device.type == "cpu" and waste <= _CPU_WASTE
    return math.ceil(most), few or most <= _growth(device) * float(bounded.min())


def _growth(device: torch.device) -> float:
    return _CPU_GROWTH if device.type == "cpu" else _DEVICE_GROWTH


def recorded_nodes() -> int:
    """Return the number of nodes that a recorded step sums at once; 1 for other steps."""
    fixed = fixed_sizes.get()
    return math.ceil(fixed.sizes["nodes"]) if fixed is not None and fixed.recording else 1

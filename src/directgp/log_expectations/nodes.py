"""Where quadrature puts its nodes on the product density, and how many it needs."""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from directgp.errors import NumericalError
from directgp.log_expectations.blocks import row_blocks, rows_for
from directgp.log_expectations.fixed_nodes import fixed_nodes
from directgp.log_expectations.product_density import Peak
from directgp.numerics.hermite import gauss_hermite

Row = Float[Tensor, " n"]
Points = Float[Tensor, "k n"]

NATS = 27.0
"""Nodes reach to where the density has fallen by e^−27, and are as dense as that error asks."""

_FEWEST = 16
_MOST = 4096
"""Bounds of the number of nodes; the upper one serves any wider peak."""

_CPU_GROWTH = 1.15
_DEVICE_GROWTH = 2.0
"""Examples that need up to this times as many nodes as others are summed with them: on a device
the number of passes counts for more than the number of nodes."""


def nats_for(width: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """How far down the nodes of a peak of width τ reach: NATS + 1.5·log(1 + τ⁴).

    The slope in v of a wide peak is a small difference of what is summed for it.
    """
    return NATS + 1.5 * torch.log1p(width**4)


def step_for(
    width: Float[Tensor, "..."], strip: float, nats: float | Float[Tensor, "..."]
) -> Float[Tensor, "..."]:
    """The step h at which a trapezoid sum over a peak of standard deviation τ errs by e^−nats.

    The error is exp(d²/(2τ²) − 2πd/h) for any d up to the half-width of the strip in which the
    integrand is analytic and tame; the best d is τ√(2·nats), or the most there is.
    """
    d = ((2 * nats) ** 0.5 * width).clamp(max=strip)
    return 2 * math.pi * d / (nats + 0.5 * (d / width) ** 2)


def trapezoid_step(
    width: Float[Tensor, "..."], strip: float, more_nats: float = 0.0
) -> Float[Tensor, "..."]:
    """`step_for` as many nats as a peak of this width is given, and some more where asked."""
    return step_for(width, strip, nats_for(width) + more_nats)


def blocks_by_nodes(needed: Row) -> Iterator[tuple[int, Int[Tensor, " r"]]]:
    """Split examples into blocks that need about the same number of nodes: it, and the indices.

    No block is smaller than a tenth of the examples for the sake of a few nodes saved.
    """
    needed = needed.clamp(_FEWEST, _MOST)
    fixed = fixed_nodes.get()
    growth = _CPU_GROWTH if needed.device.type == "cpu" else _DEVICE_GROWTH
    least, most = map(float, needed.aminmax()) if len(needed) else (_FEWEST, _FEWEST)
    if math.isnan(most):
        raise NumericalError(
            "Quadrature met NaN or infinity. Check mean, variance and the likelihood's parameters."
        )
    if fixed is not None:
        fixed.note(most)
    if most <= growth * least:
        number = math.ceil(most)
        for _, index in row_blocks(len(needed), number, needed.device):
            yield number, index
        return
    ordered, order = torch.sort(needed)
    start = 0
    while start < len(order):
        alike = int(torch.searchsorted(ordered, growth * ordered[start], right=True))
        stop = min(len(order), max(alike, start + len(order) // 10 + 1))
        number = math.ceil(ordered[stop - 1].item())
        for index in order[start:stop].split(rows_for(number, needed.device)):
            yield number, index
        start = stop


def learn_nodes(needed: Row) -> None:
    """Remember how many nodes examples needed, where steps are to be recorded."""
    fixed = fixed_nodes.get()
    if fixed is not None:
        fixed.note(float(needed.clamp(_FEWEST, _MOST).max()))


def nodes_for_all(needed: Row) -> int | None:
    """The number of nodes of every example, where that is fixed; None where they are to differ."""
    fixed = fixed_nodes.get()
    return fixed.take(needed.clamp(_FEWEST, _MOST)) if fixed and fixed.recording else None


def trapezoid_nodes(ends: Float[Tensor, "2 n"], peak: Peak, num_nodes: int) -> tuple[Points, Row]:
    """Equal steps over the support: δ and log of the weight, the same for all nodes."""
    left, right = ends
    step = (left + right) / num_nodes
    index = torch.arange(num_nodes, dtype=step.dtype, device=step.device)[:, None] + 0.5
    return torch.addcmul(peak.delta - left, index, step), torch.log(step)


def hermite_nodes(peak: Peak, num_nodes: int) -> tuple[Points, Points]:
    """Gauss–Hermite nodes fitted to the peak: δ and log of the weights."""
    z, log_weight = gauss_hermite(num_nodes, peak.width.dtype, peak.width.device)
    log_scale = 0.5 * math.log(2 * math.pi) + torch.log(peak.width)
    delta = torch.addcmul(peak.delta, z[:, None], peak.width)
    return delta, (log_weight + 0.5 * z * z)[:, None] + log_scale

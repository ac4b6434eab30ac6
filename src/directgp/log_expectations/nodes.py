"""Where quadrature puts its nodes on the product density, and how many it needs."""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from directgp.log_expectations.product_density import Peak
from directgp.numerics.hermite import gauss_hermite

Values = Float[Tensor, "..."]

NATS = 32.0
"""Nodes reach to where the density has fallen by e^−32, and are as dense as that error asks."""

_NODE_COUNTS = (24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""The numbers of nodes chosen from; the last serves any wider peak."""

_FEW = 12
"""A class with less than one twelfth of the examples is few."""


def trapezoid_step(width: Values, strip: float) -> Values:
    """The step h at which a trapezoid sum over a peak of standard deviation τ errs by e^−32.

    The error is exp(d²/(2τ²) − 2πd/h) for any d up to the half-width of the strip in which the
    integrand is analytic and tame; the best such d counts.
    """
    gaussian = math.pi * math.sqrt(2 / NATS) * width
    limited = 2 * math.pi * strip / (NATS + 0.5 * (strip / width) ** 2)
    return torch.where(math.sqrt(2 * NATS) * width <= strip, gaussian, limited)


def groups_by_nodes(
    needed: Values,
) -> Iterator[tuple[int, Bool[Tensor, "..."] | None]]:
    """Split examples by the nodes they need: a number, and a mask (None for all examples).

    A class with few members joins the next larger one: a pass costs more than a few nodes.
    """
    sizes = torch.tensor(_NODE_COUNTS[:-1], dtype=needed.dtype, device=needed.device)
    classes = torch.bucketize(needed, sizes)
    members = torch.bincount(classes.reshape(-1), minlength=len(_NODE_COUNTS)).tolist()
    largest = max((c for c, count in enumerate(members) if count), default=0)
    first, waiting = 0, 0
    for current, count in enumerate(members[: largest + 1]):
        waiting += count
        if current == largest or waiting * _FEW > needed.numel():
            everyone = waiting == needed.numel()
            mask = None if everyone else (classes >= first) & (classes <= current)
            yield _NODE_COUNTS[current], mask
            first, waiting = current + 1, 0


def trapezoid_nodes(
    ends: Float[Tensor, "2 ..."], peak: Peak, num_nodes: int
) -> tuple[Float[Tensor, "k ..."], Float[Tensor, "..."]]:
    """Equal steps over the support: δ and log of the weights."""
    left, right = ends
    step = (left + right) / num_nodes
    index = torch.arange(num_nodes, dtype=step.dtype, device=step.device) + 0.5
    index = index.reshape(-1, *([1] * step.dim()))
    return torch.addcmul(peak.delta - left, index, step), torch.log(step)


def hermite_nodes(
    peak: Peak, num_nodes: int
) -> tuple[Float[Tensor, "k ..."], Float[Tensor, "k ..."]]:
    """Gauss–Hermite nodes fitted to the peak: δ and log of the weights."""
    z, log_weight = gauss_hermite(num_nodes, peak.width.dtype, peak.width.device)
    shape = (-1, *([1] * peak.width.dim()))
    z, log_weight = z.reshape(shape), log_weight.reshape(shape)
    log_scale = 0.5 * math.log(2 * math.pi) + torch.log(peak.width)
    return torch.addcmul(peak.delta, z, peak.width), log_weight + 0.5 * z * z + log_scale

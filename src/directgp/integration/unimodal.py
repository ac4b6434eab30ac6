"""Find the peaks and the support of q̃ for likelihoods with one peak over f.

q̃ may have one peak near the mean of q and one near the peak of p, and slow tails around either.
"""

from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.errors import UnsupportedError
from directgp.integration.contract import FlatExamples, OnePeak, has
from directgp.shapes import Row

Pair = Float[Tensor, "2 n"]

_PEAK_STEPS = 8
_FLATTEST = 0.1
"""Smallest curvature of a peak, as a share of that of q."""

_SCANNED = 24
"""Steps of the scan between the mean of q and the peak of p."""

_MAX_STEPS = 60
_SHORT = 0.1
"""The search for a peak ends at steps below this share of its width."""

_HALVINGS = 7
"""Steps in which the ends of the support are found."""

_NEAREST = 0.3
"""The search for the ends starts at this share of the length of the narrowest Gaussian peak."""


def one_peak(examples: FlatExamples) -> OnePeak:
    """Return the density; raise `UnsupportedError` if it is not known to have one peak."""
    density = examples.likelihood
    if not has(density, OnePeak):
        raise UnsupportedError(
            f"Product sampling needs a likelihood that is log-concave, or bounded with one peak "
            f"in f. Got {type(density).__name__}. Use Quadrature or BiasedMonteCarlo."
        )
    return cast(OnePeak, density)


def _peak_of_density(examples: FlatExamples) -> Row:
    """Return δ at the peak of p, or 0 where that is infinite."""
    end = one_peak(examples).argmax(examples.y) - examples.mean
    return torch.where(end.isinf(), 0.0, end)


class Peaks(NamedTuple):
    """Local maxima of q̃, found from μ and from the peak of p; they may coincide."""

    delta: Pair
    """δ̂ of either peak, relative to the mean of q."""

    height: Pair
    """h(δ̂)."""

    width: Pair
    """Standard deviation of the Gaussian that fits the peak."""

    end: Row
    """δ at the peak of p, or 0 where that is infinite."""


def find_peaks(examples: FlatExamples) -> Peaks:
    """Find the peaks of q̃ by Newton's method from μ and from the peak of p, in a few steps.

    With r the distance to the peak of p, ℓ′/r ≥ 0 in place of −ℓ″ gives the steps of EM for a
    scale mixture of Gaussians. They never leave the interval between the two starts, and replace
    Newton's steps that would. A peak found roughly costs accuracy only: nodes may lie anywhere.
    """
    likelihood, y, mean, variance = examples
    end = _peak_of_density(examples)
    precision = 1 / variance
    delta = torch.stack([torch.zeros_like(end), end])
    for _ in range(_PEAK_STEPS):
        _, first, second = likelihood.derivatives(y, mean + delta)
        slope = first - delta * precision
        rest = end - delta
        bend = precision - second
        newton = delta + slope / bend
        inside = (bend > 0) & (newton * (end - newton) >= 0)
        pull = torch.where(rest == 0, -second, first / rest)
        delta = torch.where(inside, newton, delta + slope / (precision + pull))
    value, _, second = likelihood.derivatives(y, mean + delta)
    height = torch.addcmul(value, delta * delta, precision, value=-0.5)
    bend = torch.maximum(precision - second, _FLATTEST * precision)
    return Peaks(delta, height, bend.rsqrt(), end)


def settled_peaks(examples: FlatExamples) -> Peaks:
    """Find the peaks of q̃ to a tenth of their widths, by Newton's steps or halving.

    Of points between the mean of q and the peak of p, the first and the last that are higher than
    their neighbours have a peak next to them.
    """
    likelihood, y, mean, variance = examples
    end = _peak_of_density(examples)
    precision = 1 / variance
    share = torch.arange(_SCANNED + 1, dtype=mean.dtype, device=mean.device)[:, None] / _SCANNED
    grid = share * end
    height = torch.addcmul(likelihood.log_kernel(y, mean + grid), grid * grid, -0.5 * precision)
    rises = (height[1:] > height[:-1]).to(torch.int8)
    first = torch.where(rises.all(0), _SCANNED, (1 - rises).argmax(0))
    last = torch.where(rises.any(0), _SCANNED - rises.flip(0).argmax(0), 0)
    place = torch.stack([first, last])
    delta = grid.gather(0, place)
    sides = [grid.gather(0, (place + by).clamp(0, _SCANNED)) for by in (-1, 1)]
    lower = torch.minimum(*sides)
    upper = torch.maximum(*sides)
    for _ in range(_MAX_STEPS):
        value, slope, second = likelihood.derivatives(y, mean + delta)
        slope = slope - delta * precision
        bend = precision - second
        width = torch.maximum(bend, _FLATTEST * precision).rsqrt()
        moving = (slope.abs() * width > _SHORT) | (bend <= 0)
        moving &= (upper - lower) > _SHORT * width
        if not bool(moving.any()):
            break
        lower = torch.where(slope > 0, delta, lower)
        upper = torch.where(slope < 0, delta, upper)
        newton = delta + slope / bend
        inside = (bend > 0) & (newton > lower) & (newton < upper)
        proposal = torch.where(inside, newton, 0.5 * (lower + upper))
        delta = torch.where(moving, proposal, delta)
    top = torch.addcmul(value, delta * delta, precision, value=-0.5)
    return Peaks(delta, top, width, end)


def find_ends(examples: FlatExamples, peaks: Peaks, drop: Row) -> Pair:
    """Return the first and the last δ at which h is `drop` below its top, or somewhat further out.

    Left of both means, of q and of the peak of p, h falls as fast as log q and more; right of both,
    too. So the distance from the outermost peak that matters has bounds; its logarithm is halved.
    """
    likelihood, y, mean, variance = examples
    end = peaks.end
    top = peaks.height.amax(0)
    reach = torch.sqrt(2 * drop)
    matters = peaks.height > top - drop
    best = peaks.delta.gather(0, peaks.height.argmax(0, keepdim=True))
    inner = torch.where(matters, peaks.delta, best)
    inner = torch.stack([inner.amin(0), inner.amax(0)])
    outer = torch.stack([end.clamp(max=0.0), end.clamp(min=0.0)])
    side = torch.tensor([[-1.0], [1.0]], dtype=mean.dtype, device=mean.device)
    far = (side * (outer - inner)).clamp_(min=0.0).add_(reach * variance.sqrt())
    near = torch.minimum(_NEAREST * reach * peaks.width.amin(0), far)
    for _ in range(_HALVINGS):
        distance = torch.sqrt(near * far)
        delta = torch.addcmul(inner, side, distance)
        value = likelihood.log_kernel(y, mean + delta)
        high = torch.addcmul(value, delta * delta, -0.5 / variance) > top - drop
        near = torch.where(high, distance, near)
        far = torch.where(high, far, distance)
    return torch.addcmul(inner, side, far)

"""Integrate softmax likelihoods over any number of latent functions, exactly, in one dimension.

softmax_y(f) = P(f_y + G_y is the largest f_k + G_k) for independent Gumbel G_k. With
F_k(u) = E_q[exp(−e^{f_k+u})], the distribution function of f_k + G_k at −u, and D_k = −F_k′,

E_q[softmax_y(f)] = ∫ D_y Π_{k≠y} F_k du,   1 − E_q[softmax_y(f)] = ∫ D_y (1 − Π_{k≠y} F_k) du,
−E_q[log softmax_y(f)] = ∫ F_y (1 − Π_{k≠y} F_k) du.

The nodes in u are common to a block of examples, each shifted by a constant of its own.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from directgp.errors import NumericalError
from directgp.numerics.fixed_sizes import fixed_sizes
from directgp.numerics.gumbel import (
    MAX_NODES,
    NATS,
    Column,
    Columns,
    Distributions,
    Latents,
    Part,
    StretchedNodes,
    check_finite_numbers,
    read_sizes,
)
from directgp.numerics.special import log_ndtr

_FEWEST = 128
"""Smallest number of examples of a block, if there are enough."""

_BLOCK_ENTRIES = 2**14
"""Largest number of latents of a block of examples."""

_DEVICE_ENTRIES = 2**18
"""Largest number of latents of a block in a recorded step, on a GPU."""


class _Factors(NamedTuple):
    """Distributions of the label's latent and of the others, and the weights of the nodes."""

    label: Distributions
    """The label's latent."""

    others: Distributions
    """The latents of the other classes."""

    weights: Float[Tensor, " l"]
    """Weights of the nodes."""


class _Range(NamedTuple):
    """Where the integrand of each example has its mass, in u."""

    start: Column
    """Steps are equal right of this u."""

    core: Column
    """Length of the part with equal steps."""

    tail: Column
    """Length of the part left of the start, where the integrand falls as e^u."""

    nats: Column
    """Fall of the factors, in nats, from 1 to where the integrand is negligible."""


_MARGIN = 3.0
"""Distance from where a factor of the integrand turns to the start of its tail."""


def _range(mean: Latents, variance: Latents, rare: Column, likely: Bool[Tensor, " n"]) -> _Range:
    """Return the range of ∫ D_y Π F_k du, or ∫ D_y (1 − Π F_k) du where likely; label first.

    The integral is about e^−rare. F_k and D_k fall from u = −μ_k on, as fast as the Gaussian of
    f_k. To the left D_y falls, with a = μ_y + u, as e^{−a²/2v} down to a = −v, and then as e^a.
    """
    nats = NATS + rare
    ends = torch.log(nats) + torch.sqrt(2 * nats * variance) - mean
    end = torch.where(likely, ends[0], ends.amin(0))
    label = mean[0]
    spread = variance[0]
    left, turn = _left((label - mean.amax(0)).abs(), spread)
    return _Range(-label - turn, end + label + turn, left - turn, nats)


def _left(a: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distances left of −μ at which D is negligible, and at which its tail begins.

    The range of the integral includes −μ − a.
    """
    fallen = torch.where(a < variance, 0.5 * a * a / variance, a - 0.5 * variance)
    target = NATS + fallen
    near = target <= 0.5 * variance
    left = torch.where(near, torch.sqrt(2 * variance * target), target + 0.5 * variance)
    return left, torch.maximum(a, torch.minimum(left, variance)) + _MARGIN


def _gibbs_range(mean: Latents, variance: Latents, rare: Column) -> _Range:
    """Return the range of ∫ F_y (1 − Π F_k) du; 1 − F_k falls to the left as D_k does."""
    nats = NATS + rare
    end = torch.log(nats) + torch.sqrt(2 * nats * variance[0]) - mean[0]
    left, turn = _left(torch.zeros_like(mean[1:]), variance[1:])
    start = torch.minimum((-mean[1:] - turn).amin(0), -mean[0] - _MARGIN)
    return _Range(start, end - start, start - (-mean[1:] - left).amin(0), nats)


def _rolled(y: Column, num_latent: int) -> Int[Tensor, "p n"]:
    """Return the order of classes that has the label first."""
    return (y.long() + torch.arange(num_latent, device=y.device)[:, None]) % num_latent


def _similar_blocks(needed: Column, num_latent: int) -> Iterable[Int[Tensor, " _"]]:
    """Return blocks of examples with similar needs; in a recorded step, in the given order."""
    if fixed_sizes.get() is not None:
        rows = torch.arange(len(needed), device=needed.device)
        return list(rows.split(max(1, _DEVICE_ENTRIES // num_latent)))
    check_finite_numbers([float(needed.sum())])
    levels = (2 * torch.log2(needed.clamp(1.0, MAX_NODES))).long()
    sizes = [0]
    for number in torch.bincount(levels).tolist():
        if _FEWEST <= sizes[-1]:
            sizes.append(0)
        sizes[-1] += number
    most = max(_FEWEST, _BLOCK_ENTRIES // num_latent)
    blocks = torch.argsort(needed).split(sizes)
    return [part for block in blocks for part in block.split(most)]


def _blocks(
    mean: Latents, variance: Latents, ranges: _Range
) -> Iterator[tuple[Int[Tensor, " r"], _Factors]]:
    """Yield blocks of examples with integrands of about the same length: indices and factors."""
    # Combine P factors that fall as e^{−v_k·x_k²/2} at frequencies x_k of the sum x.
    share = 1 / (1 / variance.clamp(min=1e-300)).sum(0)
    # Sort by a number in proportion to the number of nodes.
    needed = ranges.core * torch.rsqrt(share.clamp(min=1.0))
    for index in _similar_blocks(needed, len(mean)):
        start, core, tail, nats = (column[index] for column in ranges)
        block_mean = mean[:, index] + start
        block_variance = variance[:, index]
        ends = core.max(), tail.max(), 1 / share[index].min(), nats.max()
        longest, tail_length, inverse, fall = read_sizes("range", *ends)
        nodes = StretchedNodes.over(longest, tail_length, 1 / inverse)
        parts = slice(0, 1), slice(1, None)
        if fixed_sizes.get() is not None:
            distributions = Distributions(block_mean, block_variance, nodes, fall)
            label, others = (distributions.part(part) for part in parts)
        else:
            label, others = (
                Distributions(block_mean[part], block_variance[part], nodes, fall) for part in parts
            )
        yield index, _Factors(label, others, nodes.columns(mean)[1])


def log_expected_softmax(y: Column, mean: Latents, variance: Latents) -> Columns:
    """Return log E_q[softmax_y(f)] and its slopes, to 1e-9."""
    order = _rolled(y, len(mean))
    mean = mean.gather(0, order)
    variance = variance.gather(0, order)
    beyond = _beyond(mean, variance)
    mean = torch.cat([mean[:1] + beyond, mean[1:]])
    gap = mean[1:] - mean[0]
    likely = (gap < 0).all(0)
    against = _against(gap, variance)
    rare = torch.where(likely, against.amin(0), torch.where(gap > 0, against, 0.0).amax(0))
    ranges = _range(mean, variance, rare, likely)
    kinds = (likely, _complement), (~likely, _product)
    value, *slopes = _integrated(mean, variance, ranges, kinds)
    if fixed_sizes.get() is None:
        check_finite_numbers([float(value.sum())])
    return _in_order((value - beyond, *slopes), order)


def _beyond(mean: Latents, variance: Latents) -> Column:
    """Return a shift of f_y that keeps p from underflow; up to it p is proportional to e^{f_y}."""
    reach = variance + 12 * variance.sqrt()
    lead = (mean - reach)[1:].amax(0) - (mean + reach)[0]
    return (lead - 50).clamp(min=0.0)


def expected_log_softmax(y: Column, mean: Latents, variance: Latents) -> Columns:
    """Return E_q[log softmax_y(f)] and its slopes, to 1e-9."""
    order = _rolled(y, len(mean))
    mean = mean.gather(0, order)
    variance = variance.gather(0, order)
    gap = mean[1:] - mean[0]
    rare = torch.where((gap < 0).all(0), _against(gap, variance).amin(0), 0.0)
    ranges = _gibbs_range(mean, variance, rare)
    mask = torch.ones_like(y, dtype=torch.bool)
    return _in_order(_integrated(mean, variance, ranges, ((mask, _excess),)), order)


def _against(gap: Float[Tensor, "c n"], variance: Latents) -> Float[Tensor, "c n"]:
    """Return roughly −log of the probability that the smaller of two latents wins."""
    return torch.minimum(gap.abs(), gap * gap / (2 * (variance[0] + variance[1:])))


def _integrated(
    mean: Latents,
    variance: Latents,
    ranges: _Range,
    kinds: tuple[tuple[Bool[Tensor, " n"], Callable[[_Factors], Columns]], ...],
) -> Columns:
    """Return values and slopes, by the integral for each kind of example."""
    columns = torch.empty_like(mean[0]), torch.empty_like(mean), torch.empty_like(mean)
    if fixed_sizes.get() is not None:
        parts = []
        for index, block in _blocks(mean, variance, ranges):
            values, *rest = (integrate(block) for _, integrate in kinds)
            likely = kinds[0][0][index]
            for alternative in rest:
                pairs = zip(values, alternative, strict=True)
                values = tuple(torch.where(likely, a, b) for a, b in pairs)
            parts.append(values)
        return tuple(torch.cat(column_parts, -1) for column_parts in zip(*parts, strict=True))
    for chosen, integrate in kinds:
        rows = chosen.nonzero()[:, 0]
        if not len(rows):
            continue
        part_ranges = _Range(*(column_parts[rows] for column_parts in ranges))
        for index, block in _blocks(mean[:, rows], variance[:, rows], part_ranges):
            for column, part in zip(columns, integrate(block), strict=True):
                column[..., rows[index]] = part
    return columns


def _in_order(columns: Columns, order: Int[Tensor, "p n"]) -> Columns:
    """Return slopes in the order of the classes."""
    value, *slopes = columns
    first, second = (torch.empty_like(slope).scatter_(0, order, slope) for slope in slopes)
    return value, first, second


def _product(factors: _Factors) -> Columns:
    """Return log ∫ D_y Π F_k du and its slopes."""
    density = factors.label.values("density")
    below = factors.others.values("below")
    log_mass = torch.log(density[0] * factors.weights).add_(torch.log(below).sum(0))
    top = log_mass.amax(-1, keepdim=True)
    mass = log_mass.sub_(top).exp_()
    total = mass.sum(-1, keepdim=True)
    mass /= total
    positive = mass > 0
    by_label = factors.label.slopes("density", torch.where(positive, mass / density, 0.0))
    by_others = factors.others.slopes("below", torch.where(positive, mass / below, 0.0))
    return (top + torch.log(total))[:, 0], *map(torch.cat, zip(by_label, by_others, strict=True))


def _complement(factors: _Factors) -> Columns:
    """Return log(1 − ∫ D_y (1 − Π F_k) du) and its slopes."""
    failure, *slopes = _beaten(factors, "density")
    factor = -1 / (1 - failure)
    return torch.log1p(-failure), *(factor * slope for slope in slopes)


def _excess(factors: _Factors) -> Columns:
    """Return −∫ F_y (1 − Π F_k) du = E_q[f_y] − E_q[log Σ e^f] and its slopes."""
    value, mean_slope, variance_slope = _beaten(factors, "below")
    return -value, -mean_slope, -variance_slope


def _beaten(factors: _Factors, part: Part) -> Columns:
    """Return ∫ G (1 − Π_{k≠y} F_k) du and its slopes, with G = D_y or F_y."""
    label_values = factors.label.values(part)
    above = factors.others.values("above").clamp_(max=1.0)
    logs = torch.log1p(-above)
    total = logs.sum(0)
    beaten = -torch.expm1(total)
    weighted = factors.weights * label_values
    by_label = factors.label.slopes(part, (factors.weights * beaten)[None])
    # rest_k = Π_{j≠k} F_j.
    rest = torch.where(above < 1, (total - logs).exp_(), 0.0)
    by_others = factors.others.slopes("above", rest.mul_(weighted))
    value = (weighted[0] * beaten).sum(-1)
    return value, *map(torch.cat, zip(by_label, by_others, strict=True))


_MAX_STEP = 0.5
"""Step in deviations of f_y: the sum of a Gaussian errs by e^{−2π²/step²}."""

_CHANCE_NODES = 8192
"""Largest number of nodes in f_y."""


def largest_probability(y: Column, mean: Latents, variance: Latents) -> Columns:
    """Return P(f_y is the largest) = E[Π_{k≠y} Φ((f_y − μ_k)/s_k)] and its slopes.

    By equal steps in f_y, fine enough for q(f_y) and for the steepest Φ.
    """
    order = _rolled(y, len(mean))
    mean = mean.gather(0, order)
    variance = variance.gather(0, order)
    deviation = variance.sqrt()
    check_finite_numbers([float(mean.sum()), float(deviation.sum())])
    reach = math.sqrt(2 * NATS)
    # Make steps of z, in deviations of f_y, as fine as q(f_y) or the steepest factor needs.
    scale = (deviation[1:].amin(0) / deviation[0]).clamp(max=1.0)
    needed = 2 * reach / (_MAX_STEP * scale)
    columns = torch.empty_like(mean[0]), torch.empty_like(mean), torch.empty_like(mean)
    order_of_size = torch.argsort(needed)
    for index in order_of_size.split(max(1, _BLOCK_ENTRIES // (128 * len(mean)))):
        number = math.ceil(float(needed[index].max()))
        if number > _CHANCE_NODES:
            raise NumericalError(
                f"P(f is the largest) needs {number} nodes: the variances of an example differ by "
                "more than a factor of 1e5. Check mean and variance of f."
            )
        z = reach * (
            2 * (torch.arange(number, dtype=mean.dtype, device=mean.device) + 0.5) / number - 1
        )
        values = _chances(mean[:, index], deviation[:, index], z)
        for column, part in zip(columns, values, strict=True):
            column[..., index] = part
    return _in_order(columns, order)


def _chances(mean: Latents, deviation: Latents, z: Float[Tensor, " k"]) -> Columns:
    """Return the sum over nodes f_y = μ_y + s_y·z, and its slopes; label first."""
    weight = torch.exp(-0.5 * z * z)
    weight = weight / weight.sum()
    f = mean[0][:, None] + deviation[0][:, None] * z
    x = (f - mean[1:, :, None]) / deviation[1:, :, None]
    logs = log_ndtr(x)
    total = logs.sum(0)
    product = weight * torch.exp(total)
    # Compute φ/Φ·Π Φ by logs, since Φ may underflow.
    ratio = torch.exp(-0.5 * x * x - 0.5 * math.log(2 * math.pi) + total - logs) * weight
    pull = ratio / deviation[1:, :, None]
    first = -pull.sum(-1)
    # ∂Φ(x)/∂v = −x φ(x) / (2v).
    second = (-0.5 * ratio * x).sum(-1) / deviation[1:] ** 2
    label_slope = pull.sum((0, 2))
    # ∂E/∂v_y = ½E[z g′]/s_y.
    label_second = 0.5 * (pull.sum(0) * z).sum(-1) / deviation[0]
    mean_slope = torch.cat([label_slope[None], first])
    variance_slope = torch.cat([label_second[None], second])
    return product.sum(-1), mean_slope, variance_slope

"""Integrate softmax likelihoods over any number of latent functions, exactly, in one dimension.

softmax_y(f) = P(f_y + G_y is the largest f_k + G_k) for independent Gumbel G_k. With
F_k(u) = E_q[exp(−e^{f_k+u})], the distribution function of f_k + G_k at −u, and D_k = −F_k′,

E_q[softmax_y(f)] = ∫ D_y Π_{k≠y} F_k du,   1 − E_q[softmax_y(f)] = ∫ D_y (1 − Π_{k≠y} F_k) du,
−E_q[log softmax_y(f)] = ∫ F_y (1 − Π_{k≠y} F_k) du.

The nodes in u are common to a block of examples, each shifted by a constant of its own. So is a
grid over f: F_k at all nodes is then a product of two matrices, the weights of q(f_k) on the grid,
and exp(−e^{f+u}), which is the same for every example and class.
"""

import math
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from directgp.errors import NumericalError
from directgp.numerics.gaussian import gauss_hermite
from directgp.numerics.special import log_ndtr

Matrix = Float[Tensor, "r l"]
Column = Float[Tensor, " r"]
Latents = Float[Tensor, "p n"]

Columns = tuple[Column, Latents, Latents]
"""Values, and slopes in means and variances."""

Part = Literal["below", "above", "density"]
"""F, 1 − F or D."""

_NATS = 27.0
"""Integrals err by about e^−27."""

_STEP = 0.33
"""Step in x, whose double exponential integrand is analytic for abs(Im x) < π/2."""

_NARROW = 0.25
"""Standard deviation of f below which a grid would be too fine: Gauss–Hermite nodes instead."""

_NARROW_NODES = 12
_FAR = -37.0
"""f + u up to which 1 − exp(−e^{f+u}) is e^{f+u} in float64."""

_MAX_NODES = 20_000
_BLOCK_ENTRIES = 2**21
"""Entries of the weights of a block of examples."""


def _kernel(part: Part, x: Tensor, order: int = 0) -> Tensor:
    """Return exp(−e^x), 1 − exp(−e^x) or e^x·exp(−e^x), or a derivative of it in x."""
    t = torch.exp(x)
    decay = torch.exp(-t)
    if part == "density":
        factors = (t, t * (1 - t), t * (1 + t * (t - 3)))
        return torch.where(t < torch.inf, factors[order] * decay, 0.0)
    if order == 0:
        return decay if part == "below" else -torch.expm1(-t)
    slope = torch.where(t < torch.inf, -t * decay * (1.0 if order == 1 else 1 - t), 0.0)
    return slope if part == "below" else -slope


@final
class _Distributions:
    """F, 1 − F or D of rows of q(f) = N(mean, variance), at nodes u that all rows share."""

    def __init__(self, mean: Column, variance: Column, u: Column, nats: float) -> None:
        self._mean, self._variance, self._u = mean, variance, u
        deviation, reach = variance.sqrt(), math.sqrt(2 * nats)
        far = mean + variance + reach * deviation + u.max() < _FAR
        narrow = (deviation < _NARROW) & ~far
        self._groups = [mask.nonzero()[:, 0] for mask in (far, narrow, ~(far | narrow))]
        self._grid = self._weights = mean.new_empty(0)
        wide = self._groups[2]
        if len(wide):
            self._grid = _grid(mean[wide], deviation[wide], reach)
            self._weights = _weights(self._grid, mean[wide], variance[wide])

    def values(self, part: Part) -> Matrix:
        """Return the function of every row at every node."""
        (far, narrow, wide), u = self._groups, self._u
        found = u.new_empty(len(self._mean), len(u))
        if len(far):
            # E e^{f+u}, and for D as for 1 − F.
            small = torch.exp((self._mean[far] + 0.5 * self._variance[far])[:, None] + u)
            found[far] = 1 - small if part == "below" else small
        if len(narrow):
            points, weights = self._points(narrow)
            found[narrow] = torch.einsum("rjl,j->rl", _kernel(part, points), weights)
        if len(wide):
            found[wide] = self._weights @ _kernel(part, self._grid[:, None] + u)
        return found

    def slopes(self, part: Part, by: Matrix) -> tuple[Column, Column]:
        """Return the gradient of Σ by·`values` in mean and variance of each row."""
        (far, narrow, wide), u = self._groups, self._u
        first, second = torch.zeros_like(self._mean), torch.zeros_like(self._mean)
        if len(far):
            small = torch.exp((self._mean[far] + 0.5 * self._variance[far])[:, None] + u)
            sign = -1 if part == "below" else 1
            first[far] = sign * (by[far] * small).sum(-1)
            second[far] = 0.5 * first[far]
        if len(narrow):
            points, weights = self._points(narrow)
            some = by[narrow]
            first[narrow] = torch.einsum("rjl,j,rl->r", _kernel(part, points, 1), weights, some)
            bend = torch.einsum("rjl,j,rl->r", _kernel(part, points, 2), weights, some)
            second[narrow] = 0.5 * bend
        if len(wide):
            mean, variance = self._mean[wide], self._variance[wide]
            mass = by[wide] @ _kernel(part, self._grid[:, None] + u).T
            mass *= self._weights
            powers = torch.stack([torch.ones_like(self._grid), self._grid, self._grid**2], 1)
            total, once, twice = (mass @ powers).unbind(1)
            centred = once - mean * total
            first[wide] = centred / variance
            square = twice - mean * (once + centred)
            second[wide] = 0.5 * (square / variance - total) / variance
        return first, second

    def _points(self, rows: Int[Tensor, " _"]) -> tuple[Float[Tensor, "r j l"], Column]:
        """Return f + u at nodes of narrow q(f), and their weights."""
        z, log_weights = gauss_hermite(_NARROW_NODES, self._u.dtype, self._u.device)
        f = self._mean[rows, None] + self._variance[rows, None].sqrt() * z
        return f[..., None] + self._u, torch.exp(log_weights)


def _grid(mean: Column, deviation: Column, reach: float) -> Column:
    """Return equal steps Δ in f that sum every Gaussian times exp(−e^{f+u}).

    The sum errs by e^{−s²x²/2 − π/2·|2π/Δ − x|} for the worst frequency x.
    """
    low, high = (mean - reach * deviation).min(), (mean + reach * deviation).max()
    s = max(_NARROW, float(deviation.min()))
    frequency = 2 / math.pi * (_NATS + math.pi**2 / (8 * s * s))
    if frequency < 0.5 * math.pi / (s * s):
        frequency = math.sqrt(2 * _NATS) / s
    number = math.ceil(float(high - low) * frequency / (2 * math.pi)) + 1
    return torch.linspace(float(low), float(high), number, dtype=mean.dtype, device=mean.device)


def _weights(grid: Column, mean: Column, variance: Column) -> Float[Tensor, "r j"]:
    """Return Δ·N(f; mean, variance) at the grid."""
    half, step = -0.5 / variance, grid[1] - grid[0]
    constant = mean * mean * half + torch.log(step * torch.rsqrt(2 * math.pi * variance))
    left = torch.stack([constant, -2 * mean * half, half], 1)
    return (left @ torch.stack([torch.ones_like(grid), grid, grid * grid])).exp_()


class _Nodes(NamedTuple):
    """Nodes u and weights, relative to the shift of each example."""

    u: Column
    weights: Column


def _nodes(core: float, tail: float, deviation: float, num_latent: int, like: Tensor) -> _Nodes:
    """Return nodes from −core − tail to 0: u = r·(x − e^{−x}) − core, with equal steps in x.

    Left of −core the integrand falls as e^u, and the steps grow. Right of it a step errs by
    e^{−π/2·x − s²x²/(2P)}, x = 2π/step, with s the smallest deviation of P latents.
    """
    rate, share, nats = 0.5 * math.pi, deviation**2 / num_latent, _NATS + 3
    frequency = 2 * nats / (rate + math.sqrt(rate**2 + 2 * share * nats))
    ratio = max(2 * math.pi / frequency / _STEP, 1.0)
    start = -math.log(max(tail / ratio, 1.0))
    number = math.ceil((core / ratio - start) / _STEP) + 1
    if number > _MAX_NODES:
        raise NumericalError(
            f"The integral over a softmax needs {number} nodes. Check mean and variance of f."
        )
    x = start + _STEP * torch.arange(number, dtype=like.dtype, device=like.device)
    bend = torch.exp(-x)
    return _Nodes(ratio * (x - bend) - core, ratio * _STEP * (1 + bend))


class _Range(NamedTuple):
    """Where the integrand of each example has its mass, in u."""

    end: Column
    core: Column
    """Length of the part before the end where steps are equal."""

    tail: Column
    """Length of the part before that, where the integrand falls as e^u."""

    nats: Column
    """The fall of its factors from 1 to where the integrand is negligible."""


_MARGIN = 3.0
"""Distance from where a factor of the integrand turns to the start of its tail."""


def _range(mean: Latents, variance: Latents, rare: Column, likely: Bool[Tensor, " n"]) -> _Range:
    """Return the range of ∫ D_y Π F_k du, or ∫ D_y (1 − Π F_k) du where likely; label first.

    The integral is about e^−rare. F_k and D_k fall from u = −μ_k on, as fast as the Gaussian of
    f_k. To the left D_y falls, with a = μ_y + u, as e^{−a²/2v} down to a = −v, and then as e^a.
    """
    nats = _NATS + rare
    ends = torch.log(nats) + torch.sqrt(2 * nats * variance) - mean
    end = torch.where(likely, ends[0], ends.amin(0))
    label, spread = mean[0], variance[0]
    a = label - mean.amax(0)
    left, turn = _left(a.abs(), spread)
    return _Range(end, end + label + turn, left - turn, nats)


def _left(a: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far left of −μ a D that counts from −a on is negligible, and its tail begins."""
    fallen = torch.where(a < variance, 0.5 * a * a / variance, a - 0.5 * variance)
    target = _NATS + fallen
    near = target <= 0.5 * variance
    left = torch.where(near, torch.sqrt(2 * variance * target), target + 0.5 * variance)
    return left, torch.maximum(a, torch.minimum(left, variance)) + _MARGIN


def _gibbs_range(mean: Latents, variance: Latents, rare: Column) -> _Range:
    """Return the range of ∫ F_y (1 − Π F_k) du; 1 − F_k falls to the left as D_k does."""
    nats = _NATS + rare
    end = torch.log(nats) + torch.sqrt(2 * nats * variance[0]) - mean[0]
    left, turn = _left(torch.zeros_like(mean[1:]), variance[1:])
    start = torch.minimum((-mean[1:] - turn).amin(0), -mean[0] - _MARGIN)
    return _Range(end, end - start, start - (-mean[1:] - left).amin(0), nats)


def _rolled(y: Column, num_latent: int) -> Int[Tensor, "p n"]:
    """Return the order of classes that has the label first."""
    return (y.long() + torch.arange(num_latent, device=y.device)[:, None]) % num_latent


class _Block(NamedTuple):
    """Rows of F at common nodes: mean and variance of each latent and example, label first."""

    mean: Latents
    variance: Latents
    nodes: _Nodes
    nats: float

    def distributions(self, latents: slice) -> _Distributions:
        """Return those of some latents, as rows."""
        mean, variance = (each[latents].reshape(-1) for each in self[:2])
        return _Distributions(mean, variance, self.nodes.u, self.nats)


def _blocks(
    mean: Latents, variance: Latents, ranges: _Range
) -> Iterator[tuple[Int[Tensor, " r"], _Block]]:
    """Yield blocks of examples with integrands of about the same length, and their indices."""
    num_latent = len(mean)
    order = torch.argsort(ranges.core)
    width = variance.sqrt().amax(0) * torch.sqrt(8 * ranges.nats) + mean.amax(0) - mean.amin(0)
    size = max(1, int(_BLOCK_ENTRIES / (num_latent * (64 + 4 * float(width.median())))))
    for index in order.split(size):
        some = [each[index] for each in ranges]
        end, core, tail, nats = some
        deviation = float(variance[:, index].min()) ** 0.5
        nodes = _nodes(float(core.max()), float(tail.max()), deviation, num_latent, mean)
        shifted = mean[:, index] + end
        yield index, _Block(shifted, variance[:, index], nodes, float(nats.max()))


def log_expected_softmax(y: Column, mean: Latents, variance: Latents) -> Columns:
    """Return log E_q[softmax_y(f)] and its slopes, to 1e-10."""
    order = _rolled(y, len(mean))
    mean, variance = mean.gather(0, order), variance.gather(0, order)
    gap = mean[1:] - mean[0]
    likely = (gap < 0).all(0)
    against = _against(gap, variance)
    rare = torch.where(likely, against.amin(0), torch.where(gap > 0, against, 0.0).amax(0))
    ranges = _range(mean, variance, rare, likely)
    kinds = (likely, _complement), (~likely, _product)
    return _in_order(_integrated(mean, variance, ranges, kinds), order)


def expected_log_softmax(y: Column, mean: Latents, variance: Latents) -> Columns:
    """Return E_q[log softmax_y(f)] and its slopes, to 1e-10."""
    order = _rolled(y, len(mean))
    mean, variance = mean.gather(0, order), variance.gather(0, order)
    gap = mean[1:] - mean[0]
    rare = torch.where((gap < 0).all(0), _against(gap, variance).amin(0), 0.0)
    ranges = _gibbs_range(mean, variance, rare)
    every = torch.ones_like(y, dtype=torch.bool)
    return _in_order(_integrated(mean, variance, ranges, ((every, _excess),)), order)


def _against(gap: Float[Tensor, "c n"], variance: Latents) -> Float[Tensor, "c n"]:
    """Return roughly −log of the probability that the smaller of two latents wins."""
    return torch.minimum(gap.abs(), gap * gap / (2 * (variance[0] + variance[1:])))


def _integrated(
    mean: Latents,
    variance: Latents,
    ranges: _Range,
    kinds: tuple[tuple[Bool[Tensor, " n"], Callable[["_Block"], Columns]], ...],
) -> Columns:
    """Return values and slopes, by the integral for each kind of example."""
    columns = torch.empty_like(mean[0]), torch.empty_like(mean), torch.empty_like(mean)
    for chosen, integrate in kinds:
        rows = chosen.nonzero()[:, 0]
        if not len(rows):
            continue
        some = _Range(*(each[rows] for each in ranges))
        for index, block in _blocks(mean[:, rows], variance[:, rows], some):
            for column, part in zip(columns, integrate(block), strict=True):
                column[..., rows[index]] = part
    return columns


def _in_order(columns: Columns, order: Int[Tensor, "p n"]) -> Columns:
    """Return slopes in the order of the classes."""
    value, *slopes = columns
    first, second = (torch.empty_like(each).scatter_(0, order, each) for each in slopes)
    return value, first, second


def _joined(label: tuple[Column, Column], others: tuple[Column, Column]) -> list[Latents]:
    pairs = zip(label, others, strict=True)
    return [torch.cat([own[None], rest.reshape(-1, len(own))]) for own, rest in pairs]


def _product(block: _Block) -> Columns:
    """Return log ∫ D_y Π F_k du and its slopes."""
    label, others = block.distributions(slice(0, 1)), block.distributions(slice(1, None))
    density, below = label.values("density"), others.values("below")
    logs = torch.log(below).reshape(-1, *density.shape).sum(0)
    log_mass = torch.log(density * block.nodes.weights) + logs
    top = log_mass.amax(-1, keepdim=True)
    mass = torch.exp(log_mass - top)
    total = mass.sum(-1, keepdim=True)
    mass /= total
    by_label = label.slopes("density", torch.where(mass > 0, mass / density, 0.0))
    share = mass.repeat(len(below) // len(mass), 1)
    by_others = others.slopes("below", torch.where(share > 0, share / below, 0.0))
    return (top + torch.log(total))[:, 0], *_joined(by_label, by_others)


def _complement(block: _Block) -> Columns:
    """Return log(1 − ∫ D_y (1 − Π F_k) du) and its slopes."""
    failure, *slopes = _beaten(block, "density")
    factor = -1 / (1 - failure)
    return torch.log1p(-failure), *(factor * slope for slope in slopes)


def _excess(block: _Block) -> Columns:
    """Return −∫ F_y (1 − Π F_k) du = E_q[f_y] − E_q[log Σ e^f] and its slopes."""
    value, mean_slope, variance_slope = _beaten(block, "below")
    return -value, -mean_slope, -variance_slope


def _beaten(block: _Block, part: Part) -> Columns:
    """Return ∫ G (1 − Π_{k≠y} F_k) du and its slopes, with G = D_y or F_y."""
    label, others = block.distributions(slice(0, 1)), block.distributions(slice(1, None))
    own, above = label.values(part), others.values("above").clamp_(max=1.0)
    number = len(above) // len(own)
    logs = torch.log1p(-above)
    total = logs.reshape(-1, *own.shape).sum(0)
    beaten = -torch.expm1(total)
    weighted = block.nodes.weights * own
    by_label = label.slopes(part, block.nodes.weights * beaten)
    # Π_{j≠k} F_j.
    rest = torch.where(above < 1, torch.exp(total.repeat(number, 1) - logs), 0.0)
    by_others = others.slopes("above", weighted.repeat(number, 1) * rest)
    return (weighted * beaten).sum(-1), *_joined(by_label, by_others)


_MAX_STEP = 0.5
_CHANCE_NODES = 8192


def largest_probability(y: Column, mean: Latents, variance: Latents) -> Columns:
    """Return P(f_y is the largest) = E[Π_{k≠y} Φ((f_y − μ_k)/s_k)] and its slopes.

    By equal steps in f_y, fine enough for q(f_y) and for the steepest Φ.
    """
    order = _rolled(y, len(mean))
    mean, variance = mean.gather(0, order), variance.gather(0, order)
    deviation = variance.sqrt()
    reach = math.sqrt(2 * _NATS)
    # As fine as q(f_y) or the steepest factor needs: z in deviations of f_y.
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
        found = _chances(mean[:, index], deviation[:, index], z)
        for column, part in zip(columns, found, strict=True):
            column[..., index] = part
    return _in_order(columns, order)


def _chances(mean: Latents, deviation: Latents, z: Column) -> Columns:
    weight = torch.exp(-0.5 * z * z)
    weight = weight / weight.sum()
    f = mean[0][:, None] + deviation[0][:, None] * z
    x = (f - mean[1:, :, None]) / deviation[1:, :, None]
    logs = log_ndtr(x)
    total = logs.sum(0)
    product = weight * torch.exp(total)
    # φ/Φ·Π Φ, by logs where Φ underflows.
    ratio = torch.exp(-0.5 * x * x - 0.5 * math.log(2 * math.pi) + total - logs) * weight
    pull = ratio / deviation[1:, :, None]
    first = -pull.sum(-1)
    # ∂Φ(x)/∂v = −x φ(x) / (2v).
    second = (-0.5 * ratio * x).sum(-1) / deviation[1:] ** 2
    own = pull.sum((0, 2))
    # ∂E/∂v_y = ½E[z g′]/s_y.
    own_second = 0.5 * (pull.sum(0) * z).sum(-1) / deviation[0]
    mean_slope, variance_slope = (
        torch.cat([own[None], first]),
        torch.cat([own_second[None], second]),
    )
    return product.sum(-1), mean_slope, variance_slope

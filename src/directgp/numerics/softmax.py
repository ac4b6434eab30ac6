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
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Literal, NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from directgp.errors import NumericalError
from directgp.numerics.gaussian import gauss_hermite
from directgp.numerics.special import log_ndtr

LatentMatrix = Float[Tensor, "p n l"]
Column = Float[Tensor, " r"]
Latents = Float[Tensor, "p n"]

Columns = tuple[Tensor, ...]
"""Values, and slopes in means and variances."""

Part = Literal["below", "above", "density"]
"""F, 1 − F or D."""

_NATS = 26.0
"""Integrals err by about e^−26."""

_STEP = 0.36
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


class _Nodes(NamedTuple):
    """Nodes u = r·(x − e^{−x}) − core with equal steps in x, relative to a shift of each example.

    Left of −core the integrand falls as e^u, and the steps grow.
    """

    first: int
    number: int
    """Numbers of the first x and of all."""

    core: float
    ratio: float

    @classmethod
    def over(cls, core: float, tail: float, deviation: float, num_latent: int) -> "_Nodes":
        """Return nodes from −core − tail to 0, rounded: they stay the same for many steps.

        Right of −core a step errs by e^{−π/2·x − s²x²/(2P)}, x = 2π/step, with s the smallest
        deviation of P latents.
        """
        rate, share, nats = 0.5 * math.pi, deviation**2 / num_latent, _NATS + 3
        frequency = 2 * nats / (rate + math.sqrt(rate**2 + 2 * share * nats))
        ratio = max(2 * math.pi / frequency / _STEP, 1.0)
        ratio = 2 ** (math.floor(4 * math.log2(ratio)) / 4)
        core = ratio * math.ceil(2 * core / ratio) / 2
        first = -math.ceil(math.log(max(tail / ratio, 1.0)) / _STEP)
        number = math.ceil(core / ratio / _STEP) + 1 - first
        if number > _MAX_NODES:
            raise NumericalError(
                f"The integral over a softmax needs {number} nodes. Check mean and variance of f."
            )
        return cls(first, number, core, ratio)

    def columns(self, like: Tensor) -> tuple[Column, Column]:
        """Return the nodes and their weights."""
        x = torch.arange(self.number, dtype=like.dtype, device=like.device)
        x = _STEP * (x + self.first)
        bend = torch.exp(-x)
        return self.ratio * (x - bend) - self.core, self.ratio * _STEP * (1 + bend)


class _Grid(NamedTuple):
    """Equal steps Δ in f that sum every Gaussian times exp(−e^{f+u})."""

    first: int
    number: int
    step: float

    @classmethod
    def over(cls, low: float, high: float, deviation: float) -> "_Grid":
        """Return the grid for deviations from the given one up, rounded.

        The sum errs by e^{−s²x²/2 − π/2·|2π/Δ − x|} for the worst frequency x.
        """
        s = max(_NARROW, deviation)
        frequency = 2 / math.pi * (_NATS + math.pi**2 / (8 * s * s))
        if frequency < 0.5 * math.pi / (s * s):
            frequency = math.sqrt(2 * _NATS) / s
        step = 2 ** (math.floor(8 * math.log2(2 * math.pi / frequency)) / 8)
        first, last = math.floor(low / step / 4) * 4, math.ceil(high / step / 4) * 4
        return cls(first, last - first + 1, step)

    def points(self, like: Tensor) -> Column:
        """Return the values of f."""
        places = torch.arange(self.number, dtype=like.dtype, device=like.device)
        return self.step * (places + self.first)


@lru_cache(maxsize=128)
def _table(
    part: Part, grid: _Grid, nodes: _Nodes, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "j l"]:
    """Return the kernel at f + u of grid and nodes; not to be written to."""
    like = torch.empty(0, dtype=dtype, device=device)
    return _kernel(part, grid.points(like)[:, None] + nodes.columns(like)[0])


@final
class _Distributions:
    """F, 1 − F or D of P latents of n examples, at nodes u that all share."""

    def __init__(self, mean: Latents, variance: Latents, nodes: _Nodes, nats: float) -> None:
        self._mean, self._variance, self._nodes = mean, variance, nodes
        self.u, self.weights = nodes.columns(mean)
        deviation, reach = variance.sqrt(), math.sqrt(2 * nats)
        low, high = mean - reach * deviation, mean + reach * deviation
        far = high + variance + self.u[-1] < _FAR
        narrow = (deviation < _NARROW) & ~far
        self._far, self._narrow, other = far, narrow, far | narrow
        infinity = torch.full_like(mean, torch.inf)
        ends = torch.stack(
            [
                torch.where(other, infinity, low).min(),
                torch.where(other, -infinity, high).max(),
                torch.where(other, infinity, deviation).min(),
                far.any(),
                narrow.any(),
            ]
        ).tolist()
        self._any_far, self._any_narrow = ends[3] > 0, ends[4] > 0
        self._grid = _Grid.over(*ends[:3]) if ends[0] <= ends[1] else _Grid(0, 4, 1.0)
        self._f = self._grid.points(mean)
        self._q = _gaussian(self._f, mean, variance.clamp(min=_NARROW**2))

    def values(self, part: Part, latents: slice) -> LatentMatrix:
        """Return the function of some latents at every node."""
        mean, variance, u = self._mean[latents], self._variance[latents], self.u
        found = self._q[latents] @ self._kernels(part)
        if self._any_far:
            far = self._far[latents]
            # E e^{f+u}, and for D as for 1 − F.
            small = torch.exp((mean[far] + 0.5 * variance[far])[:, None] + u)
            found[far] = 1 - small if part == "below" else small
        if self._any_narrow:
            narrow = self._narrow[latents]
            points, weights = _hermite(mean[narrow], variance[narrow], u)
            found[narrow] = torch.einsum("rjl,j->rl", _kernel(part, points), weights)
        return found

    def slopes(self, part: Part, by: LatentMatrix, latents: slice) -> tuple[Latents, Latents]:
        """Return the gradient of Σ by·`values` in means and variances of these latents."""
        mean, variance, u, f = self._mean[latents], self._variance[latents], self.u, self._f
        mass = by @ self._kernels(part).T
        mass *= self._q[latents]
        powers = torch.stack([torch.ones_like(f), f, f * f], 1)
        total, once, twice = (mass @ powers).unbind(-1)
        centred = once - mean * total
        first = centred / variance
        second = 0.5 * ((twice - mean * (once + centred)) / variance - total) / variance
        if self._any_far:
            far = self._far[latents]
            small = torch.exp((mean[far] + 0.5 * variance[far])[:, None] + u)
            sign = -1 if part == "below" else 1
            first[far] = sign * (by[far] * small).sum(-1)
            second[far] = 0.5 * first[far]
        if self._any_narrow:
            narrow = self._narrow[latents]
            points, weights = _hermite(mean[narrow], variance[narrow], u)
            some = by[narrow]
            slope, bend = (
                torch.einsum("rjl,j,rl->r", _kernel(part, points, order), weights, some)
                for order in (1, 2)
            )
            first[narrow], second[narrow] = slope, 0.5 * bend
        return first, second

    def _kernels(self, part: Part) -> Float[Tensor, "j l"]:
        return _table(part, self._grid, self._nodes, self._f.dtype, self._f.device)


def _gaussian(f: Float[Tensor, " j"], mean: Latents, variance: Latents) -> Float[Tensor, "p n j"]:
    """Return Δ·N(f; mean, variance) at equal steps Δ."""
    half, step = -0.5 / variance, f[1] - f[0]
    constant = mean * mean * half + torch.log(step * torch.rsqrt(2 * math.pi * variance))
    left = torch.stack([constant, -2 * mean * half, half], -1)
    return (left @ torch.stack([torch.ones_like(f), f, f * f])).exp_()


def _hermite(
    mean: Column, variance: Column, u: Float[Tensor, " l"]
) -> tuple[Float[Tensor, "r j l"], Float[Tensor, " j"]]:
    """Return f + u at Gauss–Hermite nodes f of each row, and their weights."""
    z, log_weights = gauss_hermite(_NARROW_NODES, u.dtype, u.device)
    f = mean[:, None] + variance[:, None].sqrt() * z
    return f[..., None] + u, torch.exp(log_weights)


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


def _blocks(
    mean: Latents, variance: Latents, ranges: _Range
) -> Iterator[tuple[Int[Tensor, " r"], _Distributions]]:
    """Yield blocks of examples with integrands of about the same length: indices and factors."""
    num_latent = len(mean)
    order = torch.argsort(ranges.core)
    for index in order.split(max(1, _BLOCK_ENTRIES // (128 * num_latent))):
        end, core, tail, nats = (each[index] for each in ranges)
        some = variance[:, index]
        numbers = torch.stack([core.max(), tail.max(), nats.max(), some.min().sqrt()]).tolist()
        check_finite_numbers(numbers)
        longest, tail_length, fall, deviation = numbers
        nodes = _Nodes.over(longest, tail_length, deviation, num_latent)
        yield index, _Distributions(mean[:, index] + end, some, nodes, fall)


def check_finite_numbers(numbers: Iterable[float]) -> None:
    """Raise `NumericalError` for NaN and infinity."""
    if not all(map(math.isfinite, numbers)):
        raise NumericalError(
            "An integral over several latents met NaN or infinity. Check mean and variance of f."
        )


def log_expected_softmax(y: Column, mean: Latents, variance: Latents) -> Columns:
    """Return log E_q[softmax_y(f)] and its slopes, to 1e-9."""
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
    """Return E_q[log softmax_y(f)] and its slopes, to 1e-9."""
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
    kinds: tuple[tuple[Bool[Tensor, " n"], Callable[[_Distributions], Columns]], ...],
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


_LABEL, _OTHERS = slice(0, 1), slice(1, None)


def _product(factors: _Distributions) -> Columns:
    """Return log ∫ D_y Π F_k du and its slopes."""
    density, below = factors.values("density", _LABEL), factors.values("below", _OTHERS)
    log_mass = torch.log(density[0] * factors.weights).add_(torch.log(below).sum(0))
    top = log_mass.amax(-1, keepdim=True)
    mass = log_mass.sub_(top).exp_()
    total = mass.sum(-1, keepdim=True)
    mass /= total
    some = mass > 0
    own = factors.slopes("density", torch.where(some, mass / density, 0.0), _LABEL)
    rest = factors.slopes("below", torch.where(some, mass / below, 0.0), _OTHERS)
    return (top + torch.log(total))[:, 0], *map(torch.cat, zip(own, rest, strict=True))


def _complement(factors: _Distributions) -> Columns:
    """Return log(1 − ∫ D_y (1 − Π F_k) du) and its slopes."""
    failure, *slopes = _beaten(factors, "density")
    factor = -1 / (1 - failure)
    return torch.log1p(-failure), *(factor * slope for slope in slopes)


def _excess(factors: _Distributions) -> Columns:
    """Return −∫ F_y (1 − Π F_k) du = E_q[f_y] − E_q[log Σ e^f] and its slopes."""
    value, mean_slope, variance_slope = _beaten(factors, "below")
    return -value, -mean_slope, -variance_slope


def _beaten(factors: _Distributions, part: Part) -> Columns:
    """Return ∫ G (1 − Π_{k≠y} F_k) du and its slopes, with G = D_y or F_y."""
    own, above = factors.values(part, _LABEL), factors.values("above", _OTHERS).clamp_(max=1.0)
    logs = torch.log1p(-above)
    total = logs.sum(0)
    beaten = -torch.expm1(total)
    weighted = factors.weights * own
    by_label = factors.slopes(part, (factors.weights * beaten)[None], _LABEL)
    # Π_{j≠k} F_j.
    rest = torch.where(above < 1, (total - logs).exp_(), 0.0)
    by_others = factors.slopes("above", rest.mul_(weighted), _OTHERS)
    value = (weighted[0] * beaten).sum(-1)
    return value, *map(torch.cat, zip(by_label, by_others, strict=True))


_MAX_STEP = 0.5
"""Step in deviations of f_y: the sum of a Gaussian errs by e^{−2π²/step²}."""

_CHANCE_NODES = 8192


def largest_probability(y: Column, mean: Latents, variance: Latents) -> Columns:
    """Return P(f_y is the largest) = E[Π_{k≠y} Φ((f_y − μ_k)/s_k)] and its slopes.

    By equal steps in f_y, fine enough for q(f_y) and for the steepest Φ.
    """
    order = _rolled(y, len(mean))
    mean, variance = mean.gather(0, order), variance.gather(0, order)
    deviation = variance.sqrt()
    check_finite_numbers([float(mean.sum()), float(deviation.sum())])
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


def _chances(mean: Latents, deviation: Latents, z: Float[Tensor, " k"]) -> Columns:
    """Return the sum over nodes f_y = μ_y + s_y·z, and its slopes; label first."""
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

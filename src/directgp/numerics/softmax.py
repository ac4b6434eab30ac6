"""Integrate softmax likelihoods over any number of latent functions, exactly, in one dimension.

softmax_y(f) = P(f_y + G_y is the largest f_k + G_k) for independent Gumbel G_k. With
F_k(u) = E_q[exp(−e^{f_k+u})], the distribution function of f_k + G_k at −u, and D_k = −F_k′,

E_q[softmax_y(f)] = ∫ D_y Π_{k≠y} F_k du,   1 − E_q[softmax_y(f)] = ∫ D_y (1 − Π_{k≠y} F_k) du,
−E_q[log softmax_y(f)] = ∫ F_y (1 − Π_{k≠y} F_k) du.

The nodes in u are common to a block of examples, each shifted by a constant of its own. So is a
grid over f: F_k at all nodes is then a product of two matrices, the weights of q(f_k) on the grid,
and exp(−e^{f+u}), which is the same for every example and class.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Literal, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.interpolate import BSpline, make_interp_spline
from scipy.special import log_ndtr as scipy_log_ndtr
from scipy.special import logsumexp
from torch import Tensor

from directgp.errors import NumericalError
from directgp.numerics.fixed_sizes import constant, fixed_size, fixed_sizes, recording
from directgp.numerics.gaussian import gauss_hermite
from directgp.numerics.special import log_ndtr

LatentMatrix = Float[Tensor, "p n l"]
Column = Float[Tensor, " r"]
Matrix = Float[Tensor, "r l"]
Latents = Float[Tensor, "p n"]

Columns = tuple[Tensor, ...]
"""Values, and slopes in means and variances."""

Part = Literal["below", "above", "density"]
"""F, 1 − F or D."""

_NATS = 25.0
"""Integrals err by about e^−25."""

_STEP = 0.36
"""Step in x, whose double exponential integrand is analytic for abs(Im x) < π/2."""

_NARROW = 0.25
"""Standard deviation of f below which a grid would be too fine: Gauss–Hermite nodes instead."""

_NARROW_NODES = 12
_VERY_NARROW, _FEW_NODES = 0.06, 5
"""Those of smaller deviations have 5 nodes; 12 err by 12!·(2s/π)²⁴."""

_FAR = -37.0
"""f + u up to which 1 − exp(−e^{f+u}) is e^{f+u} in float64."""

_MAX_NODES = 20_000
_FEWEST = 128
"""Examples of a block, if there are as many."""

_BLOCK_ENTRIES = 2**14
_DEVICE_ENTRIES = 2**20
"""Most latents of a block of examples."""


def _kernel(part: Part, x: Tensor, order: int = 0) -> Tensor:
    """Return exp(−e^x), 1 − exp(−e^x) or e^x·exp(−e^x), or a derivative of it in x."""
    t = torch.exp(x)
    if part == "above" and order == 0:
        return -torch.expm1(-t)
    decay = torch.exp(-t)
    if part == "below" and order == 0:
        return decay
    # Each is a derivative of t·e^−t, up to its sign.
    sign = -1 if part == "below" else 1
    factor = t
    if (order if part == "density" else order - 1) == 1:
        factor = t * (1 - t)
    elif part == "density" and order == 2:
        factor = t * (1 + t * (t - 3))
    return torch.where(decay > 0, sign * factor * decay, 0.0)


class _Nodes(NamedTuple):
    """Nodes u = r·(x − e^{−x}) with equal steps in x, relative to a shift of each example.

    Left of 0, where the integrand falls as e^u, the steps grow.
    """

    first: int
    number: int
    """Numbers of the first x and of all."""

    ratio: float

    @classmethod
    def over(cls, core: float, tail: float, share: float) -> "_Nodes":
        """Return nodes from −tail to core, of a rounded ratio r.

        Right of 0 a step errs by e^{−π/2·x − x²·share/2}, x = 2π/step.
        """
        rate, nats = 0.5 * math.pi, _NATS + 3
        frequency = 2 * nats / (rate + math.sqrt(rate**2 + 2 * share * nats))
        ratio = max(2 * math.pi / frequency / _STEP, 1.0)
        ratio = 2 ** (math.floor(2 * math.log2(ratio)) / 2)
        first = -math.ceil(math.log(max(tail / ratio, 1.0)) / _STEP)
        number = math.ceil(core / ratio / _STEP) + 1 - first
        if number > _MAX_NODES:
            raise NumericalError(
                f"The integral over a softmax needs {number} nodes. Check mean and variance of f."
            )
        return cls(first, number, ratio)

    def columns(self, like: Tensor) -> tuple[Column, Column]:
        """Return the nodes and their weights."""

        def make() -> Float[Tensor, "2 l"]:
            x = torch.arange(self.number, dtype=like.dtype, device=like.device)
            x = _STEP * (x + self.first)
            bend = torch.exp(-x)
            return torch.stack([self.ratio * (x - bend), self.ratio * _STEP * (1 + bend)])

        nodes, weights = constant(self, make)
        return nodes, weights


def _sizes(name: str, *needed: Tensor) -> list[float]:
    """Read what a block of examples needs; a recorded step has enough for the steps before it."""
    fixed = [fixed_size(f"softmax {name} {k}", each) for k, each in enumerate(needed)]
    known = [size for size in fixed if size is not None]
    if known:
        return known
    numbers = torch.stack([each.double() for each in needed]).tolist()
    check_finite_numbers(numbers)
    return numbers


class _Far(NamedTuple):
    """Latents so far left of all nodes that 1 − exp(−e^{f+u}) is e^{f+u}."""

    mean: Column
    variance: Column
    u: Float[Tensor, " l"]

    def some(self, rows: slice) -> "_Far":
        """Return some of the latents."""
        return self._replace(mean=self.mean[rows], variance=self.variance[rows])

    def values(self, part: Part) -> Matrix:
        """E e^{f+u}, for D as for 1 − F."""
        small = torch.exp((self.mean + 0.5 * self.variance)[:, None] + self.u)
        return 1 - small if part == "below" else small

    def slopes(self, part: Part, by: Matrix) -> tuple[Column, Column]:
        """Return the gradient of Σ by·`values` in means and variances."""
        sign = -1 if part == "below" else 1
        slope = sign * (by * self.values("above")).sum(-1)
        return slope, 0.5 * slope


class _Narrow(NamedTuple):
    """Latents of a small variance: Gauss–Hermite nodes for each."""

    mean: Column
    variance: Column
    u: Float[Tensor, " l"]
    number: int = _NARROW_NODES

    def some(self, rows: slice) -> "_Narrow":
        """Return some of the latents."""
        return self._replace(mean=self.mean[rows], variance=self.variance[rows])

    def values(self, part: Part) -> Matrix:
        """F, 1 − F or D at each node."""
        points, weights = self._points()
        return torch.einsum("rjl,j->rl", _kernel(part, points), weights)

    def slopes(self, part: Part, by: Matrix) -> tuple[Column, Column]:
        """Return the gradient of Σ by·`values` in means and variances."""
        points, weights = self._points()
        slope, bend = (
            torch.einsum("rjl,j,rl->r", _kernel(part, points, order), weights, by)
            for order in (1, 2)
        )
        return slope, 0.5 * bend

    def _points(self) -> tuple[Float[Tensor, "r j l"], Float[Tensor, " j"]]:
        def make() -> Float[Tensor, "2 j"]:
            z, log_weights = gauss_hermite(self.number, self.u.dtype, self.u.device)
            return torch.stack([z, torch.exp(log_weights)])

        z, weights = constant("softmax narrow", make)
        f = self.mean[:, None] + self.variance[:, None].sqrt() * z
        return f[..., None] + self.u, weights


@final
class _Table:
    """E[kernel(f + u + tz)] at all steps f and nodes u that were asked for."""

    def __init__(self, part: Part, step: float, blur: float, ratio: float, like: Tensor) -> None:
        self._part: Part = part
        self._step, self._blur, self._ratio, self._like = step, blur, ratio, like
        self._held = range(0), range(0), like.new_empty(0, 0)

    def take(self, rows: range, nodes: _Nodes) -> Float[Tensor, "j l"]:
        """Return the table for some steps and nodes, not to be written to."""
        columns = range(nodes.first, nodes.first + nodes.number)
        held_rows, held_columns, values = self._held
        if not (_inside(rows, held_rows) and _inside(columns, held_columns)):
            held_rows = _with_margin(rows, held_rows)
            held_columns = _with_margin(columns, held_columns)
            every = _Nodes(held_columns.start, len(held_columns), self._ratio)
            u = every.columns(self._like)[0]
            f = self._step * torch.arange(held_rows.start, held_rows.stop).to(u)
            values = _blurred(self._part, f[:, None] + u, self._blur)
            self._held = held_rows, held_columns, values
        top, left = rows.start - held_rows.start, columns.start - held_columns.start
        return values[top : top + len(rows), left : left + len(columns)]


def _inside(inner: range, outer: range) -> bool:
    return outer.start <= inner.start and inner.stop <= outer.stop


def _with_margin(some: range, held: range) -> range:
    """Return what is held and more than is asked for: few tables are made for many steps."""
    more = len(some) // 6
    start, stop = some.start - more, some.stop + more
    return range(min(start, held.start), max(stop, held.stop)) if len(held) else range(start, stop)


@lru_cache(maxsize=256)
def _table(
    part: Part, step: float, blur: float, ratio: float, dtype: torch.dtype, device: torch.device
) -> _Table:
    return _Table(part, step, blur, ratio, torch.empty(0, dtype=dtype, device=device))


def _blurred(part: Part, x: Matrix, blur: float) -> Matrix:
    """Return E[kernel(x + tz)], z ~ N(0, 1), t² = blur."""
    if not blur:
        return _kernel(part, x)
    low, high, log_mean = _spline(part, blur)
    points = x.cpu().numpy()
    logs = log_mean(np.clip(points, low, high))
    # Left of the ends the mean is E e^{x+tz}, or negligible; right of them 0 or 1.
    left = points + 0.5 * blur if low < -blur else np.full_like(points, -np.inf)
    left = np.zeros_like(points) if part == "below" else left
    right = 0.0 if part == "above" else -np.inf
    logs = np.where(points < low, left, np.where(points > high, right, logs))
    return torch.exp(torch.from_numpy(logs).to(x))


@lru_cache(maxsize=32)
def _spline(part: Part, blur: float) -> "tuple[float, float, BSpline]":
    """Return a spline of log E[kernel(x + tz)] over x, and its ends.

    1 − exp(−e^x) is the distribution function of log E at x, for an exponential E.
    """
    t = math.sqrt(blur)
    low, high = -min(blur, 20 * t) - 10 * t - 40, 30 * t + 20
    x = np.linspace(low, high, math.ceil(16 * (high - low) / min(t, 2 + 0.5 * t)))
    step = 0.1 if t < 1 else 0.2
    g = np.arange(max(low - 10 * t - 35, -200.0), 6.0, step)
    log_weights = g - np.exp(g) + math.log(step)
    z = (x[:, None] - g) / t
    if part == "density":
        logs = -0.5 * z * z - 0.5 * math.log(2 * math.pi * blur)
    else:
        logs = scipy_log_ndtr(z if part == "above" else -z)
    return low, high, make_interp_spline(x, logsumexp(log_weights + logs, axis=1), 9)


_EDGES = (0.25, 0.75, 3.0, 12.0, 48.0, 192.0)
"""Deviations of f that divide latents into groups with a grid for each."""


def _blur(least: float) -> float:
    """Return t² for deviations from the least one up."""
    return 0.0 if least < 0.7 else 0.5 * least * least


def _grid_step(least: float, blur: float) -> float:
    """Return the step Δ of a grid in f.

    The sum errs by e^{−A·x²/2 − t²·y²/2 − π/2·y}, y = 2π/Δ − x, for the worst frequency x, with
    A = s² − t² and s the least deviation.
    """
    square, rate = least * least, 0.5 * math.pi
    rest = square - blur
    bend, slope = 0.5 * rest * blur / square, rate * rest / square
    target = _NATS + 0.5 * rate * rate / square
    frequency = 2 * target / (slope + math.sqrt(slope * slope + 4 * bend * target))
    if frequency < rate / rest:
        frequency = math.sqrt(2 * _NATS / rest)
    return 2 * math.pi / frequency


@final
class _Even:
    """Latents of like deviations s: equal steps Δ in f, the same for all of them.

    With q split into N(μ, s² − t²) and N(0, t²), F = Σ_f Δ·N(f; μ, s² − t²)·E[exp(−e^{f+u+tz})]: a
    product of two matrices, of which the second is the same for all examples. The wider the latents
    are, the wider is Δ.
    """

    def __init__(
        self, mean: Column, variance: Column, nodes: _Nodes, nats: float, least: float
    ) -> None:
        blur = 0.0 if fixed_sizes.get() is not None else _blur(least)
        self._variance, self._nodes = variance - blur if blur else variance, nodes
        reach = math.sqrt(2 * nats) * self._variance.sqrt()
        low, high = (mean - reach).min(), (mean + reach).max()
        step = _grid_step(least, blur)
        (width,) = _sizes("width", high - low)
        number = math.ceil(width / step) + 2
        f = constant(("softmax grid", number, step), partial(_steps, number, step, mean))
        self._first = 0 if recording() else math.floor(float(low) / step)
        self._f = f + (torch.floor(low / step) if recording() else self._first) * step
        self._key = step, blur, nodes.ratio, mean.dtype, mean.device
        # Moments about the mean lose no digits.
        self._away = self._f - mean[:, None]
        self._q = self._away.square().mul_((-0.5 / self._variance)[:, None]).exp_()
        self._q *= (step * torch.rsqrt(2 * math.pi * self._variance))[:, None]
        self._tables: dict[Part, Tensor] = {}

    def some(self, rows: slice) -> "_Even":
        """Return some of the latents."""
        twin = copy.copy(self)
        twin._variance, twin._away, twin._q = (
            each[rows] for each in (self._variance, self._away, self._q)
        )
        return twin

    def values(self, part: Part) -> Matrix:
        """F, 1 − F or D at each node."""
        return self._q @ self._kernels(part)

    def slopes(self, part: Part, by: Matrix) -> tuple[Column, Column]:
        """Return the gradient of Σ by·`values` in means and variances."""
        mass = by @ self._kernels(part).T
        mass *= self._q
        total = mass.sum(-1)
        once = mass.mul_(self._away).sum(-1)
        twice = mass.mul_(self._away).sum(-1)
        return once / self._variance, 0.5 * (twice / self._variance - total) / self._variance

    def _kernels(self, part: Part) -> Float[Tensor, "j l"]:
        if part not in self._tables:
            if recording():
                found = _kernel(part, self._f[:, None] + self._nodes.columns(self._q)[0])
            else:
                rows = range(self._first, self._first + len(self._f))
                found = _table(part, *self._key).take(rows, self._nodes)
            self._tables[part] = found
        return self._tables[part]


def _steps(number: int, step: float, like: Tensor) -> Column:
    return step * torch.arange(number, dtype=like.dtype, device=like.device)


@final
class _Distributions:
    """F, 1 − F or D of P latents of n examples, at nodes u that all share."""

    def __init__(self, mean: Latents, variance: Latents, nodes: _Nodes, nats: float) -> None:
        self._shape = mean.shape
        mean, variance = mean.flatten(), variance.flatten()
        deviation = variance.sqrt()
        u = nodes.columns(mean)[0]
        far = mean + math.sqrt(2 * nats) * deviation + variance + u[-1] < _FAR
        self._groups: list[tuple[Tensor | None, _Far | _Narrow | _Even]] = []
        """Rows of the flat latents, or a mask of them in a recorded step, or all."""

        if fixed_sizes.get() is not None:
            narrow = (deviation < _NARROW) & ~far
            inverse = torch.where(far | narrow, 0.0, 1 / deviation).max()
            most, any_far, any_narrow = _sizes("group", inverse, far.any(), narrow.any())
            least = max(_NARROW, 1 / most) if most else 1.0
            common = variance.clamp(min=_NARROW**2)
            self._groups.append((None, _Even(mean, common, nodes, nats, least)))
            if any_far:
                self._groups.append((far, _Far(mean, variance, u)))
            if any_narrow:
                self._groups.append((narrow, _Narrow(mean, variance, u)))
            return
        edges = torch.tensor([_VERY_NARROW, *_EDGES]).to(mean)
        group = torch.where(far, -1, torch.bucketize(deviation, edges, right=True)) + 1
        sizes = torch.bincount(group, minlength=len(edges) + 2).tolist()
        for number in (k for k, size in enumerate(sizes) if size):
            every = sizes[number] == len(mean)
            rows = None if every else (group == number).nonzero()[:, 0]
            some = (mean, variance) if rows is None else (mean[rows], variance[rows])
            if number == 0:
                self._groups.append((rows, _Far(*some, u)))
            elif number < 3:
                nodes_of_each = (_FEW_NODES, _NARROW_NODES)[number - 1]
                self._groups.append((rows, _Narrow(*some, u, nodes_of_each)))
            else:
                self._groups.append((rows, _Even(*some, nodes, nats, _EDGES[number - 3])))

    def part(self, latents: slice) -> "_Distributions":
        """Return those of some latents, in a recorded step."""
        first, last, _ = latents.indices(self._shape[0])
        rows = slice(first * self._shape[1], last * self._shape[1])
        twin = copy.copy(self)
        twin._shape = torch.Size([last - first, self._shape[1]])
        twin._groups = [
            (mask if mask is None else mask[rows], group.some(rows)) for mask, group in self._groups
        ]
        return twin

    def values(self, part: Part) -> LatentMatrix:
        """Return the function of all latents at every node."""
        (found,) = self._joined([(group.values(part),) for _, group in self._groups])
        return found.view(*self._shape, -1)

    def slopes(self, part: Part, by: LatentMatrix) -> tuple[Latents, Latents]:
        """Return the gradient of Σ by·`values` in means and variances."""
        by = by.flatten(0, 1)
        first, second = self._joined(
            [
                group.slopes(part, by if rows is None or rows.dtype == torch.bool else by[rows])
                for rows, group in self._groups
            ]
        )
        return first.view(self._shape), second.view(self._shape)

    def _joined(self, parts: Sequence[Columns]) -> Columns:
        """Return columns of all latents from those of each group."""
        found = parts[0]
        if self._groups[0][0] is not None:
            number = self._shape.numel()
            found = tuple(each.new_empty(number, *each.shape[1:]) for each in found)
        for (rows, _), columns in zip(self._groups, parts, strict=True):
            if rows is None:
                continue
            if rows.dtype == torch.bool:
                masks = [rows.view(-1, *[1] * (each.dim() - 1)) for each in columns]
                found = tuple(map(torch.where, masks, columns, found))
            else:
                for each, column in zip(found, columns, strict=True):
                    each[rows] = column
        return found


class _Factors(NamedTuple):
    """Distributions of the label's latent and of the others, and the weights of the nodes."""

    label: _Distributions
    others: _Distributions
    weights: Float[Tensor, " l"]


class _Range(NamedTuple):
    """Where the integrand of each example has its mass, in u."""

    start: Column
    """Steps are equal right of it."""

    core: Column
    """Length of the part with equal steps."""

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
    left, turn = _left((label - mean.amax(0)).abs(), spread)
    return _Range(-label - turn, end + label + turn, left - turn, nats)


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
    return _Range(start, end - start, start - (-mean[1:] - left).amin(0), nats)


def _rolled(y: Column, num_latent: int) -> Int[Tensor, "p n"]:
    """Return the order of classes that has the label first."""
    return (y.long() + torch.arange(num_latent, device=y.device)[:, None]) % num_latent


def _alike(needed: Column, num_latent: int) -> Iterable[Int[Tensor, " _"]]:
    """Return blocks of examples, by what they need; in a recorded step as they come."""
    if fixed_sizes.get() is not None:
        every = torch.arange(len(needed), device=needed.device)
        return list(every.split(max(1, _DEVICE_ENTRIES // num_latent)))
    check_finite_numbers([float(needed.sum())])
    levels = (2 * torch.log2(needed.clamp(1.0, _MAX_NODES))).long()
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
    # Product of P factors that fall as e^{−v_k·x_k²/2} at frequencies x_k of the sum x.
    share = 1 / (1 / variance).sum(0)
    # In proportion to the number of nodes.
    needed = ranges.core * torch.rsqrt(share.clamp(min=1.0))
    for index in _alike(needed, len(mean)):
        start, core, tail, nats = (each[index] for each in ranges)
        some_mean, some_variance = mean[:, index] + start, variance[:, index]
        ends = core.max(), tail.max(), 1 / share[index].min(), nats.max()
        longest, tail_length, inverse, fall = _sizes("range", *ends)
        nodes = _Nodes.over(longest, tail_length, 1 / inverse)
        parts = slice(0, 1), slice(1, None)
        if fixed_sizes.get() is not None:
            every = _Distributions(some_mean, some_variance, nodes, fall)
            label, others = (every.part(part) for part in parts)
        else:
            label, others = (
                _Distributions(some_mean[part], some_variance[part], nodes, fall) for part in parts
            )
        yield index, _Factors(label, others, nodes.columns(mean)[1])


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
    """Return how far f_y can be raised while p is in proportion to e^{f_y}, which may underflow."""
    reach = variance + 12 * variance.sqrt()
    lead = (mean - reach)[1:].amax(0) - (mean + reach)[0]
    return (lead - 50).clamp(min=0.0)


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
    kinds: tuple[tuple[Bool[Tensor, " n"], Callable[[_Factors], Columns]], ...],
) -> Columns:
    """Return values and slopes, by the integral for each kind of example."""
    columns = torch.empty_like(mean[0]), torch.empty_like(mean), torch.empty_like(mean)
    if fixed_sizes.get() is not None:
        parts = []
        for index, block in _blocks(mean, variance, ranges):
            found, *more = (integrate(block) for _, integrate in kinds)
            likely = kinds[0][0][index]
            for other in more:
                pairs = zip(found, other, strict=True)
                found = tuple(torch.where(likely, a, b) for a, b in pairs)
            parts.append(found)
        return tuple(torch.cat(each, -1) for each in zip(*parts, strict=True))
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


def _product(factors: _Factors) -> Columns:
    """Return log ∫ D_y Π F_k du and its slopes."""
    density, below = factors.label.values("density"), factors.others.values("below")
    log_mass = torch.log(density[0] * factors.weights).add_(torch.log(below).sum(0))
    top = log_mass.amax(-1, keepdim=True)
    mass = log_mass.sub_(top).exp_()
    total = mass.sum(-1, keepdim=True)
    mass /= total
    some = mass > 0
    own = factors.label.slopes("density", torch.where(some, mass / density, 0.0))
    rest = factors.others.slopes("below", torch.where(some, mass / below, 0.0))
    return (top + torch.log(total))[:, 0], *map(torch.cat, zip(own, rest, strict=True))


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
    own, above = factors.label.values(part), factors.others.values("above").clamp_(max=1.0)
    logs = torch.log1p(-above)
    total = logs.sum(0)
    beaten = -torch.expm1(total)
    weighted = factors.weights * own
    by_label = factors.label.slopes(part, (factors.weights * beaten)[None])
    # Π_{j≠k} F_j.
    rest = torch.where(above < 1, (total - logs).exp_(), 0.0)
    by_others = factors.others.slopes("above", rest.mul_(weighted))
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

"""Compute the distribution of f + G at many points, for a Gaussian f and a Gumbel variable G.

F(u) = E[exp(−e^{f+u})] is its distribution function at −u, and D = −F′. The points u are common to
a block of examples. So is a grid over f: F at all points is then a product of two matrices, the
weights of q(f) on the grid, and exp(−e^{f+u}), which is the same for every example.
"""

import copy
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import Literal, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float
from scipy.interpolate import BSpline, make_interp_spline
from scipy.special import log_ndtr, logsumexp
from torch import Tensor

from directgp.errors import NumericalError
from directgp.numerics.fixed_sizes import constant, fixed_size, fixed_sizes, recording
from directgp.numerics.gaussian import gauss_hermite

LatentMatrix = Float[Tensor, "p n l"]
"""A number for each latent, example and node."""

Column = Float[Tensor, " r"]
"""A number for each row."""

Matrix = Float[Tensor, "r l"]
"""A number for each row and node."""

Latents = Float[Tensor, "p n"]
"""A number for each latent and example."""

Columns = tuple[Tensor, ...]
"""Values, and slopes in means and variances."""

Part = Literal["below", "above", "density"]
"""F, 1 − F or D."""

NATS = 25.0
"""Integrals err by about e^−25."""

_MAX_STEPS = 10**7
"""Largest number of nodes of one integral (80 MB for the nodes, 80 MB for the weights); trained
models need thousands."""

_STEP = 0.36
"""Step in x, whose double exponential integrand is analytic for abs(Im x) < π/2."""

_NARROW = 0.25
"""Below this standard deviation of f a grid would need too many points; Gauss–Hermite nodes replace
it."""

_NARROW_NODES = 12
"""Gauss–Hermite nodes of a narrow latent; they err by 12!·(2s/π)²⁴ for the standard deviation s."""

_VERY_NARROW = 0.06
"""Below this standard deviation of f, `_FEW_NODES` suffice."""

_FEW_NODES = 5
"""Gauss–Hermite nodes of a very narrow latent."""

_FAR = -37.0
"""Up to this f + u, 1 − exp(−e^{f+u}) is e^{f+u} in float64."""

MAX_NODES = 20_000
"""Largest number of nodes u."""


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


class StretchedNodes(NamedTuple):
    """Nodes u = r·(x − e^{−x}) with equal steps in x, relative to a shift of each example.

    The steps in u grow to the left of 0, where the integrand falls as e^u.
    """

    first: int
    """Index of the first x."""

    number: int
    """Number of nodes."""

    ratio: float
    """The factor r."""

    @classmethod
    def over(cls, core: float, tail: float, share: float) -> "StretchedNodes":
        """Return nodes from −tail to core, of a rounded ratio r.

        Right of 0 a step errs by e^{−π/2·x − x²·share/2}, x = 2π/step.
        """
        rate = 0.5 * math.pi
        nats = NATS + 3
        frequency = 2 * nats / (rate + math.sqrt(rate**2 + 2 * share * nats))
        ratio = max(2 * math.pi / frequency / _STEP, 1.0)
        ratio = 2 ** (math.floor(2 * math.log2(ratio)) / 2)
        first = -math.ceil(math.log(max(tail / ratio, 1.0)) / _STEP)
        number = math.ceil(core / ratio / _STEP) + 1 - first
        if number > MAX_NODES:
            raise NumericalError(
                f"The integral over a softmax needs {number} nodes. Check mean and variance of f."
            )
        return cls(first, number, ratio)

    def columns(self, template: Tensor) -> tuple[Column, Column]:
        """Return the nodes and their weights."""

        def make() -> Float[Tensor, "2 l"]:
            x = torch.arange(self.number, dtype=template.dtype, device=template.device)
            x = _STEP * (x + self.first)
            bend = torch.exp(-x)
            return torch.stack([self.ratio * (x - bend), self.ratio * _STEP * (1 + bend)])

        nodes, weights = constant(self, make)
        return nodes, weights


def check_finite_numbers(numbers: Iterable[float]) -> None:
    """Raise `NumericalError` for NaN and infinity."""
    if not all(map(math.isfinite, numbers)):
        raise NumericalError(
            "An integral over several latents met NaN or infinity. Check mean and variance of f."
        )


def read_sizes(name: str, *needed: Tensor) -> list[float]:
    """Return the sizes that a block of examples needs; a recorded step has fixed sizes."""
    fixed = [fixed_size(f"softmax {name} {k}", number) for k, number in enumerate(needed)]
    sizes = [size for size in fixed if size is not None]
    if sizes:
        return sizes
    numbers = torch.stack([number.double() for number in needed]).tolist()
    check_finite_numbers(numbers)
    return numbers


class _Far(NamedTuple):
    """Latents so far left of all nodes that 1 − exp(−e^{f+u}) is e^{f+u}."""

    mean: Column
    """Means of the latents."""

    variance: Column
    """Variances of the latents."""

    u: Float[Tensor, " l"]
    """The nodes."""

    def at(self, rows: slice) -> "_Far":
        """Return the latents at a slice of rows."""
        return self._replace(mean=self.mean[rows], variance=self.variance[rows])

    def values(self, part: Part) -> Matrix:
        """Return E e^{f+u}, which is D and 1 − F here, or 1 minus it for F."""
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
    """Means of the latents."""

    variance: Column
    """Variances of the latents."""

    u: Float[Tensor, " l"]
    """The nodes."""

    number: int = _NARROW_NODES
    """Number of Gauss–Hermite nodes."""

    def at(self, rows: slice) -> "_Narrow":
        """Return the latents at a slice of rows."""
        return self._replace(mean=self.mean[rows], variance=self.variance[rows])

    def values(self, part: Part) -> Matrix:
        """Return F, 1 − F or D at each node."""
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

        z, weights = constant(("softmax narrow", self.number), make)
        f = self.mean[:, None] + self.variance[:, None].sqrt() * z
        return f[..., None] + self.u, weights


@final
class _KernelTable:
    """E[kernel(f + u + tz)] at all steps f and nodes u requested so far."""

    def __init__(
        self, part: Part, step: float, blur: float, ratio: float, template: Tensor
    ) -> None:
        self._part: Part = part
        self._step = step
        self._blur = blur
        self._ratio = ratio
        self._template = template
        self._held = range(0), range(0), template.new_empty(0, 0)

    def take(self, rows: range, nodes: StretchedNodes) -> Float[Tensor, "j l"]:
        """Return the table at these steps and nodes; do not write to it."""
        columns = range(nodes.first, nodes.first + nodes.number)
        held_rows, held_columns, values = self._held
        if not (_inside(rows, held_rows) and _inside(columns, held_columns)):
            held_rows = _with_margin(rows, held_rows)
            held_columns = _with_margin(columns, held_columns)
            all_nodes = StretchedNodes(held_columns.start, len(held_columns), self._ratio)
            u = all_nodes.columns(self._template)[0]
            f = self._step * torch.arange(held_rows.start, held_rows.stop).to(u)
            values = _blurred(self._part, f[:, None] + u, self._blur)
            self._held = held_rows, held_columns, values
        top = rows.start - held_rows.start
        left = columns.start - held_columns.start
        return values[top : top + len(rows), left : left + len(columns)]


def _inside(inner: range, outer: range) -> bool:
    return outer.start <= inner.start and inner.stop <= outer.stop


def _with_margin(wanted: range, held: range) -> range:
    """Return the held range extended to the wanted one with a margin, to build few tables."""
    more = len(wanted) // 6
    start = wanted.start - more
    stop = wanted.stop + more
    return range(min(start, held.start), max(stop, held.stop)) if len(held) else range(start, stop)


@lru_cache(maxsize=256)
def _table(
    part: Part, step: float, blur: float, ratio: float, dtype: torch.dtype, device: torch.device
) -> _KernelTable:
    return _KernelTable(part, step, blur, ratio, torch.empty(0, dtype=dtype, device=device))


def _blurred(part: Part, x: Matrix, blur: float) -> Matrix:
    """Return E[kernel(x + tz)], z ~ N(0, 1), t² = blur."""
    if not blur:
        return _kernel(part, x)
    low, high, log_mean = _spline(part, blur)
    points = x.cpu().numpy()
    logs = log_mean(np.clip(points, low, high))
    # Extend beyond the ends: left the mean is E e^{x+tz}, or negligible; right it is 0 or 1.
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
    low = -min(blur, 20 * t) - 10 * t - 40
    high = 30 * t + 20
    x = np.linspace(low, high, math.ceil(16 * (high - low) / min(t, 2 + 0.5 * t)))
    step = 0.1 if t < 1 else 0.2
    g = np.arange(max(low - 10 * t - 35, -200.0), 6.0, step)
    log_weights = g - np.exp(g) + math.log(step)
    z = (x[:, None] - g) / t
    if part == "density":
        logs = -0.5 * z * z - 0.5 * math.log(2 * math.pi * blur)
    else:
        logs = log_ndtr(z if part == "above" else -z)
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
    square = least * least
    rate = 0.5 * math.pi
    rest = square - blur
    bend = 0.5 * rest * blur / square
    slope = rate * rest / square
    target = NATS + 0.5 * rate * rate / square
    frequency = 2 * target / (slope + math.sqrt(slope * slope + 4 * bend * target))
    if frequency < rate / rest:
        frequency = math.sqrt(2 * NATS / rest)
    return 2 * math.pi / frequency


@final
class _Even:
    """Latents of similar deviations s: equal steps Δ in f, the same for all of them.

    With q split into N(μ, s² − t²) and N(0, t²), F = Σ_f Δ·N(f; μ, s² − t²)·E[exp(−e^{f+u+tz})].
    This is a product of two matrices; all examples share the second. Wider latents have a wider Δ.
    """

    def __init__(
        self, mean: Column, variance: Column, nodes: StretchedNodes, nats: float, least: float
    ) -> None:
        blur = 0.0 if fixed_sizes.get() is not None else _blur(least)
        self._variance = variance - blur if blur else variance
        self._nodes = nodes
        reach = math.sqrt(2 * nats) * self._variance.sqrt()
        low = (mean - reach).min()
        high = (mean + reach).max()
        step = _grid_step(least, blur)
        (width,) = read_sizes("width", high - low)
        number = math.ceil(width / step) + 2
        f = constant(("softmax grid", number, step), partial(_steps, number, step, mean))
        self._first = 0 if recording() else math.floor(float(low) / step)
        self._f = f + (torch.floor(low / step) if recording() else self._first) * step
        self._key = step, blur, nodes.ratio, mean.dtype, mean.device
        # Use moments about the mean, which lose no digits.
        self._away = self._f - mean[:, None]
        self._q = self._away.square().mul_((-0.5 / self._variance)[:, None]).exp_()
        self._q *= (step * torch.rsqrt(2 * math.pi * self._variance))[:, None]
        self._tables: dict[Part, Tensor] = {}

    def at(self, rows: slice) -> "_Even":
        """Return the latents at a slice of rows."""
        twin = copy.copy(self)
        twin._variance, twin._away, twin._q = (
            column[rows] for column in (self._variance, self._away, self._q)
        )
        return twin

    def values(self, part: Part) -> Matrix:
        """Return F, 1 − F or D at each node."""
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
                kernels = _kernel(part, self._f[:, None] + self._nodes.columns(self._q)[0])
            else:
                rows = range(self._first, self._first + len(self._f))
                kernels = _table(part, *self._key).take(rows, self._nodes)
            self._tables[part] = kernels
        return self._tables[part]


def _steps(number: int, step: float, template: Tensor) -> Column:
    if number > _MAX_STEPS:
        raise NumericalError(
            f"The integral over classes needs {number:.2g} nodes, and at most {_MAX_STEPS:.0e} are"
            " possible. The means or variances of the latents are too large: check the model."
        )
    return step * torch.arange(number, dtype=template.dtype, device=template.device)


@final
class Distributions:
    """F, 1 − F or D of P latents of n examples, at nodes u that all share."""

    def __init__(
        self, mean: Latents, variance: Latents, nodes: StretchedNodes, nats: float
    ) -> None:
        self._shape = mean.shape
        mean = mean.flatten()
        variance = variance.flatten()
        deviation = variance.sqrt()
        u = nodes.columns(mean)[0]
        far = mean + math.sqrt(2 * nats) * deviation + variance + u[-1] < _FAR
        self._groups: list[tuple[Tensor | None, _Far | _Narrow | _Even]] = []
        """Rows of the flat latents, or a mask of them in a recorded step, or all."""

        if fixed_sizes.get() is not None:
            narrow = (deviation < _NARROW) & ~far
            inverse = torch.where(far | narrow, 0.0, 1 / deviation).max()
            most, any_far, any_narrow = read_sizes("group", inverse, far.any(), narrow.any())
            least = max(_NARROW, 1 / most) if most else 1.0
            # Move far latents into the grid, which they would widen; `_Far` replaces their values.
            near = torch.where(far, mean.max(), mean)
            common = torch.where(far | narrow, _NARROW**2, variance)
            self._groups.append((None, _Even(near, common, nodes, nats, least)))
            if any_far:
                self._groups.append((far, _Far(mean, variance, u)))
            if any_narrow:
                self._groups.append((narrow, _Narrow(mean, variance, u)))
            return
        edges = torch.tensor([_VERY_NARROW, *_EDGES]).to(mean)
        group = torch.where(far, -1, torch.bucketize(deviation, edges, right=True)) + 1
        sizes = torch.bincount(group, minlength=len(edges) + 2).tolist()
        for number in (k for k, size in enumerate(sizes) if size):
            is_whole = sizes[number] == len(mean)
            rows = None if is_whole else (group == number).nonzero()[:, 0]
            moments = (mean, variance) if rows is None else (mean[rows], variance[rows])
            if number == 0:
                self._groups.append((rows, _Far(*moments, u)))
            elif number < 3:
                nodes_of_each = (_FEW_NODES, _NARROW_NODES)[number - 1]
                self._groups.append((rows, _Narrow(*moments, u, nodes_of_each)))
            else:
                self._groups.append((rows, _Even(*moments, nodes, nats, _EDGES[number - 3])))

    def part(self, latents: slice) -> "Distributions":
        """Return the distributions of a slice of the latents, in a recorded step."""
        first, last, _ = latents.indices(self._shape[0])
        rows = slice(first * self._shape[1], last * self._shape[1])
        twin = copy.copy(self)
        twin._shape = torch.Size([last - first, self._shape[1]])
        twin._groups = [
            (mask if mask is None else mask[rows], group.at(rows)) for mask, group in self._groups
        ]
        return twin

    def values(self, part: Part) -> LatentMatrix:
        """Return the function of all latents at every node."""
        (values,) = self._joined([(group.values(part),) for _, group in self._groups])
        return values.view(*self._shape, -1)

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
        """Join the columns of the groups to columns of all latents."""
        joined = parts[0]
        if self._groups[0][0] is not None:
            number = self._shape.numel()
            joined = tuple(array.new_empty(number, *array.shape[1:]) for array in joined)
        for (rows, _), columns in zip(self._groups, parts, strict=True):
            if rows is None:
                continue
            if rows.dtype == torch.bool:
                masks = [rows.view(-1, *[1] * (array.dim() - 1)) for array in columns]
                joined = tuple(map(torch.where, masks, columns, joined))
            else:
                for array, column in zip(joined, columns, strict=True):
                    array[rows] = column
        return joined

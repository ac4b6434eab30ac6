"""Tabulate a smooth function of one or two variables as polynomials on panels.

Predictions are functions of mean and variance of f. The library computes them by adaptive
integrals; an exported program evaluates a table of them, made once to a given error.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64

from directgp.errors import NumericalError
from directgp.export.program import Program, Value, concatenate, run

POLYNOMIALS = 12
"""Number of Chebyshev polynomials on a panel, of each axis."""

_MAX_PANELS = 4096
"""Largest number of panels of a table."""

_PILOT = 2
"""Panels of each axis with which bends are compared."""

_RATIOS = (10.0, 100.0, 1000.0)
"""Ratios of the range to the scale on which a function may vary near 0."""

_SLACK = 10.0
"""The error between the nodes may be this many times the tolerance for the last coefficients."""

_BETWEEN = np.array([-0.97, -0.41, 0.13, 0.79])
"""Places between the nodes."""

Points = Float64[np.ndarray, " k"]
"""Coordinates of k points along an axis."""

Function = Callable[..., Float64[np.ndarray, "j k"]]
"""From the coordinates of k points to j values at each."""


@dataclass(frozen=True)
class Axis:
    """A variable between two ends, on panels of equal width of asinh(x/bend), or of x itself."""

    lower: float
    """Lower end."""

    upper: float
    """Upper end."""

    panels: int = 1
    """Number of panels."""

    bend: float | None = None
    """The scale on which the function varies near 0; None for the scale of the whole range."""

    def _ends(self) -> tuple[float, float]:
        if self.bend is None:
            return self.lower, self.upper
        return math.asinh(self.lower / self.bend), math.asinh(self.upper / self.bend)

    @property
    def width(self) -> float:
        """Width of a panel, in the variable of the panels."""
        low, high = self._ends()
        return (high - low) / self.panels

    def at(self, local: Float64[np.ndarray, " q"]) -> Points:
        """Return the points at these places of every panel, from −1 to 1."""
        starts = self._ends()[0] + self.width * np.arange(self.panels)
        t = (starts[:, None] + self.width * (local + 1) / 2).reshape(-1)
        return t if self.bend is None else self.bend * np.sinh(t)

    def place(self, x: Value) -> tuple[Value, Value]:
        """Return the panel of x as a whole number in floating point, and the place in it."""
        if self.bend is not None:
            size = (x / self.bend).maximum(-1.0 * x / self.bend)
            asinh = (size + (size * size + 1.0).sqrt()).log()
            x = (x < 0.0).where(-1.0 * asinh, asinh)
        position = (x - self._ends()[0]) / self.width
        # Give NaN the panel 0; its place stays NaN.
        panel = (0.0 < position).where(position.floor().minimum(self.panels - 1.0), 0.0)
        return panel, 2.0 * (position - panel) - 1.0


def chebyshev(x: Value, number: int) -> list[Value]:
    """Return T_0(x), …, T_{number−1}(x)."""
    polynomials = [0.0 * x + 1.0, x]
    twice = 2.0 * x
    while len(polynomials) < number:
        polynomials.append(twice * polynomials[-1] - polynomials[-2])
    return polynomials[:number]


def chebyshev_nodes(number: int) -> Points:
    """Return the zeros of T_number."""
    return np.cos(np.pi * (np.arange(number) + 0.5) / number)


def to_coefficients(number: int) -> Float64[np.ndarray, "q q"]:
    """Return the matrix from values at the nodes to coefficients of the polynomials."""
    return np.linalg.inv(np.polynomial.chebyshev.chebvander(chebyshev_nodes(number), number - 1))


@dataclass(frozen=True)
class Interpolant:
    """Coefficients of shape (panels of all axes, values, product of degrees)."""

    axes: tuple[Axis, ...]
    """One or two axes."""

    coefficients: Float64[np.ndarray, "p j c"]
    """Coefficients by panel, value and polynomial."""

    def evaluate(self, *coordinates: Value) -> Value:
        """Return the values at points of shape (n, 1), as (n, j)."""
        panel, basis = self._basis(coordinates)
        panels, number, size = self.coefficients.shape
        if panels == 1:
            return basis @ np.ascontiguousarray(self.coefficients[0].T)
        program = basis.program
        flat = program.constant(self.coefficients.reshape(panels, number * size))
        chosen = flat.take(panel.reshape(-1)).reshape(-1, number, size)
        return (chosen * basis.reshape(-1, 1, size)).sum(2).reshape(-1, number)

    def count_below(self, x: Value, *coordinates: Value) -> Value:
        """Return how many of the values, which increase, lie below x, as (n, 1); by bisection."""
        panel, basis = self._basis(coordinates)
        panels, number, size = self.coefficients.shape
        flat = basis.program.constant(self.coefficients.reshape(panels * number, size))
        first = panel * number
        count = 0.0 * x
        for power in reversed(range(number.bit_length())):
            candidate = count + float(2**power)
            last = (candidate - 1.0).minimum(number - 1.0)
            # Replace NaN, which has no place in a table.
            index = first + last.is_nan().where(0.0, last).cast("int64")
            value = (flat.take(index.reshape(-1)) * basis).sum()
            fits = (candidate < number + 0.5).where(value, np.inf) < x
            count = fits.where(candidate, count)
        return count

    def _basis(self, coordinates: tuple[Value, ...]) -> tuple[Value, Value]:
        """Return the panel as an integer (n, 1), and the products of polynomials (n, c)."""
        places = [axis.place(x) for axis, x in zip(self.axes, coordinates, strict=True)]
        columns = [concatenate(chebyshev(local, POLYNOMIALS)) for _, local in places]
        panel = places[0][0]
        basis = columns[0]
        if len(places) == 2:
            panel = panel * float(self.axes[1].panels) + places[1][0]
            both = basis.reshape(-1, POLYNOMIALS, 1) * columns[1].reshape(-1, 1, POLYNOMIALS)
            basis = both.reshape(-1, POLYNOMIALS * POLYNOMIALS)
        return panel.cast("int64"), basis


def tabulate(
    function: Function,
    axes: Sequence[Axis],
    tolerance: float,
    bends: Sequence[float | None] | None = None,
) -> Interpolant:
    """Return a table whose error is at most about the tolerance.

    The last axis gets the bend with which few panels leave the smallest error. Raises
    `NumericalError` if the function is not finite, or not smooth enough.
    """
    *rest, last = axes
    bends = [None, *(last.upper / ratio for ratio in _RATIOS)] if bends is None else bends
    choices = [(*rest, replace(last, bend=bend)) for bend in bends]
    if len(choices) > 1:
        choices.sort(key=lambda choice: _tail(function, choice))
    return _refined(function, choices[0], tolerance)


def _tail(function: Function, axes: tuple[Axis, ...]) -> float:
    pilot = tuple(replace(axis, panels=_PILOT) for axis in axes)
    return max(_interpolated(function, pilot)[1])


def _refined(function: Function, axes: tuple[Axis, ...], tolerance: float) -> Interpolant:
    """Split panels until the error is at most the tolerance."""
    while math.prod(axis.panels for axis in axes) <= _MAX_PANELS:
        table, tails = _interpolated(function, axes)
        if max(tails) <= tolerance:
            error = _error(function, table)
            if error <= _SLACK * tolerance:
                return table
            tails = [math.inf] * len(axes)
        axes = tuple(
            replace(axis, panels=2 * axis.panels) if tail > tolerance else axis
            for axis, tail in zip(axes, tails, strict=True)
        )
    raise NumericalError(
        f"The predictions of this model vary too fast with mean and variance of f for a table of "
        f"{_MAX_PANELS} panels. Export with levels=() or levels nearer to 0.5 if they are "
        "quantiles, or fit with another likelihood."
    )


def _interpolated(function: Function, axes: tuple[Axis, ...]) -> tuple[Interpolant, list[float]]:
    """Return the interpolating polynomials, and the size of the last two along each axis."""
    nodes = [axis.at(chebyshev_nodes(POLYNOMIALS)) for axis in axes]
    values = _finite(function, *(grid.reshape(-1) for grid in np.meshgrid(*nodes, indexing="ij")))
    shape = [size for axis in axes for size in (axis.panels, POLYNOMIALS)]
    grid = values.reshape(-1, *shape)
    matrix = to_coefficients(POLYNOMIALS)
    tails = []
    for place in range(2, 2 * len(axes) + 1, 2):
        grid = np.moveaxis(np.tensordot(matrix, grid, (1, place)), 0, place)
    for place in range(2, 2 * len(axes) + 1, 2):
        tails.append(float(np.abs(np.take(grid, [-2, -1], place)).max()))
    # From (j, p, c) or (j, p1, c1, p2, c2) to panels, values, polynomials.
    panels = range(1, grid.ndim, 2)
    polynomials = range(2, grid.ndim, 2)
    size = POLYNOMIALS ** len(axes)
    ordered = grid.transpose(*panels, 0, *polynomials).reshape(-1, len(values), size)
    return Interpolant(axes, np.ascontiguousarray(ordered)), tails


def _error(function: Function, table: Interpolant) -> float:
    """Return the largest error at places between the nodes of every panel."""
    places = [axis.at(_BETWEEN) for axis in table.axes]
    points = [grid.reshape(-1) for grid in np.meshgrid(*places, indexing="ij")]
    program = Program()
    program.outputs["values"] = table.evaluate(*map(program.X.column, range(len(points)))).number
    values = run(program, np.stack(points, 1))["values"].T
    return float(np.abs(values - _finite(function, *points)).max())


def _finite(function: Function, *points: Points) -> Float64[np.ndarray, "j k"]:
    values = function(*points)
    if not np.isfinite(values).all():
        raise NumericalError(
            "Predictions of this model can be beyond float64, and cannot be tabulated. Fit with "
            "targets in a larger unit, or with another likelihood."
        )
    return values

"""L-BFGS with lower bounds and scaled coordinates; apart from `trainer`, which knows no algorithm.

It minimises deterministic problems.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from torch import Tensor, nn

from directgp.errors import InvalidInputError, NumericalError
from directgp.training.problems import TrainingProblem
from directgp.training.result import INTERRUPTED, Status, Stop
from directgp.training.run import Run

Vector = NDArray[np.float64]
"""A vector, or a matrix of columns."""


def lbfgs(
    problem: TrainingProblem,
    run: Run,
    segment: int | None = None,
    after_segment: Callable[[], None] = lambda: None,
) -> Stop:
    """Descend until the run stops or no step descends; the parameters end at the best state.

    After every `segment` steps the curvature is forgotten and `after_segment` writes a checkpoint,
    so that a run resumed from there takes the same steps as this one. Raises `NumericalError` if
    the value is not finite at the start, or in every direction from a state.
    """
    stop, descent = None, None
    try:
        descent = _Descent(problem, run)
        while stop is None:
            before = descent.best.value
            stop = descent.descend(segment)
            if stop is None and descent.stuck:
                # Start again without the learnt curvature, as long as that lowers the value.
                if not descent.best.value < before:
                    stop = descent.end_of_descent()
            elif stop is None:
                descent.restore()
                after_segment()
                # The state of a run that is resumed from this checkpoint.
                descent = _Descent(problem, run)
    except KeyboardInterrupt:
        stop = INTERRUPTED
    finally:
        if descent is not None:
            descent.restore()
    return stop


class Point(NamedTuple):
    """A vector with the value and the gradient there."""

    x: Vector
    value: float
    gradient: Vector


_MEMORY = 50
"""Pairs of steps and gradient changes that the inverse Hessian is built from."""

_NEW_FRAME_EVERY = 50
"""Steps after which the coordinates are computed again."""

_MAX_CHANGE = 1.0
"""Largest change of a raw parameter in one step, or half of its value: a factor of about e.
Beyond it the quadratic model does not hold, and steps may end in valleys far from the optimum."""

_UNDERFLOWS_SQUARED = 1e-150
_OVERFLOWS_SQUARED = 1e100
"""Gradients are squared and multiplied: larger ones are divided by their largest entry."""


@final
class _Descent:
    """The current and the best state, and the steps from there."""

    def __init__(self, problem: TrainingProblem, run: Run) -> None:
        self._problem, self._run = problem, run
        self._flat = FlatParameters(problem.parameters)
        self._bounds = LowerBounds(self._flat.full(-np.inf, problem.floors))
        named = {name: 1.0 for name in problem.parameters if "raw_" in name}
        self._raw = self._flat.full(0.0, named).nonzero()[0]
        self._failure: str | None = None
        self._unit = 1.0
        self.stuck = False
        """Whether no step lowered the value."""
        start = self._evaluate(self._bounds.clip(self._flat.read()))
        if start is None:
            raise NumericalError(
                f"The objective must be finite at the start. {self._failure} Scale inputs and "
                "targets, remove duplicate inducing inputs, or start from other hyperparameters, "
                "such as a smaller output scale."
            )
        self._here = self.best = start

    def descend(self, segment: int | None) -> Stop | None:
        """Take steps from the best point until one is a reason to stop, or the segment ends."""
        self._here, self._failure, self.stuck = self.best, None, False
        slope, stop = self._max_slope()
        self._unit = slope if slope > _OVERFLOWS_SQUARED else 1.0
        memory, coordinates, units = InverseCurvature(len(self._here.x), _MEMORY), None, None
        while stop is None:
            if coordinates is None or self._run.steps % _NEW_FRAME_EVERY == 0:
                self._flat.write(self._here.x)
                frame = self._problem.frame()
                # Without q(u) the parameters are of one kind, and units gain nothing.
                if units is None and frame is not None:
                    units = parameter_units(self._problem)
                    self._run.evaluations += 1 + len(units) if units else 0
                coordinates = Coordinates(self._flat, frame, units)
            stop = self._step(memory, coordinates)
            if self.stuck or (segment is not None and self._run.steps % segment == 0):
                break
        return stop

    def end_of_descent(self) -> Stop:
        """Return why no step descends from the best point."""
        if self._failure is not None:
            raise NumericalError(
                f"No step with a finite value was found from an objective of {self.best.value:.6g} "
                f"after {self._run.steps} steps. {self._failure} Scale inputs and targets, use "
                "fewer inducing inputs, or a larger nugget."
            )
        narrow = any(p.dtype != torch.float64 for p in self._problem.parameters.values())
        advice = " Train in float64 to go further." if narrow else ""
        return Stop(Status.CONVERGED, f"No step lowers the objective beyond rounding.{advice}")

    def restore(self) -> None:
        """Set the parameters to the best state."""
        self._flat.write(self.best.x)

    def _step(self, memory: "InverseCurvature", coordinates: "Coordinates") -> Stop | None:
        here, direction = self._here, self._direction(memory, coordinates)
        limit, length = self._max_length(here.x, direction), 1.0
        if memory.empty:
            # Without known curvature a step has a length of at most 1 in the coordinates.
            scaled = coordinates.of_gradient(here.gradient / self._unit)
            length = min(1.0, 1 / float(np.abs(scaled).sum()))
        length = min(length, limit)
        longest = max(length, min(limit, max(1.0, self._bounds.max_length(here.x, direction))))

        def at(length: float) -> Point | None:
            point = self._evaluate(self._bounds.clip(here.x + length * direction))
            if point is None:
                return None
            if not np.allclose(point.x, here.x, rtol=1e-12, atol=1e-12):
                # The line search has found a finite value elsewhere.
                self._failure = None
            if point.value <= self.best.value:
                self.best = point
            return point

        found = line_search(at, here, direction, length, longest)
        if found is None:
            self.stuck = True
            return None
        memory.add(found.x - here.x, (found.gradient - here.gradient) / self._unit, coordinates)
        self._here, self.stuck = found, not found.value < here.value
        slope, stop = self._max_slope()
        return self._run.step(found.value, slope) or stop

    def _direction(self, memory: "InverseCurvature", coordinates: "Coordinates") -> Vector:
        """Return −H·gradient, projected to where no entry falls below its bound."""
        x, slopes = self._here.x, self._here.gradient
        gradient = self._bounds.free(x, slopes) / self._unit
        down = self._bounds.project(x, -memory.times(gradient, coordinates), slopes)
        if float(down @ gradient) < 0:
            return down
        # The projection may lead upwards; that of the diagonal does not.
        return self._bounds.project(x, -memory.diagonal_times(gradient, coordinates), slopes)

    def _max_length(self, x: Vector, direction: Vector) -> float:
        """Return the step length at which a raw parameter has changed as far as it may."""
        raw, move = x[self._raw], np.abs(direction[self._raw])
        share = float(np.max(move / np.maximum(_MAX_CHANGE, 0.5 * np.abs(raw)), initial=0.0))
        # No line search makes a step a million times longer, and 1 / share might overflow.
        return 1 / share if share > 1e-6 else math.inf

    def _max_slope(self) -> tuple[float, Stop | None]:
        """Return the largest entry of the gradient, without entries that a bound stops.

        With a stop where the square of the gradient underflows.
        """
        free = self._bounds.free(self._here.x, self._here.gradient)
        slope = float(np.abs(free).max(initial=0.0))
        reason = f"The largest entry of the gradient is {slope:.3g}."
        return slope, None if slope >= _UNDERFLOWS_SQUARED else Stop(Status.CONVERGED, reason)

    def _evaluate(self, x: Vector) -> Point | None:
        """Return the point at x, or None where value or gradient are not finite."""
        self._flat.write(x)
        self._run.evaluations += 1
        try:
            value, gradients = _value_and_gradients(self._problem, self._run.steps)
        except (InvalidInputError, NumericalError) as error:
            self._failure = str(error)
            return None
        point = Point(x, value, self._flat.join(gradients))
        if not (np.isfinite(point.value) and np.isfinite(point.gradient).all()):
            self._failure = f"It was {point.value}, or its gradient was not finite."
            return None
        return point


def _value_and_gradients(problem: TrainingProblem, step: int) -> tuple[float, dict[str, Tensor]]:
    """Return the value and the gradient of each parameter, 0 where there is none."""
    parameters = problem.parameters
    for parameter in parameters.values():
        parameter.grad = None
    problem.prepare()
    value = problem.value(step)
    value.backward()
    found = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in parameters.items()}
    return float(value.detach()), found


_ENOUGH_DECREASE = 1e-4
_LEFT_OF_SLOPE = 0.9
"""Wolfe's conditions: share of the decrease that the slope predicts, share of the slope."""

_MAX_EVALUATIONS = 30
_MAX_EQUAL = 2
"""Values equal to the first one after which differences are known to be rounding."""

_MIN_SHARE, _MAX_SHARE = 0.1, 0.5
"""Bounds of the next length, as shares of the interval."""


def line_search(
    at: Callable[[float], Point | None],
    start: Point,
    direction: Vector,
    length: float,
    longest: float = math.inf,
) -> Point | None:
    """Return a point that satisfies Wolfe's conditions.

    Where none is found, the lowest that satisfies the first of them; else None. `at` returns the
    point at a length, or None where it is not finite; `length` is tried first, `longest` at most.
    """
    low, low_value, low_slope = 0.0, start.value, float(start.gradient @ direction)
    high, slope, lower, equal = math.inf, low_slope, None, 0
    for _ in range(_MAX_EVALUATIONS):
        point = at(length)
        equal += point is not None and point.value == start.value
        if equal == _MAX_EQUAL:
            break
        if point is None:
            high, length = length, low + _MIN_SHARE * (length - low)
        elif point.value > start.value + _ENOUGH_DECREASE * (length * slope) or (
            low > 0 and point.value >= low_value
        ):
            # The minimum of the parabola through the ends of the interval, within bounds.
            high, width = length, length - low
            bend = point.value - low_value - low_slope * width
            lowest = -low_slope * width**2 / (2 * bend) if bend > 0 else width
            length = low + min(max(lowest, _MIN_SHARE * width), _MAX_SHARE * width)
        else:
            new_slope = float(point.gradient @ direction)
            if new_slope >= _LEFT_OF_SLOPE * slope or length >= longest:
                return point
            lower, low, low_value, low_slope = point, length, point.value, new_slope
            length = min(longest, 2 * length) if high == math.inf else (length + high) / 2
        if length <= low or length >= high:
            break
    return lower


@final
class LowerBounds:
    """Lower bounds of the entries of a vector; −∞ for none."""

    def __init__(self, bounds: Vector) -> None:
        self._bounds, self._finite = bounds, np.isfinite(bounds)

    def clip(self, x: Vector) -> Vector:
        """Return x with entries below their bound set to it."""
        return np.maximum(x, self._bounds)

    def free(self, x: Vector, gradient: Vector) -> Vector:
        """Return the gradient, with 0 for entries that only a bound keeps from descending."""
        return np.where((x <= self._bounds) & (gradient > 0), 0.0, gradient)

    def project(self, x: Vector, direction: Vector, gradient: Vector) -> Vector:
        """Return a direction whose full length leads no entry below its bound."""
        if not self._finite.any():
            return direction
        held = (x <= self._bounds) & (gradient > 0)
        return np.where(held, 0.0, self.clip(x + direction) - x)

    def max_length(self, x: Vector, direction: Vector) -> float:
        """Return the length at which the first bound is reached."""
        falling = (direction < 0) & self._finite
        lengths = (self._bounds - x)[falling] / direction[falling]
        return float(lengths.min(initial=math.inf))


@final
class FlatParameters:
    """Values and gradients of parameters in one float64 vector; of u_chol the lower triangle."""

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        self._parameters = parameters
        self._lower = {
            name: torch.ones(p.shape).tril().reshape(-1).nonzero()[:, 0]
            for name, p in parameters.items()
            if name == "u_chol"
        }
        sizes = [self._lower.get(name, p).numel() for name, p in parameters.items()]
        ends = np.cumsum([0, *sizes]).tolist()
        self._slices = {name: slice(ends[i], ends[i + 1]) for i, name in enumerate(parameters)}

    def read(self) -> Vector:
        """Return the values."""
        return self.join({name: p.detach() for name, p in self._parameters.items()})

    def write(self, vector: Vector) -> None:
        """Set the values."""
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                part = torch.from_numpy(vector[self.slice_of(name)])
                if name in self._lower:
                    zeros = part.new_zeros(parameter.numel())
                    part = zeros.index_copy_(0, self._lower[name], part)
                parameter.copy_(part.view(parameter.shape))

    def full(self, value: float, others: Mapping[str, float | Tensor]) -> Vector:
        """Return a vector of one value, with other values for some parameters."""
        values = {
            name: torch.as_tensor(others.get(name, value), dtype=torch.float64).expand(p.shape)
            for name, p in self._parameters.items()
        }
        return self.join(values)

    def slice_of(self, name: str) -> slice:
        """Return the slice of a parameter; an empty one if it is not in the vector."""
        return self._slices.get(name, slice(0, 0))

    def join(self, tensors: dict[str, Tensor]) -> Vector:
        """Return tensors of the shapes of the parameters as a vector."""
        parts = {name: tensor.reshape(-1).double().cpu() for name, tensor in tensors.items()}
        for name, lower in self._lower.items():
            parts[name] = parts[name].index_select(0, lower)
        vector: Vector = torch.cat(list(parts.values())).numpy()
        return vector


@final
class Coordinates:
    """A linear change x = T z of the vector of parameters.

    z holds C⁻¹·u_mean and C⁻¹·u_chol, C the lower triangular frame, and the other parameters
    divided by their units.
    """

    def __init__(
        self,
        flat: FlatParameters,
        frame: Float[Tensor, "m m"] | None = None,
        units: dict[str, Tensor] | None = None,
    ) -> None:
        self._units = flat.full(1.0, units or {})
        self._plain = frame is None and not units
        self._frame = None if frame is None else frame.double().cpu().numpy()
        self._mean, self._chol = flat.slice_of("u_mean"), flat.slice_of("u_chol")
        self._lower = np.tril_indices(0 if frame is None else len(frame))

    def of_step(self, step: Vector) -> Vector:
        """Return T⁻¹ s for a step s in x."""
        solve = partial(solve_triangular, lower=True, check_finite=False)
        return self._changed(step, 1 / self._units, solve)

    def of_gradient(self, gradient: Vector) -> Vector:
        """Return Tᵀ g for a gradient g in x."""
        return self._changed(gradient, self._units, lambda C, columns: C.T @ columns)

    def to_step(self, step: Vector) -> Vector:
        """Return T z, the step in x for one in z."""
        return self._changed(step, self._units, np.matmul)

    def _changed(
        self, vector: Vector, units: Vector, change: Callable[[Vector, Vector], Vector]
    ) -> Vector:
        if self._plain:
            return vector
        found: Vector = vector * units
        if self._frame is not None:
            columns = np.zeros_like(self._frame)
            columns[self._lower] = vector[self._chol]
            found[self._chol] = change(self._frame, columns)[self._lower]
            found[self._mean] = change(self._frame, vector[self._mean])
        return found


_MIN_CURVATURE = 1e-10
"""sᵀy / (‖s‖ ‖y‖) from which a pair counts."""

_SPARE_ROWS = 10
"""Rows beyond the memory, so that the pairs, which stay in their order, are moved rarely."""

_MAX_STRETCH = 1e6
"""Largest factor by which one pair may increase an entry of the diagonal."""


@final
class InverseCurvature:
    """H ≈ (∇²f)⁻¹ from the last `memory` pairs of steps s and changes y of the gradient.

    H starts, before its pairs, with T D Tᵀ: T is the change of coordinates, and the diagonal D is
    updated by the diagonal of the BFGS formula (Gilbert and Lemaréchal 1989), which corrects for
    curvatures that differ between the entries of a parameter. Pairs are kept in x, so that the
    coordinates may change at any time.
    """

    def __init__(self, size: int, memory: int) -> None:
        self._memory = memory
        rows = memory + _SPARE_ROWS
        self._S, self._Y = np.empty((rows, size)), np.empty((rows, size))
        self._R = np.zeros((rows, rows))
        """s_iᵀ y_j for i ≤ j."""
        self._first, self._end = 0, 0
        self._D = np.ones(size)
        self.empty = True
        """Whether there is no pair yet."""

    def times(self, gradient: Vector, coordinates: Coordinates) -> Vector:
        """Return H g, by the two loops of L-BFGS, each as two products and a triangular solve.

        α_i = s_iᵀ q_i / s_iᵀ y_i with q_i = g − Σ_{j>i} α_j y_j is R α = S g, and the second loop
        adds Σ c_i s_i with Rᵀ c = diag(R) α − Y H₀ q.
        """
        if self.empty:
            return self.diagonal_times(gradient, coordinates)
        kept = slice(self._first, self._end)
        S, Y, R = self._S[kept], self._Y[kept], self._R[kept, kept]
        a = solve_triangular(R, S @ gradient, check_finite=False)
        found = self.diagonal_times(gradient - a @ Y, coordinates)
        right = R.diagonal() * a - Y @ found
        c = solve_triangular(R, right, trans="T", check_finite=False)
        total: Vector = found + c @ S
        return total

    def diagonal_times(self, gradient: Vector, coordinates: Coordinates) -> Vector:
        """Return T D Tᵀ g, which is H g without the pairs."""
        return coordinates.to_step(self._D * coordinates.of_gradient(gradient))

    def add(self, step: Vector, change: Vector, coordinates: Coordinates) -> None:
        """Add a pair, unless the slope has not risen along the step."""
        s, y = coordinates.of_step(step), coordinates.of_gradient(change)
        rise = float(step @ change)
        if not rise > _MIN_CURVATURE * float(np.linalg.norm(s) * np.linalg.norm(y)):
            return
        if self._end == len(self._S):
            number = self._memory - 1
            shift = self._end - number
            # Row by row, without a copy of all rows.
            for i in range(number):
                self._S[i], self._Y[i] = self._S[i + shift], self._Y[i + shift]
            self._R[:number, :number] = self._R[shift : self._end, shift : self._end].copy()
            self._end = number
        last = self._end
        self._S[last], self._Y[last] = step, change
        self._first, self._end, self.empty = max(0, last + 1 - self._memory), last + 1, False
        kept = slice(self._first, self._end)
        self._R[kept, last] = self._S[kept] @ change
        # D⁻¹ becomes the diagonal of its BFGS update, after D was scaled to have yᵀDy = sᵀy.
        self._D *= rise / float(y @ (self._D * y))
        back = s / self._D
        curvature = 1 / self._D + y**2 / rise - back**2 / float(s @ back)
        self._D = 1 / np.maximum(curvature, 1 / (_MAX_STRETCH * self._D))


_PROBE = 1e-4
"""Length of a finite difference, in natural units."""

_MIN_UNIT, _MAX_UNIT = 0.2, 5.0
"""Bounds of a unit: one curvature, measured at one point, stands for a whole parameter."""


def parameter_units(problem: TrainingProblem) -> dict[str, Tensor]:
    """Return a unit for each parameter but q(u)'s, which has a frame.

    The mean curvature c = vᵀHv / size of a parameter comes from one difference of gradients along
    v, its natural unit with random signs (the spread of the inducing inputs in each feature; 1 or
    the value itself for others). The unit is 1/√|c|, within bounds.
    """
    names = [name for name in problem.parameters if name not in ("u_mean", "u_chol")]
    signs = torch.Generator().manual_seed(0)
    here = _probe(problem) if names else None
    units = {}
    for name in names:
        parameter = problem.parameters[name]
        value = parameter.detach().clone()
        natural = value.abs().clamp(min=1.0)
        if name == "Z":
            spread = value.std(-2, correction=0, keepdim=True)
            natural = torch.where(spread > 0, spread, 1.0).expand(value.shape)
        sign = 2 * torch.randint(2, parameter.shape, generator=signs).to(parameter) - 1
        with torch.no_grad():
            parameter.add_(_PROBE * natural * sign)
        there = _probe(problem)
        with torch.no_grad():
            parameter.copy_(value)
        units[name] = natural
        if here is not None and there is not None:
            rise = (natural * sign * (there[name] - here[name])).double().mean().abs() / _PROBE
            stretch = torch.rsqrt(rise).nan_to_num(nan=1.0).clamp(_MIN_UNIT, _MAX_UNIT)
            units[name] = natural * stretch.to(natural)
    return units


def _probe(problem: TrainingProblem) -> dict[str, Tensor] | None:
    """Return the gradient of every parameter, or None where it cannot be computed."""
    try:
        _, found = _value_and_gradients(problem, 0)
    except (InvalidInputError, NumericalError):
        return None
    # A copy: the next evaluation may use the same memory.
    return {name: gradient.clone() for name, gradient in found.items()}

"""L-BFGS with lower bounds and scaled coordinates; apart from `trainer`, which knows no algorithm.

It minimises deterministic problems.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from directgp.errors import InvalidInputError, NumericalError
from directgp.numerics.arrays import (
    Array,
    library_of,
    solve_upper,
    times_columns,
    without_warnings,
    zeros,
)
from directgp.training.graphs import RecordedWork
from directgp.training.problems import TrainingProblem
from directgp.training.result import INTERRUPTED, Status, Stop
from directgp.training.run import Run

Vector = Array
"""A float64 vector: a numpy array, or a tensor on a GPU, where no entry is copied to the host."""


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
    slope: float = math.nan
    """The gradient along the direction of the line search."""

    max_slope: float = math.nan
    """The largest entry of the gradient, without entries that a bound stops."""


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
    """The current and the best state, and the steps from there.

    What a step computes from vectors reads and writes fixed memory, without the host: on a GPU
    it is recorded as two CUDA graphs, one for a trial and one for what follows an accepted one.
    """

    def __init__(self, problem: TrainingProblem, run: Run) -> None:
        self._problem, self._run = problem, run
        self._flat = FlatParameters(problem.parameters)
        self._bounds = LowerBounds(self._flat.full(-np.inf, problem.floors))
        named = {name: 1.0 for name in problem.parameters if "raw_" in name}
        self._raw = self._flat.full(0.0, named)
        self._x = self._bounds.clip(self._flat.read())
        self._gradient, self._direction, self._trial_x, self._trial_gradient = (
            zeros(len(self._x), self._x) for _ in range(4)
        )
        self._length = zeros((), self._x)
        self._memory = InverseCurvature(self._x, _MEMORY)
        self._coordinates = Coordinates(self._flat)
        self._trial_graph: RecordedWork | None = None
        self._accept_graph: RecordedWork | None = None
        self._sizes: dict[str, float] = {}
        self._recordable = problem.recordable()
        self._failure: str | None = None
        self._unit = 1.0
        self.stuck = False
        """Whether no step lowered the value."""
        start = self._evaluate(0.0)
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
        self._x[...], self._gradient[...] = self.best.x, self.best.gradient
        stop, slope = self._underflow(), self._here.max_slope
        self._unit = slope if slope > _OVERFLOWS_SQUARED else 1.0
        self._memory, self._accept_graph = InverseCurvature(self._x, _MEMORY), None
        plan, units = None, None
        while stop is None:
            if plan is None or self._run.steps % _NEW_FRAME_EVERY == 0:
                self._flat.write(self._x)
                frame = self._problem.frame()
                if plan is None:
                    # Without q(u) the parameters are of one kind, and units gain nothing.
                    if frame is not None:
                        units = parameter_units(self._problem)
                        self._run.evaluations += 1 + len(units) if units else 0
                    self._coordinates = Coordinates(self._flat, frame, units)
                else:
                    self._coordinates.set_frame(frame)
                plan = self._numbers(self._plan())
            plan, stop = self._step(plan)
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

    def _step(self, plan: list[float]) -> tuple[list[float], Stop | None]:
        """Search along the planned direction; return the next plan, and a reason to stop."""
        along, share, reach, known = plan
        if not along < 0:
            # The projection may lead upwards; that of the diagonal does not.
            along, share, reach, known = self._numbers(self._plan(diagonal=True))
        # No line search makes a step a million times longer, and 1 / share might overflow.
        limit, length = 1 / share if share > 1e-6 else math.inf, 1.0
        if not known:
            # Without known curvature a step has a length of at most 1 in the coordinates.
            scaled = self._coordinates.of_gradient(self._gradient / self._unit)
            length = min(1.0, 1 / float(abs(scaled).sum()))
        length = min(length, limit)
        longest = max(length, min(limit, max(1.0, reach)))
        before = self._here.value

        def at(length: float) -> Point | None:
            point = self._evaluate(length)
            if point is None:
                return None
            if self._failure is not None and not self._near(point.x):
                # The line search has found a finite value elsewhere.
                self._failure = None
            if point.value <= self.best.value:
                self.best = point
            return point

        found = line_search(at, before, along * self._unit, length, longest)
        if found is None:
            self.stuck = True
            return plan, None
        self._here, self.stuck = found, not found.value < before
        plan = self._accepted(found)
        return plan, self._run.step(found.value, found.max_slope) or self._underflow()

    def _near(self, x: Vector) -> bool:
        return bool(self._flat.xp.allclose(x, self._x, 1e-12, 1e-12))

    def _underflow(self) -> Stop | None:
        """Return a stop where the square of the gradient underflows."""
        slope = self._here.max_slope
        reason = f"The largest entry of the gradient is {slope:.3g}."
        return None if slope >= _UNDERFLOWS_SQUARED else Stop(Status.CONVERGED, reason)

    def _numbers(self, found: Array) -> list[float]:
        return found.tolist() if isinstance(found, Tensor) else [float(each) for each in found]

    def _joined(self, *found: Array) -> Array:
        """Return numbers in a form that the host reads at once."""
        return found if self._flat.xp is np else torch.stack([x.double() for x in found])

    @without_warnings
    def _plan(self, diagonal: bool = False) -> Array:
        """Compute the direction −H·gradient, projected to where no entry falls below its bound.

        Returns the slope along it, the largest share of the allowed change of a raw parameter, the
        length at which the first bound is reached, and whether curvature is known.
        """
        x, slopes, memory = self._x, self._gradient, self._memory
        gradient = self._bounds.free(x, slopes) / self._unit
        times = memory.diagonal_times if diagonal else memory.times
        down = self._bounds.project(x, -times(gradient, self._coordinates), slopes)
        self._direction[...] = down
        share = (self._raw * abs(down) / (0.5 * abs(x)).clip(_MAX_CHANGE)).max()
        return self._joined(down @ gradient, share, self._bounds.max_length(x, down), memory.known)

    @without_warnings
    def _accept(self) -> Array:
        """Go to the trial point, learn the curvature on the way, and plan the next step."""
        step, change = self._trial_x - self._x, self._trial_gradient - self._gradient
        self._memory.add(step, change / self._unit, self._coordinates)
        self._x[...], self._gradient[...] = self._trial_x, self._trial_gradient
        return self._plan()

    def _accepted(self, point: Point) -> list[float]:
        """Go to a point; return the plan for the next step."""
        self._trial_x[...], self._trial_gradient[...] = point.x, point.gradient
        if self._accept_graph is not None:
            return self._numbers(self._accept_graph.replay())
        plan = self._numbers(self._accept())
        if self._flat.xp is torch:
            self._accept_graph = RecordedWork(self._problem, self._accept, warm_up=0)
        return plan

    @without_warnings
    def _trial(self) -> Array:
        """Evaluate the point at the current length of the direction.

        Returns value, slope along the direction, sum of the gradient, and its largest entry.
        """
        x = self._bounds.clip(self._x + self._length * self._direction)
        self._flat.write(x)
        value, joined = self._problem.value_and_gradient(self._run.steps)
        gradient = self._flat.packed(joined)
        self._trial_x[...], self._trial_gradient[...] = x, gradient
        largest = abs(self._bounds.free(x, gradient)).max()
        return self._joined(value, gradient @ self._direction, gradient.sum(), largest)

    def _evaluate(self, length: float) -> Point | None:
        """Return the point at a length of the direction, or None where it is not finite."""
        self._length[...] = length
        self._run.evaluations += 1
        self._problem.prepare()
        try:
            value, slope, total, largest = self._trial_numbers()
        except (InvalidInputError, NumericalError) as error:
            self._failure = str(error)
            return None
        # A finite sum implies finite entries, and is faster.
        finite = math.isfinite(total) or bool(self._flat.xp.isfinite(self._trial_gradient).all())
        if math.isfinite(value) and finite:
            return Point(1 * self._trial_x, value, 1 * self._trial_gradient, slope, largest)
        self._failure = f"It was {value}, or its gradient was not finite."
        return None

    def _trial_numbers(self) -> list[float]:
        problem = self._problem
        if self._trial_graph is not None:
            found = self._numbers(self._trial_graph.replay())
            self._sizes = self._trial_graph.outgrown()
            if not self._sizes and math.isfinite(found[0]):
                return found
        found = self._numbers(self._trial())
        if self._sizes or problem.jitter > 0:
            # The quadrature needs more nodes than were recorded, or the factorisation jitter.
            self._trial_graph = None
        if self._trial_graph is None and self._recordable and problem.jitter == 0:
            try:
                self._trial_graph = RecordedWork(problem, self._trial, self._sizes)
            except (InvalidInputError, NumericalError):
                # It cannot be computed without checks, which return the error.
                self._recordable = False
        return found


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
    start: float,
    slope: float,
    length: float,
    longest: float = math.inf,
) -> Point | None:
    """Return a point that satisfies Wolfe's conditions.

    Where none is found, the lowest that satisfies the first of them; else None. `at` returns the
    point at a length, or None where it is not finite; `length` is tried first, `longest` at most.
    `start` and `slope` are those at length 0.
    """
    low, low_value, low_slope = 0.0, start, slope
    high, lower, equal = math.inf, None, 0
    for _ in range(_MAX_EVALUATIONS):
        point = at(length)
        equal += point is not None and point.value == start
        if equal == _MAX_EQUAL:
            break
        if point is None:
            high, length = length, low + _MIN_SHARE * (length - low)
        elif point.value > start + _ENOUGH_DECREASE * (length * slope) or (
            low > 0 and point.value >= low_value
        ):
            # The minimum of the parabola through the ends of the interval, within bounds.
            high, width = length, length - low
            bend = point.value - low_value - low_slope * width
            lowest = -low_slope * width**2 / (2 * bend) if bend > 0 else width
            length = low + min(max(lowest, _MIN_SHARE * width), _MAX_SHARE * width)
        else:
            if point.slope >= _LEFT_OF_SLOPE * slope or length >= longest:
                return point
            lower, low, low_value, low_slope = point, length, point.value, point.slope
            length = min(longest, 2 * length) if high == math.inf else (length + high) / 2
        if length <= low or length >= high:
            break
    return lower


@final
class LowerBounds:
    """Lower bounds of the entries of a vector; −∞ for none."""

    def __init__(self, bounds: Vector) -> None:
        self._bounds, self._xp = bounds, library_of(bounds)
        self._any = bool(self._xp.isfinite(bounds).any())

    def clip(self, x: Vector) -> Vector:
        """Return x with entries below their bound set to it."""
        return self._xp.maximum(x, self._bounds)

    def free(self, x: Vector, gradient: Vector) -> Vector:
        """Return the gradient, with 0 for entries that only a bound keeps from descending."""
        if not self._any:
            return gradient
        return self._xp.where((x <= self._bounds) & (gradient > 0), 0.0, gradient)

    def project(self, x: Vector, direction: Vector, gradient: Vector) -> Vector:
        """Return a direction whose full length leads no entry below its bound."""
        if not self._any:
            return direction
        held = (x <= self._bounds) & (gradient > 0)
        return self._xp.where(held, 0.0, self.clip(x + direction) - x)

    @without_warnings
    def max_length(self, x: Vector, direction: Vector) -> Array:
        """Return the length at which the first bound is reached."""
        # Entries that do not fall reach their bound at −∞ in place of ∞.
        away = self._xp.where(direction < 0, direction, -0.0)
        lengths = (self._bounds - x) / away
        return self._xp.where(lengths >= 0, lengths, math.inf).min()


@final
class FlatParameters:
    """Values and gradients of parameters in one float64 vector; of u_chol the lower triangle."""

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        self._parameters = parameters
        sizes = [p.numel() for p in parameters.values()]
        kept = [
            torch.ones(p.shape).tril_() if name == "u_chol" else torch.ones(p.shape)
            for name, p in parameters.items()
        ]
        device = next(iter(parameters.values())).device
        self.xp: Any = np if device.type == "cpu" else torch
        """The library of the vectors."""
        self._kept = self.array(_join(kept).nonzero()[:, 0].to(device))
        """Where the entries of the vector are among those of all parameters."""
        ends = np.cumsum([0, *(int(part.sum()) for part in kept)]).tolist()
        self._slices = {name: slice(ends[i], ends[i + 1]) for i, name in enumerate(parameters)}
        self._values = torch.zeros(sum(sizes), dtype=torch.float64, device=device)
        parts = zip(self._values.split(sizes), parameters.values(), strict=True)
        self._views = [part.view(p.shape) for part, p in parts]
        self._flat = self.array(self._values)

    def read(self) -> Vector:
        """Return the values."""
        return self.packed(_join(p.detach() for p in self._parameters.values()))

    def write(self, vector: Vector) -> None:
        """Set the values."""
        self._flat[self._kept] = vector
        with torch.no_grad():
            torch._foreach_copy_(list(self._parameters.values()), self._views)

    def full(self, value: float, others: Mapping[str, float | Tensor]) -> Vector:
        """Return a vector of one value, with other values for some parameters."""
        values = (
            torch.as_tensor(others.get(name, value), dtype=torch.float64)
            .to(p.device)
            .expand(p.shape)
            for name, p in self._parameters.items()
        )
        return self.packed(_join(values))

    def slice_of(self, name: str) -> slice:
        """Return the slice of a parameter; an empty one if it is not in the vector."""
        return self._slices.get(name, slice(0, 0))

    def packed(self, joined: Tensor) -> Vector:
        """Return a new vector from the entries of all parameters, joined in their order."""
        return self.array(joined.double()).take(self._kept)

    def array(self, tensor: Tensor) -> Array:
        """Return an array of the library in use that shares the memory of a tensor."""
        return tensor.numpy() if self.xp is np else tensor


def _join(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


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
        self._units, self._array = flat.full(1.0, units or {}), flat.array
        self._plain = frame is None and not units
        self._mean, self._chol = flat.slice_of("u_mean"), flat.slice_of("u_chol")
        self._frame: Array = None
        if frame is not None:
            self._frame, m = flat.array(frame.double().clone()), len(frame)
            row, column = torch.tril_indices(m, m, device=frame.device)
            # In a vector of columns, as BLAS has them.
            self._places = flat.array(row + m * column)

    def set_frame(self, frame: Float[Tensor, "m m"] | None) -> None:
        """Change the frame, in its memory; None, where there was one, for the identity."""
        if self._frame is None:
            return
        other = torch.eye(len(self._frame)) if frame is None else frame
        self._frame[...] = self._array(other.double())

    def of_step(self, step: Vector) -> Vector:
        """Return T⁻¹ s for a step s in x."""
        return self._changed(step, 1 / self._units, inverse=True)

    def of_gradient(self, gradient: Vector) -> Vector:
        """Return Tᵀ g for a gradient g in x."""
        return self._changed(gradient, self._units, transposed=True)

    def to_step(self, step: Vector) -> Vector:
        """Return T z, the step in x for one in z."""
        return self._changed(step, self._units)

    def _changed(
        self, vector: Vector, units: Vector, *, transposed: bool = False, inverse: bool = False
    ) -> Vector:
        """Return the vector times its units, with q(u) multiplied by the frame or its inverse."""
        if self._plain:
            return vector
        found: Vector = vector * units
        if self._frame is not None:
            m = len(self._frame)
            # The columns of u_chol, and u_mean as one more.
            columns = zeros(m * (m + 1), vector)
            columns[self._places] = vector[self._chol]
            columns[m * m :] = vector[self._mean]
            changed = times_columns(self._frame, columns, transposed, inverse)
            found[self._chol] = changed[self._places]
            found[self._mean] = changed[m * m :]
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

    def __init__(self, like: Vector, memory: int) -> None:
        self._memory, self._xp = memory, library_of(like)
        # On a GPU the rows move up with each pair, so that all shapes are fixed.
        rows, size = memory + (_SPARE_ROWS if self._xp is np else 0), len(like)
        self._S, self._Y = zeros((rows, size), like), zeros((rows, size), like)
        self._R = zeros((rows, rows), like)
        """s_iᵀ y_j for i ≤ j."""
        self._first, self._end = (0, 0) if self._xp is np else (0, rows)
        if self._xp is torch:
            self._R.fill_diagonal_(1)
        self._D = zeros(size, like) + 1
        self.known = zeros((), like)
        """Whether there is a pair; 1 or 0."""

    def times(self, gradient: Vector, coordinates: Coordinates) -> Vector:
        """Return H g, by the two loops of L-BFGS, each as two products and a triangular solve.

        α_i = s_iᵀ q_i / s_iᵀ y_i with q_i = g − Σ_{j>i} α_j y_j is R α = S g, and the second loop
        adds Σ c_i s_i with Rᵀ c = diag(R) α − Y H₀ q.
        """
        if self._end == 0:
            return self.diagonal_times(gradient, coordinates)
        kept = slice(self._first, self._end)
        S, Y, R = self._S[kept], self._Y[kept], self._R[kept, kept]
        a = solve_upper(R, S @ gradient)
        found = self.diagonal_times(gradient - a @ Y, coordinates)
        c = solve_upper(R, R.diagonal() * a - Y @ found, transposed=True)
        return found + c @ S

    def diagonal_times(self, gradient: Vector, coordinates: Coordinates) -> Vector:
        """Return T D Tᵀ g, which is H g without the pairs."""
        return coordinates.to_step(self._D * coordinates.of_gradient(gradient))

    def add(self, step: Vector, change: Vector, coordinates: Coordinates) -> None:
        """Add a pair, unless the slope has not risen along the step."""
        s, y = coordinates.of_step(step), coordinates.of_gradient(change)
        rise = step @ change
        rises = rise > _MIN_CURVATURE * ((s @ s) * (y @ y)) ** 0.5
        if self._xp is np:
            if rises:
                self._add_row(step, change)
                self._D = self._updated(s, y, rise)
                self.known = 1.0
            return
        # The same with masks, for a CUDA graph.
        S, Y = torch.cat([self._S[1:], step[None]]), torch.cat([self._Y[1:], change[None]])
        R = torch.zeros_like(self._R)
        R[:-1, :-1] = self._R[1:, 1:]
        R[:, -1] = S @ change
        fresh = S, Y, R, self._updated(s, y, rise), torch.ones_like(self.known)
        for old, new in zip((self._S, self._Y, self._R, self._D, self.known), fresh, strict=True):
            old.copy_(torch.where(rises, new, old))

    def _add_row(self, step: Vector, change: Vector) -> None:
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
        self._first, self._end = max(0, last + 1 - self._memory), last + 1
        kept = slice(self._first, self._end)
        self._R[kept, last] = self._S[kept] @ change

    def _updated(self, s: Vector, y: Vector, rise: Array) -> Vector:
        """Return D after a pair: D⁻¹ becomes the diagonal of its BFGS update.

        Before that D is scaled to have yᵀDy = sᵀy.
        """
        D = self._D * (rise / (y @ (self._D * y)))
        back = s / D
        curvature = 1 / D + y * y / rise - back * back / (s @ back)
        return 1 / self._xp.maximum(curvature, 1 / (_MAX_STRETCH * D))


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
    sizes = [p.numel() for p in problem.parameters.values()]
    places = dict(zip(problem.parameters, np.cumsum([0, *sizes]).tolist(), strict=False))
    signs = torch.Generator().manual_seed(0)
    names = [name for name in problem.parameters if name not in ("u_mean", "u_chol")]
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
            own = slice(places[name], places[name] + parameter.numel())
            change = (there[own] - here[own]).view(parameter.shape)
            rise = (natural * sign * change).double().mean().abs() / _PROBE
            stretch = torch.rsqrt(rise).nan_to_num(nan=1.0).clamp(_MIN_UNIT, _MAX_UNIT)
            units[name] = natural * stretch.to(natural)
    return units


def _probe(problem: TrainingProblem) -> Tensor | None:
    """Return the gradient, or None where it cannot be computed."""
    try:
        problem.prepare()
        return problem.value_and_gradient(0)[1]
    except (InvalidInputError, NumericalError):
        return None

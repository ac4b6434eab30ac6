"""Minimise deterministic problems by L-BFGS, with lower bounds and scaled coordinates."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from directgp.errors import InvalidInputError, NumericalError
from directgp.numerics.arrays import Array, without_warnings, zeros
from directgp.training.curvature import (
    Coordinates,
    FlatParameters,
    InverseCurvature,
    LowerBounds,
    Vector,
    parameter_units,
)
from directgp.training.graphs import RecordedWork
from directgp.training.problems import TrainingProblem
from directgp.training.result import INTERRUPTED, Status, Stop
from directgp.training.run import Run


def lbfgs(
    problem: TrainingProblem,
    run: Run,
    segment: int | None = None,
    after_segment: Callable[[], None] = lambda: None,
    learnt: "Learnt | None" = None,
) -> Stop:
    """Descend until the run stops or no step descends; the parameters end at the best state.

    The run starts with the coordinates and curvature in `learnt`, and updates them.

    After every `segment` steps the curvature is forgotten and `after_segment` writes a checkpoint,
    so that a run resumed from there takes the same steps as this one. Raises `NumericalError` if
    the value is not finite at the start, or in every direction from a state.
    """
    stop = None
    descent = None
    learnt = learnt or Learnt()
    try:
        descent = _Descent(problem, run)
        while stop is None:
            before = descent.best.value
            steps = run.steps
            had_curvature = learnt.curvature is not None
            stop = descent.descend(segment, learnt)
            if stop is None:
                learnt.coordinates = None
                learnt.curvature = None
            if stop is None and descent.stuck:
                # Restart without the learnt curvature, as long as steps from there descend.
                if not had_curvature and (run.steps == steps or not descent.best.value < before):
                    stop = descent.end_of_descent()
            elif stop is None:
                descent.restore()
                after_segment()
                # Take the state of a run that resumes from this checkpoint.
                descent = _Descent(problem, run)
    except KeyboardInterrupt:
        stop = INTERRUPTED
    finally:
        if descent is not None:
            descent.restore()
    return stop


@final
@dataclass
class Learnt:
    """Coordinates and curvature at the end of a run, for a run that continues from there."""

    coordinates: Coordinates | None = None
    """Scaled coordinates."""

    curvature: InverseCurvature | None = None
    """Pairs of steps and gradient changes."""

    def copied(self) -> "Learnt":
        """Return a copy for another run."""
        coordinates, curvature = self.coordinates, self.curvature
        return Learnt(
            None if coordinates is None else coordinates.copied(),
            None if curvature is None else curvature.copied(),
        )


class Point(NamedTuple):
    """A vector with the value and the gradient there."""

    x: Vector
    """Parameters as one vector."""

    value: float
    """Value of the problem at x."""

    gradient: Vector
    """Gradient of the value at x."""

    slope: float = math.nan
    """Derivative along the direction of the line search."""


_MEMORY = 50
"""Pairs of steps and gradient changes that the inverse Hessian is built from."""

_NEW_FRAME_EVERY = 50
"""Steps after which the coordinates are computed again."""

_MAX_CHANGE = 1.0
"""Largest change of a raw parameter in one step, or half of its value: a factor of about e.
Beyond it the quadratic model does not hold, and steps may end in valleys far from the optimum."""

_UNDERFLOWS_SQUARED = 1e-150
"""A largest entry below this ends the descent: products of gradients would underflow."""

_OVERFLOWS_SQUARED = 1e100
"""A gradient with a larger entry is divided by it: products of gradients would overflow."""


@final
class _Descent:
    """The current and the best state, and the steps from there.

    The vector work of a step reads and writes fixed memory, without the host. On a GPU two CUDA
    graphs replay it: one for a trial, one for the update after an accepted trial.
    """

    def __init__(self, problem: TrainingProblem, run: Run) -> None:
        self._problem = problem
        self._run = run
        self._flat = FlatParameters(problem.parameters)
        self._bounds = LowerBounds(self._flat.full(-np.inf, problem.floors))
        named = {name: 2.0 for name in problem.parameters if "raw_" in name}
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
        self._last: Point | None = None
        """The last trial."""
        self._max_slope = math.nan
        """Largest entry of the gradient, without entries that a bound stops."""
        self.stuck = False
        """Whether no step lowered the value."""
        start = self._evaluate(0.0)
        if start is None:
            raise NumericalError(
                f"The objective must be finite at the start. {self._failure} Scale inputs and "
                "targets, remove duplicate inducing inputs, or start from other hyperparameters, "
                "such as a smaller output scale."
            )
        self._here = start
        self.best = start

    def descend(self, segment: int | None, learnt: Learnt) -> Stop | None:
        """Take steps from the best point until one is a reason to stop, or the segment ends."""
        self._here = self.best
        self._failure = None
        self.stuck = False
        self._x[...] = self.best.x
        self._gradient[...] = self.best.gradient
        held = self._bounds.held(self._x, self._gradient)
        self._max_slope = float(abs(self._bounds.free(self._gradient, held)).max())
        self._unit = self._max_slope if self._max_slope > _OVERFLOWS_SQUARED else 1.0
        stop = self._underflow()
        self._accept_graph = None
        curvature = learnt.curvature if self._unit == 1 else None
        self._memory = curvature or InverseCurvature(self._x, _MEMORY)
        learnt.curvature = self._memory
        plan = None
        while stop is None:
            if plan is None or self._run.steps % _NEW_FRAME_EVERY == 0:
                self._flat.write(self._x)
                frame = self._problem.frame()
                if learnt.coordinates is None:
                    # Without q(u) the parameters are of one kind, and units gain nothing.
                    units = None if frame is None else parameter_units(self._problem)
                    self._run.evaluations += 1 + len(units) if units else 0
                    learnt.coordinates = Coordinates(self._flat, frame, units)
                else:
                    learnt.coordinates.set_frame(frame)
                self._coordinates = learnt.coordinates
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
        slope, share, reach, has_curvature, _ = plan
        if not slope < 0:
            # Use the diagonal alone: the projected direction of L-BFGS may lead upwards.
            slope, share, reach, has_curvature, _ = self._numbers(self._plan(diagonal=True))
        # Set no limit for tiny shares: a search never gets that long, and 1/share may overflow.
        limit = 1 / share if share > 1e-6 else math.inf
        length = 1.0
        if not has_curvature:
            # Without curvature, limit the first step to length 1 in the coordinates.
            scaled = self._coordinates.of_gradient(self._in_units(self._gradient))
            length = min(1.0, 1 / float(abs(scaled).sum()))
        length = min(length, limit)
        longest = max(length, min(limit, max(1.0, reach)))
        before = self._here.value

        def at(length: float) -> Point | None:
            point = self._evaluate(length)
            if point is None:
                return None
            if self._failure is not None and not self._near(point.x):
                # Forget the failure: the line search has a finite value elsewhere.
                self._failure = None
            if point.value <= self.best.value:
                self.best = point
            return point

        accepted = line_search(at, before, slope * self._unit, length, longest)
        if accepted is None:
            self.stuck = True
            return plan, None
        self._here = accepted
        self.stuck = not accepted.value < before
        plan = self._accepted(accepted)
        self._max_slope = self._unit * plan[-1]
        return plan, self._run.step(accepted.value, self._max_slope) or self._underflow()

    def _near(self, x: Vector) -> bool:
        return bool(self._flat.xp.allclose(x, self._x, 1e-12, 1e-12))

    def _underflow(self) -> Stop | None:
        """Return a stop where the square of the gradient underflows."""
        slope = self._max_slope
        reason = f"The largest entry of the gradient is {slope:.3g}."
        return None if slope >= _UNDERFLOWS_SQUARED else Stop(Status.CONVERGED, reason)

    def _numbers(self, values: Array) -> list[float]:
        return values.tolist() if isinstance(values, Tensor) else [float(value) for value in values]

    def _joined(self, *numbers: Array) -> Array:
        """Return numbers as one tensor on a GPU, so that the host waits once for all of them."""
        return numbers if self._flat.xp is np else torch.stack([x.double() for x in numbers])

    @without_warnings
    def _plan(self, diagonal: bool = False) -> Array:
        """Compute the direction −H·gradient, projected so that no entry falls below its bound.

        With a pair in H, each raw parameter is limited to the allowed change by itself: a flat one,
        such as a lengthscale → ∞, would shorten the steps of all others. Without a pair only the
        direction of the gradient is known, and `_step` limits its length.

        Returns the slope along the direction, the largest share of the allowed change of a raw
        parameter, the length at which the first bound is reached, whether H has a pair, and the
        largest entry of the gradient.
        """
        x = self._x
        bounds = self._bounds
        memory = self._memory
        held = bounds.held(x, self._gradient)
        gradient = self._in_units(bounds.free(self._gradient, held))
        times = memory.diagonal_times if diagonal else memory.times
        down = bounds.project(x, -times(gradient, self._coordinates), held)
        xp = self._flat.xp
        allowed = abs(x).clip(2 * _MAX_CHANGE)
        # Divide by 0, for no limit, without a pair and for parameters that are not raw.
        most = allowed / (memory.has_pair * self._raw)
        down = down.clip(-most, most)
        self._direction[...] = down
        largest = partial(xp.linalg.norm, ord=math.inf)
        share = largest(self._raw * down / allowed)
        reach = bounds.max_length(x, down)
        return self._joined(down @ gradient, share, reach, memory.has_pair, largest(gradient))

    def _in_units(self, gradient: Vector) -> Vector:
        return gradient if self._unit == 1 else gradient / self._unit

    @without_warnings
    def _accept(self) -> Array:
        """Go to the trial point, learn the curvature on the way, and plan the next step."""
        step = self._trial_x - self._x
        change = self._trial_gradient - self._gradient
        self._memory.add(step, self._in_units(change), self._coordinates)
        self._x[...] = self._trial_x
        self._gradient[...] = self._trial_gradient
        return self._plan()

    def _accepted(self, point: Point) -> list[float]:
        """Go to a point; return the plan for the next step."""
        if point is not self._last:
            self._trial_x[...] = point.x
            self._trial_gradient[...] = point.gradient
        if self._accept_graph is not None:
            return self._numbers(self._accept_graph.replay())
        plan = self._numbers(self._accept())
        if self._flat.xp is torch:
            self._accept_graph = RecordedWork(self._problem, self._accept, warm_up=0)
        return plan

    @without_warnings
    def _trial(self) -> Array:
        """Evaluate the point at the current length of the direction.

        Returns value, slope along the direction, and sum of the gradient.
        """
        x = self._bounds.clip(self._x + self._length * self._direction)
        self._flat.write(x)
        value, joined = self._problem.value_and_gradient(self._run.steps)
        gradient = self._flat.packed(joined)
        self._trial_x[...] = x
        self._trial_gradient[...] = gradient
        return self._joined(value, gradient @ self._direction, gradient.sum())

    def _evaluate(self, length: float) -> Point | None:
        """Return the point at a length of the direction, or None where it is not finite."""
        self._length[...] = length
        self._run.evaluations += 1
        self._problem.prepare()
        try:
            value, slope, total = self._trial_numbers()
        except (InvalidInputError, NumericalError) as error:
            self._failure = str(error)
            return None
        # Check the sum first: it is faster, and a finite sum implies finite entries.
        finite = math.isfinite(total) or bool(self._flat.xp.isfinite(self._trial_gradient).all())
        if math.isfinite(value) and finite:
            self._last = Point(1 * self._trial_x, value, 1 * self._trial_gradient, slope)
            return self._last
        self._failure = f"It was {value}, or its gradient was not finite."
        return None

    def _trial_numbers(self) -> list[float]:
        problem = self._problem
        if self._trial_graph is not None:
            numbers = self._numbers(self._trial_graph.replay())
            self._sizes = self._trial_graph.outgrown()
            if not self._sizes and math.isfinite(numbers[0]):
                return numbers
        numbers = self._numbers(self._trial())
        if self._sizes or problem.jitter > 0:
            # Drop the graph: the quadrature needs more nodes, or the factorisation needs jitter.
            self._trial_graph = None
        if self._trial_graph is None and self._recordable and problem.jitter == 0:
            try:
                self._trial_graph = RecordedWork(problem, self._trial, self._sizes)
            except (InvalidInputError, NumericalError):
                # Evaluate with checks from now on; they raise the error of a bad trial.
                self._recordable = False
        return numbers


_ENOUGH_DECREASE = 1e-4
"""Wolfe's first condition: share of the decrease that the slope predicts."""

_LEFT_OF_SLOPE = 0.9
"""Wolfe's second condition: share of the slope that may be left."""

_MAX_EVALUATIONS = 30
"""Trials of one line search."""

_MAX_EQUAL = 2
"""Trials with the value at the start, after which the rest is rounding."""

_MIN_SHARE = 0.1
"""Smallest next length, as a share of the interval."""

_MAX_SHARE = 0.5
"""Largest next length, as a share of the interval."""


def line_search(
    at: Callable[[float], Point | None],
    start: float,
    slope: float,
    length: float,
    longest: float = math.inf,
) -> Point | None:
    """Return a point that satisfies Wolfe's conditions.

    Without one, returns the lowest point that satisfies the first condition, or None. `at` returns
    the point at a length, or None where it is not finite; `length` is tried first, `longest` at
    most. `start` and `slope` are value and derivative at length 0.
    """
    low = 0.0
    low_value = start
    low_slope = slope
    high = math.inf
    lower = None
    equal = 0
    for _ in range(_MAX_EVALUATIONS):
        point = at(length)
        equal += point is not None and point.value == start
        if equal == _MAX_EQUAL:
            break
        if point is None:
            high = length
            length = low + _MIN_SHARE * (length - low)
        elif point.value > start + _ENOUGH_DECREASE * (length * slope) or (
            low > 0 and point.value >= low_value
        ):
            # Go to the minimum of the parabola through the ends of the interval, within bounds.
            high = length
            width = length - low
            bend = point.value - low_value - low_slope * width
            lowest = -low_slope * width**2 / (2 * bend) if bend > 0 else width
            length = low + min(max(lowest, _MIN_SHARE * width), _MAX_SHARE * width)
        else:
            if point.slope >= _LEFT_OF_SLOPE * slope or length >= longest:
                return point
            lower = point
            low = length
            low_value = point.value
            low_slope = point.slope
            length = min(longest, 2 * length) if high == math.inf else (length + high) / 2
        if length <= low or length >= high:
            break
    return lower

"""Minimise deterministic problems by L-BFGS with lower bounds."""

import math
from collections.abc import Callable
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from directgp.errors import InvalidInputError, NumericalError
from directgp.training.callbacks import Run
from directgp.training.flat import FlatParameters, Vector
from directgp.training.problems import Problem
from directgp.training.quasi_newton import Coordinates, InverseCurvature, units
from directgp.training.result import Status, Stop

_ENOUGH_DECREASE = 1e-4
_LEFT_OF_SLOPE = 0.9
"""The conditions of Wolfe: share of the decrease that the slope promises, share of the slope."""

_MOST_EVALUATIONS = 30
_MOST_EQUAL = 2
"""Values equal to the first, after which the rest is known to be rounding."""

_LEAST_SHARE, _MOST_SHARE = 0.1, 0.5
"""Of an interval, where the next length is sought in it."""


class Point(NamedTuple):
    """A place with what is known of it."""

    x: Vector
    value: float
    gradient: Vector


class _Reach(NamedTuple):
    """A length with the value and the slope there."""

    length: float
    value: float
    slope: float


def line_search(
    at: Callable[[float], Point | None],
    start: Point,
    direction: Vector,
    length: float,
    longest: float = math.inf,
) -> Point | None:
    """A point that satisfies Wolfe's conditions.

    Where none is found, the lowest that satisfies the first of them; else None.

    Parameters
    ----------
    at : callable
        The point at a length; None where its value is not finite.
    start : Point
        Where the length is 0.
    direction : array
        Down.
    length, longest : float
        The first length that is tried, and the largest.
    """
    low, high = _Reach(0.0, start.value, float(start.gradient @ direction)), math.inf
    slope, lower, equal = low.slope, None, 0
    for _ in range(_MOST_EVALUATIONS):
        point = at(length)
        equal += point is not None and point.value == start.value
        if equal == _MOST_EQUAL:
            break
        if point is None:
            high, length = length, low.length + _LEAST_SHARE * (length - low.length)
        elif _too_high(point.value, start.value, length * slope, low):
            high, length = length, _between(low, length, point.value)
        else:
            reach = _Reach(length, point.value, float(point.gradient @ direction))
            if reach.slope >= _LEFT_OF_SLOPE * slope or length >= longest:
                return point
            lower, low, length = point, reach, _beyond(length, high, longest)
        if length <= low.length or length >= high:
            break
    return lower


def _too_high(value: float, first: float, promised: float, low: _Reach) -> bool:
    return value > first + _ENOUGH_DECREASE * promised or (low.length > 0 and value >= low.value)


def _between(low: _Reach, high: float, value: float) -> float:
    """Where the parabola through the two has its minimum, within bounds."""
    width = high - low.length
    bend = value - low.value - low.slope * width
    lowest = -low.slope * width**2 / (2 * bend) if bend > 0 else width
    return low.length + min(max(lowest, _LEAST_SHARE * width), _MOST_SHARE * width)


def _beyond(length: float, high: float, longest: float) -> float:
    return min(longest, 2 * length) if high == math.inf else (length + high) / 2


@final
class Floored:
    """The smallest values of the entries of a vector, −∞ for none.

    Parameters
    ----------
    floors : array
        None where there is no floor at all.
    """

    def __init__(self, floors: Vector | None) -> None:
        self._floors = floors

    def lifted(self, x: Vector) -> Vector:
        """At the floors at least."""
        return x if self._floors is None else np.maximum(x, self._floors)

    def free(self, x: Vector, gradient: Vector) -> Vector:
        """The gradient, 0 for what only a floor keeps from descending."""
        if self._floors is None:
            return gradient
        return np.where((x <= self._floors) & (gradient > 0), 0.0, gradient)

    def bent(self, x: Vector, direction: Vector, gradient: Vector) -> Vector:
        """A direction whose full length leads no entry below its floor.

        What the floor holds at x does not move.
        """
        if self._floors is None:
            return direction
        held = (x <= self._floors) & (gradient > 0)
        return np.where(held, 0.0, np.maximum(x + direction, self._floors) - x)

    def longest(self, x: Vector, direction: Vector) -> float:
        """The length at which a first floor is met."""
        if self._floors is None:
            return math.inf
        falling = (direction < 0) & np.isfinite(self._floors)
        lengths = (self._floors - x)[falling] / direction[falling]
        return float(lengths.min(initial=math.inf))


Units = dict[str, Tensor]

_MEMORY = 50
"""Pairs of steps and gradient changes that the curvature is built from."""

_NEW_FRAME_EVERY = 50
"""Steps after which the frame is chosen anew."""

_FARTHEST = 1.0
"""Of a raw parameter in one step, or half of its value: a factor of about e. Beyond it one pair
says nothing of the curvature, and there are valleys from which no way leads back."""

_UNDERFLOWS_SQUARED = 1e-150
_OVERFLOWS_SQUARED = 1e100
"""Gradients are squared and multiplied: those beyond are seen in a unit of their own."""


def lbfgs(
    problem: Problem,
    run: Run,
    segment: int | None = None,
    after_segment: Callable[[], None] = lambda: None,
) -> Stop:
    """Descend until the run stops or nothing descends; the parameters end at the best state.

    Parameters
    ----------
    problem : Problem
        What to minimise; its parameters are changed in place.
    run : Run
        Counts and stops.
    segment : int
        Steps after which the curvature is forgotten and `after_segment` is called, so that a run
        taken up from there goes on as this one does.
    after_segment : callable
        Keeps a checkpoint.

    Raises
    ------
    NumericalError
        If the value is not finite at the start, or on every way down from a state.
    """
    stop, descent = None, None
    try:
        descent = _Descent(problem, run)
        while stop is None:
            before = descent.best.value
            stop = descent.descend(segment)
            if stop is None and descent.stuck:
                # A fresh start, without what was learnt of the curvature, as long as that helps.
                if not descent.best.value < before:
                    stop = descent.end_of_descent()
            elif stop is None:
                descent.restore()
                after_segment()
                # As a run begins that is taken up from here.
                descent = _Descent(problem, run)
    except KeyboardInterrupt:
        stop = Stop(Status.INTERRUPTED, "Interrupted; the best state so far is kept.")
    finally:
        if descent is not None:
            descent.restore()
    return stop


@final
class _Descent:
    """The best state so far, and ways down from it."""

    def __init__(self, problem: Problem, run: Run) -> None:
        self._problem, self._run = problem, run
        self._flat = FlatParameters(problem.parameters)
        self._floored = Floored(self._flat.floors(problem.floors))
        named = {name: 1.0 for name in problem.parameters if "raw_" in name}
        self._raw = self._flat.full(0.0, named).nonzero()[0]
        self._trouble: str | None = None
        self._unit = 1.0
        self.stuck = False
        """Whether no way down was found."""
        start = self._evaluate(self._floored.lifted(self._flat.read()))
        if start is None:
            raise NumericalError(
                f"The objective must be finite at the start. {self._trouble} Scale inputs and "
                "targets, remove duplicate inducing inputs, or start from other hyperparameters, "
                "such as a smaller output scale."
            )
        self.best = self._here = start

    def descend(self, segment: int | None) -> Stop | None:
        """Down from the best state to the end of a segment, or until stuck; the reason to stop.

        q(u) is seen in a frame, and the rest in units, in which the curvature is about 1. The frame
        is renewed along the way; the units stay.
        """
        self._here, self._trouble, self.stuck = self.best, None, False
        slope = self._steepest()
        stop = _at_rest(slope)
        self._unit = slope if slope > _OVERFLOWS_SQUARED else 1.0
        memory, coordinates, scales = InverseCurvature(len(self._here.x), _MEMORY), None, None
        while stop is None:
            if coordinates is None or self._run.steps % _NEW_FRAME_EVERY == 0:
                coordinates, scales = self._coordinates(scales)
            stop = self._step(memory, coordinates)
            if self.stuck or (segment is not None and self._run.steps % segment == 0):
                break
        return stop

    def end_of_descent(self) -> Stop:
        """Why nothing goes down from the best point."""
        if self._trouble is not None:
            raise NumericalError(
                f"No finite way down was found from an objective of {self.best.value:.6g} after "
                f"{self._run.steps} steps. {self._trouble} Scale inputs and targets, use fewer "
                "inducing inputs, or a larger nugget."
            )
        narrow = any(p.dtype != torch.float64 for p in self._problem.parameters.values())
        advice = " Train in float64 to go further." if narrow else ""
        return Stop(Status.CONVERGED, f"No step lowers the objective beyond rounding.{advice}")

    def restore(self) -> None:
        """Set the parameters to the best state."""
        self._flat.write(self.best.x)

    def _coordinates(self, scales: Units | None) -> tuple[Coordinates, Units | None]:
        """Coordinates for where it is, in units that are known or measured here."""
        self._flat.write(self._here.x)
        frame = self._problem.frame()
        # Without q(u) the rest is of one kind, and units gain nothing.
        if scales is None and frame is not None:
            scales = units(self._problem)
            self._run.evaluations += 1 + len(scales) if scales else 0
        return Coordinates(self._flat, frame, scales), scales

    def _step(self, memory: InverseCurvature, coordinates: Coordinates) -> Stop | None:
        """One step down; a reason to stop, if there is one."""
        here, direction = self._here, self._direction(memory, coordinates)
        length = self._first_length(coordinates) if memory.empty else 1.0
        reach = self._reach(here.x, direction)
        length = min(length, reach)
        longest = max(length, min(reach, max(1.0, self._floored.longest(here.x, direction))))

        def at(length: float) -> Point | None:
            return self._try(self._floored.lifted(here.x + length * direction))

        found = line_search(at, here, direction, length, longest)
        if found is None:
            self.stuck = True
            return None
        memory.add(found.x - here.x, (found.gradient - here.gradient) / self._unit, coordinates)
        self._here, self.stuck = found, not found.value < here.value
        slope = self._steepest()
        return self._run.step(found.value, slope) or _at_rest(slope)

    def _direction(self, memory: InverseCurvature, coordinates: Coordinates) -> Vector:
        """Down by the inverse curvature, bent where it would lead below a floor."""
        x, slopes = self._here.x, self._here.gradient
        gradient = self._floored.free(x, slopes) / self._unit
        down = self._floored.bent(x, -memory.times(gradient, coordinates), slopes)
        if float(down @ gradient) < 0:
            return down
        # Bent, it may lead upwards; by the diagonal it does not.
        return self._floored.bent(x, -memory.diagonal_times(gradient, coordinates), slopes)

    def _reach(self, x: Vector, direction: Vector) -> float:
        """The length at which a raw parameter has gone as far as one step may lead it."""
        raw, move = x[self._raw], np.abs(direction[self._raw])
        share = float(np.max(move / np.maximum(_FARTHEST, 0.5 * np.abs(raw)), initial=0.0))
        # No length that is tried makes up for so small a share, and 1 / share might overflow.
        return 1 / share if share > 1e-6 else math.inf

    def _first_length(self, coordinates: Coordinates) -> float:
        """No further than 1 in the coordinates while nothing is known of the curvature."""
        gradient = coordinates.of_gradient(self._here.gradient / self._unit)
        return min(1.0, 1 / float(np.abs(gradient).sum()))

    def _steepest(self) -> float:
        """The largest entry of the gradient; what only a floor keeps from descending is at rest."""
        free = self._floored.free(self._here.x, self._here.gradient)
        return float(np.abs(free).max(initial=0.0))

    def _try(self, x: Vector) -> Point | None:
        """The value at x, remembered where it is the best."""
        point = self._evaluate(x)
        if point is None:
            return None
        if not np.allclose(x, self._here.x, rtol=1e-12, atol=1e-12):
            # A line search that finds other finite values has come round the trouble.
            self._trouble = None
        if point.value <= self.best.value:
            self.best = point
        return point

    def _evaluate(self, x: Vector) -> Point | None:
        """The value at x, or None and a note of the trouble where it is not finite."""
        self._flat.write(x)
        self._flat.clear_gradient()
        self._run.evaluations += 1
        try:
            self._problem.prepare()
            value = self._problem.value(self._run.steps)
            value.backward()
        except (InvalidInputError, NumericalError) as error:
            self._trouble = str(error)
            return None
        point = Point(x, float(value.detach()), self._flat.gradient())
        if not (np.isfinite(point.value) and np.isfinite(point.gradient).all()):
            self._trouble = f"It was {point.value}, or its gradient was not finite."
            return None
        return point


def _at_rest(slope: float) -> Stop | None:
    """A stop where the gradient is so small that its square is 0."""
    if slope >= _UNDERFLOWS_SQUARED:
        return None
    return Stop(Status.CONVERGED, f"The largest entry of the gradient is {slope:.3g}.")

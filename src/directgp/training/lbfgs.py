"""L-BFGS for deterministic problems, on one flat vector with floors."""

import math
from collections.abc import Callable
from typing import final

import numpy as np
import torch
from torch import Tensor

from directgp.errors import InvalidInputError, NumericalError
from directgp.training.coordinates import Coordinates
from directgp.training.flat import FlatParameters, Vector
from directgp.training.floored import Floored
from directgp.training.line_search import Point, line_search
from directgp.training.problem import Problem
from directgp.training.quasi_newton import InverseCurvature
from directgp.training.result import Status, Stop
from directgp.training.run import Run
from directgp.training.scaling import units

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

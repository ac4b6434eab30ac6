"""L-BFGS for deterministic problems: scipy's L-BFGS-B on one flat vector."""

from collections.abc import Callable
from typing import NamedTuple, final

import numpy as np
from scipy.optimize import Bounds, OptimizeResult, minimize

from directgp.errors import InvalidInputError, NumericalError
from directgp.training.flat import FlatParameters, Vector
from directgp.training.problem import Problem
from directgp.training.result import Status, Stop
from directgp.training.run import Run
from directgp.training.scaling import units

_MEMORY, _LONG_MEMORY = 20, 50
"""Pairs of steps and gradient changes that the curvature is built from; more for joint runs."""

_NEW_FRAME_EVERY = 200
"""Steps after which frame and units are chosen anew."""

_RETRIES = 5
"""Fresh starts from the best state after a line search has failed."""

_UNDERFLOWS_SQUARED = 1e-150
_OVERFLOWS_SQUARED = 1e100
"""scipy squares and multiplies gradients: those beyond it sees in a unit of their own."""

# How scipy's L-BFGS-B says that it has ended.
_NO_DECREASE, _SEGMENT_OVER, _LINE_SEARCH_FAILED = 0, 1, 2


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
    stop, failures, descent = None, 0, None
    try:
        descent = _Descent(problem, run)
        while stop is None:
            before = descent.best.value
            stop, code = descent.descend(segment)
            if stop is None and code == _SEGMENT_OVER:
                descent.restore()
                after_segment()
                # As a run begins that is taken up from here.
                descent, failures = _Descent(problem, run), 0
            elif stop is None:
                failures += code == _LINE_SEARCH_FAILED
                lower = descent.best.value < before
                if code == _NO_DECREASE or not lower or failures > _RETRIES:
                    stop = descent.end_of_descent()
    except KeyboardInterrupt:
        stop = Stop(Status.INTERRUPTED, "Interrupted; the best state so far is kept.")
    finally:
        if descent is not None:
            descent.restore()
    return stop


class _Point(NamedTuple):
    x: Vector
    value: float
    gradient: Vector


@final
class _Descent:
    """The best state so far, and ways down from it."""

    def __init__(self, problem: Problem, run: Run) -> None:
        self._problem, self._run = problem, run
        self._plain = self._flat = FlatParameters(problem.parameters)
        self._floors = self._plain.floors(problem.floors)
        self._trouble: str | None = None
        self._stop: Stop | None = None
        self._unit = 1.0
        x = self._plain.read()
        start = self._evaluate(x if self._floors is None else np.maximum(x, self._floors))
        if start is None:
            raise NumericalError(
                f"The objective must be finite at the start. {self._trouble} Scale inputs and "
                "targets, remove duplicate inducing inputs, or start from other hyperparameters, "
                "such as a smaller output scale."
            )
        self.best = self._last = start

    def descend(self, segment: int | None) -> tuple[Stop | None, int]:
        """Down from the best state to the end of a segment; reason to stop, and scipy's code.

        q(u) is seen in a frame, and the rest in units, in which the curvature at the beginning is
        about 1.
        """
        self._trouble, self._stop = None, None
        self.restore()
        problem = self._problem
        frame = problem.frame()
        # Without q(u) the rest is of one kind, and units gain nothing.
        scales = None if frame is None else units(problem)
        if scales:
            self._run.evaluations += 1 + len(scales)
        self._flat = FlatParameters(problem.parameters, frame, scales)
        self._floors = self._flat.floors(problem.floors)
        slope = _steepest(self.best, self._plain.floors(problem.floors))
        self._unit = slope if slope > _OVERFLOWS_SQUARED else 1.0
        self._stop = _at_rest(slope)
        if self._stop is not None:
            return self._stop, _NO_DECREASE
        segment = segment or _NEW_FRAME_EVERY
        steps = segment - self._run.steps % segment
        found = minimize(
            self._value_and_gradient,
            self._flat.read(),
            jac=True,
            method="L-BFGS-B",
            bounds=None if self._floors is None else Bounds(self._floors),
            callback=self._after_step,
            options={
                "maxiter": steps,
                "maxfun": 50 * steps,
                "maxcor": _LONG_MEMORY if scales else _MEMORY,
                "maxls": 30,
                # The run decides when to stop.
                "ftol": 0.0,
                "gtol": 0.0,
            },
        )
        return self._stop, int(found.status)

    def end_of_descent(self) -> Stop:
        """Why nothing goes down from the best point."""
        if self._trouble is not None:
            raise NumericalError(
                f"No finite way down was found from an objective of {self.best.value:.6g} after "
                f"{self._run.steps} steps. {self._trouble} Scale inputs and targets, use fewer "
                "inducing inputs, or a larger nugget."
            )
        return Stop(Status.CONVERGED, "No step lowers the objective beyond rounding.")

    def restore(self) -> None:
        """Set the parameters to the best state."""
        self._plain.write(self.best.x)

    def _evaluate(self, x: Vector) -> _Point | None:
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
        point = _Point(x.copy(), float(value.detach()), self._flat.gradient())
        if not (np.isfinite(point.value) and np.isfinite(point.gradient).all()):
            self._trouble = f"It was {point.value}, or its gradient was not finite."
            return None
        return point

    def _value_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        point = self._evaluate(x)
        if point is None:
            point = self._wall(x)
        else:
            here = self._plain.read()
            if not np.allclose(here, self.best.x, rtol=1e-12, atol=1e-12):
                # A line search that finds other finite values has come round the trouble.
                self._trouble = None
            self._last = point
            if point.value <= self.best.value:
                self.best = point._replace(x=here)
        return point.value / self._unit, point.gradient / self._unit

    def _wall(self, x: Vector) -> _Point:
        """A parabola that rises from the last good point, for a line search to turn back from."""
        away = x - self._last.x
        height = self._unit + abs(self._last.value)
        square = float(away @ away)
        return _Point(x, self._last.value + height, 2 * height / max(square, 1e-300) * away)

    def _after_step(self, intermediate_result: OptimizeResult) -> None:
        slope = _steepest(self._last, self._floors)
        self._stop = self._run.step(self._last.value, slope) or _at_rest(slope)
        if self._stop is not None:
            raise StopIteration


def _steepest(point: _Point, floors: Vector | None) -> float:
    """The largest entry of the gradient; what only a floor keeps from descending is at rest."""
    gradient = point.gradient
    if floors is not None:
        gradient = np.where(point.x > floors, gradient, np.minimum(gradient, 0))
    return float(np.abs(gradient).max(initial=0.0))


def _at_rest(slope: float) -> Stop | None:
    """A stop where the gradient is so small that scipy, which divides by its square, gives NaN."""
    if slope >= _UNDERFLOWS_SQUARED:
        return None
    return Stop(Status.CONVERGED, f"The largest entry of the gradient is {slope:.3g}.")

"""How far to go along a direction: far enough down, and not to where it rises again."""

import math
from collections.abc import Callable
from typing import NamedTuple

from directgp.training.flat import Vector

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

"""Vectors with smallest values: what is held by them, and how steps end at them."""

import math
from typing import final

import numpy as np

from directgp.training.flat import Vector


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

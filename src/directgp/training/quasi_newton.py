"""The inverse curvature that L-BFGS builds from the steps it has taken."""

from typing import final

import numpy as np
from scipy.linalg import solve_triangular

from directgp.training.coordinates import Coordinates
from directgp.training.flat import Vector

_LEAST_RISE = 1e-10
"""sᵀy / (‖s‖ ‖y‖) at which a pair still says something of the curvature."""

_SPARE = 10
"""Room beyond the memory, so that the pairs, which stay in their order, are moved rarely."""

_LARGEST_STRETCH = 1e6
"""By which one pair may lengthen an entry of the diagonal."""


@final
class InverseCurvature:
    """H ≈ (∇²f)⁻¹ from the last pairs of steps s and changes y of the gradient.

    H begins, before its pairs, with T D Tᵀ: T is the change of coordinates, and the diagonal D
    follows the pairs by the diagonal of the BFGS formula (Gilbert and Lemaréchal 1989), which makes
    up for curvatures that differ between the entries of a parameter. Pairs are kept in x, so that
    other coordinates may be chosen at any time.

    Parameters
    ----------
    size : int
        Of a vector.
    memory : int
        Pairs that are kept.
    """

    def __init__(self, size: int, memory: int) -> None:
        self._memory = memory
        room = memory + _SPARE
        self._S, self._Y = np.empty((room, size)), np.empty((room, size))
        self._R = np.zeros((room, room))
        """s_iᵀ y_j for i ≤ j."""
        self._first, self._end = 0, 0
        self._D = np.ones(size)

    @property
    def empty(self) -> bool:
        """Whether nothing is known of the curvature."""
        return self._end == 0

    def times(self, gradient: Vector, coordinates: Coordinates) -> Vector:
        """H g, by the two loops of L-BFGS, each as two products and a triangular solve.

        α_i = s_iᵀ q_i / s_iᵀ y_i with q_i = g − Σ_{j>i} α_j y_j is R α = S g, and what the second
        loop adds is Σ c_i s_i with Rᵀ c = diag(R) α − Y H₀ q.
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
        """T D Tᵀ g: without the pairs."""
        return coordinates.to_step(self._D * coordinates.of_gradient(gradient))

    def add(self, step: Vector, change: Vector, coordinates: Coordinates) -> None:
        """Learn from a step, unless the slope has not risen along it."""
        s, y = coordinates.of_step(step), coordinates.of_gradient(change)
        rise = float(step @ change)
        if not rise > _LEAST_RISE * float(np.linalg.norm(s) * np.linalg.norm(y)):
            return
        if self._end == len(self._S):
            self._move_to_front()
        last = self._end
        self._S[last], self._Y[last] = step, change
        self._first, self._end = max(0, last + 1 - self._memory), last + 1
        kept = slice(self._first, self._end)
        self._R[kept, last] = self._S[kept] @ change
        self._follow(s, y, rise)

    def _follow(self, s: Vector, y: Vector, rise: float) -> None:
        """D⁻¹ becomes the diagonal of its BFGS update, after D was scaled to have yᵀDy = sᵀy."""
        self._D *= rise / float(y @ (self._D * y))
        back = s / self._D
        curvature = 1 / self._D + y**2 / rise - back**2 / float(s @ back)
        self._D = 1 / np.maximum(curvature, 1 / (_LARGEST_STRETCH * self._D))

    def _move_to_front(self) -> None:
        number = self._memory - 1
        shift = self._end - number
        # Row by row: no copy of all of them is made.
        for i in range(number):
            self._S[i], self._Y[i] = self._S[i + shift], self._Y[i + shift]
        self._R[:number, :number] = self._R[shift : self._end, shift : self._end].copy()
        self._first, self._end = 0, number

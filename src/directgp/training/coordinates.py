"""Coordinates in which the curvature of a problem is about 1."""

from collections.abc import Callable
from typing import final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from torch import Tensor

from directgp.training.flat import FlatParameters, Vector

Columns = NDArray[np.float64]


@final
class Coordinates:
    """A linear change x = T z of the vector of some parameters.

    Parameters
    ----------
    flat : FlatParameters
        The vector x.
    frame : tensor of shape (m, m)
        A lower triangular C: z holds C⁻¹·u_mean and C⁻¹·u_chol in place of the two.
    units : dict of str to tensor
        What the other parameters are measured in.
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
        self._mean, self._chol = flat.place("u_mean"), flat.place("u_chol")
        self._lower = np.tril_indices(0 if frame is None else len(frame))

    def of_step(self, step: Vector) -> Vector:
        """T⁻¹ s for a step s in x."""
        return self._changed(step, 1 / self._units, self._solve)

    def of_gradient(self, gradient: Vector) -> Vector:
        """Tᵀ g for a gradient g in x."""
        return self._changed(gradient, self._units, lambda frame, columns: frame.T @ columns)

    def to_step(self, step: Vector) -> Vector:
        """T z: a step in x for one in z."""
        return self._changed(step, self._units, np.matmul)

    def _changed(
        self, vector: Vector, units: Vector, change: Callable[[Columns, Columns], Columns]
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

    def _solve(self, frame: Columns, columns: Columns) -> Columns:
        solved: Columns = solve_triangular(frame, columns, lower=True, check_finite=False)
        return solved

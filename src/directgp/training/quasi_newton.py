"""Approximate the inverse Hessian from past steps, in scaled coordinates."""

from collections.abc import Callable
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from torch import Tensor

from directgp.errors import InvalidInputError, NumericalError
from directgp.training.flat import FlatParameters, Vector
from directgp.training.problems import Problem

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


_PROBE = 1e-4
"""Length of a probe, in natural units."""

_NARROWEST, _WIDEST = 0.2, 5.0
"""Bounds of a unit: one curvature speaks for a whole parameter, and only where it was probed."""


def units(problem: Problem) -> dict[str, Tensor]:
    """A unit for each parameter but q(u)'s, which has a frame.

    The mean curvature c = vᵀHv / size of a parameter comes from one difference of gradients along
    v, its natural unit with random signs (the spread of the inducing inputs in each feature; 1 or
    the value itself for others). The unit is 1/√|c|, within bounds.
    """
    names = [name for name in problem.parameters if name not in ("u_mean", "u_chol")]
    if not names:
        return {}
    signs = torch.Generator().manual_seed(0)
    here = _gradient(problem)
    return {name: _unit(problem, name, here, signs) for name in names}


def _unit(
    problem: Problem, name: str, here: dict[str, Tensor] | None, signs: torch.Generator
) -> Tensor:
    parameter = problem.parameters[name]
    natural = _natural_unit(name, parameter.detach())
    sign = 2 * torch.randint(2, parameter.shape, generator=signs).to(parameter) - 1
    value = parameter.detach().clone()
    with torch.no_grad():
        parameter.add_(_PROBE * natural * sign)
    there = _gradient(problem)
    with torch.no_grad():
        parameter.copy_(value)
    if here is None or there is None:
        return natural
    rise = (natural * sign * (there[name] - here[name])).double().mean().abs() / _PROBE
    stretch = torch.rsqrt(rise).nan_to_num(nan=1.0).clamp(_NARROWEST, _WIDEST)
    return natural * stretch.to(natural)


def _natural_unit(name: str, value: Tensor) -> Tensor:
    if name != "Z":
        return value.abs().clamp(min=1.0)
    spread = value.std(-2, correction=0, keepdim=True)
    return torch.where(spread > 0, spread, 1.0).expand(value.shape)


def _gradient(problem: Problem) -> dict[str, Tensor] | None:
    """The gradient of every parameter here, or None where it cannot be had."""
    for parameter in problem.parameters.values():
        parameter.grad = None
    try:
        problem.prepare()
        problem.value(0).sum().backward()
    except (InvalidInputError, NumericalError):
        return None
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in problem.parameters.items()
    }

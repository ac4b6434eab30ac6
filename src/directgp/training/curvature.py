"""How L-BFGS sees a problem: parameters as one vector, its bounds, units and inverse curvature."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, final

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
from directgp.training.problems import TrainingProblem

Vector = Array
"""A float64 vector: a numpy array, or a tensor on a GPU, where no entry is copied to the host."""


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

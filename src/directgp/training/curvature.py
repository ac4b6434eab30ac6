"""Vectors of parameters for L-BFGS, with bounds, scaled coordinates and inverse curvature."""

import copy
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
    triangular_times,
    without_warnings,
    zeros,
)
from directgp.training.problems import TrainingProblem

Frame = Float[Tensor, "*latent m m"]
"""Lower triangular change of coordinates of q(u), for each latent."""

Vector = Array
"""A float64 vector: a numpy array, or a tensor on a GPU, where no entry is copied to the host."""


@final
class LowerBounds:
    """Lower bounds of the entries of a vector; −∞ for none."""

    def __init__(self, bounds: Vector) -> None:
        self._bounds = bounds
        self._xp = library_of(bounds)
        self._any = bool(self._xp.isfinite(bounds).any())
        # Store arrays: a number would be copied to the GPU each time.
        self._zero = zeros((), bounds)
        self._infinity = zeros((), bounds) + math.inf

    def clip(self, x: Vector) -> Vector:
        """Return x with entries below their bound set to it."""
        return self._xp.maximum(x, self._bounds)

    def held(self, x: Vector, gradient: Vector) -> Array | None:
        """Return a mask of entries at a bound that would descend below it; None without bounds."""
        return (x <= self._bounds) & (gradient > 0) if self._any else None

    def free(self, gradient: Vector, held: Array | None) -> Vector:
        """Return the gradient, with 0 for held entries."""
        return gradient if held is None else self._xp.where(held, self._zero, gradient)

    def project(self, x: Vector, direction: Vector, held: Array | None) -> Vector:
        """Return a direction whose full length leads no entry below its bound."""
        if held is None:
            return direction
        return self.free(self._xp.maximum(direction, self._bounds - x), held)

    @without_warnings
    def max_length(self, x: Vector, direction: Vector) -> Array:
        """Return the length at which the first bound is reached."""
        lengths = (self._bounds - x) / direction
        return self._xp.where(direction < 0, lengths, self._infinity).min()


@final
class FlatParameters:
    """Values and gradients of parameters in one float64 vector.

    A numpy vector has the lower triangle of u_chol. A torch vector, on a GPU, has the whole matrix
    with 0 above the diagonal, so that nothing has to be packed.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], xp: Any = None) -> None:
        self._parameters = parameters
        self._sizes = [p.numel() for p in parameters.values()]
        used = [
            torch.ones(p.shape).tril_() if name == "u_chol" else torch.ones(p.shape)
            for name, p in parameters.items()
        ]
        device = next(iter(parameters.values())).device
        self.xp: Any = xp or (np if device.type == "cpu" else torch)
        """The library of the vectors."""
        self._used = _join(used).to(device, torch.float64)
        """1 for entries of parameters that are used, 0 above the diagonal of u_chol."""
        whole = torch.zeros_like(self._used)
        self._places = None
        self._flat = self.array(whole)
        self._views = self._split(whole)
        if self.xp is np:
            self._places = self._used.nonzero()[:, 0].numpy()
        lengths = [int(part.sum()) for part in used] if self.xp is np else self._sizes
        ends = np.cumsum([0, *lengths]).tolist()
        self._slices = {name: slice(ends[i], ends[i + 1]) for i, name in enumerate(parameters)}

    def read(self) -> Vector:
        """Return the values."""
        return self.packed(_join(p.detach() for p in self._parameters.values()))

    def write(self, vector: Vector) -> None:
        """Set the values."""
        views = self._views
        if self._places is None:
            views = self._split(vector)
        else:
            self._flat[self._places] = vector
        with torch.no_grad():
            torch._foreach_copy_(list(self._parameters.values()), views)

    def _split(self, joined: Tensor) -> list[Tensor]:
        parts = zip(joined.split(self._sizes), self._parameters.values(), strict=True)
        return [part.view(p.shape) for part, p in parts]

    def full(self, value: float, others: Mapping[str, float | Tensor]) -> Vector:
        """Return a vector of one value, with other values for some parameters."""
        values = (
            torch.as_tensor(others.get(name, value), dtype=torch.float64)
            .to(p.device)
            .expand(p.shape)
            for name, p in self._parameters.items()
        )
        joined = _join(values)
        return joined if self._places is None else joined.numpy()[self._places]

    def slice_of(self, name: str) -> slice:
        """Return the slice of a parameter; an empty one if it is not in the vector."""
        return self._slices.get(name, slice(0, 0))

    def packed(self, joined: Tensor) -> Vector:
        """Return a new vector from the entries of all parameters, joined in their order."""
        wide = joined.double()
        return self._used * wide if self._places is None else wide.numpy().take(self._places)

    def array(self, tensor: Tensor) -> Array:
        """Return an array of the library in use that shares the memory of a tensor."""
        return tensor.numpy() if self.xp is np else tensor


def _join(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


@final
class Coordinates:
    """A linear change x = T z of the vector of parameters.

    z holds C⁻¹·u_mean and C⁻¹·u_chol, C the lower triangular frame, and the other parameters
    divided by their units. Each of several latents has a frame of its own.
    """

    def __init__(
        self,
        flat: FlatParameters,
        frame: Frame | None = None,
        units: dict[str, Tensor] | None = None,
    ) -> None:
        self._units = flat.full(1.0, units or {})
        self._array = flat.array
        self._inverse_units = 1 / self._units
        self._plain = frame is None and not units
        self._mean = flat.slice_of("u_mean")
        self._chol = flat.slice_of("u_chol")
        self._frame: Array = None
        self._inverse: Array = None
        if frame is not None:
            m = frame.shape[-1]
            self._frame, self._inverse = (
                flat.array(torch.empty_like(frame, dtype=torch.float64)) for _ in range(2)
            )
            self._lower = torch.ones_like(frame, dtype=torch.float64).tril_()
            row, column = torch.tril_indices(m, m).numpy()
            latent = np.arange(frame.numel() // m**2)[:, None] * (m * (m + 1))
            self._places = (latent + row * (m + 1) + column).ravel()
            self.set_frame(frame)

    def set_frame(self, frame: Frame | None) -> None:
        """Overwrite the frame; None sets the identity. No effect without a frame."""
        if self._frame is None:
            return
        eye = torch.eye(self._frame.shape[-1]).to(self._lower).expand(self._lower.shape)
        new_frame = eye if frame is None else frame.double()
        self._frame[...] = self._array(new_frame)
        self._inverse[...] = self._array(torch.linalg.solve_triangular(new_frame, eye, upper=False))

    def copied(self) -> "Coordinates":
        """Return a copy that keeps its frame."""
        twin = copy.copy(self)
        if self._frame is not None:
            twin._frame, twin._inverse = _copied(self._frame), _copied(self._inverse)
        return twin

    def of_step(self, step: Vector) -> Vector:
        """Return T⁻¹ s for a step s in x."""
        return self._changed(step, self._inverse_units, self._inverse)

    def of_gradient(self, gradient: Vector) -> Vector:
        """Return Tᵀ g for a gradient g in x."""
        frame = None if self._frame is None else self._frame.swapaxes(-1, -2)
        return self._changed(gradient, self._units, frame, upper=True)

    def to_step(self, step: Vector) -> Vector:
        """Return T z, the step in x for one in z."""
        return self._changed(step, self._units, self._frame)

    def _changed(
        self, vector: Vector, units: Vector, matrix: Array | None, *, upper: bool = False
    ) -> Vector:
        """Return the vector times its units, with q(u) multiplied by a triangular matrix."""
        if self._plain:
            return vector
        result: Vector = vector * units
        if matrix is None:
            return result
        m = matrix.shape[-1]
        if isinstance(vector, Tensor):
            chol = result[self._chol].view(matrix.shape)
            triangular_times(matrix, vector[self._chol].view(matrix.shape), out=chol, upper=upper)
            if upper:
                chol *= self._lower
            column = *matrix.shape[:-1], 1
            mean = result[self._mean].view(column)
            torch.matmul(matrix, vector[self._mean].view(column), out=mean)
            return result
        # Multiply the columns (u_chol, u_mean) at once.
        both = np.zeros((*matrix.shape[:-1], m + 1))
        both.reshape(-1)[self._places] = vector[self._chol]
        both[..., m] = vector[self._mean].reshape(matrix.shape[:-1])
        changed = np.empty_like(both)
        for k in np.ndindex(matrix.shape[:-2]):
            triangular_times(matrix[k], both[k], out=changed[k], upper=upper)
        result[self._chol] = changed.reshape(-1)[self._places]
        result[self._mean] = changed[..., m].ravel()
        return result


_MIN_CURVATURE = 1e-10
"""sᵀy / (‖s‖ ‖y‖) from which a pair counts."""

_MAX_STRETCH = 1e6
"""Largest factor by which one pair may increase an entry of the diagonal."""


def _copied(values: Array) -> Array:
    return values.copy() if isinstance(values, np.ndarray) else values.clone()


@final
class InverseCurvature:
    """H ≈ (∇²f)⁻¹ from the last `memory` pairs of steps s and changes y of the gradient.

    H starts, before its pairs, with T D Tᵀ: T is the change of coordinates, and the diagonal D is
    updated by the diagonal of the BFGS formula (Gilbert and Lemaréchal 1989), which corrects for
    curvatures that differ between the entries of a parameter. Pairs are kept in x, so that the
    coordinates may change at any time.

    With R_ij = s_iᵀ y_j for pairs i up to j, else 0, the rows and columns of S, Y and R⁻¹ are in
    the order of their places in memory: a new pair takes the place of the oldest, whose row of R⁻¹
    becomes 0, and adds the column (−R⁻¹ S y / sᵀy, 1 / sᵀy).
    """

    def __init__(self, template: Vector, memory: int) -> None:
        self._memory = memory
        self._xp = library_of(template)
        size = len(template)
        self._S = zeros((memory, size), template)
        self._Y = zeros((memory, size), template)
        self._R_inverse = zeros((memory, memory), template)
        """R⁻¹."""
        self._rise = zeros(memory, template)
        """The diagonal of R."""
        self._next = self._xp.zeros_like(zeros(1, template), dtype=self._xp.int64)
        """The place of the next pair."""
        # Use all places on a GPU, where shapes are fixed.
        self._number = 0 if self._xp is np else memory
        self._inverse_D = zeros(size, template) + 1
        # Store arrays: a CUDA graph cannot copy a number to the GPU.
        self._zero = zeros((), template)
        self._one = zeros((), template) + 1
        self.has_pair = zeros((), template)
        """Whether there is a pair; 1 or 0."""

    def copied(self) -> "InverseCurvature":
        """Return a copy that further pairs do not change."""
        twin: InverseCurvature = copy.copy(self)
        for name in ("_S", "_Y", "_R_inverse", "_rise", "_next", "_inverse_D", "has_pair"):
            setattr(twin, name, _copied(getattr(self, name)))
        return twin

    def times(self, gradient: Vector, coordinates: Coordinates) -> Vector:
        """Return H g, by the two loops of L-BFGS, each as products with all pairs.

        α_i = s_iᵀ q_i / s_iᵀ y_i with q_i = g − Σ_{j>i} α_j y_j is R α = S g, and the second loop
        adds Σ c_i s_i with Rᵀ c = diag(R) α − Y H₀ q.
        """
        if self._number == 0:
            return self.diagonal_times(gradient, coordinates)
        used = slice(self._number)
        S = self._S[used]
        Y = self._Y[used]
        R_inverse = self._R_inverse[used, used]
        a = R_inverse @ (S @ gradient)
        result = self.diagonal_times(gradient - a @ Y, coordinates)
        c = (self._rise[used] * a - Y @ result) @ R_inverse
        return result + c @ S

    def diagonal_times(self, gradient: Vector, coordinates: Coordinates) -> Vector:
        """Return T D Tᵀ g, which is H g without the pairs."""
        return coordinates.to_step(coordinates.of_gradient(gradient) / self._inverse_D)

    def add(self, step: Vector, change: Vector, coordinates: Coordinates) -> None:
        """Add a pair, unless the slope has not risen along the step."""
        s = coordinates.of_step(step)
        y = coordinates.of_gradient(change)
        rise = step @ change
        rises = rise > _MIN_CURVATURE * ((s @ s) * (y @ y)) ** 0.5
        place: Any = self._next
        if self._xp is np:
            if not rises:
                return
            place = slice(int(place[0]), int(place[0]) + 1)
            self._number = max(self._number, place.stop)
        used = slice(self._number)
        stored = self._R_inverse[used, used]

        def put(rows: Array, at: Any, new: Array) -> None:
            # Select by `where`: a CUDA graph has no branches.
            rows[at] = new if self._xp is np else torch.where(rises, new, rows[at])

        put(self._S, place, step)
        put(self._Y, place, change)
        put(self._rise, place, rise)
        R_inverse = 1 * stored
        R_inverse[place] = self._zero
        column = R_inverse @ (self._S[used] @ change / -rise)
        column[place] = 1 / rise
        R_inverse[:, place] = column[:, None]
        put(stored, ..., R_inverse)
        put(self._inverse_D, ..., self._updated(s, y, rise))
        put(self.has_pair, ..., self._one)
        self._next[...] = (self._next + rises) % self._memory

    def _updated(self, s: Vector, y: Vector, rise: Array) -> Vector:
        """Return D⁻¹ after a pair: the diagonal of its BFGS update.

        Before that D is scaled to have yᵀDy = sᵀy.
        """
        inverse_D = self._inverse_D * (y @ (y / self._inverse_D) / rise)
        back = s * inverse_D
        curvature = inverse_D + y * (y / rise) - back * (back / (s @ back))
        return self._xp.maximum(curvature, inverse_D / _MAX_STRETCH)


_PROBE = 1e-4
"""Length of a finite difference, in natural units."""

_MIN_UNIT = 0.2
"""Smallest unit; one curvature at one point is a rough estimate for a whole parameter."""

_MAX_UNIT = 5.0
"""Largest unit, for the same reason."""


def parameter_units(problem: TrainingProblem) -> dict[str, Tensor]:
    """Return a unit for each parameter except u_mean and u_chol, which the frame scales.

    The mean curvature c = vᵀHv / size of a parameter comes from one difference of gradients along
    v, the parameter's natural unit with random signs: the spread of the inducing inputs in each
    feature, or 1 or the value itself for other parameters. The unit is 1/√|c|, within bounds.
    """
    sizes = [p.numel() for p in problem.parameters.values()]
    places = dict(zip(problem.parameters, np.cumsum([0, *sizes]).tolist(), strict=False))
    signs = torch.Generator().manual_seed(0)
    names = [name for name in problem.parameters if name not in ("u_mean", "u_chol")]
    gradient = _probe(problem) if names else None
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
        shifted = _probe(problem)
        with torch.no_grad():
            parameter.copy_(value)
        units[name] = natural
        if gradient is not None and shifted is not None:
            entries = slice(places[name], places[name] + parameter.numel())
            change = (shifted[entries] - gradient[entries]).view(parameter.shape)
            rise = (natural * sign * change).double().mean().abs() / _PROBE
            stretch = torch.rsqrt(rise).nan_to_num(nan=1.0).clamp(_MIN_UNIT, _MAX_UNIT)
            units[name] = natural * stretch.to(natural)
    return units


def _probe(problem: TrainingProblem) -> Tensor | None:
    """Return the gradient at the current parameters; None where it cannot be computed."""
    try:
        problem.prepare()
        return problem.value_and_gradient(0)[1]
    except (InvalidInputError, NumericalError):
        return None

"""Write kernels as a program: those of one name, and every part of an expression."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add, mul
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float64
from scipy.special import i0e

from directgp.export.program import Value, concatenate
from directgp.kernels import (
    RBF,
    Additive,
    Categorical,
    Group,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    Sphere,
)
from directgp.kernels.parts import Part
from directgp.kernels.parts.additive import Effect
from directgp.kernels.parts.categorical import rows_of_levels
from directgp.kernels.parts.sphere import unit_vectors
from directgp.kernels.parts.stationary import DistancePart
from directgp.kernels.profiles import RBF as INFINITE
from directgp.kernels.structured import StructuredNatural
from directgp.posteriors.marginals import Stationary

Rows = Float64[np.ndarray, "m k"]
"""Inducing inputs in the columns of a part."""

Values = Mapping[str, np.ndarray[Any, Any]]
"""Parameters of shape (1, k), and constants, by name."""

_NEAR = 1e3
"""Squared distance from the centre, in lengthscales, up to which products give D²."""

_FARTHEST = 1e150
"""Scaled inputs are clipped here: squares are finite, and every kernel is 0."""

_RADIANS = math.pi / 180
"""Radians of one degree."""


class KernelProgram(NamedTuple):
    """A kernel between rows and inducing inputs, without the scale of the prior."""

    covariance: Value
    """Covariance of rows and inducing inputs, of shape (n, m)."""

    variance: Value | None = None
    """Variance of each row, of shape (n, 1); None if it is 1 everywhere."""

    largest_variance: float = 1.0
    """Upper bound of the variance of any row; infinite if there is none."""


def stationary_kernel(x: Value, Z: Rows, kernel: Stationary) -> KernelProgram:
    """Write an RBF or Matérn kernel of all columns."""
    weights = 1 / _numpy(kernel.lengthscale).reshape(-1)
    square = _squared_distance(x, Z, np.broadcast_to(weights, Z.shape[1]), kernel.nu)
    return KernelProgram(_of_square(square, kernel.nu))


def structured_kernel(x: Value, Z: Rows, kernel: StructuredNatural) -> KernelProgram:
    """Write k = Σ_t π_t Π_j κ_tj."""
    factors = []
    for part, tensors in zip(kernel.parts, kernel.values, strict=True):
        positions = np.array([*map(int, part.columns)])
        values = {name: _numpy(value) for name, value in tensors.items()}
        write = _WRITERS[type(part)]
        factors.append(write(part, x.take(positions, axis=1), Z[:, positions], values))
    terms = list(zip(_numpy(kernel.shares).tolist(), kernel.terms, strict=True))
    covariance = _sum_of_products(terms, [factor.covariance for factor in factors])
    if all(part.unit_variance for part in kernel.parts):
        return KernelProgram(covariance)
    variance = _sum_of_products(terms, [1.0 if f.variance is None else f.variance for f in factors])
    largest = _sum_of_products(terms, [factor.largest_variance for factor in factors])
    return KernelProgram(covariance, variance, largest)


def _sum_of_products(terms: Sequence[tuple[float, tuple[int, ...]]], factors: list[Any]) -> Any:
    """Return Σ_t π_t Π_j f_tj."""
    return reduce(add, (share * reduce(mul, (factors[j] for j in term)) for share, term in terms))


def _numpy(value: torch.Tensor) -> np.ndarray[Any, Any]:
    return value.detach().double().cpu().numpy()


# Distances


def _squared_distance(x: Value, Z: Rows, weights: Float64[np.ndarray, " k"], nu: float) -> Value:
    """Return ‖(x_i − z_j)·w‖²."""
    centre = np.sort(Z, 0)[(len(Z) - 1) // 2]
    near = (Z - centre) * weights
    a = ((x - centre) * weights).maximum(-_FARTHEST).minimum(_FARTHEST)
    if nu == 0.5 or (near * near).sum(1).max() > _NEAR:
        # Use differences for √D² near 0 (other kernels are smooth in D²), and for inputs that are
        # many lengthscales apart.
        return _squared_gaps(a, near)
    norms = (a * a).sum() + (near * near).sum(1)[None]
    square: Value = (norms - 2.0 * (a @ near.T)).maximum(0.0)
    return square


def _squared_gaps(a: Value, b: Rows) -> Value:
    """Return ‖a_i − b_j‖², from differences."""
    gaps = [a.column(j) - b[None, :, j] for j in range(b.shape[1])]
    square: Value = reduce(add, (gap * gap for gap in gaps))
    return square


def _of_square(square: Value, nu: float) -> Value:
    """κ at D² of `profiles.of_distance`."""
    if nu == INFINITE:
        return (-0.5 * square).exp()
    r = (2 * nu * square).sqrt()
    decay = (-1.0 * r).exp()
    if nu == 0.5:
        return decay
    return (1.0 + r if nu == 1.5 else 1.0 + r + r * r / 3.0) * decay


def _equal(x: Value, Z: Rows, j: int) -> Value:
    """Return whether rows and inducing inputs have the same level in column j."""
    return x.column(j).equal(Z[None, :, j])


def _nothing(x: Value, j: int) -> Value:
    """Return 0 for a number and NaN for NaN, which compares as different from every level."""
    return 0.0 * x.column(j)


# Parts of expressions


def _distance_part(part: Part, x: Value, Z: Rows, values: Values) -> KernelProgram:
    """κ(D²) with D² = Σ_numbers w²(x − z)² + Σ_codes w² [x ≠ z]."""
    part = cast(DistancePart, part)
    nu = getattr(part, "nu", INFINITE)
    weights = np.broadcast_to(1 / values["lengthscale"].reshape(-1), Z.shape[1])
    numbers = np.array(part.numbers, dtype=np.int64)
    squares = [
        _equal(x, Z, j).where(0.0, weights[j] ** 2) + _nothing(x, j) for j in sorted(part.coded)
    ]
    if len(numbers):
        of_numbers = x.take(numbers, axis=1), Z[:, numbers], weights[numbers]
        squares.append(_squared_distance(*of_numbers, nu))
    square: Value = reduce(add, squares)
    if not isinstance(part, RationalQuadratic):
        return KernelProgram(_of_square(square, nu))
    alpha = float(values["alpha"].item())
    return KernelProgram((-alpha * (1.0 + square / (2 * alpha)).log()).exp())


def _linear(part: Part, x: Value, Z: Rows, values: Values) -> KernelProgram:
    """Σ v (x − o)(z − o)."""
    origin = values["origin"]
    variance = values.get("variance", np.ones((1, 1)))
    away = x - origin
    scaled = away * variance
    return KernelProgram(scaled @ (Z - origin).T, (scaled * away).sum(), math.inf)


def _periodic(part: Part, x: Value, Z: Rows, values: Values) -> KernelProgram:
    """exp(−2 sin²(π(x − z)/p)/ℓ²), less its mean and scaled to 1 at x = z."""
    angle = (x - Z.T) * (math.pi / values["period"].item())
    lengthscale = float(values["lengthscale"].item())
    ratio = angle.sin() / lengthscale
    mean = float(i0e(1 / lengthscale**2))
    e = (-2.0 * ratio * ratio).exp()
    # Subtract last: ONNX Runtime moves a factor before a matrix product into it, in float32.
    return KernelProgram(e * (1 / (1 - mean)) - mean / (1 - mean))


def _group(part: Part, x: Value, Z: Rows, values: Values) -> KernelProgram:
    """1 for one level, else 0."""
    return KernelProgram(_equal(x, Z, 0).where(1.0, 0.0) + _nothing(x, 0))


def _categorical(part: Part, x: Value, Z: Rows, values: Values) -> KernelProgram:
    """1 for one level, else the correlation of two."""
    part = cast(Categorical, part)
    others: Any = np.ones((1, len(Z))) * values.get("correlation", 0.0)
    if part.rank is not None:
        unit = part.directions(torch.from_numpy(values["vectors"]))[0].numpy()
        at_Z = unit[rows_of_levels(torch.from_numpy(Z), len(unit)).numpy()]
        # The last row is for unseen levels; NaN compares as false.
        last = float(len(unit) - 1)
        row = (x > -1.0).where(x.minimum(last), last).cast("int64").reshape(-1)
        others = x.program.constant(unit).take(row) @ at_Z.T
    return KernelProgram(_equal(x, Z, 0).where(1.0, others) + _nothing(x, 0))


def _sphere(part: Part, x: Value, Z: Rows, values: Values) -> KernelProgram:
    """A Matérn kernel of the chord."""
    shift, scale = values["shift"], values["scale"]
    radians = (x * scale + shift) * _RADIANS
    # Write a cosine as a sine: some runtimes have no cosine of float64.
    latitude, longitude = radians.column(0), radians.column(1)
    out = (latitude + 0.5 * math.pi).sin()
    front = (longitude + 0.5 * math.pi).sin()
    u = concatenate([out * front, out * longitude.sin(), latitude.sin()])
    square = _squared_gaps(u, unit_vectors(Z, shift, scale))
    lengthscale = float(values["lengthscale"].item())
    return KernelProgram(_of_square(square / lengthscale**2, cast(Sphere, part).nu))


def _additive(part: Part, x: Value, Z: Rows, values: Values) -> KernelProgram:
    """S₁ + w S₂, with S₁ = Σ v κ and S₂ the sum of the products of all pairs."""
    covariances, variances, bounds = [], [], []
    effects = cast(Additive, part).effects(values)
    for j, (effect, v) in enumerate(zip(effects, values["variance"].reshape(-1), strict=True)):
        e, c = float(effect.e.item()), float(effect.c.item())
        at_rows, at_Z = _mean_covariance(x.column(j), effect), effect.mean(Z[:, j])
        gaps = (x.column(j) - Z[None, :, j]) / effect.lengthscale
        k = (-0.5 * gaps * gaps).exp()
        covariances.append((k - at_rows * (at_Z / e)[None]) * (v / c))
        variances.append((1.0 - at_rows * at_rows / e) * (v / c))
        # 0 ≤ 1 − H²/e ≤ 1
        bounds.append(float(v / c))
    pairs = float(values["pairs"].item()) if "pairs" in values else 0.0
    return KernelProgram(*(_with_pairs(each, pairs) for each in (covariances, variances, bounds)))


def _mean_covariance(x: Value, effect: Effect) -> Value:
    """H(x) = Σ ω_j k(x, s_j), of shape (n, 1)."""
    gaps = (x - effect.nodes[None]) / effect.lengthscale
    mean: Value = (-0.5 * gaps * gaps).exp() @ effect.weights[:, None]
    return mean


def _with_pairs(effects: list[Any], share: float) -> Any:
    """Return S₁ + w S₂, with S₂ = ½(S₁² − Σ effect²)."""
    total = reduce(add, effects)
    if share == 0.0:
        return total
    squares = reduce(add, (effect * effect for effect in effects))
    return total + 0.5 * share * (total * total - squares)


_WRITERS: dict[type[Part], Callable[[Part, Value, Rows, Values], KernelProgram]] = {
    RBF: _distance_part,
    Matern12: _distance_part,
    Matern32: _distance_part,
    Matern52: _distance_part,
    RationalQuadratic: _distance_part,
    Linear: _linear,
    Periodic: _periodic,
    Group: _group,
    Categorical: _categorical,
    Sphere: _sphere,
    Additive: _additive,
}
"""Maps a part to the function that writes it."""

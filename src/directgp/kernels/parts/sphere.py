"""Places on the globe: Sphere."""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.errors import require
from directgp.kernels.columns import ColumnFacts
from directgp.kernels.expression import ColumnName
from directgp.kernels.parts.base import Evaluation, Link, Part, PartGradient, Values
from directgp.kernels.profiles import of_distance, value_and_slope
from directgp.numerics.arrays import Array, library_of, limit_to_zero

# u is the unit vector of a place, and D² = ‖u − u′‖²/ℓ² = 2(1 − u·u′)/ℓ². For W = G ∘ E,
# du = W u′/ℓ² and d log ℓ = Σ W ∘ D².

EARTH = 6371.0
"""Mean radius of the earth in km."""

_START = 0.25
"""Lengthscale at the start, relative to the largest distance from the mean place."""


@final
class Sphere(Part):
    """A Matérn kernel of the distance of two places on a globe: latitude, longitude in degrees.

    The distance is the chord: of all distances on a sphere, a Matérn kernel of the great circle
    is a covariance for ν = ½ alone. For places within 1,000 km the two differ by less than 0.1 %.
    """

    parameters: ClassVar[Mapping[str, Link]] = {"lengthscale": "positive"}
    constants: ClassVar[tuple[str, ...]] = ("shift", "scale")
    least_columns = 2
    most_columns = 2

    def __init__(self, latitude: ColumnName, longitude: ColumnName, *, nu: float = 1.5) -> None:
        super().__init__(latitude, longitude)
        require(nu in (0.5, 1.5, 2.5), "nu of Sphere", "0.5, 1.5 or 2.5", repr(nu))
        self.nu = nu

    @override
    def start(
        self, X: Float[Tensor, "n k"], columns: Sequence[ColumnFacts]
    ) -> dict[str, Float[Tensor, "..."]]:
        shift = X.new_tensor([column.shift for column in columns])
        scale = X.new_tensor([column.scale for column in columns])
        latitude = (X * scale + shift)[:, 0]
        within = bool((latitude.abs() <= 90.0 + 1e-9).all())
        name = columns[0].name
        got = f"{float(latitude.abs().max()):g}"
        require(within, f"latitude {name!r} of Sphere", "in degrees, from −90 to 90", got)
        u = unit_vectors(X, shift, scale)
        reach = float((u - u.mean(0)).norm(dim=-1).max())
        return {
            "lengthscale": X.new_tensor([_START * reach if reach > 0 else 1.0]),
            "shift": shift,
            "scale": scale,
        }

    @override
    def covariance(
        self, a: Float[Tensor, "*#batch m k"], b: Float[Tensor, "*#batch n k"], values: Values
    ) -> Float[Tensor, "*batch m n"]:
        place = values["shift"], values["scale"]
        gaps = torch.cdist(
            unit_vectors(a, *place),
            unit_vectors(b, *place),
            compute_mode="donot_use_mm_for_euclid_dist",
        )
        return of_distance(gaps / values["lengthscale"], self.nu)

    @override
    def evaluate(self, a: Array, b: Array, values: Values, exact: bool) -> Evaluation:
        xp = library_of(b)
        lengthscale = values["lengthscale"]
        place = values["shift"], values["scale"]
        u, by_latitude, by_longitude = _tangents(a, *place)
        v = unit_vectors(b, *place)
        half = xp.matmul(u, v.swapaxes(-1, -2))
        half -= 1.0
        half = limit_to_zero(half) / lengthscale**2
        square = -2 * half
        K, E = value_and_slope(half, self.nu)

        def backward(G: Array) -> PartGradient:
            W = G * E
            by_u = xp.matmul(W, v) / lengthscale**2
            parts = [(by_u * tangent).sum(-1)[..., None] for tangent in (by_latitude, by_longitude)]
            by_lengthscale = (W * square).sum(-1).sum(-1)[..., None, None] / lengthscale
            return PartGradient(xp.concatenate(parts, -1), {"lengthscale": by_lengthscale})

        return Evaluation(K, backward)


_RADIANS = math.pi / 180
"""Radians of one degree."""


def unit_vectors(places: Array, shift: Array, scale: Array) -> Array:
    """Return the unit vector of each place, of scaled latitude and longitude."""
    return _tangents(places, shift, scale)[0]


def _tangents(places: Array, shift: Array, scale: Array) -> tuple[Array, Array, Array]:
    """Return unit vectors, and their derivatives in the scaled latitude and longitude."""
    xp = library_of(places)
    radians = (places * scale + shift) * _RADIANS
    latitude = radians[..., 0]
    longitude = radians[..., 1]
    up = xp.sin(latitude)
    out = xp.cos(latitude)
    east = xp.sin(longitude)
    front = xp.cos(longitude)
    by_latitude, by_longitude = _RADIANS * scale[..., 0], _RADIANS * scale[..., 1]
    zero = 0 * up
    return (
        xp.stack([out * front, out * east, up], -1),
        xp.stack([-up * front, -up * east, out], -1) * by_latitude,
        xp.stack([-out * east, out * front, zero], -1) * by_longitude,
    )

"""Parts that depend on a distance: RBF, Matérn and rational quadratic kernels."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.kernels.columns import ColumnFacts
from directgp.kernels.expression import ColumnName
from directgp.kernels.parts.base import Evaluation, Link, Part, PartGradient, Values
from directgp.kernels.profiles import RBF as INFINITE
from directgp.kernels.profiles import distances, farthest, of_distance, value_and_slope
from directgp.numerics.arrays import (
    Array,
    add_to_columns,
    clip_in_place,
    columns_of,
    library_of,
    limit_to_zero,
    tensor_of,
    zeros,
)

# With w = 1/ℓ and M_j the matrix of pairs of different levels in column j of codes,
#
# D² = Σ_numbers w²(a − b)² + Σ_codes w² M_j,     κ = κ(D²),     E = −2 dκ/dD²
#
# For the gradient G of a loss in κ, and W = G ∘ E,
#
# da = w² (W b − (W 1) ∘ a),     d log ℓ = w² Σ W_ij (a_i − b_j)²,     or w² Σ W_ij M_ij

OtherGradients = Callable[[Array], dict[str, Array]]
"""Maps the gradient in κ to the gradients in parameters other than the lengthscale."""


class DistancePart(Part):
    """A covariance of a scaled distance; with `ard` each column has a lengthscale.

    Two different levels of a category or a group are one lengthscale apart.
    """

    parameters: ClassVar[Mapping[str, Link]] = {"lengthscale": "positive"}

    def __init__(self, *columns: ColumnName, ard: bool = True) -> None:
        super().__init__(*columns)
        self.ard = ard

    @override
    def default_columns(self, columns: Sequence[ColumnFacts]) -> tuple[int, ...]:
        return tuple(range(len(columns)))

    @override
    def check(self, columns: Sequence[ColumnFacts]) -> None:
        """Accept columns of every kind."""

    @property
    def numbers(self) -> list[int]:
        """Positions of the columns of numbers."""
        return [j for j in range(len(self.columns)) if j not in self.coded]

    @override
    def start(
        self, X: Float[Tensor, "n k"], columns: Sequence[ColumnFacts]
    ) -> dict[str, Float[Tensor, "..."]]:
        spread = X.std(0, correction=0)
        spread[[*self.coded]] = 1.0
        spread = torch.where((spread > 0) & spread.isfinite(), spread, 1.0)
        lengthscale = spread * X.shape[-1] ** 0.5
        if not self.ard:
            lengthscale = lengthscale.square().mean().sqrt().reshape(1)
        return {"lengthscale": lengthscale}

    @override
    def covariance(
        self, a: Float[Tensor, "*#batch m k"], b: Float[Tensor, "*#batch n k"], values: Values
    ) -> Float[Tensor, "*batch m n"]:
        lengthscale = values["lengthscale"]
        if not self.coded:
            return self._of_distance(distances(a / lengthscale, b / lengthscale), values)
        weights = 1 / lengthscale.expand(*lengthscale.shape[:-1], a.shape[-1])
        numbers = self.numbers
        scaled = [(x * weights)[..., numbers] for x in (a, b)]
        square: Tensor = distances(*scaled).square() if numbers else 0.0 * (a[..., :1] - b[:, 0])
        for j in self.coded:
            different = a[..., :, j, None] != b[..., None, :, j]
            square = square + different * weights[..., :, j, None].square()
        # The derivative of √ at 0 is infinite; the derivative of the distance is taken as 0.
        positive = square > 0
        D = torch.where(positive, torch.where(positive, square, 1.0).sqrt(), 0.0)
        return self._of_distance(D, values)

    @override
    def evaluate(self, a: Array, b: Array, values: Values, exact: bool) -> Evaluation:
        xp = library_of(a)
        d = a.shape[-1]
        lengthscale = values["lengthscale"]
        weights = 1 / lengthscale + zeros((1, d), b)
        numbers = self.numbers
        w, at, bt = (columns_of(x, numbers) for x in (weights, a, b))
        near, far = scaled_inputs(at, bt, w)
        half = half_distances(near, far, exact)
        masks = {}
        for j in self.coded:
            masks[j] = a[..., :, j, None] != b[..., None, :, j]
            half = half - 0.5 * weights[..., :, j, None] ** 2 * masks[j]
        K, E, others = self._profile(half, values)

        def backward(G: Array) -> PartGradient:
            W = G * E
            k = far.shape[-1]
            # One product instead of several passes over W.
            sums = xp.matmul(W, xp.concatenate([far, far * far, 0 * far[..., :1] + 1], -1))
            Wb = sums[..., :k]
            moved = sums[..., -1:] * near - Wb
            inputs = zeros((*Wb.shape[:-1], d), b)
            add_to_columns(inputs, numbers, -moved * w)
            by_log = zeros((*Wb.shape[:-2], 1, d), b)
            squares = (near * (moved - Wb) + sums[..., k:-1]).sum(-2)
            add_to_columns(by_log, numbers, squares[..., None, :])
            for j, mask in masks.items():
                by_log[..., 0, j] = weights[..., 0, j] ** 2 * (W * mask).sum(-1).sum(-1)
            if lengthscale.shape[-1] == 1:
                by_log = by_log.sum(-1)[..., None]
            return PartGradient(inputs, {"lengthscale": by_log / lengthscale, **others(G)})

        return Evaluation(K, backward)

    @abstractmethod
    def _of_distance(self, D: Float[Tensor, "..."], values: Values) -> Float[Tensor, "..."]:
        """Compute κ at distances D in lengthscales, with a tape."""

    @abstractmethod
    def _profile(self, half: Array, values: Values) -> tuple[Array, Array, OtherGradients]:
        """Return κ, E and the other gradients at −½D² = `half`, which is overwritten."""


class _StationaryPart(DistancePart):
    """An RBF or a Matérn kernel."""

    nu: ClassVar[float]
    """The smoothness."""

    @override
    def _of_distance(self, D: Float[Tensor, "..."], values: Values) -> Float[Tensor, "..."]:
        return of_distance(D, self.nu)

    @override
    def _profile(self, half: Array, values: Values) -> tuple[Array, Array, OtherGradients]:
        K, E = value_and_slope(half, self.nu)
        return K, E, lambda G: {}


@final
class RBF(_StationaryPart):
    """exp(−½D²): very smooth functions."""

    nu = INFINITE


@final
class Matern12(_StationaryPart):
    """e^−D: continuous functions with kinks, such as a random walk that returns to its mean."""

    nu = 0.5


@final
class Matern32(_StationaryPart):
    """(1 + r) e^−r with r = √3·D: functions with a derivative."""

    nu = 1.5


@final
class Matern52(_StationaryPart):
    """(1 + r + r²/3) e^−r with r = √5·D: functions with two derivatives."""

    nu = 2.5


@final
class RationalQuadratic(DistancePart):
    """(1 + D²/2α)^−α: a mixture of RBF kernels of many lengthscales."""

    parameters: ClassVar[Mapping[str, Link]] = {"lengthscale": "positive", "alpha": "positive"}

    @override
    def start(
        self, X: Float[Tensor, "n k"], columns: Sequence[ColumnFacts]
    ) -> dict[str, Float[Tensor, "..."]]:
        return super().start(X, columns) | {"alpha": X.new_ones(1)}

    @override
    def _of_distance(self, D: Float[Tensor, "..."], values: Values) -> Float[Tensor, "..."]:
        alpha = values["alpha"]
        return torch.exp(-alpha * torch.log1p(D.square() / (2 * alpha)))

    @override
    def _profile(self, half: Array, values: Values) -> tuple[Array, Array, OtherGradients]:
        xp = library_of(half)
        alpha = values["alpha"]
        q = half / -alpha
        log = xp.log1p(q)
        K = xp.exp(-alpha * log)

        def others(G: Array) -> dict[str, Array]:
            by_alpha = G * K * (q / (1 + q) - log)
            return {"alpha": by_alpha.sum(-1).sum(-1)[..., None, None]}

        return K, K / (1 + q), others


_NEAR = 1e4
"""Up to this half squared distance from the centre, in lengthscales, products give distances."""


def scaled_inputs(a: Array, b: Array, w: Array) -> tuple[Array, Array]:
    """Return inputs in lengthscales, clipped where squares would overflow."""
    reach = farthest(tensor_of(b).dtype)
    return clip_in_place(a * w, reach), clip_in_place(b * w, reach)


def half_distances(a: Array, b: Array, exact: bool) -> Array:
    """Return −½‖a_i − b_j‖², as a new array.

    A product of many columns is faster than differences, and loses digits of small distances
    between inputs that are many lengthscales from the centre.
    """
    xp = library_of(b)
    if a.shape[-1] == 1:
        gaps = a - b[..., 0][..., None, :]
        gaps *= -0.5 * gaps
        return gaps
    on_device = tensor_of(b).is_cuda
    if not exact:
        norms = -0.5 * (a * a).sum(-1)[..., None]
        if on_device or float(norms.min()) > -_NEAR:
            one = 0 * norms + 1
            left = xp.concatenate([a, norms, one], -1)
            norms = -0.5 * (b * b).sum(-1)[..., None]
            right = xp.concatenate([b, 0 * norms + 1, norms], -1)
            half = xp.matmul(left, right.swapaxes(-1, -2))
            # Rounding may give a negative squared distance.
            return limit_to_zero(half)
    square = torch.cdist(
        tensor_of(a), tensor_of(b), compute_mode="donot_use_mm_for_euclid_dist"
    ).square_()
    square *= -0.5
    return square if xp is torch else square.numpy()

"""Compute marginals under RBF and Matérn priors, and gradients through them, without a tape."""

from collections.abc import Callable
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.kernels.profiles import RBF, farthest, write_matern
from directgp.numerics.arrays import (
    Array,
    add_product,
    clip_in_place,
    diagonal_of,
    exp_in_place,
    tensor_of,
)
from directgp.posteriors.blocks import Scratch, Sums
from directgp.posteriors.marginals import KernelBlock, KernelMarginals, Stationary
from directgp.shapes import Inputs

# In fixed units, a = Z w and b = X w for w = unit/ℓ, D² = ‖a_i − b_j‖² and κ = κ(D²), κ(0) = 1,
#
# −½D² = (a w, −½‖a‖², −½w²) · (X, 1, X∘X), whose second factor is the same in every evaluation
#
# With E = −2κ′(D²) and W = dK ∘ E the gradients have size M × d:
#
# da = W b − (W 1) ∘ a,     d log ℓ = Σ_ij W_ij (a_i − b_j)²


_NEAR = 1e4
"""Up to this half squared distance from the centre, in lengthscales, products give distances."""

_NEAR_IN_FLOAT32 = 1e2
"""The same for products in float32."""


@final
class _Inducing:
    """Buffers and views of the inducing inputs.

    `left` is (a w, −½‖a‖², −½w²), with ‖X‖² for X∘X if all features share one w.
    """

    def __init__(self, m: int, d: int, k: int, new: Callable[..., Array], narrow: bool) -> None:
        self.left = new(m, d + 1 + k)
        self.aw = self.left[..., :d]
        self.half = self.left[..., d]
        self.rest = self.left[..., d + 1 :]
        self.inputs = new(m, d + 1)
        """(a, 1)."""
        self.wide = new(m, d + 1, dtype=torch.float64) if narrow else self.inputs
        """The same in float64."""
        self.a = self.inputs[..., :d]
        self.wide_a = self.wide[..., :d]
        self.wide_half = new(m, dtype=torch.float64) if narrow else self.half
        self.Kuu, self.r, self.E = (new(m, m, dtype=torch.float64) for _ in range(3))
        self.diagonal = diagonal_of(self.Kuu)
        self.r_diagonal = diagonal_of(self.r)
        self.summed = new(m, d + 1 + k)
        """W (X, 1, X∘X)."""


@final
class _FeatureBlock(KernelBlock):
    """A block with E; `features` is (X, 1, X∘X) or (X, 1, ‖X‖²), shared by all models."""

    def __init__(
        self,
        rows: slice,
        m: int,
        sums: Sums,
        results: list[Array],
        new: Callable[..., Array],
        scratch: Scratch,
        features: Array,
    ) -> None:
        super().__init__(rows, m, sums, results, new, scratch)
        self.E = new(m, rows.stop - rows.start)
        self.features = features[rows]
        self.right = self.features.swapaxes(-1, -2)


@final
class StationaryMarginals(KernelMarginals[Stationary, _FeatureBlock]):
    """Marginals and gradients of RBF and Matérn kernels on all features.

    Inputs are measured from a `centre`, where their differences lose the fewest digits, in fixed
    units, which are the same for all features if these share a lengthscale.
    """

    def __init__(
        self,
        nugget: float,
        centre: Float[Tensor, "1 d"],
        unit: Float[Tensor, "1 d"],
        size: int,
        batch: tuple[int, ...] = (),
        *,
        shared: bool = False,
        constant_inputs: bool = False,
    ) -> None:
        super().__init__(
            nugget, centre, size, batch, shared=shared, constant_inputs=constant_inputs
        )
        self._centre = self.array(centre)
        self._unit = self.array(unit)
        self._reach = farthest(centre.dtype)
        self._zero = self.array(centre.new_tensor(0.0))
        self._features: dict[int, Array] = {}
        self._at: _Inducing | None = None

    @override
    def _set_kernel(self, Z: Float[Tensor, "*#batch m d"], kernel: Stationary) -> None:
        xp = self.xp
        self._nu = kernel.nu
        self._lengthscale = self.array(kernel.lengthscale)
        if self._at is None:
            m, d = Z.shape[-2:]
            k = self._lengthscale.shape[-1]
            self._at = _Inducing(m, d, k, self._new, self._narrow)
        at = self._at
        self._w = self._unit / self._lengthscale
        # Round as the rows are rounded, so that equal inputs have a distance of exactly 0.
        at.a[...] = self.array(Z) - self._centre
        at.a /= self._unit
        at.a *= self._w
        clip_in_place(at.a, self._reach)
        xp.sum(at.a * at.a, -1, out=at.half)
        at.half *= -0.5
        xp.multiply(at.a, self._w, out=at.aw)
        at.rest[...] = -0.5 * self._w[..., : at.rest.shape[-1]] ** 2
        # Use differences for ν = ½: K has a kink at 0, where a product loses half of the digits. On
        # a GPU the size of the inputs is not read: the host would wait for it.
        far = self._narrow and not Z.is_cuda and not float(at.half.min()) > -_NEAR_IN_FLOAT32
        self._by_differences = self._nu == 0.5 or far

    @property
    def _inputs(self) -> _Inducing:
        if self._at is None:
            raise RuntimeError("set_prior comes first")
        return self._at

    @override
    def _gram(self) -> Array:
        at = self._inputs
        xp = self.xp
        nu = self._nu
        a = at.wide_a
        half = at.wide_half
        if self._narrow:
            at.wide[...] = at.inputs
            xp.sum(a * a, -1, out=half)
            half *= -0.5
        if nu != 0.5 and ((xp is torch and a.is_cuda) or float(half.min()) > -_NEAR):
            xp.matmul(a, a.swapaxes(-1, -2), out=at.r)
            at.r += half[..., None]
            at.r += half[..., None, :]
        else:
            # Use differences: a product loses the digits of small distances between far inputs,
            # and with ν = ½, where K has a kink, half of the digits of any distance.
            tensor_of(at.r).copy_(_squared_distances(tensor_of(a), tensor_of(a))).mul_(-0.5)
        at.r_diagonal[...] = 0
        if nu == RBF:
            # Share the memory: the diagonal of E, with the nugget, cancels in every gradient.
            self._E = exp_in_place(xp.minimum(at.r, self._zero, out=at.Kuu))
        else:
            self._E = at.E
            write_matern(xp, at.r, nu, at.Kuu, at.E)
        at.diagonal *= 1 + self._nugget
        return at.Kuu

    @override
    def _block(self, rows: slice, m: int, n: int, results: list[Array]) -> _FeatureBlock:
        if n not in self._features:
            width = self._inputs.left.shape[-1]
            self._features[n] = self.array(self._template.new_ones(n, width))
        features = self._features[n]
        return _FeatureBlock(rows, m, self.sums, results, self._new, self._scratch, features)

    @override
    def _read(self, X: Inputs) -> None:
        features = self._features[len(X)]
        d = X.shape[-1]
        inputs = (self.array(X) - self._centre) / self._unit
        clip_in_place(inputs, self._reach)
        squares = inputs * inputs
        features[:, :d] = inputs
        k = features.shape[-1] - d - 1
        features[:, d + 1 :] = squares if k == d else squares.sum(-1)[:, None]

    @override
    def _cross(self, block: _FeatureBlock) -> Array:
        at = self._inputs
        xp = self.xp
        nu = self._nu
        r = block.E if nu == RBF else block.work
        if self._by_differences:
            b = block.features[..., : at.a.shape[-1]] * self._w
            squares = _squared_distances(tensor_of(at.a), tensor_of(b))
            tensor_of(r).copy_(squares).mul_(-0.5)
        else:
            xp.matmul(at.left, block.right, out=r)
        if nu == RBF:
            return exp_in_place(xp.minimum(r, self._zero, out=r))
        Kuf = block.spare
        write_matern(xp, r, nu, Kuf, block.E)
        return Kuf

    @override
    def _variance(self, block: _FeatureBlock) -> Array:
        return self._one

    @override
    def _gram_gradient(self, G: Array) -> None:
        at = self._inputs
        G *= self._E
        summed = self.xp.matmul(G, at.wide)
        self._da_u = self._narrowed(summed[..., :-1] - summed[..., -1:] * at.wide_a)

    @override
    def _add_cross_gradient(
        self, block: _FeatureBlock, W: Array, by_k: tuple[Array, Array | None], first: bool
    ) -> None:
        W *= block.E
        add_product(self._inputs.summed, W, block.features, first)

    @override
    def _kernel_gradient(self) -> tuple[Array, Tensor]:
        at = self._inputs
        d = at.a.shape[-1]
        lengthscale = self._lengthscale
        w = self._w
        Wb = at.summed[..., :d] * w
        rows = at.summed[..., d : d + 1]
        rest = at.summed[..., d + 1 :]
        da = Wb - rows * at.a
        d_log = (rest.sum(-2) * w[..., 0, : rest.shape[-1]] ** 2)[..., None, :]
        da -= self._da_u
        moved = Wb + da
        moved *= at.a
        if lengthscale.shape[-1] > 1:
            d_log = d_log - moved.sum(-2)[..., None, :]
        else:
            d_log = d_log - moved.sum(-2).sum(-1)[..., None, None]
        da /= lengthscale
        return da, tensor_of(d_log / lengthscale)


def _squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """Return squared distances from differences, which keep the digits of small distances."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square_()

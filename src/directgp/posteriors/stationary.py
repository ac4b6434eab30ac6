"""Compute marginals under RBF and Matérn priors, and gradients through them, without a tape."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast, final

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.numerics.arrays import (
    Array,
    add_product,
    clip_in_place,
    column_squares,
    congruence,
    diagonal_of,
    exp_in_place,
    factorise,
    solve_lower,
    tensor_of,
    triangular_times,
    without_warnings,
)
from directgp.numerics.linalg import SideStream, Square, Vector
from directgp.posteriors.blocks import Block, Projection, Scratch, Sums
from directgp.shapes import BatchedRow, Inputs

# f is s times a process of unit variance: all matrices are those of that process. With inputs in
# fixed units, a = Z w and b = X w for w = unit/ℓ, D² = ‖a_i − b_j‖² and the kernel s²κ(D²),
# κ(0) = 1,
#
# −½D² = (a w, −½‖a‖², −½w²) · (X, 1, X∘X), whose second factor is the same in every evaluation
# A = L⁻¹ K_uf,     L Lᵀ = K_uu in float64
# mean = s Aᵀm,     residual = s² (1 − ΣA²),     variance = residual + s² Σ(SᵀA)²
# KL = ½ (‖S‖² + ‖m‖² − M) − Σ log abs S_jj
#
# and, for gradients g_μ, g_v and g_KL of a loss in mean/s, variance/s² and KL,
#
# (2H; dmᵀ) = (2 A diag g_v; g_μᵀ) Aᵀ             dS = tril(2H S) + g_KL (S − diag 1/S_jj)
# dK_uf = L⁻ᵀ (S Sᵀ − I, m) (2 A diag g_v; g_μᵀ)
# dK_uu = ½ L⁻ᵀ sym(2H − S (2H S)ᵀ − m dmᵀ) L⁻¹    sym: the lower triangle, mirrored
#
# because tril(Lᵀ tril(W)) = tril(Lᵀ W): what the factorisation passes on needs no solve with dL.
# Several q(u) may share a kernel and its A. Then dK_uf and dK_uu are sums over the q(u).
# A gradient g_r in the residual alone adds 2H(g_r) = 2 A diag g_r Aᵀ to the sum in dK_uu, and
# −2 L⁻ᵀ A diag g_r to dK_uf. With E = −2κ′(D²) and W = dK ∘ E the rest has size M × d:
#
# da = W b − (W 1) ∘ a,     d log ℓ = Σ_ij W_ij (a_i − b_j)²
# d log s² = ½ Σ g_μ mean/s + Σ g_v variance/s²


_NEAR = 1e4
"""Up to this half squared distance from the centre, in lengthscales, products give distances."""

_NEAR_IN_FLOAT32 = 1e2
"""The same for products in float32."""

RBF = math.inf
"""The smoothness ν of the RBF kernel, the limit of the Matérn kernels."""


def farthest(dtype: torch.dtype) -> float:
    """Return the distance, in lengthscales, beyond which squares overflow; κ is 0 long before."""
    limit: float = 1e-3 * torch.finfo(dtype).max ** 0.5
    return limit


class Natural(NamedTuple):
    """Natural parameters of a stationary prior with kernel s²κ."""

    nu: float
    """Smoothness of the Matérn kernel: ½, 1½, 2½, or `RBF`."""

    lengthscale: Float[Tensor, "*#batch 1 k"]
    """One number, or one for each feature."""

    scale: Float[Tensor, "*#batch"]
    """s²."""

    constant: Float[Tensor, "*#batch"] | None
    """The prior mean; None for 0."""

    def plus_constant(self, mean: BatchedRow) -> BatchedRow:
        """Return a mean of f with the prior mean added."""
        return mean if self.constant is None else mean + self.constant.unsqueeze(-1)


class Gradient(NamedTuple):
    """Gradient of a loss in the parameters of the marginals and the KL."""

    Z: Float[Tensor, "*batch m d"]
    """Gradient in the inducing inputs."""

    lengthscale: Float[Tensor, "*batch 1 k"]
    """Gradient in ℓ."""

    log_scale: Float[Tensor, "*batch"]
    """Gradient in log s²."""

    u_mean: Float[Tensor, "*batch m"]
    """Gradient in the whitened mean."""

    u_chol: Float[Tensor, "*batch m m"]
    """Gradient in the factor of the whitened covariance."""


class KnownSums(NamedTuple):
    """Sums over rows that the caller of `gradient` knows from `weighted_gram`."""

    gram_factor: float
    """Factor c with 2 A diag(g_v) Aᵀ = c · (last result of `weighted_gram`); 0 if the loss does not
    depend on the variance."""

    variance: Float[Tensor, "*batch"]
    """Σ g_v·variance; 0 for a loss without the variance."""


@final
class _Inducing:
    """Buffers and views of size M × M and less.

    `left` is (a w, −½‖a‖², −½w²), with ‖X‖² for X∘X if all features share one w.
    """

    def __init__(
        self,
        m: int,
        d: int,
        k: int,
        new: Callable[..., Array],
        new_of_q: Callable[..., Array],
        narrow: bool,
    ) -> None:
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
        self.Kuu, self.r, self.E, self.inner = (new(m, m, dtype=torch.float64) for _ in range(4))
        self.diagonal = diagonal_of(self.Kuu)
        self.r_diagonal = diagonal_of(self.r)
        self.summed = new(m, d + 1 + k)
        """W (X, 1, X∘X)."""
        self.D = new_of_q(m, m + 1)
        """(S Sᵀ − I, m)."""
        self.LD = new_of_q(m, m + 1)
        """L⁻ᵀ D."""
        self.D_square = self.D[..., :m]
        self.D_mean = self.D[..., m]
        self.D_diagonal = diagonal_of(self.D_square)


@final
class _KernelBlock(Block):
    """A block with K_uf; `features` is (X, 1, X∘X) or (X, 1, ‖X‖²), shared by all models."""

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
        width = rows.stop - rows.start
        super().__init__(rows, sums, new(m, width), results)
        self.r, self.spare = (scratch.view(key, m, width) for key in range(2))
        self.E = new(m, width)
        self.features = features[rows]
        self.right = self.features.swapaxes(-1, -2)


@final
class StationaryMarginals(Projection):
    """Marginals of q(f) at rows of X, in blocks of rows, and gradients of a loss through them.

    Order of calls: `set_prior`, `set_q`, `marginals`, `gradient`. If q(u) depends on A:
    `set_prior`, `whiten`, `weighted_gram`, `set_q`, `project`, `gradient`. Inputs are measured
    from a `centre`, where their differences lose the fewest digits, in fixed units, which are the
    same for all features if these share a lengthscale. With `constant_inputs` the contents of X
    never change between two calls with the same tensor. With `shared`, all q(u) of the batch have
    one kernel and one Z: what depends on these has no batch axes.
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
        super().__init__(size, centre, batch)
        self._shared = shared
        self._nugget = nugget
        self._centre = self.array(centre)
        self._unit = self.array(unit)
        self._constant = constant_inputs
        self._seen: Tensor | None = None
        self._reach = farthest(centre.dtype)
        self._zero, self._one, self._rounding = (
            self.array(centre.new_tensor(number))
            for number in (0.0, 1.0, torch.finfo(centre.dtype).eps)
        )
        self._narrow = centre.dtype != torch.float64
        self._kept: dict[int, tuple[list[Tensor], list[Array], Array, list[_KernelBlock]]] = {}
        self._at: _Inducing | None = None

    @without_warnings
    def set_prior(
        self, Z: Float[Tensor, "*#batch m d"], natural: Natural, *, checked: bool = True
    ) -> None:
        """Factorise K_uu of each prior.

        With `checked=False` a K_uu that needs jitter gives NaN, and the device is not waited for.
        """
        self._lengthscale, self._scale = map(self.array, natural[1:3])
        if self._at is None:
            m, d = Z.shape[-2:]
            self.sums = Sums(m, self.new)
            k = self._lengthscale.shape[-1]
            self._at = _Inducing(m, d, k, self._new, self.new, self._narrow)
            self._scratch = Scratch(self._new) if self._shared else self.sums.scratch
        at = self._at
        self._nu = natural.nu
        xp = self.xp
        self._w = self._unit / self._lengthscale
        # Round as the rows are rounded, so that equal inputs have a distance of exactly 0.
        at.a[...] = self.array(Z) - self._centre
        at.a /= self._unit
        at.a *= self._w
        clip_in_place(at.a, self._reach)
        xp.sum(at.a * at.a, -1, out=at.half)
        at.half *= -0.5
        # Use differences for ν = ½: K has a kink at 0, where a product loses half of the digits. On
        # a GPU the size of the inputs is not read: the host would wait for it.
        narrow = self._narrow and not Z.is_cuda
        far = narrow and not float(at.half.min()) > -_NEAR_IN_FLOAT32
        self._by_differences = natural.nu == 0.5 or far
        # Factorise on a side stream; until `_whiten` the main one does what needs no factor.
        with SideStream(Z.device) as self._side_stream:
            self._factorise(at, checked)
        self._deviation = xp.sqrt(self._scale)
        xp.multiply(at.a, self._w, out=at.aw)
        at.rest[...] = -0.5 * self._w[..., : at.rest.shape[-1]] ** 2

    def _new(self, *shape: int, dtype: torch.dtype | None = None) -> Array:
        """Return an array of ones for each kernel."""
        if not self._shared:
            return self.new(*shape, dtype=dtype)
        like = self._template
        return torch.ones(*shape, dtype=dtype or like.dtype, device=like.device)

    def _over_q(self, values: Array) -> Array:
        """Return the sum over the q(u) that share the kernel."""
        return values.sum([*range(len(self.batch))]) if self._shared else values

    def _product_over_q(self, left: Array, right: Array, out: Array | None = None) -> Array:
        """Return left · right, summed over the q(u) that share the kernel."""
        if self._shared:
            left = left.movedim(-2, 0).flatten(1)
            right = right.flatten(0, -2)
        return self.xp.matmul(left, right, out=out)

    @override
    def set_q(self, u_mean: Vector, u_chol: Square) -> None:
        super().set_q(u_mean, u_chol)
        at = cast(_Inducing, self._at)
        self.xp.matmul(self.S, self.U, out=at.D_square)
        at.D_diagonal -= 1
        at.D_mean[...] = self.m

    @property
    def jitter(self) -> Float[Tensor, "*batch"]:
        """Jitter that the factorisation of K_uu needed beyond the nugget."""
        return self._jitter * tensor_of(self._scale)

    @without_warnings
    def marginals(self, X: Inputs) -> tuple[BatchedRow, BatchedRow]:
        """Return mean, without the prior mean, and variance at each row."""
        for block in self._start(X):
            self._whiten(block)
            self.project_block(block)
        return self._scaled_results()

    @without_warnings
    def whiten(self, X: Inputs) -> BatchedRow:
        """Compute A, and return the residual at each row."""
        for block in self._start(X):
            self._whiten(block)
        return self.results[2] * tensor_of(self._scale).unsqueeze(-1)

    @override
    def project(self) -> tuple[BatchedRow, BatchedRow]:
        super().project()
        return self._scaled_results()

    def project_mean(self) -> BatchedRow:
        """Return the mean alone, without the prior mean."""
        for block in self._blocks:
            self.xp.matmul(self.m[..., None, :], block.A, out=block.mean_row)
        return tensor_of(self._arrays[0] * self._deviation[..., None])

    def _scaled_results(self) -> tuple[BatchedRow, BatchedRow]:
        """Scale mean and variance of the process of unit variance to f."""
        mean, variance, _ = self._arrays
        scaled_mean = mean * self._deviation[..., None]
        scaled_variance = variance * self._scale[..., None]
        return tensor_of(scaled_mean), tensor_of(scaled_variance)

    @override
    def weighted_gram(
        self, weights: BatchedRow, values: BatchedRow
    ) -> tuple[Float[Tensor, "*batch m m"], Float[Tensor, "*batch m"]]:
        scale = self._scale[..., None]
        deviation = self._deviation[..., None]
        self.gram(self.array(weights) * scale, self.array(values) * deviation)
        return tensor_of(self.sums.H), tensor_of(self.sums.dm)

    @without_warnings
    def gradient(
        self,
        mean: BatchedRow,
        variance: BatchedRow,
        kl: float | Float[Tensor, "*#batch"],
        residual: BatchedRow | None = None,
        *,
        known: KnownSums | None = None,
    ) -> Gradient:
        """Return the gradient of a loss from its gradients in mean, variance, KL and residual."""
        at = cast(_Inducing, self._at)
        xp = self.xp
        blocks = self._blocks
        scale = self._scale[..., None]
        deviation = self._deviation[..., None]
        g_mean = self.array(mean) * deviation
        g_variance = self.array(variance) * scale
        g_residual = None if residual is None else self.array(residual) * scale
        extra: Array = 0.0
        if g_residual is not None:
            # Multiply by 1 to copy; in torch, +H would be H itself.
            last = 1 * self.sums.H
            self.gram(2 * g_residual, g_mean)
            extra = self._over_q(1 * self.sums.H)
            self.sums.H[...] = last
            g_residual = self._over_q(g_residual)
        twice = 2 * g_variance
        if known is None:
            self.gram(twice, g_mean)
        else:
            self.use_gram(known.gram_factor, twice, g_mean)
        with self._side_stream:
            inner = self._product_over_q(at.D, self.sums.both)
            da_u = self._gram_gradient(at, inner if g_residual is None else inner - extra)
            in_q = self.q_gradient(kl)
        inverse = self._narrowed(self._inverse.swapaxes(-1, -2))
        LD = triangular_times(inverse, at.D, out=at.LD, upper=True)
        # Use the last row of (2 A diag g_v; g_μᵀ) if the gradient in the variance is 0.
        mean_only = known is not None and known.gram_factor == 0
        summed = at.summed
        used = slice(-1 if mean_only else 0, None)
        for index, block in enumerate(blocks):
            if len(blocks) > 1:
                self.write_scaled(block, twice, g_mean)
            scaled = block.scaled[..., used, :]
            W = self._product_over_q(LD[..., used], scaled, out=block.r)
            if g_residual is not None:
                xp.multiply(block.A, -2 * g_residual[..., None, block.rows], out=block.spare)
                W += triangular_times(inverse, block.spare, out=xp.empty_like(W), upper=True)
            W *= block.E
            add_product(summed, W, block.features, first=index == 0)
        d = at.a.shape[-1]
        lengthscale = self._lengthscale
        w = self._w
        Wb = summed[..., :d] * w
        rows = summed[..., d : d + 1]
        rest = summed[..., d + 1 :]
        da = Wb - rows * at.a
        d_log = (rest.sum(-2) * w[..., 0, : rest.shape[-1]] ** 2)[..., None, :]
        d_log_scale = self._log_scale_gradient(g_mean, g_variance, g_residual, known)
        self._side_stream.join()
        da -= da_u
        moved = Wb + da
        moved *= at.a
        if lengthscale.shape[-1] > 1:
            d_log = d_log - moved.sum(-2)[..., None, :]
        else:
            d_log = d_log - moved.sum(-2).sum(-1)[..., None, None]
        da /= lengthscale
        dZ, d_lengthscale, d_log_scale = map(tensor_of, (da, d_log / lengthscale, d_log_scale))
        return Gradient(dZ, d_lengthscale, d_log_scale, *in_q)

    def _log_scale_gradient(
        self, g_mean: Array, g_variance: Array, g_residual: Array | None, known: KnownSums | None
    ) -> Array:
        mean, variance, residual = self._arrays
        gradient = 0.5 * (g_mean * mean).sum(-1)
        if known is None:
            gradient = gradient + (g_variance * variance).sum(-1)
        else:
            gradient = gradient + self.array(known.variance)
        gradient = self._over_q(gradient)
        return gradient if g_residual is None else gradient + (g_residual * residual).sum(-1)

    def _narrowed(self, matrix: Array) -> Array:
        """Return a float64 array in the dtype of the inputs."""
        if not self._narrow:
            return matrix
        return matrix.to(self.S.dtype) if self.xp is torch else matrix.astype(self.S.dtype)

    def _start(self, X: Inputs) -> list[_KernelBlock]:
        """Return the blocks of these rows, with buffers for their results."""
        at = cast(_Inducing, self._at)
        n = len(X)
        m, d = at.a.shape[-2:]
        if n not in self._kept:
            of_kernel = () if self._shared else self.batch
            results = [X.new_empty(*each, n) for each in (self.batch, self.batch, of_kernel)]
            arrays = [self.array(result) for result in results]
            features = self.array(X.new_ones(n, at.left.shape[-1]))
            blocks = [
                _KernelBlock(rows, m, self.sums, arrays, self._new, self._scratch, features)
                for rows in self.row_blocks(n, m)
            ]
            self._kept[n] = results, arrays, features, blocks
        self.results, self._arrays, features, self._blocks = self._kept[n]
        self.used = [*self._blocks]
        if not (self._constant and self._seen is X):
            inputs = (self.array(X) - self._centre) / self._unit
            clip_in_place(inputs, self._reach)
            squares = inputs * inputs
            features[:, :d] = inputs
            features[:, d + 1 :] = squares if at.rest.shape[-1] == d else squares.sum(-1)[:, None]
            self._seen = X
        return self._blocks

    def _whiten(self, block: _KernelBlock) -> None:
        """Compute K_uf, E, A and the residual of one block."""
        at = cast(_Inducing, self._at)
        xp = self.xp
        nu = self._nu
        r = block.E if nu == RBF else block.r
        if self._by_differences:
            b = block.features[..., : at.a.shape[-1]] * self._w
            squares = _squared_distances(tensor_of(at.a), tensor_of(b))
            tensor_of(r).copy_(squares).mul_(-0.5)
        else:
            xp.matmul(at.left, block.right, out=r)
        if nu == RBF:
            Kuf = exp_in_place(xp.minimum(r, self._zero, out=r))
        else:
            Kuf = block.spare
            _matern(xp, r, nu, Kuf, block.E)
        self._side_stream.join()
        if not self._narrow:
            triangular_times(self._inverse, Kuf, out=block.A, upper=False)
            explained = column_squares(block.A)
        elif xp is torch and Kuf.is_cuda:
            # Multiply in float64: rounded to float32, the inverse loses the digits of s² − ΣA².
            A = self._inverse @ Kuf.double()
            explained = column_squares(A)
            block.A.copy_(A)
        else:
            # Solve in float32: this keeps the digits too, and is faster on a CPU.
            solve_lower(self._narrowed(self._L), Kuf, out=block.A)
            explained = column_squares(block.A)
        xp.subtract(self._one, explained, out=block.residual)
        xp.maximum(block.residual, self._rounding, out=block.residual)

    def _factorise(self, at: _Inducing, checked: bool) -> None:
        """Compute K_uu, E, L and L⁻¹ in float64."""
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
            _matern(xp, at.r, nu, at.Kuu, at.E)
        at.diagonal *= 1 + self._nugget
        self._L, self._inverse, self._jitter = factorise(at.Kuu, checked)

    def _gram_gradient(self, at: _Inducing, inner: Array) -> Array:
        """Return minus the gradient through K_uu in a.

        The gradient in K_uu is −½ L⁻ᵀ C L⁻¹, with C the lower triangle of `inner`, mirrored.
        """
        C = at.inner
        self.xp.multiply(inner, self.sums.lower, out=C)
        C += (inner * self.sums.strict).swapaxes(-1, -2)
        G = congruence(C, self._inverse.swapaxes(-1, -2))
        G *= self._E
        summed = self.xp.matmul(G, at.wide)
        return self._narrowed(summed[..., :-1] - summed[..., -1:] * at.wide_a)


def _squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """Return squared distances from differences, which keep the digits of small distances."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square_()


def _matern(xp: Any, r: Array, nu: float, K: Array, E: Array) -> None:
    """Write the covariance κ at −½D² = r to K, and its slope to E; r is overwritten.

    With r = √(2ν)·D: κ = p(r) e^−r with p = 1, 1 + r, 1 + r + r²/3 for ν = ½, 1½, 2½, and
    E = −2 dκ/dD².
    """
    r *= -4 * nu
    xp.sqrt(r.clip(0), out=r)
    exp_in_place(xp.negative(r, out=K))
    if nu == 0.5:
        E[...] = xp.where(r > 0, K / xp.where(r > 0, r, 1.0), 0.0)
    elif nu == 1.5:
        xp.multiply(K, 3, out=E)
        r += 1
        K *= r
    else:
        xp.multiply(K, r, out=E)
        r *= E
        r /= 3
        E += K
        xp.add(E, r, out=K)
        E *= 5 / 3

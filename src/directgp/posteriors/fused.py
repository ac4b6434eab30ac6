"""Compute marginals and KL of an RBF prior in one function with closed-form gradients."""

from collections.abc import Callable
from typing import Any, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from directgp.numerics.autograd import Gradients, first_order
from directgp.numerics.gaussian import kl_from_standard
from directgp.numerics.linalg import (
    SideStream,
    Workspace,
    lower_times,
    symmetric_product,
    upper_times,
)
from directgp.posteriors.projection import residual_given
from directgp.posteriors.rbf import (
    Inducing,
    centre_of,
    complete,
    covariance,
    factorise,
    in_lengthscales,
    input_features,
    through_gram,
)
from directgp.shapes import BatchedRow, Inputs, Marginals

# The chain of `directgp.posteriors.rbf`, a Cholesky factorisation and
# `directgp.posteriors.projection`, as one function without a tape:
#
# A = L⁻¹ K_uf,     L Lᵀ = K_uu in float64
# mean = Aᵀm,     variance = s² − ΣA² + Σ(SᵀA)²,     KL = ½ (‖S‖² + ‖m‖² − M) − Σ log abs S_jj
#
# and, for gradients g_μ, g_v and g_KL of a loss in these three,
#
# (2H; dmᵀ) = (2 A diag g_v; g_μᵀ) Aᵀ             dS = tril(2H S) + g_KL (S − diag 1/S_jj)
# dK_uf = L⁻ᵀ (S Sᵀ − I, m) (2 A diag g_v; g_μᵀ)
# dK_uu = ½ L⁻ᵀ sym(2H − S (2H S)ᵀ − m dmᵀ) L⁻¹    sym: the lower triangle, mirrored
#
# because tril(Lᵀ tril(W)) = tril(Lᵀ W): what the factorisation passes on needs no solve with dL.
# With G = dK ∘ K the rest is G (b, 1, b∘b) (`directgp.posteriors.rbf`), of size M × d.


class Fused(NamedTuple):
    """Marginals and KL of a posterior, for one training step."""

    mean: BatchedRow
    """Mean of f minus the prior mean."""

    variance: BatchedRow
    kl: Float[Tensor, "*batch"]
    jitter: Float[Tensor, "*batch"]
    """Jitter that the factorisation of K_uu needed beyond the nugget."""


class _Precomputed(NamedTuple):
    """Arguments of the autograd function that are not differentiated themselves."""

    left: Tensor
    features: Tensor
    inducing: Inducing
    workspace: Workspace
    side_stream: SideStream


def rbf_marginals(
    Z: Float[Tensor, "*#batch m d"],
    lengthscale: Float[Tensor, "*#batch 1 k"],
    log_scale: Float[Tensor, "*#batch"],
    u_mean: Float[Tensor, "*#batch m"],
    u_chol: Float[Tensor, "*#batch m m"],
    X: Inputs,
    nugget: float,
    *,
    checked: bool = True,
    workspace: Workspace | None = None,
) -> Fused:
    """Compute marginals and KL, differentiable once in all but X.

    `lengthscale` is one number or one for each feature, `log_scale` the log of the prior variance
    s², u_mean and u_chol the whitened q(u) of each member of a batch (the lower triangle of u_chol
    is read), and `nugget` the relative variance of the noise of u. With `checked=False` a K_uu
    that needs jitter gives NaN, and the step does not wait for the device. A `workspace` keeps its
    buffers from call to call; the backward pass of a call must then come before the next call.
    """
    workspace = workspace or Workspace()
    with torch.no_grad():
        d, top = Z.shape[-1], log_scale[..., None, None]
        centre = centre_of(Z)
        left = workspace.take("left", (*u_mean.shape, 2 * d + 1), Z)
        a = in_lengthscales(Z, centre, lengthscale, out=left[..., :d])
        with SideStream(Z.device) as side_stream:
            inducing = factorise(a, log_scale, nugget, checked, workspace)
        complete(left, top)
        features = input_features(X, centre, lengthscale, workspace)
    given = _Precomputed(left, features, inducing, workspace, side_stream)
    apply: Callable[..., tuple[Tensor, Tensor, Tensor]] = _Fused.apply
    return Fused(*apply(Z, lengthscale, log_scale, u_mean, u_chol, given), inducing.jitter)


class _Fused(Function):
    @staticmethod
    def forward(
        ctx: Any,
        Z: Tensor,
        lengthscale: Tensor,
        log_scale: Tensor,
        u_mean: Tensor,
        u_chol: Tensor,
        given: _Precomputed,
    ) -> tuple[Tensor, Tensor, Tensor]:
        left, features, inducing, workspace, side_stream = given
        top, S = log_scale[..., None, None], u_chol.tril()
        shape = (*S.shape[:-1], features.shape[-2])
        Kuf, A, T = (workspace.take(name, shape, S) for name in ("Kuf", "A", "T"))
        covariance(left, features, top, out=Kuf)
        kl, scale = kl_from_standard(u_mean, S), top.exp().squeeze(-1)
        side_stream.join()
        explained = whiten_fast(inducing.L, inducing.inverse, Kuf, workspace, out=A)
        mean = (u_mean.unsqueeze(-2) @ A).squeeze(-2)
        variance = (
            upper_times(S.mT, A, out=T).square_().sum(-2).add_(residual_given(scale, explained))
        )
        ctx.given = given
        ctx.set_materialize_grads(False)
        # Tensors of the workspace are saved, so that torch detects if they were overwritten.
        kept = left, features, inducing.inputs, Kuf, A
        ctx.save_for_backward(lengthscale, scale, u_mean, S, *kept)
        ctx.shapes = [x.shape for x in (Z, lengthscale, log_scale, u_mean, u_chol)]
        return mean, variance, kl

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor | None) -> Gradients:
        lengthscale, scale, m, S, left, features, _, Kuf, A = ctx.saved_tensors
        *_, inducing, workspace, side_stream = ctx.given
        g_mean, g_variance = (_or_zeros(g, A) for g in gradients[:2])
        M, d = S.shape[-1], (features.shape[-1] - 1) // 2
        scaled = workspace.take("scaled", (*A.shape[:-2], M + 1, A.shape[-1]), A)
        torch.mul(A, (2 * g_variance).unsqueeze(-2), out=scaled[..., :M, :])
        scaled[..., M, :] = g_mean
        H = symmetric_product(scaled[..., :M, :], A)
        SH = upper_times(S.mT, H, out=torch.empty_like(H))
        dm = (A @ g_mean.unsqueeze(-1)).squeeze(-1)

        with side_stream:
            inner = torch.addcmul(H, m.unsqueeze(-1), dm.unsqueeze(-2), value=-1)
            inner.sub_(lower_times(S, SH, out=H))
            da_u, d_top_u = through_gram(inner, inducing)

        D = symmetric_product(S, S)
        D.diagonal(dim1=-2, dim2=-1).sub_(1)
        D = torch.cat([D, m.unsqueeze(-1)], -1)
        D = upper_times(inducing.inverse.to(A.dtype).mT, D, out=torch.empty_like(D))
        G = torch.matmul(D, scaled, out=workspace.take("T", tuple(A.shape), A)).mul_(Kuf)
        summed = G @ features
        Gb, rows, Gb2 = summed[..., :d], summed[..., d : d + 1], summed[..., d + 1 :]
        d_top_f = torch.addcmul(rows.sum((-2, -1)), g_variance.sum(-1), scale.squeeze(-1))

        side_stream.join()
        dm, dS = _add_kl(gradients[2], m, S, dm, SH.mT)
        a = left[..., :d]
        da = torch.addcmul(Gb, rows, a, value=-1).add_(da_u)
        d_log_lengthscale = torch.addcmul(Gb2, a, Gb + da, value=-1).sum(-2, keepdim=True)
        found = (
            da / lengthscale,
            d_log_lengthscale / lengthscale,
            torch.add(d_top_f, d_top_u, alpha=0.5),
            dm,
            dS.tril(),
        )
        sized = (g.sum_to_size(shape) for g, shape in zip(found, ctx.shapes, strict=True))
        return *sized, None


def whiten_fast(
    L: Tensor, inverse: Tensor, Kuf: Tensor, workspace: Workspace, out: Tensor
) -> Tensor:
    """Write A = L⁻¹K_uf to `out`, and return ΣA².

    A is a product with the inverse in float64: rounded to float32, the inverse would lose the
    digits of s² − ΣA². On a CPU a solve in float32 keeps them too and is faster.
    """
    shape, A = tuple(Kuf.shape), out
    if Kuf.dtype == inverse.dtype:
        lower_times(inverse, Kuf, out=A)
    elif Kuf.is_cuda:
        wide = workspace.take("wide Kuf", shape, inverse).copy_(Kuf)
        A = lower_times(inverse, wide, out=workspace.take("wide A", shape, inverse))
        out.copy_(A)
    else:
        torch.linalg.solve_triangular(L.to(Kuf.dtype), Kuf, upper=False, out=out)
    return torch.mul(A, A, out=workspace.take("T", shape, A)).sum(-2)


def _or_zeros(gradient: Tensor | None, A: Tensor) -> Tensor:
    return A.new_zeros(A.shape[:-2] + A.shape[-1:]) if gradient is None else gradient


def _add_kl(
    g_kl: Tensor | None, m: Tensor, S: Tensor, dm: Tensor, dS: Tensor
) -> tuple[Tensor, Tensor]:
    """Add the gradient of the KL to those of q(u), if it is part of the loss."""
    if g_kl is None:
        return dm, dS
    dS = torch.addcmul(dS, g_kl[..., None, None], S)
    dS.diagonal(dim1=-2, dim2=-1).sub_(g_kl.unsqueeze(-1) / S.diagonal(dim1=-2, dim2=-1))
    return torch.addcmul(dm, g_kl.unsqueeze(-1), m), dS


_CPU_ENTRIES = 2**17
_DEVICE_ENTRIES = 2**24
"""Entries of K_uf in one block; on a CPU they should stay in the cache."""


@final
class FusedPrediction:
    """Marginals minus the prior mean at any rows; the arguments are those of `rbf_marginals`."""

    def __init__(
        self,
        Z: Float[Tensor, "*#batch m d"],
        lengthscale: Float[Tensor, "*#batch 1 k"],
        log_scale: Float[Tensor, "*#batch"],
        u_mean: Float[Tensor, "*#batch m"],
        u_chol: Float[Tensor, "*#batch m m"],
        nugget: float,
    ) -> None:
        (m, d), self._centre, self._workspace = Z.shape[-2:], centre_of(Z), Workspace()
        self._lengthscale, self._top = lengthscale, log_scale[..., None, None]
        batch = np.broadcast_shapes(Z.shape[:-2], lengthscale.shape[:-2], log_scale.shape)
        self._left = self._workspace.take("left", (*batch, m, 2 * d + 1), Z)
        a = in_lengthscales(Z, self._centre, lengthscale, out=self._left[..., :d])
        complete(self._left, self._top)
        self._inducing = factorise(a, log_scale, nugget, checked=True, workspace=self._workspace)
        self._q = torch.cat([u_chol.tril(), u_mean.unsqueeze(-1)], -1)

    def block_size(self) -> int:
        """Return the number of rows of a block."""
        entries = _CPU_ENTRIES if self._q.device.type == "cpu" else _DEVICE_ENTRIES
        return max(1, entries // self._q.shape[:-1].numel())

    def __call__(self, X: Inputs) -> Marginals:
        """Return mean, minus the prior mean, and variance of f at the rows of one block."""
        features = input_features(X, self._centre, self._lengthscale, self._workspace)
        shape = *self._left.shape[:-1], len(X)
        Kuf, A = (self._workspace.take(name, shape, X) for name in ("Kuf", "A"))
        covariance(self._left, features, self._top, out=Kuf)
        L, inverse = self._inducing.L, self._inducing.inverse
        explained = whiten_fast(L, inverse, Kuf, self._workspace, out=A)
        known = self._q.mT @ A
        mean, squares = known[..., -1, :].clone(), known[..., :-1, :].square_()
        residual = residual_given(self._top.exp().squeeze(-1), explained)
        return Marginals(mean, residual + squares.sum(-2))

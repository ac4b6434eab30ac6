"""Compute the RBF covariance, and marginals and KL of an RBF prior, with closed-form gradients."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from directgp.numerics.autograd import Gradients, first_order
from directgp.numerics.gaussian import kl_from_standard
from directgp.numerics.linalg import (
    SideStream,
    Square,
    Vector,
    Workspace,
    congruence,
    jittered_cholesky,
    symmetric_product,
    triangular_times,
    unchecked_cholesky,
)
from directgp.posteriors.projection import residual_given
from directgp.shapes import BatchedRow, Inputs, Marginals

Rows = Float[Tensor, "*#batch m d"]
Scale = Float[Tensor, "*#batch"]
"""Arguments whose leading axes broadcast with those of the others."""


def farthest(dtype: torch.dtype) -> float:
    """Return the distance, in lengthscales, beyond which squares overflow; K is 0 long before."""
    limit: float = 1e-3 * torch.finfo(dtype).max ** 0.5
    return limit


def rbf_covariance(
    a: Rows, b: Float[Tensor, "*#batch n d"], log_scale: Scale
) -> Float[Tensor, "*batch m n"]:
    """Compute exp(log_scale − ½‖a_i − b_j‖²), for inputs already divided by the lengthscale.

    With G = dK ∘ K the gradients are da = G b − (G 1) ∘ a, db = Gᵀ a − (Gᵀ 1) ∘ b and
    d log_scale = Σ G: three products with a and b, where a tape needs a dozen passes over K.
    """
    # Only differences matter. Centred inputs lose the fewest digits, and a far input does not move
    # the median.
    centre = a.detach().median(-2, keepdim=True).values
    reach = farthest(a.dtype)
    near_a, near_b = ((x - centre).clamp(-reach, reach) for x in (a, b))
    apply: Callable[..., Tensor] = _RBF.apply
    return apply(near_a, near_b, log_scale, False)


def rbf_gram(a: Rows, log_scale: Scale) -> Float[Tensor, "*batch m m"]:
    """Compute `rbf_covariance` of inputs with themselves, from their differences.

    Near inputs keep their digits however far from the others they are, and K is as positive
    definite as its rounded entries allow.
    """
    centred = a - a.detach().mean(-2, keepdim=True)
    apply: Callable[..., Tensor] = _RBF.apply
    return apply(centred, centred, log_scale, True)


def _log_by_product(a: Tensor, b: Tensor, log_scale: Tensor) -> Tensor:
    """Compute (a, log_scale − ½‖a‖², 1) · (b, 1, −½‖b‖²), at most log_scale."""
    left = -0.5 * a.square().sum(-1, keepdim=True) + log_scale
    right = -0.5 * b.square().sum(-1, keepdim=True)
    wide_a = torch.cat([a.expand(*left.shape[:-1], -1), left, torch.ones_like(left)], -1)
    wide_b = torch.cat([b, torch.ones_like(right), right], -1)
    product = wide_a @ wide_b.mT
    return torch.minimum(product, log_scale, out=product)


def _log_by_differences(a: Tensor, b: Tensor, log_scale: Tensor) -> Tensor:
    distance = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
    return torch.sub(log_scale, distance.square_(), alpha=0.5)


class _RBF(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, log_scale: Tensor, by_differences: bool) -> Tensor:
        log_k = _log_by_differences if by_differences else _log_by_product
        K = log_k(a, b, log_scale[..., None, None]).exp_()
        ctx.save_for_backward(a, b, log_scale, K)
        return K

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b, log_scale, K = ctx.saved_tensors
        G = grad * K
        rows = G.sum(-1)
        da = db = dscale = None
        if ctx.needs_input_grad[0]:
            da = (G @ b - rows.unsqueeze(-1) * a).sum_to_size(a.shape)
        if ctx.needs_input_grad[1]:
            db = (G.mT @ a - G.sum(-2).unsqueeze(-1) * b).sum_to_size(b.shape)
        if ctx.needs_input_grad[2]:
            dscale = rows.sum(-1).sum_to_size(log_scale.shape)
        return da, db, dscale, None


# Marginals and KL as one function without a tape. With a = Z/ℓ and b = X/ℓ,
#
# log K_uf = (a, log s² − ½‖a‖², −½ 1ᵀ) · (b, 1, b∘b)ᵀ
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
# With G = dK ∘ K the rest is G (b, 1, b∘b), of size M × d.


_CENTRE_ROWS = 15
"""Inducing inputs whose median is the centre."""

_CPU_ENTRIES = 2**17
_DEVICE_ENTRIES = 2**24
"""Entries of K_uf in one block of predictions; on a CPU they should stay in the cache."""


class Fused(NamedTuple):
    """Marginals and KL of a posterior, for one training step."""

    mean: BatchedRow
    """Mean of f minus the prior mean."""

    variance: BatchedRow
    kl: Float[Tensor, "*batch"]
    jitter: Float[Tensor, "*batch"]
    """Jitter that the factorisation of K_uu needed beyond the nugget."""


class Inducing(NamedTuple):
    """Scaled inducing inputs, K_uu and its factor, in float64."""

    inputs: Float[Tensor, "*batch m c"]
    """(a, 1), with a in units of the lengthscales."""

    Kuu: Float[Tensor, "*batch m m"]
    L: Float[Tensor, "*batch m m"]
    inverse: Float[Tensor, "*batch m m"]
    """L⁻¹."""

    jitter: Float[Tensor, "*batch"]


_Precomputed = tuple[Tensor, Tensor, Inducing, Workspace, SideStream]
"""Left factor, features and other arguments that the autograd function does not differentiate."""


def rbf_marginals(
    Z: Rows,
    lengthscale: Float[Tensor, "*#batch 1 k"],
    log_scale: Scale,
    u_mean: Vector,
    u_chol: Square,
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
        centre = _centre(Z)
        left = workspace.take("left", (*u_mean.shape, 2 * d + 1), Z)
        a = _scale_inputs(Z, centre, lengthscale, out=left[..., :d])
        with SideStream(Z.device) as side_stream:
            inducing = _factorise(a, log_scale, nugget, checked, workspace)
        _complete_left(left, top)
        features = _features(X, centre, lengthscale, workspace)
    given: _Precomputed = left, features, inducing, workspace, side_stream
    apply: Callable[..., tuple[Tensor, Tensor, Tensor]] = _Fused.apply
    return Fused(*apply(Z, lengthscale, log_scale, u_mean, u_chol, given), inducing.jitter)


def predict_rbf(
    Z: Rows,
    lengthscale: Float[Tensor, "*#batch 1 k"],
    log_scale: Scale,
    u_mean: Vector,
    u_chol: Square,
    X: Inputs,
    nugget: float,
    block_size: int | None,
) -> Marginals:
    """Compute the marginals of `rbf_marginals` without gradients, in blocks of rows."""
    (m, d), centre, workspace = Z.shape[-2:], _centre(Z), Workspace()
    top = log_scale[..., None, None]
    batch = np.broadcast_shapes(Z.shape[:-2], lengthscale.shape[:-2], log_scale.shape)
    left = workspace.take("left", (*batch, m, 2 * d + 1), Z)
    a = _scale_inputs(Z, centre, lengthscale, out=left[..., :d])
    _complete_left(left, top)
    inducing = _factorise(a, log_scale, nugget, checked=True, workspace=workspace)
    q = torch.cat([u_chol.tril(), u_mean.unsqueeze(-1)], -1)
    entries = _CPU_ENTRIES if q.device.type == "cpu" else _DEVICE_ENTRIES
    means, variances = [], []
    for block in X.split(block_size or max(1, entries // q.shape[:-1].numel())):
        features = _features(block, centre, lengthscale, workspace)
        shape = *left.shape[:-1], len(block)
        Kuf, A = (workspace.take(name, shape, X) for name in ("Kuf", "A"))
        _covariance(left, features, top, out=Kuf)
        explained = _whiten(inducing, Kuf, workspace, out=A)
        known = q.mT @ A
        means.append(known[..., -1, :].clone())
        squares = known[..., :-1, :].square_()
        variances.append(residual_given(top.exp().squeeze(-1), explained) + squares.sum(-2))
    return Marginals(torch.cat(means, -1), torch.cat(variances, -1))


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
        _covariance(left, features, top, out=Kuf)
        kl, scale = kl_from_standard(u_mean, S), top.exp().squeeze(-1)
        side_stream.join()
        explained = _whiten(inducing, Kuf, workspace, out=A)
        mean = (u_mean.unsqueeze(-2) @ A).squeeze(-2)
        squares = triangular_times(S.mT, A, out=T, upper=True).square_().sum(-2)
        variance = squares.add_(residual_given(scale, explained))
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
        row, g_kl = A.shape[:-2] + A.shape[-1:], gradients[2]
        g_mean, g_variance = (A.new_zeros(row) if g is None else g for g in gradients[:2])
        M, d = S.shape[-1], (features.shape[-1] - 1) // 2
        scaled = workspace.take("scaled", (*A.shape[:-2], M + 1, A.shape[-1]), A)
        torch.mul(A, (2 * g_variance).unsqueeze(-2), out=scaled[..., :M, :])
        scaled[..., M, :] = g_mean
        H = symmetric_product(scaled[..., :M, :], A)
        SH = triangular_times(S.mT, H, out=torch.empty_like(H), upper=True)
        dm = (A @ g_mean.unsqueeze(-1)).squeeze(-1)

        with side_stream:
            inner = torch.addcmul(H, m.unsqueeze(-1), dm.unsqueeze(-2), value=-1)
            inner.sub_(triangular_times(S, SH, out=H, upper=False))
            da_u, d_top_u = _gram_gradient(inner, inducing)

        D = symmetric_product(S, S)
        D.diagonal(dim1=-2, dim2=-1).sub_(1)
        D = torch.cat([D, m.unsqueeze(-1)], -1)
        L_inv = inducing.inverse.to(A.dtype)
        D = triangular_times(L_inv.mT, D, out=torch.empty_like(D), upper=True)
        G = torch.matmul(D, scaled, out=workspace.take("T", tuple(A.shape), A)).mul_(Kuf)
        summed = G @ features
        Gb, rows, Gb2 = summed[..., :d], summed[..., d : d + 1], summed[..., d + 1 :]
        d_top_f = torch.addcmul(rows.sum((-2, -1)), g_variance.sum(-1), scale.squeeze(-1))

        side_stream.join()
        dS = SH.mT
        if g_kl is not None:
            dS = torch.addcmul(dS, g_kl[..., None, None], S)
            dS.diagonal(dim1=-2, dim2=-1).sub_(g_kl.unsqueeze(-1) / S.diagonal(dim1=-2, dim2=-1))
            dm = torch.addcmul(dm, g_kl.unsqueeze(-1), m)
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


def _whiten(inducing: Inducing, Kuf: Tensor, workspace: Workspace, out: Tensor) -> Tensor:
    """Write A = L⁻¹K_uf to `out`, and return ΣA².

    A is a product with the inverse in float64: rounded to float32, the inverse would lose the
    digits of s² − ΣA². On a CPU a solve in float32 keeps them too and is faster.
    """
    shape, inverse, A = tuple(Kuf.shape), inducing.inverse, out
    if Kuf.dtype == inverse.dtype:
        triangular_times(inverse, Kuf, out=A, upper=False)
    elif Kuf.is_cuda:
        wide = workspace.take("wide Kuf", shape, inverse).copy_(Kuf)
        A = workspace.take("wide A", shape, inverse)
        triangular_times(inverse, wide, out=A, upper=False)
        out.copy_(A)
    else:
        torch.linalg.solve_triangular(inducing.L.to(Kuf.dtype), Kuf, upper=False, out=out)
    return torch.mul(A, A, out=workspace.take("T", shape, A)).sum(-2)


def _centre(Z: Tensor) -> Tensor:
    """Return the median of some inducing inputs, which a far one does not move; (..., 1, d)."""
    some = Z[..., :: -(-Z.shape[-2] // _CENTRE_ROWS), :]
    return some.median(-2, keepdim=True).values


def _scale_inputs(x: Tensor, centre: Tensor, lengthscale: Tensor, out: Tensor) -> Tensor:
    """Subtract the centre, divide by the lengthscale and clamp to where squares are finite."""
    reach = farthest(x.dtype)
    return torch.sub(x.expand(out.shape), centre, out=out).div_(lengthscale).clamp_(-reach, reach)


def _complete_left(left: Tensor, top: Tensor) -> None:
    """Write log s² − ½‖a‖² and −½ 1ᵀ to the columns after a; top is log s²."""
    d = left.shape[-1] // 2
    squares = left[..., :d].square().sum(-1, keepdim=True)
    left[..., d : d + 1] = torch.sub(top, squares, alpha=0.5)
    left[..., d + 1 :] = -0.5


def _features(X: Inputs, centre: Tensor, lengthscale: Tensor, workspace: Workspace) -> Tensor:
    """Return (b, 1, b∘b), of shape (..., n, 2d + 1)."""
    n, d = X.shape
    shapes = centre.shape[:-2], lengthscale.shape[:-2]
    batch = np.broadcast_shapes(*shapes) if any(shapes) else ()
    out = workspace.take("features", (*batch, n, 2 * d + 1), X)
    b = _scale_inputs(X, centre, lengthscale, out[..., :d])
    out[..., d] = 1
    torch.mul(b, b, out=out[..., d + 1 :])
    return out


def _covariance(left: Tensor, features: Tensor, top: Tensor, out: Tensor) -> None:
    """Write K_uf, the exponential of the product of both factors and at most s², to `out`."""
    torch.matmul(left, features.mT, out=out)
    torch.minimum(out, top, out=out).exp_()


def _factorise(
    a: Tensor, log_scale: Tensor, nugget: float, checked: bool, workspace: Workspace
) -> Inducing:
    """Compute K_uu of inducing inputs in units of their lengthscales, L and L⁻¹."""
    m, d = a.shape[-2:]
    top = log_scale.double()[..., None, None]
    inputs = workspace.take("inducing inputs", (*a.shape[:-1], d + 1), top)
    inputs[..., :d] = a
    inputs[..., d] = 1
    wide = inputs[..., :d]
    if a.dtype == torch.float64:
        Kuu = _log_by_differences(wide, wide, top)
    else:
        # A product is accurate enough in float64 for inputs that come from float32.
        product = wide @ wide.mT
        half = (product.diagonal(dim1=-2, dim2=-1) - top.squeeze(-1)).mul_(0.5).unsqueeze(-1)
        Kuu = torch.minimum(product.sub_(half).sub_(half.mT), top, out=product)
    diagonal = Kuu.diagonal(dim1=-2, dim2=-1).copy_(top.squeeze(-1))
    Kuu.exp_()
    diagonal.mul_(1 + nugget)
    L, jitter = jittered_cholesky(Kuu) if checked else unchecked_cholesky(Kuu)
    inverse = torch.linalg.solve_triangular(L, workspace.identity(m, L), upper=False)
    return Inducing(inputs, Kuu, L, inverse, jitter)


def _gram_gradient(inner: Tensor, inducing: Inducing) -> tuple[Tensor, Tensor]:
    """Return the gradient through K_uu in a, and twice that in log s².

    The gradient in K_uu is ½ L⁻ᵀ C L⁻¹, with C the lower triangle of `inner`, mirrored.
    """
    lower = inner.tril()
    lower.diagonal(dim1=-2, dim2=-1).mul_(0.5)
    C = torch.add(lower, lower.mT, out=torch.empty_like(lower, dtype=torch.float64))
    G = congruence(C, inducing.inverse).mul_(inducing.Kuu)
    summed = G @ inducing.inputs
    rows = summed[..., -1:]
    da = torch.addcmul(summed[..., :-1], rows, inducing.inputs[..., :-1], value=-1)
    return da.to(inner.dtype), rows.sum((-2, -1)).to(inner.dtype)

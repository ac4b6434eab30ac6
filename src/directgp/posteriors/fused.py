"""From the parameters of an RBF prior and q(u) to marginals and KL, with the gradient of it all.

The chain of `directgp.posteriors.rbf`, a Cholesky factorisation and
`directgp.posteriors.projection`, as one function without a tape. With a = Z/ℓ and b = X/ℓ,

    log K_uf = (a, log s² − ½‖a‖², −½ 1ᵀ) · (b, 1, b∘b)ᵀ     one product
    A = L⁻¹ K_uf,     L Lᵀ = K_uu in float64
    mean = Aᵀm,     variance = s² − ΣA² + Σ(SᵀA)²,     KL = ½ (‖S‖² + ‖m‖² − M) − Σ log abs S_jj

and, for gradients g_μ, g_v and g_KL of a loss in these three,

    (2H; dmᵀ) = (2 A diag g_v; g_μᵀ) Aᵀ             dS = tril(2H S) + g_KL (S − diag 1/S_jj)
    dK_uf = L⁻ᵀ (S Sᵀ − I, m) (2 A diag g_v; g_μᵀ)
    dK_uu = ½ L⁻ᵀ sym(2H − S (2H S)ᵀ − m dmᵀ) L⁻¹    sym: the lower triangle, mirrored

because tril(Lᵀ tril(W)) = tril(Lᵀ W): what the factorisation passes on needs no solve with dL.
With G = dK ∘ K the rest is G (b, 1, b∘b), of size M × d.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from directgp.numerics.aside import Aside
from directgp.numerics.cholesky import jittered_cholesky
from directgp.numerics.first_order import Gradients, first_order
from directgp.numerics.gaussian import kl_from_standard
from directgp.numerics.triangular import lower_times, symmetric_product, upper_times
from directgp.numerics.workspace import Workspace
from directgp.posteriors.projection import residual_given
from directgp.posteriors.rbf import farthest


class Fused(NamedTuple):
    """What a training step needs of a posterior."""

    mean: Float[Tensor, "*batch n"]
    """Of f, less the prior mean."""

    variance: Float[Tensor, "*batch n"]
    kl: Float[Tensor, "*batch"]
    jitter: Float[Tensor, "*batch"]
    """What the factorisation of K_uu needed beyond the nugget."""


class Inducing(NamedTuple):
    """What a step needs of the inducing inputs, in float64."""

    a: Float[Tensor, "*batch m d"]
    Kuu: Float[Tensor, "*batch m m"]
    L: Float[Tensor, "*batch m m"]
    inverse: Float[Tensor, "*batch m m"]
    """L⁻¹."""

    jitter: Float[Tensor, "*batch"]


class _How(NamedTuple):
    """Where what is large goes, and where what can be done aside."""

    workspace: Workspace
    aside: Aside


def rbf_marginals(
    Z: Float[Tensor, "*#batch m d"],
    lengthscale: Float[Tensor, "*#batch 1 k"],
    log_scale: Float[Tensor, "*#batch"],
    u_mean: Float[Tensor, "*#batch m"],
    u_chol: Float[Tensor, "*#batch m m"],
    X: Float[Tensor, "n d"],
    nugget: float,
    *,
    checked: bool = True,
    workspace: Workspace | None = None,
) -> Fused:
    """Marginals and KL, differentiable once in all but X.

    Parameters
    ----------
    Z, X
        Inducing inputs and inputs.
    lengthscale
        One, or one for each feature.
    log_scale
        log s², of the variance of the prior.
    u_mean, u_chol
        Whitened q(u), one for each member of a batch of priors; the lower triangle of `u_chol` is
        read.
    nugget
        Relative variance of the noise of u.
    checked
        Without it a K_uu that would need jitter gives NaN: for steps that must not wait for an
        answer.
    workspace
        Keeps what is of size m × n from one call to the next; the backward pass of a call must
        then come before the next call.
    """
    with torch.no_grad():
        centre = Z.median(-2, keepdim=True).values
        a, b = (in_lengthscales(x, centre, lengthscale) for x in (Z, X))
        a = a.expand(*u_mean.shape, a.shape[-1])
        with Aside(Z.device) as aside:
            inducing = factorise(a, log_scale, nugget, checked)
    how = _How(workspace or Workspace(), aside)
    apply: Callable[..., tuple[Tensor, Tensor, Tensor]] = _Fused.apply
    moments = apply(Z, lengthscale, log_scale, u_mean, u_chol, a, b, how, *inducing[:4])
    return Fused(*moments, inducing.jitter)


def in_lengthscales(x: Tensor, centre: Tensor, lengthscale: Tensor) -> Tensor:
    """Inputs as `rbf_covariance` takes them: from a centre, and within reach of squares."""
    reach = farthest(x.dtype)
    return ((x - centre) / lengthscale).clamp_(-reach, reach)


def log_factors(a: Tensor, b: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    """The two factors of log K_uf, (a, log s² − ½‖a‖², −½ 1ᵀ) and (b, 1, b∘b)."""
    height = (top - 0.5 * a.square().sum(-1, keepdim=True)).expand(*a.shape[:-1], 1)
    left = torch.cat([a, height, torch.full_like(a, -0.5)], -1)
    return left, torch.cat([b, torch.ones_like(b[..., :1]), b.square()], -1)


def covariance(left: Tensor, features: Tensor, top: Tensor, out: Tensor) -> Tensor:
    """K_uf from the factors of its logarithm, rounded up to s² at most, written to `out`."""
    torch.matmul(left, features.mT, out=out)
    return torch.minimum(out, top, out=out).exp_()


def factorise(a: Tensor, log_scale: Tensor, nugget: float, checked: bool) -> Inducing:
    """K_uu of inducing inputs in units of their lengthscales, and its factor inverted."""
    wide, top = a.double(), log_scale.double()[..., None, None]
    Kuu = _log_gram(wide, top, by_differences=a.dtype == torch.float64).exp_()
    Kuu.diagonal(dim1=-2, dim2=-1).copy_(((1 + nugget) * top.exp()).squeeze(-1))
    if checked:
        factorised = jittered_cholesky(Kuu)
        L, jitter = factorised.factor, factorised.jitter
    else:
        L = torch.linalg.cholesky_ex(Kuu).L
        jitter = L.new_zeros(L.shape[:-2])
    eye = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device)
    return Inducing(wide, Kuu, L, torch.linalg.solve_triangular(L, eye, upper=False), jitter)


def _log_gram(a: Tensor, top: Tensor, by_differences: bool) -> Tensor:
    """log K of inputs with themselves; by a product where they come from float32.

    There float64 has digits to spare. As for differences, see `rbf_gram`.
    """
    if by_differences:
        distance = torch.cdist(a, a, compute_mode="donot_use_mm_for_euclid_dist")
        return top - 0.5 * distance.square_()
    product = a @ a.mT
    half = 0.5 * product.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
    return product.sub_(half).sub_(half.mT).clamp_(max=0.0).add_(top)


class _Fused(Function):
    @staticmethod
    def forward(
        ctx: Any,
        Z: Tensor,
        lengthscale: Tensor,
        log_scale: Tensor,
        u_mean: Tensor,
        u_chol: Tensor,
        a: Tensor,
        b: Tensor,
        how: _How,
        *inducing: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        top, S = log_scale[..., None, None], u_chol.tril()
        left, features = log_factors(a, b, top)
        shape = (*S.shape[:-1], b.shape[-2])
        Kuf, A, T = (how.workspace.take(name, shape, S) for name in ("Kuf", "A", "T"))
        covariance(left, features, top, out=Kuf)
        kl, scale = kl_from_standard(u_mean, S), top.exp().squeeze(-1)
        how.aside.join()
        *_, L, inverse = inducing
        residual = residual_given(scale, whiten_fast(L, inverse, Kuf, how.workspace, out=A))
        mean = (u_mean.unsqueeze(-2) @ A).squeeze(-2)
        variance = residual + upper_times(S.mT, A, out=T).square_().sum(-2)
        ctx.how = how
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(lengthscale, scale, u_mean, S, a, features, Kuf, A, *inducing)
        ctx.shapes = [x.shape for x in (Z, lengthscale, log_scale, u_mean, u_chol)]
        return mean, variance, kl

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor | None) -> Gradients:
        lengthscale, scale, m, S, a, features, Kuf, A, wide_a, Kuu, _, L_inverse = ctx.saved_tensors
        g_mean, g_variance = (_or_zeros(g, A) for g in gradients[:2])
        M, d = a.shape[-2:]
        scaled = ctx.how.workspace.take("scaled", (*A.shape[:-2], M + 1, A.shape[-1]), A)
        torch.mul(A, (2 * g_variance).unsqueeze(-2), out=scaled[..., :M, :])
        scaled[..., M, :] = g_mean
        H = symmetric_product(scaled[..., :M, :], A)
        HS, dm = H @ S, (A @ g_mean.unsqueeze(-1)).squeeze(-1)

        with ctx.how.aside as aside:
            inner = torch.addcmul(H - S @ HS.mT, m.unsqueeze(-1), dm.unsqueeze(-2), value=-1)
            da_u, d_top_u = _through_gram(inner, wide_a, Kuu, L_inverse)

        D = symmetric_product(S, S)
        D.diagonal(dim1=-2, dim2=-1).sub_(1)
        D = torch.cat([D, m.unsqueeze(-1)], -1)
        left = upper_times(L_inverse.to(A.dtype).mT, D, out=torch.empty_like(D))
        G = torch.matmul(left, scaled, out=ctx.how.workspace.take("T", A.shape, A)).mul_(Kuf)
        Gb, rows, Gb2 = (G @ features).split([d, 1, d], -1)
        d_top_f = torch.addcmul(rows.sum((-2, -1)), g_variance.sum(-1), scale.squeeze(-1))

        aside.join()
        dm, dS = _add_kl(gradients[2], m, S, dm, HS)
        da = torch.addcmul(Gb, rows, a, value=-1).add_(da_u)
        d_log_lengthscale = (Gb2 - a * (Gb + da)).sum(-2, keepdim=True)
        found = (
            da / lengthscale,
            d_log_lengthscale / lengthscale,
            torch.add(d_top_f, d_top_u, alpha=0.5),
            dm,
            dS.tril_(),
        )
        sized = (g.sum_to_size(shape) for g, shape in zip(found, ctx.shapes, strict=True))
        return *sized, *[None] * 7


def whiten_fast(
    L: Tensor, inverse: Tensor, Kuf: Tensor, workspace: Workspace, out: Tensor
) -> Tensor:
    """Write A = L⁻¹K_uf to `out`, and give ΣA².

    By a product with the inverse, in float64: rounded to float32 the inverse would lose the digits
    of s² − ΣA². On a CPU a solve in float32 keeps them too, and takes less time than that.
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


def _through_gram(inner: Tensor, a: Tensor, Kuu: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """What K_uu passes on to the inducing inputs and, twice, to log s²."""
    lower = inner.tril()
    lower.diagonal(dim1=-2, dim2=-1).mul_(0.5)
    symmetric = (lower + lower.mT).double()
    G = upper_times(inverse.mT, symmetric, out=torch.empty_like(symmetric)) @ inverse
    G.mul_(Kuu)
    rows = G.sum(-1, keepdim=True)
    da = torch.addcmul(G @ a, rows, a, value=-1)
    return da.to(inner.dtype), rows.sum((-2, -1)).to(inner.dtype)


def _or_zeros(gradient: Tensor | None, A: Tensor) -> Tensor:
    return A.new_zeros(A.shape[:-2] + A.shape[-1:]) if gradient is None else gradient


def _add_kl(
    g_kl: Tensor | None, m: Tensor, S: Tensor, dm: Tensor, dS: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of q(u) with the share of the KL, where that is part of the loss."""
    if g_kl is None:
        return dm, dS
    dS = torch.addcmul(dS, g_kl[..., None, None], S)
    dS.diagonal(dim1=-2, dim2=-1).sub_(g_kl.unsqueeze(-1) / S.diagonal(dim1=-2, dim2=-1))
    return torch.addcmul(dm, g_kl.unsqueeze(-1), m), dS

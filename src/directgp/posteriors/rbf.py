"""Compute the squared-exponential covariance and its gradients in closed form."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from directgp.numerics.autograd import first_order
from directgp.numerics.linalg import Workspace, congruence, jittered_cholesky
from directgp.shapes import Inputs


def farthest(dtype: torch.dtype) -> float:
    """Return the distance, in lengthscales, beyond which squares overflow; K is 0 long before."""
    limit: float = 1e-3 * torch.finfo(dtype).max ** 0.5
    return limit


def rbf_covariance(
    a: Float[Tensor, "*#batch m d"],
    b: Float[Tensor, "*#batch n d"],
    log_scale: Float[Tensor, "*#batch"],
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


def rbf_gram(
    a: Float[Tensor, "*#batch m d"], log_scale: Float[Tensor, "*#batch"]
) -> Float[Tensor, "*batch m m"]:
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
    return log_scale - 0.5 * distance.square()


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


# With a = Z/ℓ and b = X/ℓ,
#
# log K_uf = (a, log s² − ½‖a‖², −½ 1ᵀ) · (b, 1, b∘b)ᵀ


_FEW = 15


def centre_of(Z: Float[Tensor, "*batch m d"]) -> Float[Tensor, "*batch 1 d"]:
    """Return the median of some inducing inputs, which a far one does not move."""
    some = Z[..., :: -(-Z.shape[-2] // _FEW), :]
    return some.median(-2, keepdim=True).values


def in_lengthscales(
    x: Float[Tensor, "*#batch n d"],
    centre: Float[Tensor, "*#batch 1 d"],
    lengthscale: Float[Tensor, "*#batch 1 k"],
    out: Float[Tensor, "*batch n d"],
) -> Float[Tensor, "*batch n d"]:
    """Subtract the centre, divide by the lengthscale and clamp to where squares are finite."""
    reach = farthest(x.dtype)
    return torch.sub(x.expand(out.shape), centre, out=out).div_(lengthscale).clamp_(-reach, reach)


def complete(left: Float[Tensor, "*batch m c"], top: Float[Tensor, "*#batch 1 1"]) -> None:
    """Write log s² − ½‖a‖² and −½ 1ᵀ to the columns after a."""
    d = left.shape[-1] // 2
    squares = left[..., :d].square().sum(-1, keepdim=True)
    left[..., d : d + 1] = torch.sub(top, squares, alpha=0.5)
    left[..., d + 1 :] = -0.5


def input_features(
    X: Inputs,
    centre: Float[Tensor, "*#batch 1 d"],
    lengthscale: Float[Tensor, "*#batch 1 k"],
    workspace: Workspace,
) -> Float[Tensor, "*batch n c"]:
    """Return (b, 1, b∘b)."""
    n, d = X.shape
    shapes = centre.shape[:-2], lengthscale.shape[:-2]
    batch = np.broadcast_shapes(*shapes) if any(shapes) else ()
    out = workspace.take("features", (*batch, n, 2 * d + 1), X)
    b = in_lengthscales(X, centre, lengthscale, out[..., :d])
    out[..., d] = 1
    torch.mul(b, b, out=out[..., d + 1 :])
    return out


def covariance(
    left: Float[Tensor, "*#batch m c"],
    features: Float[Tensor, "*#batch n c"],
    top: Float[Tensor, "*#batch 1 1"],
    out: Float[Tensor, "*batch m n"],
) -> Float[Tensor, "*batch m n"]:
    """Write K_uf, the exponential of the product of both factors and at most s², to `out`."""
    torch.matmul(left, features.mT, out=out)
    return torch.minimum(out, top, out=out).exp_()


class Inducing(NamedTuple):
    """Scaled inducing inputs, K_uu and its factor, in float64."""

    inputs: Float[Tensor, "*batch m c"]
    """(a, 1), with a in units of the lengthscales."""

    Kuu: Float[Tensor, "*batch m m"]
    L: Float[Tensor, "*batch m m"]
    inverse: Float[Tensor, "*batch m m"]
    """L⁻¹."""

    jitter: Float[Tensor, "*batch"]


def factorise(
    a: Float[Tensor, "*batch m d"],
    log_scale: Float[Tensor, "*#batch"],
    nugget: float,
    checked: bool,
    workspace: Workspace,
) -> Inducing:
    """Compute K_uu of inducing inputs in units of their lengthscales, L and L⁻¹."""
    m, d = a.shape[-2:]
    top = log_scale.double()[..., None, None]
    inputs = workspace.take("inducing inputs", (*a.shape[:-1], d + 1), top)
    inputs[..., :d] = a
    inputs[..., d] = 1
    Kuu = _log_gram(inputs[..., :d], top, by_differences=a.dtype == torch.float64)
    diagonal = Kuu.diagonal(dim1=-2, dim2=-1).copy_(top.squeeze(-1))
    Kuu.exp_()
    diagonal.mul_(1 + nugget)
    if checked:
        factorised = jittered_cholesky(Kuu)
        L, jitter = factorised.factor, factorised.jitter
    else:
        L = torch.linalg.cholesky_ex(Kuu).L
        jitter = L.new_zeros(L.shape[:-2])
    inverse = torch.linalg.solve_triangular(L, workspace.identity(m, L), upper=False)
    return Inducing(inputs, Kuu, L, inverse, jitter)


def through_gram(
    inner: Float[Tensor, "*batch m m"], inducing: Inducing
) -> tuple[Float[Tensor, "*batch m d"], Float[Tensor, "*batch"]]:
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


def _log_gram(a: Tensor, top: Tensor, by_differences: bool) -> Tensor:
    """Compute log K of inputs with themselves, by differences as in `rbf_gram` or by a product.

    A product is accurate enough in float64 for inputs that come from float32.
    """
    if by_differences:
        distance = torch.cdist(a, a, compute_mode="donot_use_mm_for_euclid_dist")
        return torch.sub(top, distance.square_(), alpha=0.5)
    product = a @ a.mT
    half = (product.diagonal(dim1=-2, dim2=-1) - top.squeeze(-1)).mul_(0.5).unsqueeze(-1)
    return torch.minimum(product.sub_(half).sub_(half.mT), top, out=product)

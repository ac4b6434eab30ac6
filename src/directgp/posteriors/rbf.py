"""Compute the covariance of RBF priors, with closed-form gradients."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from directgp.numerics.autograd import first_order

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

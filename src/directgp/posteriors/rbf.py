"""The squared-exponential covariance, with its own derivative."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def rbf_covariance(
    a: Float[Tensor, "*#batch m d"],
    b: Float[Tensor, "*#batch n d"],
    log_scale: Float[Tensor, "*#batch"],
) -> Float[Tensor, "*batch m n"]:
    """exp(log_scale − ½‖a_i − b_j‖²), for inputs already divided by the lengthscale.

    With G = dK ∘ K the gradients are da = G b − (G 1) ∘ a, db = Gᵀ a − (Gᵀ 1) ∘ b and
    d log_scale = Σ G: three products with a and b, where a tape needs a dozen passes over K.
    """
    # Only differences matter; about the origin the squares lose the fewest digits.
    centre = a.detach().mean(-2, keepdim=True)
    # torch leaves the functions that `once_differentiable` wraps untyped.
    K: Tensor = _RBF.apply(a - centre, b - centre, log_scale)  # type: ignore[no-untyped-call]
    return K


class _RBF(Function):
    @staticmethod
    def forward(a: Tensor, b: Tensor, log_scale: Tensor) -> Tensor:
        """One product: (a, log_scale − ½‖a‖², 1) · (b, 1, −½‖b‖²)."""
        left = -0.5 * a.square().sum(-1, keepdim=True) + log_scale[..., None, None]
        right = -0.5 * b.square().sum(-1, keepdim=True)
        wide_a = torch.cat([a.expand(*left.shape[:-1], -1), left, torch.ones_like(left)], -1)
        wide_b = torch.cat([b, torch.ones_like(right), right], -1)
        return (wide_a @ wide_b.mT).exp_()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    @once_differentiable
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
        return da, db, dscale

"""Gradients that are computed beside the value and not through it."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from directgp.likelihoods.base import Likelihood

Values = Float[Tensor, "..."]


def attach_slopes(
    value: Values, mean: Values, variance: Values, mean_slope: Values, variance_slope: Values
) -> Values:
    """`value`, with the given slopes as its derivatives in mean and variance."""
    attached: Tensor = _Attach.apply(value, mean, variance, mean_slope, variance_slope)
    return attached


def needs_parameter_gradient(likelihood: Likelihood) -> bool:
    """Whether a gradient with respect to the likelihood's own parameters is asked for."""
    return torch.is_grad_enabled() and likelihood.trainable


def attach_parameters(
    value: Values,
    likelihood: Likelihood,
    y: Values,
    f: Float[Tensor, "k ..."],
    weights: Float[Tensor, "k ..."],
) -> Values:
    """`value`, with the likelihood's parameters given the gradient Σ_k w_k ∂ log p(y given f_k).

    Fisher's identity: ∂_θ log E_q[p] = E_q̃[∂_θ log p(y given f)], with f_k and w_k standing for q̃.
    """
    if not needs_parameter_gradient(likelihood):
        return value
    kernel = (weights * likelihood.log_kernel(y, f)).sum(0)
    expected = kernel + weights.sum(0) * likelihood.log_base(y)
    return value + (expected - expected.detach())


class _Attach(Function):
    """The identity on the first argument, with slopes given for the second and third."""

    @staticmethod
    def forward(
        value: Tensor, mean: Tensor, variance: Tensor, mean_slope: Tensor, variance_slope: Tensor
    ) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[3:])

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        mean_slope, variance_slope = ctx.saved_tensors
        return grad, grad * mean_slope, grad * variance_slope, None, None

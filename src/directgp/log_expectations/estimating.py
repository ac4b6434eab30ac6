"""From estimates of flat blocks of examples to a tensor with gradients."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.blocks import row_blocks
from directgp.log_expectations.estimate import Estimate, Row

Values = Float[Tensor, "..."]

Estimator = Callable[[Likelihood, Row, Row, Row], Estimate]
"""Likelihood, y, mean, variance of a flat batch in float64 → estimate, outside of any graph."""


def evaluate(
    estimator: Estimator,
    likelihood: Likelihood,
    y: Values,
    mean: Values,
    variance: Values,
    points: int = 1,
) -> Values:
    """The estimated values, with the estimated slopes as their gradients.

    y, mean and variance are of one shape (..., n). Examples are taken on in blocks, fewer at a
    time the more points the estimator has for each.
    """
    if not torch.is_grad_enabled():
        likelihood = likelihood.frozen()
    with torch.no_grad():
        estimate = _in_blocks(estimator, likelihood, y, mean, variance, points)
    value: Tensor = _Attach.apply(  # type: ignore[no-untyped-call]
        estimate.value.reshape(mean.shape),
        estimate.mean_slope.reshape(mean.shape),
        estimate.variance_slope.reshape(mean.shape),
        mean,
        variance,
    )
    if estimate.parameter_term is None:
        return value
    term = estimate.parameter_term.reshape(mean.shape)
    return value + (term - term.detach())


def _in_blocks(
    estimator: Estimator,
    likelihood: Likelihood,
    y: Values,
    mean: Values,
    variance: Values,
    points: int,
) -> Estimate:
    rows = [tensor.reshape(-1) for tensor in (y, mean, variance)]
    flat = likelihood if mean.dim() == 1 else likelihood.take(torch.ones_like(y).bool())
    blocks = row_blocks(len(rows[0]), points, mean.device)
    if len(blocks) == 1:
        return estimator(flat, *rows)
    parts = []
    for block, index in blocks:
        parts.append((index, estimator(flat.take(index), *(row[block] for row in rows))))
    return Estimate.gather(parts)


class _Attach(Function):
    """The value, with the given slopes as its derivatives in mean and variance."""

    @staticmethod
    def forward(
        value: Tensor, mean_slope: Tensor, variance_slope: Tensor, mean: Tensor, variance: Tensor
    ) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:3])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None, Tensor, Tensor]:
        mean_slope, variance_slope = ctx.saved_tensors
        return None, None, None, grad * mean_slope, grad * variance_slope

"""From estimates of flat blocks of examples to a tensor with gradients."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.blocks import row_blocks, rows_for
from directgp.log_expectations.estimate import Estimate, Row
from directgp.numerics.first_order import first_order

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
    """The estimated values, with the estimated slopes as their gradients, in the mean's dtype.

    y, mean and variance are of one shape (..., n) and any dtype. Examples are taken on in blocks,
    fewer at a time the more points the estimator has for each.
    """
    if not torch.is_grad_enabled():
        likelihood = likelihood.frozen()
    with torch.no_grad():
        estimate = _in_blocks(estimator, likelihood, y, mean, variance, points)
    apply: Callable[..., Tensor] = _Attach.apply
    return apply(estimate, mean, variance, *likelihood.learned())


def _in_blocks(
    estimator: Estimator,
    likelihood: Likelihood,
    y: Values,
    mean: Values,
    variance: Values,
    points: int,
) -> Estimate:
    rows = [tensor.reshape(-1).double() for tensor in (y, mean, variance)]
    flat = likelihood if mean.dim() == 1 else likelihood.take(torch.ones_like(y).bool())
    if len(rows[0]) <= rows_for(points, mean.device):
        return estimator(flat, *rows)
    return Estimate.join(
        estimator(flat.take(index), *(row[block] for row in rows))
        for block, index in row_blocks(len(rows[0]), points, mean.device)
    )


class _Attach(Function):
    """The value of an estimate, with its slopes as derivatives; a second derivative is refused."""

    @staticmethod
    def forward(
        ctx: Any, estimate: Estimate, mean: Tensor, variance: Tensor, *parameters: Tensor
    ) -> Tensor:
        ctx.term, ctx.parameters = estimate.parameter_term, parameters
        slopes = estimate.mean_slope, estimate.variance_slope
        ctx.slopes = [slope.to(mean.dtype) for slope in slopes]
        return estimate.value.reshape(mean.shape).to(mean.dtype, copy=True)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        term, parameters, row = ctx.term, ctx.parameters, grad.reshape(-1)
        if term is None or not parameters:
            shares: tuple[Tensor | None, ...] = (None,) * len(parameters)
        else:
            shares = torch.autograd.grad(
                term, parameters, row.double(), retain_graph=True, allow_unused=True
            )
        return None, *((row * slope).reshape(grad.shape) for slope in ctx.slopes), *shares

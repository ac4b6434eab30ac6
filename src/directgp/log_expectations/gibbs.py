"""The ELBO's term: E_q[log p(y given f)], minus the Gibbs loss."""

import math
from functools import partial

import torch
from jaxtyping import Bool, Float, Num
from torch import Tensor

from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import ClosedFormGibbs
from directgp.log_expectations.attach import evaluate
from directgp.log_expectations.blocks import row_blocks
from directgp.log_expectations.estimate import Estimate, Row, parameter_term
from directgp.log_expectations.nodes import (
    NATS,
    blocks_by_nodes,
    nodes_for_all,
    trapezoid_step,
)

_NATS_OF_FLOAT32 = 19.0
"""An error of 6e-9, a tenth of what float32 can show."""


def gibbs_term(
    likelihood: Likelihood,
    y: Num[Tensor, "..."] | Bool[Tensor, "..."],
    mean: Float[Tensor, "..."],
    variance: Float[Tensor, "..."],
) -> Float[Tensor, "..."]:
    """E_q[log p(y given f)] for q(f) = N(mean, variance), by closed form or quadrature.

    Computed in float64, returned in the dtype of the mean; targets are not checked.
    """
    wide = torch.broadcast_tensors(y.double(), mean.double(), variance.double())
    if isinstance(likelihood, ClosedFormGibbs):
        return likelihood.expected_log_prob(*wide).to(mean.dtype)
    nats = _NATS_OF_FLOAT32 if mean.dtype == torch.float32 else NATS
    return evaluate(partial(_integrate, nats=nats), likelihood, *wide).to(mean.dtype)


def _integrate(likelihood: Likelihood, y: Row, mean: Row, variance: Row, nats: float) -> Estimate:
    """The trapezoid rule over q, with an error of e^−nats."""
    reach = _reach(mean, variance, nats)
    step = trapezoid_step(torch.sqrt(variance), likelihood.strip, nats - NATS)
    needed = 2 * reach / step
    number = nodes_for_all(needed)
    if number is not None:
        return _whole(likelihood, y, mean, variance, reach, number)
    parts = []
    for number, index in blocks_by_nodes(needed):
        some = y[index], mean[index], variance[index], reach[index]
        parts.append((index, _sum(likelihood.take(index), *some, number)))
    return Estimate.gather(parts)


def _whole(
    likelihood: Likelihood, y: Row, mean: Row, variance: Row, reach: Row, number: int
) -> Estimate:
    """The same number of nodes for every example, in as few blocks as memory allows."""
    parts = [
        (index, _sum(likelihood, y[rows], mean[rows], variance[rows], reach[rows], number))
        for rows, index in row_blocks(len(y), number, y.device)
    ]
    return parts[0][1] if len(parts) == 1 else Estimate.gather(parts)


def _reach(mean: Row, variance: Row, nats: float) -> Row:
    """How far from the mean the nodes go.

    Far enough for q alone, and for q·|ℓ| when ℓ is nearly 0 at the mean and its mass lies towards
    f = 0, at most |μ| away.
    """
    return math.sqrt(2 * nats) * torch.sqrt(variance) + mean.abs() * variance.clamp(max=1.0)


def _sum(
    likelihood: Likelihood, y: Row, mean: Row, variance: Row, reach: Row, number: int
) -> Estimate:
    """Σ_k q(f_k)·ℓ(f_k), with slopes E_q[ℓ′] in the mean and ½E_q[ℓ″] in the variance."""
    place = (torch.arange(number, dtype=mean.dtype, device=mean.device) + 0.5) / number
    delta = (2 * place[:, None] - 1) * reach
    # From the node next to the mean, whose weight is then 1 however far it is.
    nearest = reach * ((number + 1) % 2 / number)
    weights = torch.exp((nearest**2 - delta**2) / (2 * variance))
    weights = weights / weights.sum(0)
    value, first, second = likelihood.derivatives(y, mean + delta)
    return Estimate(
        (weights * value).sum(0) + likelihood.log_base(y),
        (weights * first).sum(0),
        0.5 * (weights * second).sum(0),
        parameter_term(likelihood, y, mean + delta, weights),
    )

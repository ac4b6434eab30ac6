"""Nodes over q of each example's own, as many as examples like it need."""

import math

import torch

from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.blocks import row_blocks
from directgp.log_expectations.estimate import Estimate, Row, parameter_term
from directgp.log_expectations.nodes import (
    NATS,
    blocks_by_nodes,
    nodes_for_all,
    trapezoid_step,
)


def sum_apart(likelihood: Likelihood, y: Row, mean: Row, variance: Row, nats: float) -> Estimate:
    """E_q[ℓ] by the trapezoid rule over q, with an error of e^−nats."""
    reach, needed = nodes_needed(likelihood.strip, mean, variance, nats)
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
    return Estimate.join(
        _sum(likelihood, y[rows], mean[rows], variance[rows], reach[rows], number)
        for rows, _ in row_blocks(len(y), number, y.device)
    )


def nodes_needed(strip: float, mean: Row, variance: Row, nats: float) -> tuple[Row, Row]:
    """How far from the mean the nodes of each example go, and how many they are.

    Far enough for q alone, and for q·|ℓ| when ℓ is nearly 0 at the mean and its mass lies towards
    f = 0, at most |μ| away.
    """
    deviation = torch.sqrt(variance)
    reach = math.sqrt(2 * nats) * deviation + mean.abs() * variance.clamp(max=1.0)
    return reach, 2 * reach / trapezoid_step(deviation, strip, nats - NATS)


def _sum(
    likelihood: Likelihood, y: Row, mean: Row, variance: Row, reach: Row, number: int
) -> Estimate:
    """Σ_k q(f_k)·ℓ(f_k), with slopes E_q[ℓ′] in the mean and ½E_q[ℓ″] in the variance."""
    half = torch.arange(1 - number, number, 2, dtype=mean.dtype, device=mean.device)[:, None]
    place = half / number
    # From the node next to the mean, whose weight is then 1 however far it is.
    nearest = (number + 1) % 2 / number
    weights = ((nearest**2 - place * place) * (reach * reach / (2 * variance))).exp_()
    weights /= weights.sum(0)
    f = torch.addcmul(mean, place, reach)
    value, first, second = likelihood.derivatives(y, f)
    return Estimate(
        (weights * value).sum(0) + likelihood.log_base(y),
        (weights * first).sum(0),
        0.5 * (weights * second).sum(0),
        parameter_term(likelihood, y, f, weights),
    )

"""The ELBO's term: E_q[log p(y given f)], minus the Gibbs loss."""

import math

import torch
from jaxtyping import Float, Num
from torch import Tensor

from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import ClosedFormGibbs
from directgp.log_expectations.attach import attach_parameters, attach_slopes
from directgp.log_expectations.base import Values
from directgp.log_expectations.nodes import NATS, groups_by_nodes, trapezoid_step


def gibbs_term(
    likelihood: Likelihood,
    y: Num[Tensor, "..."],
    mean: Float[Tensor, "..."],
    variance: Float[Tensor, "..."],
) -> Float[Tensor, "..."]:
    """E_q[log p(y given f)] for q(f) = N(mean, variance), by closed form or quadrature.

    Computed in float64, returned in the dtype of the mean; targets are not checked.
    """
    wide = torch.broadcast_tensors(y.double(), mean.double(), variance.double())
    if isinstance(likelihood, ClosedFormGibbs):
        return likelihood.expected_log_prob(*wide).to(mean.dtype)
    return _integrate(likelihood, *wide).to(mean.dtype)


def _integrate(likelihood: Likelihood, y: Values, mean: Values, variance: Values) -> Values:
    """The trapezoid rule over q, split by the number of nodes needed."""
    with torch.no_grad():
        reach = _reach(mean, variance)
        needed = 2 * reach / trapezoid_step(torch.sqrt(variance), likelihood.strip)
    value = torch.zeros_like(mean)
    for number, mask in groups_by_nodes(needed):
        if mask is None:
            return _sum(likelihood, y, mean, variance, reach, number)
        some = y[mask], mean[mask], variance[mask], reach[mask]
        value = value.masked_scatter(mask, _sum(likelihood.take(mask), *some, number))
    return value


def _reach(mean: Values, variance: Values) -> Values:
    """How far from the mean the nodes go.

    Far enough for q alone, and for q·|ℓ| when ℓ is nearly 0 at the mean and its mass lies towards
    f = 0, at most |μ| away.
    """
    return math.sqrt(2 * NATS) * torch.sqrt(variance) + mean.abs() * variance.clamp(max=1.0)


def _sum(
    likelihood: Likelihood,
    y: Values,
    mean: Values,
    variance: Values,
    reach: Values,
    number: int,
) -> Values:
    """Σ_k q(f_k)·ℓ(f_k), with slopes E_q[ℓ′] in the mean and ½E_q[ℓ″] in the variance."""
    with torch.no_grad():
        place = 2 * (torch.arange(number, dtype=mean.dtype, device=mean.device) + 0.5) / number - 1
        delta = place.reshape(-1, *([1] * mean.dim())) * reach
        weights = torch.softmax(-0.5 * delta**2 / variance, 0)
        value, first, second = likelihood.derivatives(y, mean + delta)
        expected = (weights * value).sum(0) + likelihood.log_base(y)
        mean_slope, variance_slope = (weights * first).sum(0), 0.5 * (weights * second).sum(0)
    attached = attach_slopes(expected, mean, variance, mean_slope, variance_slope)
    return attach_parameters(attached, likelihood, y, mean.detach() + delta, weights)

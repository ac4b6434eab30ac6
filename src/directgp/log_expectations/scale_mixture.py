"""log E_q[p] for a scale mixture of Gaussians, integrated over the scale.

p(y given f) = ∫ N(y; f, w(t)) π(t) dt gives E_q[p] = ∫ N(y; μ, v + w(t)) π(t) dt: one smooth
integral over t whatever the residual and v, where the integral over f may have two far peaks.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.likelihoods.capabilities import ScaleMixture
from directgp.log_expectations.estimate import Estimate, Points, Row
from directgp.log_expectations.nodes import NATS, blocks_by_nodes, trapezoid_step
from directgp.numerics.gaussian import log_density

_COARSE = 64
"""Points that narrow the range of t before the nodes are laid."""

_MORE_NATS = 5.0
"""The slope in v sums terms of either sign, which cancel more than those of `mixed_slopes`."""

_STRIP = 0.5 * math.pi
"""v + w(t) and the mixing density are tame while |Im t| < π/2."""


def mixture_estimate(
    likelihood: ScaleMixture, y: Row, mean: Row, variance: Row, num_nodes: int | None
) -> Estimate:
    """Value and slopes; with no number given, as many nodes as needed."""
    bounds = likelihood.mixture_bounds((y - mean) ** 2, variance, NATS + _MORE_NATS)
    bounds = _narrow(likelihood, y, mean, variance, bounds)
    if num_nodes is not None:
        return _sum(likelihood, y, mean, variance, _nodes(bounds, num_nodes))
    parts = []
    needed = (bounds[1] - bounds[0]) / trapezoid_step(
        likelihood.mixture_width(), _STRIP, _MORE_NATS
    )
    for number, index in blocks_by_nodes(needed):
        some = likelihood.take(index), y[index], mean[index], variance[index]
        parts.append((index, _sum(*some, _nodes(bounds[:, index], number))))
    return Estimate.gather(parts)


def _nodes(bounds: Float[Tensor, "2 n"], number: int) -> Points:
    """Equal steps from the lower to the upper bound, ends included."""
    share = torch.linspace(0, 1, number, dtype=bounds.dtype, device=bounds.device)
    return torch.lerp(bounds[0], bounds[1], share[:, None])


def _log_component(likelihood: ScaleMixture, y: Row, mean: Row, variance: Row, t: Points) -> Points:
    """log N(y; μ, v + w(t)) + log π(t)."""
    total = variance + likelihood.mixture_variance(t)
    return log_density(y, mean, total) + likelihood.log_mixing(t)


def _narrow(
    likelihood: ScaleMixture,
    y: Row,
    mean: Row,
    variance: Row,
    bounds: Float[Tensor, "2 n"],
) -> Float[Tensor, "2 n"]:
    """The part of the range where the integrand is within reach of its top."""
    value = _log_component(likelihood, y, mean, variance, _nodes(bounds, _COARSE))
    within = (value > value.amax(0) - NATS - _MORE_NATS).to(torch.int8)
    first, last = within.argmax(0) - 1, _COARSE - within.flip(0).argmax(0)
    step = (bounds[1] - bounds[0]) / (_COARSE - 1)
    return bounds[0] + torch.stack([first, last]).clamp(0, _COARSE - 1) * step


def _sum(likelihood: ScaleMixture, y: Row, mean: Row, variance: Row, t: Points) -> Estimate:
    """log Σ_k h·N(y; μ, v + w(t_k))·π(t_k), and its slopes."""
    log_mass = _log_component(likelihood, y, mean, variance, t)
    log_z = torch.logsumexp(log_mass, 0) + torch.log(t[1] - t[0])
    weights = torch.softmax(log_mass, 0)
    precision = 1 / (variance + likelihood.mixture_variance(t))
    slope = precision * (y - mean)
    mean_slope = (weights * slope).sum(0)
    variance_slope = 0.5 * (weights * (slope**2 - precision)).sum(0)
    term = None
    if likelihood.trainable:
        with torch.enable_grad():
            term = (weights * _log_component(likelihood, y, mean, variance, t)).sum(0)
    return Estimate(log_z, mean_slope, variance_slope, term)

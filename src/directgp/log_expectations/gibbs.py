"""The ELBO's term: E_q[log p(y given f)], minus the Gibbs loss."""

from functools import partial

import torch
from jaxtyping import Bool, Float, Num
from torch import Tensor

from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import ClosedFormGibbs, SymmetricLink
from directgp.log_expectations.adaptive.estimates import POINTS, adaptive_gibbs
from directgp.log_expectations.attach import evaluate
from directgp.log_expectations.base import of_one_shape
from directgp.log_expectations.blocks import row_blocks, rows_for
from directgp.log_expectations.common_nodes import common_nodes
from directgp.log_expectations.estimate import Estimate, Row, parameter_term
from directgp.log_expectations.fixed_nodes import fixed_nodes
from directgp.log_expectations.nodes import NATS, learn_nodes
from directgp.log_expectations.own_nodes import nodes_needed, sum_apart

NATS_OF_FLOAT32 = 21.0
"""Values err by some 1e-9 and slopes by less than float32 can show, 1e-7 of them."""


def gibbs_term(
    likelihood: Likelihood,
    y: Num[Tensor, "..."] | Bool[Tensor, "..."],
    mean: Float[Tensor, "..."],
    variance: Float[Tensor, "..."],
) -> Float[Tensor, "..."]:
    """E_q[log p(y given f)] for q(f) = N(mean, variance), by closed form or quadrature.

    Computed in float64, returned in the dtype of the mean; targets are not checked.
    """
    rows = of_one_shape(y, mean, variance)
    if isinstance(likelihood, ClosedFormGibbs):
        return likelihood.expected_log_prob(*rows)
    if not likelihood.log_concave:
        return evaluate(adaptive_gibbs, likelihood, *rows, POINTS)
    nats = NATS_OF_FLOAT32 if mean.dtype == torch.float32 else NATS
    return evaluate(partial(_integrate, nats=nats), likelihood, *rows)


def _integrate(likelihood: Likelihood, y: Row, mean: Row, variance: Row, nats: float) -> Estimate:
    """The trapezoid rule over q, with an error of e^−nats."""
    fixed = fixed_nodes.get()
    if not len(y) or (fixed is not None and fixed.recording):
        return sum_apart(likelihood, y, mean, variance, nats)
    rows = y, mean, torch.sqrt(variance)
    if isinstance(likelihood, SymmetricLink) and not likelihood.state_dict():
        estimate = _by_link(likelihood, *rows, nats)
    else:
        estimate = _together(likelihood, *rows, nats)
    if estimate is None:
        return sum_apart(likelihood, y, mean, variance, nats)
    if fixed is not None:
        learn_nodes(nodes_needed(likelihood.strip, mean, variance, nats)[1])
    return estimate


def _together(
    likelihood: Likelihood, y: Row, mean: Row, deviation: Row, nats: float
) -> Estimate | None:
    """With nodes that all examples have in common, unless they would be many."""
    nodes = common_nodes(mean, deviation, likelihood.strip, nats)
    if nodes is None:
        return None
    parts = []
    for rows, index in row_blocks(len(y), len(nodes.z), y.device):
        some, target = likelihood.take(index), y[rows]
        f = nodes.places(mean[rows], deviation[rows])
        value, slope, variance_slope = nodes.averages(some.derivatives(target, f))
        term = parameter_term(some, target, f, nodes.weights[:, None].expand(f.shape))
        parts.append(Estimate(value + some.log_base(target), slope, variance_slope, term))
    return Estimate.join(parts)


def _by_link(
    likelihood: SymmetricLink, y: Row, mean: Row, deviation: Row, nats: float
) -> Estimate | None:
    """The same in (2y−1)f, where every target is 1 and ℓ rises to 0."""
    sign = 2 * y - 1
    mirrored = sign * mean
    nodes = common_nodes(mirrored.clamp(min=0.0), deviation, likelihood.strip, nats)
    if nodes is None:
        return None
    size = rows_for(len(nodes.z), y.device)
    parts = zip(mirrored.split(size), deviation.split(size), strict=True)
    estimate = Estimate.join(
        Estimate(*nodes.averages(likelihood.link_derivatives(nodes.places(*part))))
        for part in parts
    )
    return Estimate(estimate.value, estimate.mean_slope * sign, estimate.variance_slope)

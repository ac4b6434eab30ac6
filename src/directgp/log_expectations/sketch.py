"""What a few nodes say about q̃: enough to weigh slopes and control variates before drawing."""

from typing import NamedTuple

import torch

from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import ClosedFormLogPredictive
from directgp.log_expectations.blocks import row_blocks
from directgp.log_expectations.estimate import Row, without_overflow
from directgp.log_expectations.mixed_slopes import balanced_weight, mixed_slopes
from directgp.log_expectations.nodes import hermite_nodes
from directgp.log_expectations.product_density import Peak, peak_of
from directgp.log_expectations.stein import Fit, fit, variates

_NODES = 5
_NODES_IF_WIDE = 9
_WIDE = 1.5
"""Peaks wider than this are far from Gaussian, since likelihoods bend within a unit or two of f."""


class Sketch(NamedTuple):
    """A rough picture of q̃ for a log-concave likelihood."""

    peak: Peak
    """The mode of q̃ and its width."""

    value: Row
    """log E_q[p], roughly; exactly where that is a formula."""

    weight: Row
    """The balance of score and pathwise form, at curvature −E_q̃[ℓ″]."""

    fits: tuple[Fit, Fit]
    """How the slopes in mean and variance follow the control variates."""


def draw_sketch(likelihood: Likelihood, y: Row, mean: Row, variance: Row) -> Sketch:
    """The sketch from Gauss–Hermite nodes fitted to the peak of q̃."""
    peak = peak_of(likelihood, y, mean, variance)
    number = _NODES_IF_WIDE if bool((peak.width > _WIDE).any()) else _NODES
    parts = [
        _judge(likelihood.take(index), y[part], mean[part], variance[part], peak[part], number)
        for part, index in row_blocks(len(y), number, y.device)
    ]
    log_z, weight, *coefficients = (torch.cat(column) for column in zip(*parts, strict=True))
    if isinstance(likelihood, ClosedFormLogPredictive):
        log_z = likelihood.log_predictive(y, mean, variance)
    else:
        log_z = log_z + likelihood.log_base(y)
    return Sketch(peak, log_z, weight, (Fit(*coefficients[:2]), Fit(*coefficients[2:])))


def _judge(
    likelihood: Likelihood, y: Row, mean: Row, variance: Row, peak: Peak, number: int
) -> tuple[Row, Row, Row, Row, Row, Row]:
    """log Z up to the part free of f, the weight, and the coefficients of the two fits."""
    delta, log_weight = hermite_nodes(peak, number)
    value, first, second = likelihood.derivatives(y, mean + delta)
    log_mass = torch.addcmul(value, delta * delta, -0.5 / variance)
    mass = log_mass.sub_(peak.height).add_(log_weight).exp_()
    total = mass.sum(0)
    mass /= total
    first, second = without_overflow(mass, first, second)
    weight = balanced_weight(-(mass * second).sum(0), variance)
    slopes = mixed_slopes(delta, first, second, variance, weight)
    mean_fit, variance_fit = fit(slopes, variates(delta, first, variance, peak), mass)
    log_z = peak.height + torch.log(total / torch.sqrt(2 * torch.pi * variance))
    return log_z, weight, *mean_fit, *variance_fit

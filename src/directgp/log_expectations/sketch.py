"""What nine nodes say about q̃: enough to weigh slopes and control variates before drawing."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import ClosedFormLogPredictive
from directgp.log_expectations.mixed_slopes import balanced_weight, mixed_slopes
from directgp.log_expectations.nodes import hermite_nodes
from directgp.log_expectations.product_density import Peak, peak_of
from directgp.log_expectations.stein import Fit, fit, variates

Row = Float[Tensor, " n"]

_NODES = 9


@dataclass(frozen=True)
class Sketch:
    """A rough picture of q̃ for a log-concave likelihood."""

    peak: Peak
    """The mode of q̃ and its width."""

    value: Row
    """log E_q[p], roughly; exactly where that is a formula."""

    weight: Row
    """The balance of score and pathwise form, at curvature −E_q̃[ℓ″]."""

    fits: list[Fit]
    """How the slopes in mean and variance follow the control variates."""


def draw_sketch(likelihood: Likelihood, y: Row, mean: Row, variance: Row) -> Sketch:
    """The sketch from Gauss–Hermite nodes fitted to the peak of q̃."""
    peak = peak_of(likelihood, y, mean, variance)
    delta, log_weight = hermite_nodes(peak, _NODES)
    value, first, second = likelihood.derivatives(y, mean + delta)
    mass = torch.exp(value - peak.height - 0.5 * delta**2 / variance + log_weight)
    total = mass.sum(0)
    mass /= total
    weight = balanced_weight(-(mass * second).sum(0), variance)
    slopes = mixed_slopes(delta, first, second, variance, weight)
    fits = fit(slopes, variates(delta, first, variance, peak), mass)
    if isinstance(likelihood, ClosedFormLogPredictive):
        log_z = likelihood.log_predictive(y, mean, variance)
    else:
        log_z = peak.height + torch.log(total / torch.sqrt(2 * torch.pi * variance))
        log_z = log_z + likelihood.log_base(y)
    return Sketch(peak, log_z, weight, fits)

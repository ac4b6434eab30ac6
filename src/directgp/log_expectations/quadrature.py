"""Quadrature on the product density: right to 1e-9 for certain and absurd targets alike."""

import math
from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.errors import UnsupportedError, require
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import Binary, ScaleMixture
from directgp.likelihoods.counts import AtLeastOne, CountLikelihood
from directgp.log_expectations.adaptive.estimates import POINTS, adaptive_log_expectation
from directgp.log_expectations.attach import evaluate
from directgp.log_expectations.base import Moment, Rule, Values
from directgp.log_expectations.estimate import Estimate, Points, Row, parameter_term
from directgp.log_expectations.mixed_slopes import balanced_weight
from directgp.log_expectations.nodes import (
    blocks_by_nodes,
    hermite_nodes,
    nats_for,
    trapezoid_nodes,
    trapezoid_step,
)
from directgp.log_expectations.product_density import Peak, find_support, peak_of
from directgp.log_expectations.scale_mixture import mixture_estimate

_CERTAIN_BELOW = 0.01
"""A count of 0 where less than this is expected is integrated through its complement."""

_HERMITE_NODES = 32


@final
@dataclass(frozen=True)
class Quadrature(Rule):
    """log E_q[p(y given f)] by nodes laid on q̃ ∝ q·p, summed in log space.

    The trapezoid rule between the points where the log density has fallen far below its peak
    converges exponentially. Nodes are held fixed in the gradient, which averages the slopes of
    `directgp.log_expectations.mixed_slopes` over them. A nearly certain target is integrated
    through its complement, log Z = log(1 − E_q[1 − p]), so that small losses and gradients keep
    their digits.

    Parameters
    ----------
    num_nodes : int or "auto"
        Nodes for each example; "auto" takes as many as 1e-10 needs, more where q̃ is wide.
    nodes : {"trapezoid", "gauss_hermite"}
        Equal steps over the effective support, or Gauss–Hermite nodes fitted to the peak.
    """

    num_nodes: int | Literal["auto"] = "auto"
    nodes: Literal["trapezoid", "gauss_hermite"] = "trapezoid"

    deterministic = True
    unbiased_gradient = True

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        number = self.num_nodes
        enough = number == "auto" or (isinstance(number, int) and number >= 2)
        require(enough, "num_nodes of Quadrature", "'auto' or at least 2", repr(number))
        kinds = ("trapezoid", "gauss_hermite")
        require(self.nodes in kinds, "nodes of Quadrature", f"one of {kinds}", repr(self.nodes))

    @override
    def _evaluate(
        self, likelihood: Likelihood, y: Values, mean: Values, variance: Values, moment: Moment
    ) -> Values:
        known = likelihood.log_concave or isinstance(likelihood, ScaleMixture)
        return evaluate(self.estimate, likelihood, y, mean, variance, 1 if known else POINTS)

    def estimate(self, likelihood: Likelihood, y: Row, mean: Row, variance: Row) -> Estimate:
        """Value and slopes for a flat batch in float64, outside of any graph."""
        if isinstance(likelihood, ScaleMixture):
            fixed = None if self.num_nodes == "auto" else self.num_nodes
            return mixture_estimate(likelihood, y, mean, variance, fixed)
        if not likelihood.log_concave:
            if self.num_nodes != "auto" or self.nodes != "trapezoid":
                raise UnsupportedError(
                    f"Quadrature with nodes of your choice needs a likelihood that is log-concave "
                    f"in f. Got {type(likelihood).__name__}. Use Quadrature()."
                )
            return adaptive_log_expectation(likelihood, y, mean, variance)
        if isinstance(likelihood, Binary):
            likely = (2 * y - 1) * mean > 0
            unlikely = torch.where(likely, likelihood.complement(y), y)
            estimate = self._integrate(likelihood, unlikely, mean, variance)
            return estimate.complement().otherwise(likely, estimate)
        if isinstance(likelihood, CountLikelihood):
            return self._integrate_counts(likelihood, y, mean, variance)
        return self._integrate(likelihood, y, mean, variance)

    def _integrate_counts(
        self, likelihood: CountLikelihood, y: Row, mean: Row, variance: Row
    ) -> Estimate:
        """`_integrate`, with nearly certain zeros as the complement of the event y ≥ 1."""
        certain = (y == 0) & (likelihood.conditional_mean(mean) < _CERTAIN_BELOW)
        zeros, others = torch.nonzero(certain).squeeze(-1), torch.nonzero(~certain).squeeze(-1)
        if len(zeros) == 0:
            return self._integrate(likelihood, y, mean, variance)
        some = y[zeros], mean[zeros], variance[zeros]
        at_least_one = self._integrate(AtLeastOne(likelihood.take(zeros)), *some)
        rest = y[others], mean[others], variance[others]
        estimate = self._integrate(likelihood.take(others), *rest)
        return Estimate.gather([(zeros, at_least_one.complement()), (others, estimate)])

    def _integrate(self, likelihood: Likelihood, y: Row, mean: Row, variance: Row) -> Estimate:
        """The integral of q·p for a log-concave p."""
        peak = peak_of(likelihood, y, mean, variance)
        if self.nodes == "gauss_hermite":
            number = _HERMITE_NODES if self.num_nodes == "auto" else self.num_nodes
            return sum_nodes(likelihood, y, mean, variance, peak, *hermite_nodes(peak, number))
        drop = nats_for(peak.width)
        ends = find_support(lambda f: likelihood.derivatives(y, f), mean, variance, peak, drop)
        if self.num_nodes != "auto":
            nodes = trapezoid_nodes(ends, peak, self.num_nodes)
            return sum_nodes(likelihood, y, mean, variance, peak, *nodes)
        parts = []
        needed = ends.sum(0) / trapezoid_step(peak.width, likelihood.strip)
        for number, index in blocks_by_nodes(needed):
            some = likelihood.take(index), y[index], mean[index], variance[index]
            top = peak[index]
            nodes = trapezoid_nodes(ends[:, index], top, number)
            parts.append((index, sum_nodes(*some, top, *nodes)))
        return Estimate.gather(parts)


def sum_nodes(
    likelihood: Likelihood,
    y: Row,
    mean: Row,
    variance: Row,
    peak: Peak,
    delta: Points,
    log_weight: Float[Tensor, "..."],
) -> Estimate:
    """log Σ_k weight_k·q(f_k)·p(y given f_k) over nodes f = μ + δ, and its slopes.

    The slopes average g and ½(g² − w²/v + (1−w)²ℓ″) of `mixed_slopes`, written out for speed.
    """
    f = mean + delta
    value, first, second = likelihood.derivatives(y, f)
    value = torch.addcmul(value, delta * delta, -0.5 / variance).sub_(peak.height)
    if log_weight.dim() == 2:
        value = value + log_weight
        log_weight = torch.zeros_like(mean)
    mass = value.exp_()
    total = mass.sum(0)
    log_z = peak.height + torch.log(total) + log_weight - 0.5 * torch.log(2 * math.pi * variance)
    weight = balanced_weight(peak.curvature, variance)
    rest = 1 - weight
    slope = torch.addcmul(rest * first, weight / variance, delta)
    bent = (mass * second).sum(0)
    moment = mass * slope
    mean_slope = moment.sum(0) / total
    square = (moment.mul_(slope).sum(0) + rest * rest * bent) / total
    variance_slope = 0.5 * (square - weight * weight / variance)
    term = parameter_term(likelihood, y, f, mass / total) if likelihood.trainable else None
    return Estimate(log_z + likelihood.log_base(y), mean_slope, variance_slope, term)

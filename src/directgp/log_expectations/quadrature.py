"""Quadrature on the product density: right to rounding for certain and absurd targets alike."""

import math
from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from typing_extensions import override

from directgp.errors import UnsupportedError, require
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import Binary, ScaleMixture
from directgp.likelihoods.counts import AtLeastOne, CountLikelihood
from directgp.log_expectations.attach import attach_parameters, attach_slopes
from directgp.log_expectations.base import Moment, Rule, Values
from directgp.log_expectations.mixed_slopes import balanced_weight, mixed_slopes
from directgp.log_expectations.nodes import (
    NATS,
    groups_by_nodes,
    hermite_nodes,
    trapezoid_nodes,
    trapezoid_step,
)
from directgp.log_expectations.product_density import Peak, find_support, peak_of
from directgp.log_expectations.scale_mixture import integrate_mixture
from directgp.numerics.special import log1mexp

_CERTAIN_BELOW = 0.01
"""A count of 0 where less than this is expected is integrated through its complement."""


@final
@dataclass(frozen=True)
class Quadrature(Rule):
    """log E_q[p(y given f)] by nodes laid on q̃ ∝ q·p, summed in log space.

    The trapezoid rule between the points where the log density has fallen far below its peak
    converges exponentially. Nodes are held fixed in the gradient, which averages `mixed_slopes`
    over them. A nearly certain target is integrated through its complement,
    log Z = log(1 − E_q[1 − p]), so that small losses and gradients keep their digits.

    Parameters
    ----------
    num_nodes : int or "auto"
        Nodes for each example; "auto" takes as many as full precision needs, more where q̃ is wide.
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
        if isinstance(likelihood, ScaleMixture):
            fixed = None if self.num_nodes == "auto" else self.num_nodes
            return integrate_mixture(likelihood, y, mean, variance, fixed)
        if not likelihood.log_concave:
            raise UnsupportedError(
                f"Quadrature needs a likelihood that is log-concave in f or a scale mixture of "
                f"Gaussians. Got {type(likelihood).__name__}. Use BiasedMonteCarlo."
            )
        if isinstance(likelihood, Binary):
            likely = (2 * y - 1) * mean > 0
            unlikely = torch.where(likely, likelihood.complement(y), y)
            value = self._integrate(likelihood, unlikely, mean, variance)
            return torch.where(likely, log1mexp(-value), value)
        if isinstance(likelihood, CountLikelihood):
            rate = likelihood.conditional_mean(mean.detach())
            certain = (y == 0) & (rate < _CERTAIN_BELOW)
            if bool(certain.any()):
                return self._integrate_counts(likelihood, y, mean, variance, certain)
        return self._integrate(likelihood, y, mean, variance)

    def _integrate_counts(
        self,
        likelihood: CountLikelihood,
        y: Values,
        mean: Values,
        variance: Values,
        certain: Bool[Tensor, "..."],
    ) -> Values:
        """`_integrate`, with the certain zeros as the complement of the event y ≥ 1."""
        zeros = AtLeastOne(likelihood.take(certain))
        at_least_one = self._integrate(zeros, y[certain], mean[certain], variance[certain])
        rest = ~certain
        others = self._integrate(likelihood.take(rest), y[rest], mean[rest], variance[rest])
        value = torch.zeros_like(mean).masked_scatter(certain, log1mexp(-at_least_one))
        return value.masked_scatter(rest, others)

    def _integrate(
        self, likelihood: Likelihood, y: Values, mean: Values, variance: Values
    ) -> Values:
        """The integral of q·p for a log-concave p."""
        with torch.no_grad():
            peak = peak_of(likelihood, y, mean, variance)
        if self.nodes == "gauss_hermite":
            nodes = hermite_nodes(peak, 32 if self.num_nodes == "auto" else self.num_nodes)
            return _sum(likelihood, y, mean, variance, peak, *nodes)
        with torch.no_grad():
            ends = find_support(
                lambda f: likelihood.derivatives(y, f), mean, variance, peak, NATS
            )
        if self.num_nodes != "auto":
            nodes = trapezoid_nodes(ends, peak, self.num_nodes)
            return _sum(likelihood, y, mean, variance, peak, *nodes)
        value = torch.zeros_like(mean)
        needed = ends.sum(0) / trapezoid_step(peak.width, likelihood.strip)
        for number, mask in groups_by_nodes(needed):
            if mask is None:
                nodes = trapezoid_nodes(ends, peak, number)
                return _sum(likelihood, y, mean, variance, peak, *nodes)
            some = peak.take(mask)
            nodes = trapezoid_nodes(ends[:, mask], some, number)
            part = _sum(
                likelihood.take(mask), y[mask], mean[mask], variance[mask], some, *nodes
            )
            value = value.masked_scatter(mask, part)
        return value


def _sum(
    likelihood: Likelihood,
    y: Values,
    mean: Values,
    variance: Values,
    peak: Peak,
    delta: Float[Tensor, "k ..."],
    log_weight: Float[Tensor, "..."],
) -> Values:
    """log Σ_k weight_k·q(f_k)·p(y given f_k) over nodes f = μ + δ, with its slopes attached."""
    with torch.no_grad():
        f = mean + delta
        value, first, second = likelihood.derivatives(y, f)
        log_mass = torch.addcmul(value - peak.height, delta * delta, -0.5 / variance)
        mass = torch.exp(log_mass + log_weight)
        total = mass.sum(0)
        mass /= total
        log_z = peak.height + torch.log(total) - 0.5 * torch.log(2 * math.pi * variance)
        log_z += likelihood.log_base(y)
        weight = balanced_weight(peak.curvature, variance)
        slopes = mixed_slopes(delta, first, second, variance, weight)
        mean_slope, variance_slope = ((mass * slope).sum(0) for slope in slopes)
    attached = attach_slopes(log_z, mean, variance, mean_slope, variance_slope)
    return attach_parameters(attached, likelihood, y, f, mass)

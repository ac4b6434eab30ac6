"""P(Y ≤ k) for counts.

Y ≤ k given f exactly when Λ, the arrival of event k + 1, exceeds the mean count at f. Write T for
the f at which the mean count is Λ. Then P(Y ≤ k) = P(T ≥ f) for independent T and f ~ q, and there
are two ways to integrate:

    E_q[P(Y ≤ k given f)]    or    E_T[Φ((T − μ)/√v)].

The function that is averaged is a step as sharp as the other density is narrow: over q for a
large k it is 1/√k wide. So each example is integrated over whichever density needs fewer nodes.
"""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.likelihoods.counts import CountLikelihood
from directgp.log_expectations.nodes import NATS, trapezoid_step
from directgp.log_expectations.product_density import Peak, find_support
from directgp.predictive.batches import integrate_in_batches
from directgp.predictive.count_search import LARGEST, smallest_count
from directgp.predictive.distribution import Distribution
from directgp.predictive.normal_nodes import normal_average, normal_nodes_needed

Values = Float[Tensor, "..."]

_REACH = math.sqrt(2 * NATS)
"""Standard deviations of q to either side, where its density has fallen by e^−32."""

_STRIP = 0.5 * math.pi
"""The density of log Λ is tame while |Im log Λ| < π/2."""


@final
@dataclass(frozen=True)
class CountDistribution(Distribution):
    """Counts 0, 1, 2, …."""

    likelihood: CountLikelihood
    mean: Values
    variance: Values

    @override
    def cdf(self, y: Values) -> Values:
        count = torch.floor(y).clamp(min=0.0)
        return torch.where(y < 0, 0.0, count_cdf(self.likelihood, count, self.mean, self.variance))

    @override
    def quantile(self, level: Values) -> Values:
        return smallest_count(self.cdf, level, self._guess(level))

    def _guess(self, level: Values) -> Values:
        """The mean count at that quantile of f, and as many of its deviations more."""
        z = torch.special.ndtri(level)
        f = self.mean + torch.sqrt(self.variance) * z
        deviation = torch.sqrt(self.likelihood.conditional_variance(f))
        guess = self.likelihood.conditional_mean(f) + z.clamp(min=0.0) * deviation
        return torch.floor(guess).clamp(max=LARGEST)


def count_cdf(likelihood: CountLikelihood, count: Values, mean: Values, variance: Values) -> Values:
    """P(Y ≤ count) for whole counts from 0 on."""
    count, mean, variance = torch.broadcast_tensors(count, mean, variance)
    ends, over_arrivals, over_q = _nodes_needed(likelihood, count, variance)
    narrow = over_q < over_arrivals
    value = torch.empty_like(over_q)
    for mask, integral, needed in (
        (narrow, _average_over_q, over_q),
        (~narrow, _average_over_arrivals, over_arrivals),
    ):
        examples = (column[mask] for column in (count, mean, variance, *ends))
        value[mask] = integrate_in_batches(integral, likelihood.take(mask), needed[mask], *examples)
    return value


def _nodes_needed(
    likelihood: CountLikelihood, count: Values, variance: Values
) -> tuple[Float[Tensor, "2 ..."], Values, Values]:
    """The support of log Λ around its mode, and the nodes needed over it and over q.

    ρ is the slope of the log mean count in f: a step in f is ρ times as wide in log Λ.
    """
    zero = torch.zeros_like(count)
    curvature = -likelihood.log_arrival(count, zero).second
    peak = Peak(delta=zero, height=zero, slope=zero, curvature=curvature, width=curvature.rsqrt())
    flat = torch.full_like(count, torch.inf)
    ends = find_support(lambda x: likelihood.log_arrival(count, x), zero, flat, peak, NATS)
    arrivals = count + 1
    rho = torch.exp(likelihood.log_rate_slope(likelihood.argmax(arrivals))) / arrivals
    narrowest = torch.rsqrt(curvature + 1 / (variance * rho**2))
    over_arrivals = ends.sum(0) / trapezoid_step(narrowest, _STRIP)
    over_q = normal_nodes_needed(variance, peak.width / rho, likelihood.strip, _REACH)
    return ends, over_arrivals, over_q


def _average_over_q(
    number: int,
    likelihood: CountLikelihood,
    count: Values,
    mean: Values,
    variance: Values,
    *ends: Values,
) -> Values:
    """E_q[P(Y ≤ count given f)]."""
    return normal_average(lambda f: likelihood.cdf(count, f), mean, variance, number, _REACH)


def _average_over_arrivals(
    number: int,
    likelihood: CountLikelihood,
    count: Values,
    mean: Values,
    variance: Values,
    left: Values,
    right: Values,
) -> Values:
    """E_T[Φ((T − μ)/√v)], with weights that sum to 1 by division: log Γ(k) would cost digits."""
    share = (torch.arange(number, dtype=mean.dtype, device=mean.device) + 0.5) / number
    delta = torch.lerp(-left, right, share.reshape(-1, 1))
    weight = torch.exp(likelihood.log_arrival(count, delta).value)
    crossing = likelihood.argmax((count + 1) * torch.exp(delta))
    below: Values = torch.special.ndtr((crossing - mean) * torch.rsqrt(variance))
    return (weight * below).sum(0) / weight.sum(0)

"""P(Y ≤ k) for counts.

Y ≤ k given f exactly when Λ, the arrival of event k + 1, exceeds the mean count at f. Write T for
the f at which the mean count is Λ. Then P(Y ≤ k) = P(T ≥ f) for independent T and f ~ q, and there
are two ways to integrate:

    E_q[P(Y ≤ k given f)]    or    E_T[Φ((T − μ)/√v)].

The function that is averaged is a step as sharp as the other density is narrow: over q for a
large k it is 1/√k wide. So each example is integrated over whichever density costs less.
"""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.likelihoods.counts import CountLikelihood
from directgp.log_expectations.product_density import Peak, find_support
from directgp.predictive.batches import integrate_in_batches
from directgp.predictive.count_search import LARGEST, smallest_count
from directgp.predictive.distribution import Distribution, forgiving
from directgp.predictive.normal_average import normal_average
from directgp.predictive.steps import DROP, log_gamma_step

Values = Float[Tensor, "..."]

_REACH = math.sqrt(2 * DROP)
"""Standard deviations of q to either side, where its density has fallen by e^−32."""

_COST_OVER_Q = 4.0
"""What a node over q costs, P(Y ≤ k given f) being a special function, in nodes over Λ."""


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
        wide = torch.broadcast_tensors(
            forgiving(level), self._guess(level), self.mean, self.variance
        )
        likelihood = self.likelihood.take(torch.ones_like(wide[0], dtype=torch.bool))
        flat_level, guess, mean, variance = (tensor.reshape(-1) for tensor in wide)

        def cdf(index: Tensor, count: Tensor) -> Tensor:
            return count_cdf(likelihood.take(index), count, mean[index], variance[index])

        return smallest_count(cdf, flat_level, guess).reshape(wide[0].shape)

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
    narrow = _COST_OVER_Q * over_q < over_arrivals
    value = torch.empty_like(over_q)
    for mask, integral, needed in (
        (narrow, _average_over_q, over_q),
        (~narrow, _average_over_arrivals, over_arrivals),
    ):
        examples = (column[mask] for column in (count, mean, variance, *ends))
        value[mask] = integrate_in_batches(integral, likelihood.take(mask), needed[mask], *examples)
    return value.clamp(0.0, 1.0)


def _nodes_needed(
    likelihood: CountLikelihood, count: Values, variance: Values
) -> tuple[Float[Tensor, "2 ..."], Values, Values]:
    """The support of log Λ around its mode, and the nodes needed over it and over q.

    A step in f is ρ times as wide in log Λ, ρ from `_log_slope`; over Λ its least value counts.
    """
    zero = torch.zeros_like(count)
    curvature = -likelihood.log_arrival(count, zero).second
    peak = Peak(delta=zero, height=zero, slope=zero, curvature=curvature, width=curvature.rsqrt())
    flat = torch.full_like(count, torch.inf)
    drop = torch.full_like(count, DROP)
    ends = find_support(lambda x: likelihood.log_arrival(count, x), zero, flat, peak, drop)
    slope = _log_slope(likelihood, count, ends[1])
    narrowest = torch.rsqrt(curvature + 1 / (variance * slope**2))
    over_arrivals = ends.sum(0) / log_gamma_step(narrowest)
    width = torch.rsqrt(1 / variance + curvature * _log_slope(likelihood, count, zero) ** 2)
    over_q = 2 * _REACH * torch.sqrt(variance) / log_gamma_step(width)
    return ends, over_arrivals, over_q


def _log_slope(likelihood: CountLikelihood, count: Values, delta: Values) -> Values:
    """ρ: the slope in f of the log mean count, where that is log(count + 1) + δ; falls with δ."""
    rate = ((count + 1) * torch.exp(delta)).clamp(max=LARGEST)
    return torch.exp(likelihood.log_rate_slope(likelihood.argmax(rate))) / rate


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

"""Compute the predictive distribution of counts."""

import math
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.integration.contract import has
from directgp.integration.nodes import step_for
from directgp.integration.peaks import Peak, find_support
from directgp.likelihoods.capabilities import Arrivals, ChernoffWindow
from directgp.numerics.roots import LARGEST, rounded_down, smallest_count
from directgp.predictive.base import Distribution
from directgp.predictive.continuous import average_cdf
from directgp.predictive.moments import (
    DROP,
    REACH,
    even_nodes,
    integrate_in_batches,
    log_gamma_step,
    midpoints,
    normal_average,
)
from directgp.shapes import Row, Values

# Y ≤ k given f exactly when Λ, the arrival of event k + 1, exceeds the mean count at f. Write T
# for the f at which the mean count is Λ. Then P(Y ≤ k) = P(T ≥ f) for independent T and f ~ q, and
# there are two ways to integrate:
#
# E_q[P(Y ≤ k given f)]    or    E_T[Φ((T − μ)/√v)].
#
# The function that is averaged is a step as sharp as the other density is narrow: over q for a
# large k it is 1/√k wide. So each example is integrated over whichever density costs less.

_COST_OVER_Q = 4.0
"""Cost of a node over q, where P(Y ≤ k given f) is a special function, in nodes over Λ."""


@final
class CountDistribution(Distribution):
    """Counts 0, 1, 2, …."""

    @override
    def cdf(self, y: Values) -> Values:
        count = torch.floor(y).clamp(min=0.0)
        return torch.where(y < 0, 0.0, count_cdf(self.likelihood, count, self.mean, self.variance))

    @override
    def quantile(self, level: Values) -> Values:
        wide = torch.broadcast_tensors(
            rounded_down(level), self._guess(level), self.mean, self.variance
        )
        likelihood = self.likelihood.take(torch.ones_like(wide[0], dtype=torch.bool))
        flat_level, guess, mean, variance = (tensor.reshape(-1) for tensor in wide)

        def cdf(index: Tensor, count: Tensor) -> Tensor:
            return count_cdf(likelihood.take(index), count, mean[index], variance[index])

        return smallest_count(cdf, flat_level, guess).reshape(wide[0].shape)

    def _guess(self, level: Values) -> Values:
        """Return the mean count at that quantile of f, plus its deviation times the positive z."""
        z = torch.special.ndtri(level)
        f = self.mean + torch.sqrt(self.variance) * z
        deviation = torch.sqrt(self.likelihood.conditional_variance(f))
        guess = self.likelihood.conditional_mean(f) + z.clamp(min=0.0) * deviation
        return torch.floor(guess).clamp(max=LARGEST)


def count_cdf(likelihood: Any, count: Values, mean: Values, variance: Values) -> Values:
    """Compute P(Y ≤ count) for whole counts ≥ 0."""
    count, mean, variance = torch.broadcast_tensors(count, mean, variance)
    if has(likelihood, ChernoffWindow):
        return _average_over_window(likelihood, count, mean, variance)
    if not has(likelihood, Arrivals):
        return average_cdf(likelihood, count, mean, variance)
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
    likelihood: Any, count: Values, variance: Values
) -> tuple[Float[Tensor, "2 ..."], Values, Values]:
    """Return the support of log Λ around its mode, and the nodes needed over it and over q.

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
    over_q = 2 * REACH * torch.sqrt(variance) / log_gamma_step(width)
    return ends, over_arrivals, over_q


def _log_slope(likelihood: Any, count: Values, delta: Values) -> Values:
    """Return ρ, the slope in f of the log mean count where that is log(count + 1) + δ."""
    rate = ((count + 1) * torch.exp(delta)).clamp(max=LARGEST)
    return torch.exp(likelihood.log_rate_slope(likelihood.argmax(rate))) / rate


def _average_over_q(number: int, likelihood: Any, *examples: Row) -> Row:
    """Compute E_q[P(Y ≤ count given f)]."""
    count, mean, variance, *_ = examples
    z = even_nodes(number, mean, REACH)
    return normal_average(lambda f: likelihood.cdf(count, f), mean, variance, z, 1.0)


def _average_over_arrivals(number: int, likelihood: Any, *examples: Row) -> Row:
    """Compute E_T[Φ((T − μ)/√v)]; weights are normalised by division, as log Γ(k) costs digits."""
    count, mean, variance, left, right = examples
    delta = torch.lerp(-left, right, midpoints(number, mean))
    weight = torch.exp(likelihood.log_arrival(count, delta).value)
    crossing = likelihood.argmax((count + 1) * torch.exp(delta))
    below: Values = torch.special.ndtr((crossing - mean) * torch.rsqrt(variance))
    return (weight * below).sum(0) / weight.sum(0)


# Without arrivals: P(Y ≤ k given f) falls from 1 to 0 where k is a plausible count. In an
# exponential family, and for y = k + ½, both P(Y > k given f) left of the peak of p(y given f) and
# P(Y ≤ k given f) right of it are at most p(y given f) over its maximum (Chernoff's bound). So the
# difference from a step of the same place and width, Φ((c − f)/w), whose average over q is a
# formula, is summed over the f where it is not below e^−32, as far as q reaches.


def _average_over_window(likelihood: Any, count: Values, mean: Values, variance: Values) -> Values:
    """Compute E_q[P(Y ≤ count given f)] for a log-concave exponential family."""
    y = count + 0.5
    centre = likelihood.window_centre(count)
    # NaN beyond the largest count.
    beyond = torch.isnan(centre)
    centre = torch.where(beyond, likelihood.window_centre(0 * y), centre)
    y = torch.where(beyond, 0.5, y)
    here = likelihood.derivatives(y, centre)
    width = torch.rsqrt(-here.second)
    zero = torch.zeros_like(y)
    drop = torch.full_like(y, DROP)
    peak = Peak(zero, here.value, zero, -here.second, width)
    flat = torch.full_like(y, torch.inf)
    ends = find_support(lambda f: likelihood.derivatives(y, f), centre, flat, peak, drop)
    ends = torch.maximum(ends, REACH * width)
    deviation = torch.sqrt(variance)
    reach = REACH * deviation
    left = torch.maximum(centre - ends[0], mean - reach)
    length = (torch.minimum(centre + ends[1], mean + reach) - left).clamp(min=0.0)
    narrowest = torch.rsqrt(1 / variance - here.second)
    strip = likelihood.integration.strip_right_of(likelihood, left)
    step = torch.minimum(log_gamma_step(narrowest), step_for(narrowest, strip, DROP))
    columns = count, mean, deviation, centre, width, left, length
    rest = integrate_in_batches(_window_sum, likelihood, length / step, *columns)
    smooth: Values = torch.special.ndtr((centre - mean) * torch.rsqrt(width**2 + variance))
    return torch.where(beyond, 1.0, (smooth + rest).clamp(0.0, 1.0))


def _window_sum(number: int, likelihood: Any, *examples: Row) -> Row:
    """Compute E_q[P(Y ≤ count given f) − Φ((c − f)/w)] over the window."""
    count, mean, deviation, centre, width, left, length = examples
    f = left + length * midpoints(number, mean)
    z = (f - mean) / deviation
    density = torch.exp(-0.5 * z * z) / (math.sqrt(2 * math.pi) * deviation)
    excess = likelihood.cdf(count, f) - torch.special.ndtr((centre - f) / width)
    total: Row = (density * excess).sum(0) * length / number
    return total

"""Compute P(Y ≤ k) and quantiles for counts."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from typing_extensions import override

from directgp.likelihoods.counts import CountLikelihood
from directgp.log_expectations.quadrature import Peak, find_support
from directgp.predictive.distributions import Distribution, rounded_down
from directgp.predictive.moments import DROP, integrate_in_batches, log_gamma_step, normal_average
from directgp.shapes import Row, Values

CountCdf = Callable[[Int[Tensor, " r"], Float[Tensor, " r"]], Float[Tensor, " r"]]
"""Indices of examples and a count for each → P(Y ≤ count)."""

LARGEST = 1e300
"""Counts from here on count as infinite."""

_GROWTH = 4.0
"""Factor by which the upper end of a bracket moves out."""

_HALVE_EVERY = 4
"""One of this many steps halves the bracket instead of interpolating."""

_TINY = 1e-300
"""Smallest absolute offset of a count below the level."""


@dataclass
class Bracket:
    """Whole numbers below and at or above the answer, with probit(cdf) − probit(level) at both."""

    lower: Row
    upper: Row
    below: Row
    above: Row
    reached: Bool[Tensor, " n"]
    """Whether the last point tried became the upper end."""

    def open(self) -> Int[Tensor, " r"]:
        """Return the examples whose ends are not yet neighbours."""
        return torch.nonzero(self.upper - self.lower > _neighbours(self.upper)).squeeze(-1)

    def inner(self, index: Int[Tensor, " r"], halve: bool) -> Float[Tensor, " r"]:
        """Return whole numbers inside, on the scale log(k + 2), in which probits are nearly linear.

        By interpolation where both offsets are finite, else in the middle.
        """
        lower, upper = self.lower[index], self.upper[index]
        share = self.below[index] / (self.below[index] - self.above[index])
        share = torch.where(torch.isfinite(share) & (not halve), share, 0.5)
        place = torch.exp(torch.lerp(torch.log(lower + 2), torch.log(upper + 2), share)) - 2
        gap = (0.25 * _neighbours(upper)).clamp(min=1.0)
        return torch.minimum(torch.maximum(torch.floor(place), lower + gap), upper - gap)

    def split(
        self, index: Int[Tensor, " r"], place: Float[Tensor, " r"], offset: Float[Tensor, " r"]
    ) -> None:
        """Keep the part that contains the answer, given the offset at a point inside.

        The offset of an end that stays for the second time is halved, so that interpolation moves
        it (the Illinois rule).
        """
        reached = offset >= 0
        again = torch.where(reached == self.reached[index], 0.5, 1.0)
        self.lower[index] = torch.where(reached, self.lower[index], place)
        self.upper[index] = torch.where(reached, place, self.upper[index])
        self.below[index] = torch.where(reached, again * self.below[index], offset)
        self.above[index] = torch.where(reached, offset, again * self.above[index])
        self.reached[index] = reached


def smallest_count(cdf: CountCdf, level: Row, guess: Row) -> Row:
    """Find the smallest k = 0, 1, 2, … with cdf(k) ≥ level, starting from a guess."""
    target = torch.special.ndtri(level)

    def offset(index: Tensor, k: Tensor) -> Tensor:
        value = cdf(index, k)
        far = torch.special.ndtri(value) - target[index]
        short = value < level[index]
        return torch.where(short, far.clamp(max=-_TINY), far.clamp(min=0.0))

    bracket = _enclose(offset, guess)
    for step in count():
        index = bracket.open()
        if len(index) == 0:
            break
        place = bracket.inner(index, halve=step % _HALVE_EVERY == _HALVE_EVERY - 1)
        bracket.split(index, place, offset(index, place))
    return torch.where(bracket.upper < LARGEST, bracket.upper, torch.inf)


def _enclose(offset: CountCdf, guess: Row) -> Bracket:
    """Return a bracket of the answer; its upper end grows from the guess until it is reached."""
    lower, upper = torch.full_like(guess, -1.0), guess.clone()
    below = torch.full_like(guess, -torch.inf)
    above = offset(torch.arange(len(guess), device=guess.device), guess)
    while len(short := torch.nonzero((above < 0) & (upper < LARGEST)).squeeze(-1)):
        lower[short], below[short] = upper[short], above[short]
        upper[short] = (_GROWTH * (upper[short] + 1)).clamp(max=LARGEST)
        above[short] = offset(short, upper[short])
    reached = above >= 0
    return Bracket(torch.where(reached, lower, upper), upper, below, above, reached)


def _neighbours(k: Values) -> Values:
    """Return the distance of neighbours: 1, or above 2⁵⁰ four times the spacing of float64."""
    return (4 * torch.finfo(k.dtype).eps * k).clamp(min=1.0)


# Y ≤ k given f exactly when Λ, the arrival of event k + 1, exceeds the mean count at f. Write T
# for the f at which the mean count is Λ. Then P(Y ≤ k) = P(T ≥ f) for independent T and f ~ q, and
# there are two ways to integrate:
#
# E_q[P(Y ≤ k given f)]    or    E_T[Φ((T − μ)/√v)].
#
# The function that is averaged is a step as sharp as the other density is narrow: over q for a
# large k it is 1/√k wide. So each example is integrated over whichever density costs less.


_REACH = math.sqrt(2 * DROP)
"""Standard deviations of q on either side, where its density has fallen by e^−32."""

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


def count_cdf(likelihood: CountLikelihood, count: Values, mean: Values, variance: Values) -> Values:
    """Compute P(Y ≤ count) for whole counts ≥ 0."""
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
    over_q = 2 * _REACH * torch.sqrt(variance) / log_gamma_step(width)
    return ends, over_arrivals, over_q


def _log_slope(likelihood: CountLikelihood, count: Values, delta: Values) -> Values:
    """Return ρ, the slope in f of the log mean count where that is log(count + 1) + δ."""
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
    """Compute E_q[P(Y ≤ count given f)]."""
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
    """Compute E_T[Φ((T − μ)/√v)]; weights are normalised by division, as log Γ(k) costs digits."""
    share = (torch.arange(number, dtype=mean.dtype, device=mean.device) + 0.5) / number
    delta = torch.lerp(-left, right, share.reshape(-1, 1))
    weight = torch.exp(likelihood.log_arrival(count, delta).value)
    crossing = likelihood.argmax((count + 1) * torch.exp(delta))
    below: Values = torch.special.ndtr((crossing - mean) * torch.rsqrt(variance))
    return (weight * below).sum(0) / weight.sum(0)

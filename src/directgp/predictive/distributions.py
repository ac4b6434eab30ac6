"""Define the predictive distributions of labels, counts and continuous targets."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.errors import NumericalError, UnsupportedError
from directgp.integration.adaptive import GAUSS_LEGENDRE, POINTS, Panels, StandardExamples, refined
from directgp.integration.contract import ExtraZeros, has
from directgp.integration.evaluate import row_blocks
from directgp.integration.nodes import step_for
from directgp.integration.peaks import Peak, find_support
from directgp.likelihoods.base import Likelihood, can_draw
from directgp.likelihoods.capabilities import (
    Arrivals,
    ChernoffWindow,
    ClosedFormQuantiles,
    ConditionalCDF,
    MappedCDF,
    ScaleMixture,
    has_two_labels,
)
from directgp.likelihoods.numeric import NUM_DRAWS, checked_cdf, checked_draws
from directgp.log_expectations.quadrature import Quadrature
from directgp.numerics.roots import (
    LARGEST,
    MAX_STEPS,
    OUTSIDE,
    TINY,
    TOLERANCE,
    increasing_root,
    rounded_down,
    smallest_count,
)
from directgp.numerics.special import log_ndtr
from directgp.predictive.moments import (
    DROP,
    integrate_in_batches,
    label_probability,
    log_gamma_step,
    midpoints,
    normal_average,
)
from directgp.shapes import Row, Values


@dataclass(frozen=True)
class Distribution(ABC):
    """The distribution of y for q(f) = N(mean, variance), in float64.

    `distribution_of` chooses the class by the capabilities of the likelihood.
    """

    likelihood: Any
    mean: Values
    variance: Values

    @abstractmethod
    def cdf(self, y: Values) -> Values:
        """Return P(Y ≤ y)."""

    @abstractmethod
    def quantile(self, level: Values) -> Values:
        """Return the smallest y with P(Y ≤ y) ≥ level."""


def distribution_of(likelihood: Likelihood, mean: Values, variance: Values) -> Distribution:
    """Return the distribution of y by the likelihood's capabilities, without gradients."""
    likelihood = likelihood.frozen()
    if has(likelihood, ClosedFormQuantiles):
        return FormulaDistribution(likelihood, mean, variance)
    if has_two_labels(likelihood):
        return LabelDistribution(likelihood, mean, variance)
    if has(likelihood, ExtraZeros):
        return InflatedDistribution(likelihood, mean, variance)
    if has(likelihood, ScaleMixture):
        return MixtureDistribution(likelihood, mean, variance)
    if has(likelihood, MappedCDF):
        return StepDistribution(likelihood, mean, variance)
    if has(likelihood, ConditionalCDF) and likelihood.num_latent == 1:
        make = CountDistribution if likelihood.task == "count" else AveragedDistribution
        return make(likelihood, mean, variance)
    if can_draw(likelihood):
        return SampledDistribution(likelihood, mean, variance)
    raise UnsupportedError(
        f"Quantiles, intervals and CRPS need cdf(y, f) or sample(f, random) of the likelihood. "
        f"{type(likelihood).__name__} has neither. Give it one of them."
    )


@final
class FormulaDistribution(Distribution):
    """Distribution function and quantiles by the likelihood's own formulas."""

    @override
    def cdf(self, y: Values) -> Values:
        value: Values = self.likelihood.predictive_cdf(y, self.mean, self.variance)
        return value

    @override
    def quantile(self, level: Values) -> Values:
        value: Values = self.likelihood.predictive_quantile(level, self.mean, self.variance)
        return value


@final
class LabelDistribution(Distribution):
    """Two labels: the distribution function steps at 0 and at 1."""

    @override
    def cdf(self, y: Values) -> Values:
        return torch.where(y < 1, torch.where(y < 0, 0.0, self._zero()), 1.0)

    @override
    def quantile(self, level: Values) -> Values:
        return (self._zero() < rounded_down(level)).double()

    def _zero(self) -> Values:
        return label_probability(self.likelihood, 0.0, self.mean, self.variance)


# Given the component t, Y ~ N(μ, v + w(t)). By symmetry everything follows from the tail beyond a
# distance x ≥ 0 from μ, P(Y > μ + x) = ∫ π(t) Φ(−x/√(v + w(t))) dt, which is smooth in t
# while |Im t| < π/2, where v + w(t) stays in the right half-plane. It is computed as its log.


_ROUNDED = 1e-9
"""Newton steps below it that do not shrink are rounding errors of the log tail."""

_FARTHEST = 300.0
"""asinh(x/s) from which on a quantile counts as infinite: x is 1e130 times the scale s of y."""


@final
class MixtureDistribution(Distribution):
    """A scale mixture of Gaussians: symmetric about μ, with tails that may be heavy."""

    @override
    def cdf(self, y: Values) -> Values:
        distance = (y - self.mean).abs().clamp(max=1e150)
        tail = torch.exp(log_tail(self.likelihood, distance, self.variance))
        return torch.where(y < self.mean, tail, 1 - tail)

    @override
    def quantile(self, level: Values) -> Values:
        smaller = torch.minimum(level, 1 - level)
        distance = tail_quantile(self.likelihood, torch.log(smaller), self.variance)
        return self.mean + torch.sign(level - 0.5) * distance


def log_tail(likelihood: Any, distance: Values, variance: Values) -> Values:
    """Compute log P(Y > μ + distance) for distances ≥ 0."""
    lower, upper = likelihood.tail_bounds(distance, DROP)
    step = log_gamma_step(likelihood.mixture_width())
    needed = ((upper - lower) / step).expand(np.broadcast_shapes(lower.shape, variance.shape))
    return integrate_in_batches(_log_sum, likelihood, needed, distance, variance, lower, upper)


def _log_sum(
    number: int, likelihood: Any, distance: Values, variance: Values, lower: Values, upper: Values
) -> Values:
    """Compute log Σ h·π(t)·Φ(−x/√(v + w(t))) over equal steps h in t."""
    t = torch.lerp(lower, upper, midpoints(number, lower))
    z = -distance * torch.rsqrt(variance + likelihood.mixture_variance(t))
    log_step = torch.log((upper - lower) / number)
    return torch.logsumexp(likelihood.log_mixing(t) + log_ndtr(z), 0) + log_step


def tail_quantile(likelihood: Any, log_level: Values, variance: Values) -> Values:
    """Find the distance x ≥ 0 with log P(Y > μ + x) = log_level ≤ log ½.

    Newton's method inside a bracket, in a = asinh(x/s) with s² = v + w(0): there the log tail is
    smooth at the centre and a straight line where it is a power of x.
    """
    log_level, variance = torch.broadcast_tensors(log_level, variance)
    scale = torch.sqrt(variance + likelihood.mixture_variance(torch.zeros_like(variance)))
    a = torch.asinh(-torch.special.ndtri(torch.exp(log_level))).clamp(0.0, _FARTHEST)
    lower, upper = torch.zeros_like(a), torch.full_like(a, _FARTHEST)
    before = torch.full_like(a, torch.inf)
    for _ in range(MAX_STEPS):
        distance = scale * torch.sinh(a)
        value = log_tail(likelihood, distance, variance)
        # The derivative of the log tail in a is −p(x)/tail·√(s² + x²).
        log_density = Quadrature()(likelihood, distance, torch.zeros_like(a), variance)
        slope = -torch.exp(log_density - value) * scale * torch.cosh(a)
        excess = value - log_level
        lower = torch.where(excess > 0, a, lower)
        upper = torch.where(excess < 0, a, upper)
        step = -excess / slope
        rounding = (step.abs() < _ROUNDED) & (step.abs() > 0.5 * before)
        moving = (step.abs() > TOLERANCE) & (upper - lower > TOLERANCE) & ~rounding
        before = step.abs()
        proposal = a + step
        inside = (proposal >= lower) & (proposal <= upper)
        a = torch.where(inside, proposal, 0.5 * (lower + upper))
        if not bool(moving.any()):
            return torch.where(a < _FARTHEST - 1, scale * torch.sinh(a), torch.inf)
    raise NumericalError(
        f"A quantile was not found in {MAX_STEPS} steps for {int(moving.sum())} examples. "
        f"Choose levels further from 0 and 1."
    )


# Continuous families with P(Y ≤ y given f) =: F(f), a step between 0 and 1 of width w around the
# peak f₀ of p(y given f). In z = (f − μ)/√v the average of F over q has two scales, 1 and w/√v;
# equal steps in u, z = z₀ + (w/√v)·sinh(u), resolve both.

_STEP = 0.6
"""Largest step in z within six deviations: e^{−z²/2} needs 0.75 for an error of e^−32."""

_BULK = 6.0
_FARTHEST_ON_LINE = 740.0
"""|x| where e^x ends: quantiles beyond are ends of the support."""


@final
class StepDistribution(Distribution):
    """A continuous family whose distribution function is known given f."""

    @override
    def cdf(self, y: Values) -> Values:
        y, mean, variance = torch.broadcast_tensors(y, self.mean, self.variance)
        inside = torch.isfinite(self.likelihood.to_line(y))
        value: Values = self.likelihood.cdf(y, mean)
        some = (column[inside] for column in (y, mean, variance))
        value[inside] = _average_step(self.likelihood.take(inside), *some)
        return value

    @override
    def quantile(self, level: Values) -> Values:
        level, mean, variance = torch.broadcast_tensors(level, self.mean, self.variance)
        likelihood = self.likelihood.take(torch.ones_like(level, dtype=torch.bool))
        target = torch.special.ndtri(level).reshape(-1)
        mean, variance = mean.reshape(-1), variance.reshape(-1)
        ends = likelihood.from_line(torch.tensor([0.0, 1.0], dtype=mean.dtype, device=mean.device))
        side = 1.0 if bool(ends[1] > ends[0]) else -1.0

        def offset(index: Tensor, x: Tensor) -> Tensor:
            some = likelihood.take(index)
            below = StepDistribution(some, mean[index], variance[index]).cdf(some.from_line(x))
            probit = torch.special.ndtri(below).clamp(-OUTSIDE, OUTSIDE)
            gap: Tensor = side * (probit - target[index])
            return gap

        f = mean + side * torch.sqrt(variance) * target
        start = likelihood.to_line(likelihood.conditional_mean(f)).nan_to_num(0.0, 0.0, 0.0)
        x = increasing_root(offset, start, 1 + torch.sqrt(variance), _FARTHEST_ON_LINE)
        found: Values = likelihood.from_line(x)
        return found.reshape(level.shape)


@final
class AveragedDistribution(Distribution):
    """Any other family with a `cdf`: its average over q, and the inverse of that."""

    @override
    def cdf(self, y: Values) -> Values:
        y, mean, variance = torch.broadcast_tensors(y, self.mean, self.variance)
        return average_cdf(self.likelihood, y, mean, variance)

    @override
    def quantile(self, level: Values) -> Values:
        level, mean, variance = torch.broadcast_tensors(level, self.mean, self.variance)
        likelihood = self.likelihood.take(level.shape)
        target: Row = torch.special.ndtri(level).reshape(-1)
        mean, variance = mean.reshape(-1), variance.reshape(-1)

        def offset(index: Tensor, x: Tensor) -> Tensor:
            q = mean[index], variance[index]
            below: Row = torch.special.ndtri(average_cdf(likelihood.take(index), torch.sinh(x), *q))
            return below.clamp(-OUTSIDE, OUTSIDE) - target[index]

        start = torch.asinh(mean) if likelihood.additive else torch.zeros_like(mean)
        x = increasing_root(offset, start, torch.ones_like(mean), _FARTHEST_ON_LINE - _BULK)
        return torch.sinh(x).reshape(level.shape)


_PANELS = (-9.0, -4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0, 9.0)
"""Ends of the first panels, in standard deviations of q: beyond the last lies 1e-19 of it."""


def average_cdf(likelihood: Any, y: Values, mean: Values, variance: Values) -> Values:
    """Compute E_q[P(Y ≤ y given f)] by adaptive quadrature, for a `cdf` of any form in f."""
    flat = [each.reshape(-1) for each in (y, mean, variance)]
    every = StandardExamples(likelihood.take(y.shape), *flat)
    parts = [
        _average_on_panels(every.take(index))
        for _, index in row_blocks(len(flat[0]), POINTS, y.device)
    ]
    return torch.cat(parts).reshape(y.shape)


def _average_on_panels(examples: StandardExamples) -> Row:
    n = len(examples.y)
    ends = examples.y.new_tensor(_PANELS)[:, None].expand(-1, n)

    def weighed(owner: Tensor, z: Tensor) -> Tensor:
        some = examples.take(owner)
        return torch.exp(-0.5 * z * z) * checked_cdf(some.likelihood, some.y, some.f(z))

    owner = torch.arange(n, device=ends.device).expand(len(_PANELS) - 1, -1)
    first = Panels(*(each.reshape(-1) for each in (owner, ends[:-1], ends[1:])))
    panels = refined(weighed, first, n)
    z, widths = panels.points(*GAUSS_LEGENDRE)
    total = examples.sum(panels.owner, widths * weighed(panels.owner, z))
    return (total / math.sqrt(2 * math.pi)).clamp(0.0, 1.0)


@final
class SampledDistribution(Distribution):
    """A family that can only draw y: the distribution of many draws, of a fixed seed.

    Every example has the same random numbers, so that its numbers do not depend on the others.
    """

    @override
    def cdf(self, y: Values) -> Values:
        def at(drawn: Row, y: Values) -> Values:
            return torch.searchsorted(drawn, y, right=True).to(drawn) / len(drawn)

        return self._each(at, y)

    @override
    def quantile(self, level: Values) -> Values:
        def at(drawn: Row, level: Values) -> Values:
            place = torch.ceil(rounded_down(level) * len(drawn)).long() - 1
            return drawn[place.clamp(0, len(drawn) - 1)]

        return self._each(at, level)

    def crps(self, y: Values) -> Values:
        """Return E|Y − y| − ½E|Y − Y′| over the draws."""

        def at(drawn: Row, y: Values) -> Values:
            number = len(drawn)
            place = torch.arange(1 - number, number, 2, dtype=drawn.dtype, device=drawn.device)
            return (drawn[:, None] - y).abs().mean(0) - place @ drawn / number**2

        return self._each(at, y)

    def _rows(self) -> Values:
        return self.mean if self.likelihood.num_latent == 1 else self.mean[..., 0, :]

    def _each(self, compute: Callable[[Row, Values], Values], given: Values) -> Values:
        """Return a function of the sorted draws of each example and the numbers given for it."""
        rows, number = self._rows(), self.likelihood.num_latent
        wide = torch.broadcast_shapes(given.shape, rows.shape)
        columns = given.expand(wide).reshape(-1, rows.numel())
        likelihood = self.likelihood.take(rows.shape)
        flat = [
            each.reshape(1, -1) if number == 1 else each.movedim(-2, 0).flatten(1)
            for each in (self.mean, self.variance)
        ]
        found = []
        for i in range(rows.numel()):
            mean, variance = (each[:, i : i + 1] for each in flat)
            random = np.random.RandomState(_SEED)
            # One draw of f from each of as many parts of q of equal probability.
            place = np.stack([random.permutation(NUM_DRAWS) for _ in range(number)]) + 0.5
            z = torch.special.ndtri(torch.as_tensor(place / NUM_DRAWS).to(mean))
            f = mean + variance.sqrt() * z
            some = likelihood.take(torch.tensor([i], device=mean.device))
            drawn = checked_draws(some, f[0] if number == 1 else f, random)
            sorted_draws = torch.as_tensor(np.sort(drawn)).to(mean)
            found.append(compute(sorted_draws, columns[:, i].contiguous()))
        return torch.stack(found, -1).reshape(wide)


_SEED = 0
"""Seed of the draws of y."""


def _average_step(likelihood: Any, y: Row, mean: Row, variance: Row) -> Row:
    """Compute E_q[P(Y ≤ y given f)] for y inside the support."""
    deviation, peak = torch.sqrt(variance), likelihood.argmax(y)
    width = torch.rsqrt(-likelihood.derivatives(y, peak).second).clamp(max=1.0) / deviation
    origin = ((peak - mean) / deviation).clamp(-_REACH, _REACH)
    step = _STEP / torch.sqrt(width**2 + (origin.abs() + _BULK) ** 2)
    lower, upper = (torch.asinh((end - origin) / width) for end in (-_REACH, _REACH))
    columns = y, mean, deviation, origin, width, lower, upper
    return integrate_in_batches(_step_sum, likelihood, (upper - lower) / step, *columns)


def _step_sum(number: int, likelihood: Any, *columns: Row) -> Row:
    """Sum over equal steps in u; weights are normalised by division."""
    y, mean, deviation, origin, width, lower, upper = columns
    u = torch.lerp(lower, upper, midpoints(number, mean))
    z = torch.addcmul(origin, width, torch.sinh(u))
    weight = torch.exp(-0.5 * z * z) * torch.cosh(u)
    total: Row = (weight * likelihood.cdf(y, mean + deviation * z)).sum(0)
    return total / weight.sum(0)


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


@final
class InflatedDistribution(Distribution):
    """Counts with extra zeros: P(Y ≤ y) = π + (1−π) P₀(Y ≤ y) for y ≥ 0."""

    @override
    def cdf(self, y: Values) -> Values:
        share: Values = self.likelihood.zero_odds / (1 + self.likelihood.zero_odds)
        return torch.where(y < 0, 0.0, share + (1 - share) * self._base().cdf(y))

    @override
    def quantile(self, level: Values) -> Values:
        odds = self.likelihood.zero_odds
        # (level − π)/(1 − π), of which any level up to P₀(Y ≤ 0) has the quantile 0.
        rest = level - (1 - level) * odds
        found = self._base().quantile(rest.clamp(min=TINY))
        return torch.where(rest > 0, found, 0.0)

    def _base(self) -> Distribution:
        return distribution_of(self.likelihood.base, self.mean, self.variance)


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
    over_q = 2 * _REACH * torch.sqrt(variance) / log_gamma_step(width)
    return ends, over_arrivals, over_q


def _log_slope(likelihood: Any, count: Values, delta: Values) -> Values:
    """Return ρ, the slope in f of the log mean count where that is log(count + 1) + δ."""
    rate = ((count + 1) * torch.exp(delta)).clamp(max=LARGEST)
    return torch.exp(likelihood.log_rate_slope(likelihood.argmax(rate))) / rate


def _average_over_q(number: int, likelihood: Any, *examples: Row) -> Row:
    """Compute E_q[P(Y ≤ count given f)]."""
    count, mean, variance, *_ = examples
    return normal_average(lambda f: likelihood.cdf(count, f), mean, variance, number, _REACH)


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
    y, centre = (
        torch.where(beyond, 0.5, y),
        torch.where(beyond, likelihood.window_centre(0 * y), centre),
    )
    here = likelihood.derivatives(y, centre)
    width = torch.rsqrt(-here.second)
    zero, drop = torch.zeros_like(y), torch.full_like(y, DROP)
    peak = Peak(zero, here.value, zero, -here.second, width)
    flat = torch.full_like(y, torch.inf)
    ends = find_support(lambda f: likelihood.derivatives(y, f), centre, flat, peak, drop)
    ends = torch.maximum(ends, _REACH * width)
    deviation = torch.sqrt(variance)
    reach = _REACH * deviation
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

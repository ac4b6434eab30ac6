"""Compute density, CDF, quantiles, intervals and CRPS of y at new inputs."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Num
from torch import Tensor

from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import Classes, ClosedFormCRPS, MappedCDF, has_two_labels
from directgp.likelihoods.numeric import sum_counts
from directgp.log_expectations.api import resolve_rule
from directgp.numerics.roots import TINY
from directgp.predictive.distributions import distribution_of
from directgp.predictive.moments import (
    centre,
    check_coverage,
    class_log_probabilities,
    example_rows,
    predictive_mean,
    wide_levels,
    wide_marginals,
    wide_targets,
)
from directgp.predictive.sampled import SampledDistribution
from directgp.shapes import Marginals, Values


def predictive_log_density(
    likelihood: Likelihood, y: Num[Tensor, "..."], marginals: Marginals
) -> Values:
    """Compute log p(y) = log E_q[p(y given f)], by formula or quadrature.

    Targets are in the support of the likelihood; their shape broadcasts with that of the marginals,
    ``(..., n)``. The result has this shape and the dtype of the mean, and is differentiable.

    Examples
    --------
    >>> import torch
    >>> from directgp.likelihoods import Poisson
    >>> marginals = Marginals(torch.tensor([0.5]), torch.tensor([0.3]))
    >>> predictive_log_density(Poisson(), torch.tensor([300]), marginals)
    tensor([-50.6238])
    """
    who = "predictive_log_density"
    mean, variance = wide_marginals(who, marginals)
    wide = wide_targets(who, y, example_rows(likelihood, mean))
    likelihood.check_targets(y)
    value = resolve_rule("auto", likelihood)(likelihood, wide, mean, variance)
    return value.to(marginals.mean.dtype)


def label_log_probabilities(likelihood: Likelihood, marginals: Marginals) -> Float[Tensor, "c n"]:
    """Compute log P(Y = k) of every label of a classification, two or more."""
    if isinstance(likelihood, Classes):
        return class_log_probabilities(likelihood, marginals)
    labels = (torch.full_like(marginals.mean, label) for label in (0.0, 1.0))
    return torch.stack([predictive_log_density(likelihood, y, marginals) for y in labels])


@torch.no_grad()
def predictive_cdf(likelihood: Likelihood, y: Num[Tensor, "..."], marginals: Marginals) -> Values:
    """Compute P(Y ≤ y) = E_q[P(Y ≤ y given f)].

    y are any finite numbers, in the support or not; their shape broadcasts with that of the
    marginals, ``(..., n)``. The result has this shape and the dtype of the mean, no gradient, and
    errors below 1e-10.

    Examples
    --------
    >>> import torch
    >>> from directgp.likelihoods import Probit
    >>> marginals = Marginals(torch.tensor([0.0]), torch.tensor([3.0]))
    >>> predictive_cdf(Probit(), torch.tensor([0]), marginals)
    tensor([0.5000])
    """
    mean, variance = wide_marginals("predictive_cdf", marginals)
    wide = wide_targets("predictive_cdf", y, example_rows(likelihood, mean))
    return distribution_of(likelihood, mean, variance).cdf(wide).to(marginals.mean.dtype)


@torch.no_grad()
def predictive_quantiles(
    likelihood: Likelihood, marginals: Marginals, levels: Sequence[float] | Values
) -> Float[Tensor, "k ..."]:
    """Find the smallest y with P(Y ≤ y) ≥ level, for each level and example.

    Levels are between 0 and 1, ends excluded. The result has shape ``(k, ..., n)`` and the dtype of
    the mean, without gradient. Counts and labels are whole numbers, exact as far as the dtype has
    them (to 2²⁴ in float32, 2⁵³ in float64).

    Examples
    --------
    >>> import torch
    >>> from directgp.likelihoods import Poisson
    >>> marginals = Marginals(torch.tensor([0.0, 7.0]), torch.tensor([0.5, 4.0]))
    >>> predictive_quantiles(Poisson(), marginals, [0.5, 0.9])
    tensor([[1.0000e+00, 1.0970e+03],
            [3.0000e+00, 1.4230e+04]])
    """
    mean, variance = wide_marginals("predictive_quantiles", marginals)
    level = wide_levels("predictive_quantiles", levels, example_rows(likelihood, mean))
    return distribution_of(likelihood, mean, variance).quantile(level).to(marginals.mean.dtype)


def point_prediction(likelihood: Likelihood, marginals: Marginals) -> Values:
    """Return the mean of y, and its median where the mean does not exist or is beyond float64.

    For additive noise both are the mean of f, unless the noise is skewed.
    """
    value = centre(likelihood, marginals)
    if bool(torch.isfinite(value).all()):
        return value
    (median,) = predictive_quantiles(likelihood, marginals, [0.5])
    return torch.where(torch.isfinite(value), value, median)


def predictive_interval(
    likelihood: Likelihood, marginals: Marginals, coverage: float
) -> tuple[Values, Values]:
    """Find the central interval, with probability (1 − coverage)/2 on either side.

    For counts and labels the interval, ends included, has probability `coverage` or more.

    Examples
    --------
    >>> import torch
    >>> from directgp.likelihoods import Gaussian
    >>> marginals = Marginals(torch.tensor([1.0]), torch.tensor([0.75]))
    >>> predictive_interval(Gaussian(noise=0.25), marginals, 0.95)
    (tensor([-0.9600]), tensor([2.9600]))
    """
    check_coverage("predictive_interval", coverage)
    tail = 0.5 * (1 - coverage)
    lower, upper = predictive_quantiles(likelihood, marginals, [tail, 1 - tail])
    return lower, upper


_TAIL = 1e-9
"""Probability of a tail that is dropped, or continued as a power: it enters the score squared."""

_NEAR_TAIL = 1e-6
"""Probability of a tail from which on it is compared with a power."""

_LEVELS = (_TAIL, _NEAR_TAIL, 0.25, 0.5, 0.75, 1 - _NEAR_TAIL, 1 - _TAIL)
"""Levels of the quantiles that place the nodes of a continuous family and give its tails."""

_MAX_COUNTS = 256
"""Largest number of counts on either side of y that are evaluated; the rest is interpolated."""

_FARTHEST = 700.0
"""x where e^x ends."""

_FARTHEST_SINH = 600.0
"""u at which scale·sinh(u) is still finite for any scale."""

_LINE = 40.0
"""Distance over which e^−x falls to nothing."""

_NODES = 64
"""Gauss–Legendre nodes on either side of y."""


@torch.no_grad()
def predictive_crps(likelihood: Likelihood, y: Num[Tensor, "..."], marginals: Marginals) -> Values:
    """Compute ∫ (P(Y ≤ t) − 1{y ≤ t})² dt for each example, in the units of y; lower is better.

    Targets are in the support of the likelihood; their shape broadcasts with that of the marginals,
    ``(..., n)``. The result has this shape and the dtype of the mean, and no gradient. For labels
    it is Brier's score, (P(Y = 1) − y)². It is infinite where a tail of Y falls like t^−½ or
    slower, as that of Student's t with df ≤ ½.

    The relative error is at most 1e-5, 5e-4 for Weibull times, or 1e-3 for counts spread over
    hundreds, if the square root of the variance is at most 5 where f is the logarithm of y. A score
    of draws has the standard error of 10,000 of them.

    Examples
    --------
    >>> import torch
    >>> from directgp.likelihoods import Poisson
    >>> q = Marginals(torch.tensor([0.0]), torch.tensor([0.1]))
    >>> [round(float(predictive_crps(Poisson(), torch.tensor([y]), q)), 4) for y in (1, 10)]
    [0.2254, 8.3863]
    """
    mean, variance = wide_marginals("predictive_crps", marginals)
    target = wide_targets("predictive_crps", y, example_rows(likelihood, mean))
    likelihood.check_targets(y)
    return _score(likelihood, target, mean, variance).to(marginals.mean.dtype)


def _score(likelihood: Likelihood, target: Values, mean: Values, variance: Values) -> Values:
    """Compute the score by the family's formula, by its draws or by quadrature."""
    if isinstance(likelihood, ClosedFormCRPS):
        return likelihood.predictive_crps(target, mean, variance)
    if has_two_labels(likelihood):
        return (predictive_mean(likelihood, Marginals(mean, variance)) - target).square()
    distribution = distribution_of(likelihood, mean, variance)
    if isinstance(distribution, SampledDistribution):
        return distribution.crps(target)
    target, mean, variance = torch.broadcast_tensors(target, mean, variance)
    marginals = Marginals(mean, variance)
    if likelihood.task == "count":
        return _counted(likelihood, marginals, target)
    integrated = _integrated_on_line if isinstance(likelihood, MappedCDF) else _integrated
    return integrated(likelihood, marginals, target)


def _counted(likelihood: Likelihood, marginals: Marginals, target: Values) -> Values:
    """Sum P(Y ≤ k)² below y and P(Y > k)² from y on; trapezoids where many.

    Only counts between the quantiles of `_TAIL` and 1 − `_TAIL` are evaluated, so that nodes are
    dense where the distribution is narrow. If y lies outside, each count between y and the nearer
    quantile adds 1.
    """
    low, high = predictive_quantiles(likelihood, marginals, [_TAIL, 1 - _TAIL])

    def part(first: Values, last: Values, upper: bool) -> Values:
        return sum_counts(
            lambda k: _squares(likelihood, marginals, k, upper), first, last, _MAX_COUNTS
        )

    below = part(low, torch.minimum(high, target - 1), False)
    above = part(torch.maximum(low, target), high, True)
    beyond = torch.maximum(target - 1 - high, low - target).clamp(min=0)
    return below + above + beyond


def _integrated(likelihood: Likelihood, marginals: Marginals, target: Values) -> Values:
    """Integrate over u with t = centre + scale·sinh(u), on either side of y."""
    low, near_low, left, centre, right, near_high, high = predictive_quantiles(
        likelihood, marginals, _LEVELS
    )
    # A value of large probability may be both quartiles.
    scale = torch.where(right > left, right - left, (high - low).clamp(min=TINY))

    def area(start: Values, end: Values, upper: bool) -> Values:
        ends = torch.asinh((torch.stack([start, end]) - centre) / scale)
        first, last = ends.clamp(-_FARTHEST_SINH, _FARTHEST_SINH)
        u, weight, half = _legendre(first, last)
        squares = _squares(likelihood, marginals, centre + scale * torch.sinh(u), upper)
        total: Values = (weight * squares * (half * scale * torch.cosh(u))).sum(0)
        return total

    below = area(torch.minimum(low, target), target, False)
    above = area(target, torch.maximum(high, target), True)
    tails = _beyond(centre - near_low, centre - low, scale)
    tails = tails + _beyond(near_high - centre, high - centre, scale)
    return below + above + tails


def _beyond(near: Values, far: Values, scale: Values) -> Values:
    """Integrate the square of the tail beyond `_TAIL`, continued as a power d^−a of the distance.

    ∫ from d on is d·_TAIL²/(2a − 1), and infinite for a ≤ ½. The scale is added to distances, so
    that a tail which ends at a value of positive probability has a large power.
    """
    power = math.log(_NEAR_TAIL / _TAIL) / torch.log((far + scale) / (near + scale)).clamp(min=TINY)
    # Quantiles have rounding errors.
    return torch.where(power > 0.5 + 1e-6, far * _TAIL**2 / (2 * power - 1), torch.inf)


def _integrated_on_line(likelihood: Any, marginals: Marginals, target: Values) -> Values:
    """Integrate over the variable of `to_line`, on either side of y."""
    low, high = predictive_quantiles(likelihood, marginals, [_TAIL, 1 - _TAIL])

    def area(start: Values, end: Values, upper: bool) -> Values:
        ends = torch.stack([likelihood.to_line(start), likelihood.to_line(end)])
        first, last = ends.clamp(-_FARTHEST, _FARTHEST).sort(0).values
        # The slope is largest at an end or at 0, and falls like e^−distance from there.
        middle = torch.minimum(torch.maximum(first, torch.zeros_like(first)), last)
        steeper = likelihood.line_slope(middle) > likelihood.line_slope(last)
        peak = torch.where(steeper, middle, last)
        u, weight, half = _legendre(
            torch.maximum(first, peak - _LINE), torch.minimum(last, peak + _LINE)
        )
        squares = _squares(likelihood, marginals, likelihood.from_line(u), upper)
        total: Values = (weight * squares * (half * likelihood.line_slope(u))).sum(0)
        return total

    below = area(torch.minimum(low, target), target, False)
    return below + area(target, torch.maximum(high, target), True)


def _legendre(first: Values, last: Values) -> tuple[Values, Values, Values]:
    """Return Gauss–Legendre nodes between two ends, weights on [−1, 1], and half the length.

    Nodes and weights have an axis of nodes before those of the ends.
    """
    shape = (-1, *([1] * first.dim()))
    x, weight = (
        torch.as_tensor(rule).to(first).reshape(shape)
        for rule in np.polynomial.legendre.leggauss(_NODES)
    )
    half = 0.5 * (last - first)
    return first + (x + 1) * half, weight, half


def _squares(likelihood: Likelihood, marginals: Marginals, t: Values, upper: bool) -> Values:
    """Return P(Y ≤ t)², or P(Y > t)² if `upper`."""
    wide = Marginals(marginals.mean.expand_as(t), marginals.variance.expand_as(t))
    probability = predictive_cdf(likelihood, t, wide)
    return (1 - probability if upper else probability).square()

"""Define predictive distributions of labels and continuous targets."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from typing_extensions import override

from directgp.errors import NumericalError
from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.quadrature import Quadrature
from directgp.numerics.special import log_ndtr
from directgp.predictive.moments import (
    DROP,
    integrate_in_batches,
    label_probability,
    log_gamma_step,
)
from directgp.shapes import Values

_ROUNDING = 2e-11
"""Relative rounding error of a distribution function."""


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


def rounded_down(level: Values) -> Values:
    """Lower a level by the rounding of the distribution function, so that it is reached in a tie.

    Ties are common: a fair coin has P(Y ≤ 0) = ½, and its median is 0.
    """
    return level - _ROUNDING * torch.minimum(level, 1 - level)


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


_FARTHEST = 300.0
"""asinh(x/s) from which on a quantile counts as infinite: x is 1e130 times the scale s of y."""

_MAX_STEPS = 60
_TOLERANCE = 1e-12


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
    share = (torch.arange(number, dtype=lower.dtype, device=lower.device) + 0.5) / number
    t = torch.lerp(lower, upper, share.reshape(-1, 1))
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
    for _ in range(_MAX_STEPS):
        excess, slope = _log_tail_and_slope(likelihood, a, scale, variance)
        excess = excess - log_level
        lower = torch.where(excess > 0, a, lower)
        upper = torch.where(excess < 0, a, upper)
        step = -excess / slope
        moving = (step.abs() > _TOLERANCE) & (upper - lower > _TOLERANCE)
        proposal = a + step
        inside = (proposal >= lower) & (proposal <= upper)
        a = torch.where(inside, proposal, 0.5 * (lower + upper))
        if not bool(moving.any()):
            return torch.where(a < _FARTHEST - 1, scale * torch.sinh(a), torch.inf)
    raise NumericalError(
        f"A quantile was not found in {_MAX_STEPS} steps for {int(moving.sum())} examples. "
        f"Choose levels further from 0 and 1."
    )


def _log_tail_and_slope(
    likelihood: Likelihood, a: Values, scale: Values, variance: Values
) -> tuple[Values, Values]:
    """Return the log tail at x = s·sinh(a), and its derivative −p(x)/tail·√(s² + x²) in a."""
    distance = scale * torch.sinh(a)
    value = log_tail(likelihood, distance, variance)
    log_density = Quadrature()(likelihood, distance, torch.zeros_like(a), variance)
    return value, -torch.exp(log_density - value) * scale * torch.cosh(a)

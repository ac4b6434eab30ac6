"""Compute the predictive distribution of a scale mixture of Gaussians, such as Student's t noise.

Given the component t, Y ~ N(μ, v + w(t)). By symmetry everything follows from the tail beyond a
distance x ≥ 0 from μ, P(Y > μ + x) = ∫ π(t) Φ(−x/√(v + w(t))) dt, which is smooth in t
while |Im t| < π/2, where v + w(t) stays in the right half-plane.
"""

from collections.abc import Callable
from typing import Any, final

import numpy as np
import torch
from typing_extensions import override

from directgp.errors import NumericalError
from directgp.log_expectations.rule import Quadrature
from directgp.numerics.roots import MAX_STEPS, TOLERANCE
from directgp.numerics.special import log_ndtr
from directgp.predictive.base import Distribution
from directgp.predictive.moments import DROP, integrate_in_batches, log_gamma_step, midpoints
from directgp.shapes import Row, Values

_ROUNDED = 1e-9
"""Newton steps below it that do not shrink are rounding errors of the log tail."""

_NATS = 20.0
"""Accuracy of a mixture of Gaussians in place of the integral, as −log of its relative error."""

_MOST_NODES = 200
"""Largest number of Gaussians of one model."""

_FARTHEST = 300.0
"""asinh(x/s) from which on a quantile counts as infinite: x is 1e130 times the scale s of y."""


@final
class ScaleMixtureDistribution(Distribution):
    """A scale mixture of Gaussians: symmetric about μ, with tails that may be heavy."""

    @override
    def cdf(self, y: Values) -> Values:
        return self.tail(y, above=False)

    @override
    def tail(self, y: Values, above: bool) -> Values:
        distance = (y - self.mean).abs().clamp(max=1e150)
        beyond = _integrated(_sum, self.likelihood, distance, self.variance)
        return torch.where((y < self.mean) ^ above, beyond, 1 - beyond)

    @override
    def quantile(self, level: Values) -> Values:
        smaller = torch.minimum(level, 1 - level)
        distance = tail_quantile(self.likelihood, torch.log(smaller), self.variance)
        return self.mean + torch.sign(level - 0.5) * distance


def log_tail(likelihood: Any, distance: Values, variance: Values) -> Values:
    """Compute log P(Y > μ + distance) for distances ≥ 0."""
    return _integrated(_log_sum, likelihood, distance, variance)


def _integrated(
    integral: Callable[..., Row], likelihood: Any, distance: Values, variance: Values
) -> Values:
    """Integrate over t as far as it matters for the tail beyond the distances."""
    lower, upper = likelihood.tail_bounds(distance, DROP)
    step = log_gamma_step(likelihood.mixture_width())
    needed = ((upper - lower) / step).expand(np.broadcast_shapes(lower.shape, variance.shape))
    return integrate_in_batches(integral, likelihood, needed, distance, variance, lower, upper)


def _sum(number: int, likelihood: Any, distance: Row, variance: Row, lower: Row, upper: Row) -> Row:
    """Compute Σ h·π(t)·Φ(−x/√(v + w(t))) over equal steps h in t, faster than its log."""
    t = torch.lerp(lower, upper, midpoints(number, lower))
    z = distance * torch.rsqrt(2 * (variance + likelihood.mixture_variance(t)))
    total: Row = (torch.exp(likelihood.log_mixing(t)) * torch.erfc(z)).sum(0)
    return 0.5 * total * (upper - lower) / number


def _log_sum(
    number: int, likelihood: Any, distance: Row, variance: Row, lower: Row, upper: Row
) -> Row:
    """Compute the log of `_sum`, which may underflow."""
    t = torch.lerp(lower, upper, midpoints(number, lower))
    z = -distance * torch.rsqrt(variance + likelihood.mixture_variance(t))
    log_step = torch.log((upper - lower) / number)
    return torch.logsumexp(likelihood.log_mixing(t) + log_ndtr(z), 0) + log_step


def gaussians_of(likelihood: Any, variance: Values) -> tuple[Values, Values] | None:
    """Return deviations √(v + w(t)) and weights π(t)·h at equal steps h of t, of shape (p, n).

    They are accurate for E|Y|, whose integrand is √w·π. None where it falls too slowly, or never.
    """
    _, upper = likelihood.tail_bounds(torch.zeros_like(variance[:1]), _NATS)
    # A step for fewer nats than those of the library's integrals is wider.
    step = DROP / _NATS * log_gamma_step(likelihood.mixture_width())
    t = upper.double() - step.double() * torch.arange(_MOST_NODES).to(upper.device)
    noise = likelihood.mixture_variance(t).double()
    size = likelihood.log_mixing(t).double() + 0.5 * torch.log(noise)
    needed = size >= size.max() - _NATS
    if bool(needed[-1]):
        return None
    weights = torch.softmax(likelihood.log_mixing(t[needed]).double(), 0)[:, None]
    deviations = torch.sqrt(variance.double() + noise[needed][:, None])
    return deviations, weights.expand(deviations.shape)


def tail_quantile(likelihood: Any, log_level: Values, variance: Values) -> Values:
    """Find the distance x ≥ 0 with log P(Y > μ + x) = log_level ≤ log ½.

    Newton's method inside a bracket, in a = asinh(x/s) with s² = v + w(0): there the log tail is
    smooth at the centre and a straight line where it is a power of x.
    """
    log_level, variance = torch.broadcast_tensors(log_level, variance)
    scale = torch.sqrt(variance + likelihood.mixture_variance(torch.zeros_like(variance)))
    a = torch.asinh(-torch.special.ndtri(torch.exp(log_level))).clamp(0.0, _FARTHEST)
    lower = torch.zeros_like(a)
    upper = torch.full_like(a, _FARTHEST)
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

"""Average the distribution function of a continuous family over q, and invert the average."""

import math
from typing import Any, final

import torch
from torch import Tensor
from typing_extensions import override

from directgp.integration.adaptive import GAUSS_LEGENDRE, POINTS, Panels, StandardExamples, refined
from directgp.integration.evaluate import row_blocks
from directgp.likelihoods.numeric import checked_cdf
from directgp.numerics.roots import OUTSIDE, increasing_root
from directgp.predictive.base import Distribution
from directgp.predictive.moments import REACH, integrate_in_batches, midpoints
from directgp.shapes import Row, Values

# Continuous families with P(Y ≤ y given f) =: F(f), a step between 0 and 1 of width w around the
# peak f₀ of p(y given f). In z = (f − μ)/√v the average of F over q has two scales, 1 and w/√v;
# equal steps in u, z = z₀ + (w/√v)·sinh(u), resolve both.

_STEP = 0.6
"""Largest step in z within six deviations: e^{−z²/2} needs 0.75 for an error of e^−32."""

_BULK = 6.0
"""Deviations of q within which that step counts."""

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
        columns = (column[inside] for column in (y, mean, variance))
        value[inside] = _average_step(self.likelihood.take(inside), *columns)
        return value

    @override
    def quantile(self, level: Values) -> Values:
        level, mean, variance = torch.broadcast_tensors(level, self.mean, self.variance)
        likelihood = self.likelihood.take(torch.ones_like(level, dtype=torch.bool))
        target = torch.special.ndtri(level).reshape(-1)
        mean = mean.reshape(-1)
        variance = variance.reshape(-1)
        ends = likelihood.from_line(torch.tensor([0.0, 1.0], dtype=mean.dtype, device=mean.device))
        side = 1.0 if bool(ends[1] > ends[0]) else -1.0

        def offset(index: Tensor, x: Tensor) -> Tensor:
            subset = likelihood.take(index)
            below = StepDistribution(subset, mean[index], variance[index]).cdf(subset.from_line(x))
            probit = torch.special.ndtri(below).clamp(-OUTSIDE, OUTSIDE)
            gap: Tensor = side * (probit - target[index])
            return gap

        f = mean + side * torch.sqrt(variance) * target
        start = likelihood.to_line(likelihood.conditional_mean(f)).nan_to_num(0.0, 0.0, 0.0)
        x = increasing_root(offset, start, 1 + torch.sqrt(variance), _FARTHEST_ON_LINE)
        y: Values = likelihood.from_line(x)
        return y.reshape(level.shape)


def _average_step(likelihood: Any, y: Row, mean: Row, variance: Row) -> Row:
    """Compute E_q[P(Y ≤ y given f)] for y inside the support."""
    deviation = torch.sqrt(variance)
    peak = likelihood.argmax(y)
    width = torch.rsqrt(-likelihood.derivatives(y, peak).second).clamp(max=1.0) / deviation
    origin = ((peak - mean) / deviation).clamp(-REACH, REACH)
    step = _STEP / torch.sqrt(width**2 + (origin.abs() + _BULK) ** 2)
    lower, upper = (torch.asinh((end - origin) / width) for end in (-REACH, REACH))
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
        mean = mean.reshape(-1)
        variance = variance.reshape(-1)

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
    flat = [column.reshape(-1) for column in (y, mean, variance)]
    examples = StandardExamples(likelihood.take(y.shape), *flat)
    blocks = row_blocks(y.numel(), POINTS, y.device)
    parts = [_average_on_panels(examples.take(index)) for _, index in blocks]
    return torch.cat(parts).reshape(y.shape)


def _average_on_panels(examples: StandardExamples) -> Row:
    n = len(examples.y)
    ends = examples.y.new_tensor(_PANELS)[:, None].expand(-1, n)

    def weighed(owner: Tensor, z: Tensor) -> Tensor:
        owners = examples.take(owner)
        return torch.exp(-0.5 * z * z) * checked_cdf(owners.likelihood, owners.y, owners.f(z))

    owner = torch.arange(n, device=ends.device).expand(len(_PANELS) - 1, -1)
    first = Panels(*(column.reshape(-1) for column in (owner, ends[:-1], ends[1:])))
    panels = refined(weighed, first, n)
    z, widths = panels.points(*GAUSS_LEGENDRE)
    total = examples.sum(panels.owner, widths * weighed(panels.owner, z))
    return (total / math.sqrt(2 * math.pi)).clamp(0.0, 1.0)

"""Estimate the gradient of log E_q[p] without bias from exact draws of q̃ (uPS)."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple, final

import torch
from typing_extensions import override

from directgp.errors import require
from directgp.likelihoods.base import ClosedFormLogPredictive, Likelihood
from directgp.log_expectations.quadrature import Peak, Quadrature, hermite_nodes, peak_of
from directgp.log_expectations.rule import (
    AnyPoints,
    Context,
    Estimate,
    FlatExamples,
    Rows,
    Rule,
    Schedule,
    at_step,
    balanced_weight,
    check_num_samples,
    evaluate,
    mixed_slopes,
    row_blocks,
    without_overflow,
)
from directgp.log_expectations.samplers import SamplerName, draw_product
from directgp.numerics.random import Generator
from directgp.shapes import Points, Row, Values

# With s(f) = ℓ′(f) − (f−μ)/v, the slope of log q̃, Stein's identity says E_q̃[ψ′ + ψ·s] = 0 for
# every smooth ψ. In x = (f−f̂)/τ, measured from the peak in its width, ψ = 1 and ψ = x give
#
# c₁ = τ·s,   c₂ = 1 + x·τ·s,
#
# and subtracting any multiple of them from an unbiased slope leaves it unbiased. The multiples are
# those of a least-squares fit of the slope over q̃, done on nodes: they do not see the draw.


_RIDGE = 1e-3
"""Relative ridge: few nodes may carry weight, and then c₁ and c₂ are collinear."""


def control_variates(
    delta: AnyPoints, slope: AnyPoints, variance: Values, peak: Peak
) -> tuple[AnyPoints, AnyPoints]:
    """Return c₁ and c₂ at f = μ + δ, given ℓ′(f)."""
    tilt = torch.addcmul(slope, delta, 1 / variance, value=-1)
    return peak.width * tilt, (delta - peak.delta).mul_(tilt).add_(1)


Fit = tuple[Row, Row]
"""Least-squares coefficients of a slope on c₁ and c₂."""


def fit(
    slopes: tuple[AnyPoints, ...], variates: tuple[AnyPoints, AnyPoints], weights: AnyPoints
) -> list[Fit]:
    """Fit each slope over nodes whose weights sum to 1."""
    first, second = variates
    weighted_first, weighted_second = weights * first, weights * second
    m11 = (1 + _RIDGE) * (weighted_first * first).sum(0)
    m12 = (weighted_first * second).sum(0)
    m22 = (1 + _RIDGE) * (weighted_second * second).sum(0)
    determinant = m11 * m22 - m12 * m12
    fits = []
    for slope in slopes:
        # Any constant works, since the variates average to 0; this one avoids cancellation.
        centred = slope - slope[len(slope) // 2]
        r1, r2 = (weighted_first * centred).sum(0), (weighted_second * centred).sum(0)
        fits.append(((r1 * m22 - r2 * m12) / determinant, (r2 * m11 - r1 * m12) / determinant))
    return fits


_NODES = 5
_NODES_IF_WIDE = 9
_WIDE = 1.5
"""Peaks wider than this are far from Gaussian, since likelihoods bend within a unit or two of f."""


class Sketch(NamedTuple):
    """Peak, approximate integral and fitted slopes of q̃ for a log-concave likelihood."""

    peak: Peak
    value: Row
    """log E_q[p], exact where it is a formula."""

    weight: Row
    """The weight w of `mixed_slopes`, at curvature −E_q̃[ℓ″]."""

    fits: list[Fit]
    """Of the slopes in mean and variance on the control variates."""


def _sketch(examples: FlatExamples) -> Sketch:
    """Compute the sketch on Gauss–Hermite nodes fitted to the peak of q̃."""
    likelihood, y, mean, variance = examples
    peak = peak_of(*examples)
    number = _NODES_IF_WIDE if bool((peak.width > _WIDE).any()) else _NODES
    parts = [
        _fit_nodes(examples.take(index), peak.take(index), number)
        for _, index in row_blocks(len(y), number, y.device)
    ]
    log_z, weight, *coefficients = (torch.cat(column) for column in zip(*parts, strict=True))
    if isinstance(likelihood, ClosedFormLogPredictive):
        log_z = likelihood.log_predictive(y, mean, variance)
    else:
        log_z = log_z + likelihood.log_base(y)
    a1, a2, b1, b2 = coefficients
    return Sketch(peak, log_z, weight, [(a1, a2), (b1, b2)])


def _fit_nodes(examples: FlatExamples, peak: Peak, number: int) -> tuple[Row, ...]:
    """Return log Z up to the part free of f, the weight, and the coefficients of the two fits."""
    likelihood, y, mean, variance = examples
    z, weights = hermite_nodes(number, mean)[..., None]
    delta = torch.addcmul(peak.delta, z, peak.width)
    value, first, second = likelihood.derivatives(y, mean + delta)
    log_mass = torch.addcmul(value, delta * delta, -0.5 / variance)
    mass = log_mass.sub_(peak.height).exp_().mul_(weights * peak.width)
    total = mass.sum(0)
    mass /= total
    first, second = without_overflow(mass, first, second)
    weight = balanced_weight(-(mass * second).sum(0), variance)
    slopes = mixed_slopes(delta, first, second, variance, weight)
    mean_fit, variance_fit = fit(slopes, control_variates(delta, first, variance, peak), mass)
    log_z = peak.height + torch.log(total / torch.sqrt(2 * torch.pi * variance))
    return log_z, weight, *mean_fit, *variance_fit


@final
@dataclass(frozen=True)
class ProductSampling(Rule):
    """Unbiased estimate of the gradient of log E_q[p(y given f)], for any number of draws.

    Draws f ~ q̃ ∝ q(f)·p(y given f) are exact. The gradient is the mean of `mixed_slopes` over the
    draws, less control variates. The value does not enter the gradient: it is the closed form where
    there is one, else a sum over the nodes that weigh the slopes, or the exact value if requested.

    Parameters
    ----------
    num_samples : int or callable
        Draws for each example, or a function of the training step.
    sampler : {"auto", "paper"}
        The fastest exact sampler for the likelihood, or the paper's rejection sampler.
    gradient : {"mixed", "score", "pathwise"}
        A combination of little variance; (f−μ)/v alone, as in the paper; or ℓ′(f) alone.
    exact_value : bool
        Whether the value is that of `Quadrature`.
    """

    num_samples: Schedule = 1
    sampler: SamplerName = "auto"
    gradient: Literal["mixed", "score", "pathwise"] = "mixed"
    exact_value: bool = False

    deterministic = False
    unbiased_gradient = True

    def __post_init__(self) -> None:
        """Raise `InvalidInputError` for settings out of range."""
        if not callable(self.num_samples):
            check_num_samples(self.num_samples)
        samplers, forms = ("auto", "paper"), ("mixed", "score", "pathwise")
        require(self.sampler in samplers, "sampler", f"one of {samplers}", repr(self.sampler))
        require(self.gradient in forms, "gradient", f"one of {forms}", repr(self.gradient))

    @override
    def with_num_samples(self, num_samples: int) -> "ProductSampling":
        return replace(self, num_samples=num_samples)

    @override
    def _evaluate(self, likelihood: Likelihood, rows: Rows, context: Context) -> Values:
        num_samples = check_num_samples(at_step(self.num_samples, context.step))
        draw = partial(self._estimate, num_samples=num_samples, generator=context.generator)
        return evaluate(num_samples, draw, likelihood, rows)

    def _estimate(self, examples: FlatExamples, num_samples: int, generator: Generator) -> Estimate:
        likelihood, y, mean, _ = examples
        sketch = _sketch(examples) if likelihood.log_concave else None
        peak = sketch and sketch.peak
        delta = draw_product(examples, peak, num_samples, generator, self.sampler)
        slopes = self._slopes(examples, delta, sketch)
        if sketch is None or self.exact_value:
            value = Quadrature().estimate(likelihood.frozen(), *examples[1:]).value
        else:
            value = sketch.value
        equal = torch.full_like(delta, 1 / num_samples)
        parameters = likelihood.average_slopes(y, mean + delta, equal)
        mean_slope, variance_slope = (slope.mean(0) for slope in slopes)
        return Estimate(value, mean_slope, variance_slope, parameters)

    def _slopes(
        self, examples: FlatExamples, delta: Points, sketch: Sketch | None
    ) -> tuple[Points, ...]:
        """Return the slopes in mean and variance at each draw."""
        likelihood, y, mean, variance = examples
        _, first, second = likelihood.derivatives(y, mean + delta)
        if self.gradient != "mixed":
            weight = torch.full_like(mean, float(self.gradient == "score"))
        elif sketch is None:
            curvature = -likelihood.derivatives(y, mean).second
            weight = balanced_weight(curvature.clamp(min=0.0), variance)
        else:
            weight = sketch.weight
        slopes = mixed_slopes(delta, first, second, variance, weight)
        if self.gradient != "mixed" or sketch is None:
            return slopes
        c1, c2 = control_variates(delta, first, variance, sketch.peak)
        fitted = zip(slopes, sketch.fits, strict=True)
        return tuple(slope - a1 * c1 - a2 * c2 for slope, (a1, a2) in fitted)

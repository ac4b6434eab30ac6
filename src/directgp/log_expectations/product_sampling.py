"""Estimate the gradient of log E_q[p] without bias from exact draws of q̃ (uPS)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple, cast, final

import torch
from typing_extensions import override

from directgp.errors import require
from directgp.integration.contract import (
    Density,
    Estimate,
    ExtraZeros,
    FlatExamples,
    IntegrationMethod,
    ReducedDensity,
    has,
    log_expectations_of,
)
from directgp.integration.evaluate import (
    Rows,
    average_slopes,
    evaluate,
    row_blocks,
    without_overflow,
)
from directgp.integration.inflated import inflated
from directgp.integration.latents import mode_of
from directgp.integration.peaks import Peak, peak_of
from directgp.integration.slopes import AnyPoints, balanced_weight, mixed_slopes
from directgp.integration.trapezoid import hermite_nodes
from directgp.integration.unimodal import Peaks, find_peaks
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import ClosedFormLogPredictive, ExactProductSampler
from directgp.log_expectations.latents import draw_latents
from directgp.log_expectations.monte_carlo import BiasedMonteCarlo
from directgp.log_expectations.rule import (
    Context,
    Quadrature,
    Rule,
    Schedule,
    at_step,
    check_num_samples,
)
from directgp.log_expectations.samplers import SamplerName, draw_product
from directgp.numerics.fixed_sizes import recording
from directgp.numerics.random import Generator
from directgp.shapes import Points, Row, Values

# With s(f) = ℓ′(f) − (f−μ)/v, the slope of log q̃, Stein's identity says E_q̃[ψ′ + ψ·s] = 0 for
# every smooth ψ. In x = (f−c)/τ, measured from a centre c of q̃ in a width τ, ψ = 1 and ψ = x give
#
# c₁ = τ·s,   c₂ = 1 + x·τ·s,
#
# and subtracting any multiple of them from an unbiased slope leaves it unbiased. The multiples are
# those of a least-squares fit of the slope over q̃, done on nodes: they do not see the draw.


_RIDGE = 1e-3
"""Relative ridge: few nodes may carry weight, and then c₁ and c₂ are collinear."""

Variates = tuple[AnyPoints, AnyPoints]


class Coefficients(NamedTuple):
    """Least-squares coefficients of a slope on c₁ and c₂."""

    first: Row
    """The coefficient of c₁."""

    second: Row
    """The coefficient of c₂."""

    explained: Row
    """By how much the variance falls over the nodes."""


def control_variates(
    delta: AnyPoints, slope: AnyPoints, variance: Values, centre: Values, width: Values
) -> Variates:
    """Return c₁ and c₂ at f = μ + δ, given ℓ′(f); the centre is relative to μ."""
    tilt = torch.addcmul(slope, delta, 1 / variance, value=-1)
    return width * tilt, (delta - centre).mul_(tilt).add_(1)


def fit(slopes: Sequence[AnyPoints], variates: Variates, weights: AnyPoints) -> list[Coefficients]:
    """Fit each slope, less any constant, over nodes whose weights sum to 1."""
    first, second = variates
    weighted_first = weights * first
    weighted_second = weights * second
    s11 = (weighted_first * first).sum(0)
    m12 = (weighted_first * second).sum(0)
    s22 = (weighted_second * second).sum(0)
    m11 = (1 + _RIDGE) * s11
    m22 = (1 + _RIDGE) * s22
    determinant = m11 * m22 - m12 * m12
    fits = []
    for slope in slopes:
        r1 = (weighted_first * slope).sum(0)
        r2 = (weighted_second * slope).sum(0)
        a1 = (r1 * m22 - r2 * m12) / determinant
        a2 = (r2 * m11 - r1 * m12) / determinant
        # 2·aᵀr − aᵀSa with (S + ridge·diag S)·a = r.
        explained = a1 * r1 + a2 * r2 + _RIDGE * (s11 * a1 * a1 + s22 * a2 * a2)
        fits.append(Coefficients(a1, a2, explained))
    return fits


class Sketch(NamedTuple):
    """Approximate integral and fitted slopes of q̃."""

    value: Row
    """log E_q[p], exact where it is a formula."""

    centre: Row
    """c of the control variates, relative to μ."""

    width: Row
    """τ of the control variates."""

    weight: Row
    """The weight w of `mixed_slopes`, at curvature −E_q̃[ℓ″]; or 1, that of the score."""

    mean_fit: tuple[Row, Row]
    """Coefficients of the slope in the mean on the control variates."""

    variance_fit: tuple[Row, Row]
    """Coefficients of the slope in the variance on the control variates."""


def make_sketch(examples: FlatExamples, peak: Peak | None) -> Sketch:
    """Compute the sketch on nodes around the peak of q̃, or around both where it may have two."""
    likelihood, y, mean, variance = examples
    if peak is None:
        number = _PAIR_NODES
    else:
        wide = recording() or bool((peak.width > _WIDE).any())
        number = _NODES_IF_WIDE if wide else _NODES
    parts = [
        _sketch_two_peaks(examples.take(index))
        if peak is None
        else _sketch_peak(examples.take(index), peak.take(index), number)
        for _, index in row_blocks(len(y), number, y.device)
    ]
    columns = (torch.cat(column) for column in zip(*parts, strict=True))
    log_z, centre, width, weight, a1, a2, b1, b2 = columns
    if has(likelihood, ClosedFormLogPredictive):
        log_z = cast(ClosedFormLogPredictive, likelihood).log_predictive(y, mean, variance)
    else:
        log_z = log_z + likelihood.log_base(y)
    return Sketch(log_z, centre, width, weight, (a1, a2), (b1, b2))


class _Weighted(NamedTuple):
    """Nodes as points of q̃."""

    log_z: Row
    """Up to the part of log p that is free of f."""

    mass: Points
    """Weights that sum to 1."""

    first: Points
    """ℓ′."""

    second: Points
    """ℓ″."""


def _weigh(examples: FlatExamples, delta: Points, step: Points, height: Row) -> _Weighted:
    """Weigh nodes by their step and by q̃, given the height of its log near its peak."""
    likelihood, y, mean, variance = examples
    value, first, second = likelihood.derivatives(y, mean + delta)
    log_mass = torch.addcmul(value, delta * delta, -0.5 / variance)
    mass = log_mass.sub_(height).exp_().mul_(step)
    total = mass.sum(0)
    mass /= total
    log_z = height + torch.log(total / torch.sqrt(2 * torch.pi * variance))
    return _Weighted(log_z, mass, *without_overflow(mass, first, second))


# Log-concave likelihoods: q̃ has one peak, and a few Gauss–Hermite nodes.

_NODES = 5
"""Nodes of an example."""

_NODES_IF_WIDE = 9
"""Nodes of an example if a peak is wide."""

_WIDE = 1.5
"""Peaks wider than this are far from Gaussian, since likelihoods bend within a unit or two of f."""


def _sketch_peak(examples: FlatExamples, peak: Peak, number: int) -> tuple[Row, ...]:
    """Return log Z up to the part free of f, centre, width, weight, and both fits."""
    variance = examples.variance
    z, weights = hermite_nodes(number, variance)[..., None]
    delta = torch.addcmul(peak.delta, z, peak.width)
    log_z, mass, first, second = _weigh(examples, delta, weights * peak.width, peak.height)
    weight = balanced_weight(-(mass * second).sum(0), variance)
    slopes = mixed_slopes(delta, first, second, variance, weight)
    variates = control_variates(delta, first, variance, peak.delta, peak.width)
    # The slope at the peak as the constant avoids cancellation.
    centred = [slope - slope[number // 2] for slope in slopes]
    mean_fit, variance_fit = fit(centred, variates, mass)
    return log_z, peak.delta, peak.width, weight, *mean_fit[:2], *variance_fit[:2]


# Other likelihoods with one peak over f, such as Student's t: q̃ may have one peak near the mean of
# q and one near the peak of p, and slow tails around either.

_PAIR_NODES = 40
"""Nodes of an example, half of them for each peak."""

_REACH = 6.5
"""Deviations of q beyond the peaks at which the nodes end."""


def _nodes_over(peaks: Peaks, variance: Row) -> tuple[Points, Points]:
    """Return points δ and steps: Σ_k step_k·g(δ_k) ≈ ∫ g(δ) dδ.

    Each peak has nodes at equal steps in u, δ = δ̂ + τ·sinh(u), over the support of both. Where
    they are d₁ and d₂ apart, those of peak 1 sum a share d₁⁻³/(d₁⁻³ + d₂⁻³) of g, so that nodes too
    far apart for the other peak sum little of it. The two kinds are a half step apart in u: they
    are one fine rule where the peaks coincide.
    """
    delta, _, width, _ = peaks
    reach = _REACH * variance.sqrt()
    number = _PAIR_NODES // 2
    start = torch.asinh((delta.amin(0) - reach - delta) / width)
    step = (torch.asinh((delta.amax(0) + reach - delta) / width) - start) / number
    index = torch.arange(number, dtype=delta.dtype, device=delta.device)[:, None, None]
    offset = torch.tensor([[0.25], [0.75]], dtype=delta.dtype, device=delta.device)
    growth = torch.addcmul(start, index + offset, step).exp_()
    decay = growth.reciprocal()
    points = torch.addcmul(delta, 0.5 * width, growth - decay)
    apart = growth.add_(decay).mul_(0.5 * width * step)
    # The distance of nodes of the second peak at the nodes of the first, and vice versa.
    offset = points - delta.flip(0)
    crossed = offset.square_().add_(width.flip(0) ** 2).sqrt_().mul_(step.flip(0))
    ratio = apart / crossed
    steps = apart.div_((ratio * ratio).mul_(ratio).add_(1))
    return points.reshape(_PAIR_NODES, -1), steps.reshape(_PAIR_NODES, -1)


# With two peaks ℓ′ may be steep where q̃ has little mass. The mixed slope in v then varies more than
# the score, even fitted, and is not used. The gain of a fit is computed on nodes, which err: a gain
# counts only if it is larger than their error.

_BETTER = 0.5
"""Largest variance of the mixed slope in v, relative to that of the score, to prefer it."""

_WORTHWHILE = 0.03
"""Smallest share of a variance that a fit must explain."""


def _sketch_two_peaks(examples: FlatExamples) -> tuple[Row, ...]:
    """Return the columns of `_sketch_peak`, from nodes over both peaks."""
    variance = examples.variance
    peaks = find_peaks(examples)
    delta, step = _nodes_over(peaks, variance)
    log_z, mass, first, second = _weigh(examples, delta, step, peaks.height.amax(0))
    centre = (mass * delta).sum(0)
    width = (mass * (delta - centre) ** 2).sum(0).sqrt()
    variates = control_variates(delta, first, variance, centre, width)
    mixed = balanced_weight(-(mass * second).sum(0), variance)
    options = [
        slope - (mass * slope).sum(0)
        for weight in (mixed, torch.ones_like(mixed))
        for slope in mixed_slopes(delta, first, second, variance, weight)
    ]
    coefficients = []
    left = []
    for slope, (a1, a2, explained) in zip(options, fit(options, variates, mass), strict=True):
        total = (mass * slope).mul_(slope).sum(0)
        worthwhile = explained > _WORTHWHILE * total
        coefficients += [torch.where(worthwhile, a, 0.0) for a in (a1, a2)]
        left.append(total - torch.where(worthwhile, explained, 0.0))
    better = left[1] < _BETTER * left[3]
    weight = torch.where(better, mixed, 1.0)
    chosen = torch.where(better, *torch.stack(coefficients).chunk(2))
    return log_z, centre, width, weight, *chosen


_DRAWS_FOR_VALUE = 100
"""Draws from q for the value of three or more latents without an exact one."""

Form = Literal["mixed", "score", "pathwise"]


def _is_closed(likelihood: Density) -> bool:
    """Return whether formulas give draws of q̃, without rejection, and log E_q[p]."""
    exact = has(likelihood, ExactProductSampler)
    return exact and has(likelihood, ClosedFormLogPredictive)


def slopes_at(
    examples: FlatExamples, delta: Points, form: Form, sketch: Sketch | None
) -> tuple[Points, ...]:
    """Return the slopes in mean and variance at each draw; only mixed ones need the sketch."""
    likelihood, y, mean, variance = examples
    _, first, second = likelihood.derivatives(y, mean + delta)
    if sketch is None or form != "mixed":
        weight = torch.full_like(mean, float(form == "score"))
        return mixed_slopes(delta, first, second, variance, weight)
    slopes = mixed_slopes(delta, first, second, variance, sketch.weight)
    c1, c2 = control_variates(delta, first, variance, sketch.centre, sketch.width)
    fitted = zip(slopes, (sketch.mean_fit, sketch.variance_fit), strict=True)
    return tuple(slope - a1 * c1 - a2 * c2 for slope, (a1, a2) in fitted)


@final
@dataclass(frozen=True)
class ProductSampling(Rule):
    """Unbiased estimate of the gradient of log E_q[p(y given f)], for any number of draws.

    Draws f ~ q̃ ∝ q(f)·p(y given f) are exact. The gradient is the mean of `mixed_slopes` over the
    draws, less control variates. The value does not enter the gradient: it is the closed form where
    there is one, else a sum over the nodes that weigh the slopes; or the exact value if requested,
    or if the likelihood is not log-concave.

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
    gradient: Form = "mixed"
    exact_value: bool = False

    deterministic = False
    unbiased_gradient = True

    def __post_init__(self) -> None:
        """Raise `InvalidInputError` for settings out of range."""
        if not callable(self.num_samples):
            check_num_samples(self.num_samples)
        samplers = ("auto", "paper")
        forms = ("mixed", "score", "pathwise")
        require(self.sampler in samplers, "sampler", f"one of {samplers}", repr(self.sampler))
        require(self.gradient in forms, "gradient", f"one of {forms}", repr(self.gradient))

    @override
    def fixed_work(self, likelihood: Likelihood) -> bool:
        without_rejection = self.sampler == "auto" and _is_closed(likelihood)
        return without_rejection and not (self.exact_value or callable(self.num_samples))

    @override
    def with_num_samples(self, num_samples: int) -> "ProductSampling":
        return replace(self, num_samples=num_samples)

    @override
    def _evaluate(self, likelihood: Likelihood, rows: Rows, context: Context) -> Values:
        num_samples = check_num_samples(at_step(self.num_samples, context.step))
        draw = partial(self._estimate, num_samples=num_samples, generator=context.generator)
        return evaluate(IntegrationMethod(num_samples, draw), likelihood, rows)

    def _estimate(self, examples: FlatExamples, num_samples: int, generator: Generator) -> Estimate:
        likelihood, y, mean, variance = examples
        if likelihood.num_latent > 1:
            return self._over_latents(examples, num_samples, generator)
        if has(likelihood, ExtraZeros):
            return self._inflated(examples, num_samples, generator)
        closed = self.sampler == "auto" and _is_closed(likelihood)
        # Draws and value by formulas need no peak; the gradient may.
        log_concave = likelihood.integration.log_concave
        peaked = log_concave and not (closed and self.gradient != "mixed")
        peak = peak_of(*examples) if peaked else None
        wanted = peak is not None or self.gradient == "mixed"
        sketch = make_sketch(examples, peak) if wanted else None
        delta = draw_product(examples, peak, num_samples, generator, self.sampler)
        slopes = slopes_at(examples, delta, self.gradient, sketch)
        if self.exact_value or (peak is None and not closed):
            value = log_expectations_of(examples._replace(likelihood=likelihood.frozen())).value
        elif sketch is not None:
            value = sketch.value
        else:
            value = cast(ClosedFormLogPredictive, likelihood).log_predictive(y, mean, variance)
        equal = torch.full_like(delta, 1 / num_samples)
        parameters = average_slopes(likelihood, y, mean + delta, equal)
        mean_slope, variance_slope = (slope.mean(0) for slope in slopes)
        return Estimate(value, mean_slope, variance_slope, parameters)

    def _over_latents(
        self, examples: FlatExamples, num_samples: int, generator: Generator
    ) -> Estimate:
        """Return the estimate for several latents, with the exact value where quadrature has it."""
        likelihood, y, mean, variance = examples
        delta = draw_latents(examples, num_samples, generator)
        _, first, second = likelihood.derivatives(y, mean + delta)
        weight = torch.full_like(mean, float(self.gradient == "score"))
        if self.gradient == "mixed":
            # At the mode: a weight that depends on the draw would be biased.
            bend = likelihood.derivatives(y, mean + mode_of(examples)).second
            weight = balanced_weight((-bend).clamp_(min=0.0), variance)
        slopes = mixed_slopes(delta, first, second, variance, weight)
        exact = likelihood.num_latent <= 2 or has(likelihood, ReducedDensity)
        rule: Rule = Quadrature() if exact else BiasedMonteCarlo(_DRAWS_FOR_VALUE)
        frozen = cast(Likelihood, likelihood.frozen())
        value = rule(frozen, y, mean, variance, generator=generator)
        equal = torch.full_like(delta[:, 0], 1 / num_samples)
        parameters = average_slopes(likelihood, y, mean + delta, equal)
        mean_slope, variance_slope = (slope.mean(0) for slope in slopes)
        return Estimate(value, mean_slope, variance_slope, parameters)

    def _inflated(self, examples: FlatExamples, num_samples: int, generator: Generator) -> Estimate:
        """Return the estimate for extra zeros: that of the base, times the exact share of it."""
        likelihood = cast(ExtraZeros, examples.likelihood)
        base = examples._replace(likelihood=likelihood.base)
        estimate = self._estimate(base, num_samples, generator)
        exact = log_expectations_of(base._replace(likelihood=base.likelihood.frozen())).value
        return inflated(likelihood, examples.y, replace(estimate, value=exact))

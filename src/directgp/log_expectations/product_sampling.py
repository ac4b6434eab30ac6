"""Unbiased product sampling (uPS): the gradient of log E_q[p] from exact draws of q̃."""

from dataclasses import dataclass
from typing import Literal, final

import torch
from typing_extensions import override

from directgp.errors import require
from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.attach import evaluate
from directgp.log_expectations.base import (
    Moment,
    Rule,
    Schedule,
    Values,
    at_step,
    check_num_samples,
)
from directgp.log_expectations.estimate import Estimate, Points, Row, parameter_term
from directgp.log_expectations.mixed_slopes import balanced_weight, mixed_slopes
from directgp.log_expectations.quadrature import Quadrature
from directgp.log_expectations.samplers.choice import SamplerName, draw_product
from directgp.log_expectations.sketch import Sketch, draw_sketch
from directgp.log_expectations.stein import variates


@final
@dataclass(frozen=True)
class ProductSampling(Rule):
    """An unbiased estimate of the gradient of log E_q[p(y given f)], for any number of draws.

    Draws f ~ q̃ ∝ q(f)·p(y given f) are exact, and the gradient averages the slopes of
    `directgp.log_expectations.mixed_slopes` over them, less the control variates of
    `directgp.log_expectations.stein`. The value plays no part in the gradient: it is the closed
    form where there is one, else a sum over the nodes that weigh the slopes, or the exact value
    if asked for.

    Parameters
    ----------
    num_samples : int or callable
        Draws for each example, or a function of the training step.
    sampler : {"auto", "paper"}
        The fastest exact sampler for the likelihood, or the paper's rejection sampler.
    gradient : {"mixed", "score", "pathwise"}
        A combination of little variance; (f−μ)/v alone, as in the paper; or ℓ′(f) alone.
    exact_value : bool
        Whether the value is to be that of `Quadrature`.
    """

    num_samples: Schedule = 1
    sampler: SamplerName = "auto"
    gradient: Literal["mixed", "score", "pathwise"] = "mixed"
    exact_value: bool = False

    deterministic = False
    unbiased_gradient = True

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        if not callable(self.num_samples):
            check_num_samples(self.num_samples)
        samplers, forms = ("auto", "paper"), ("mixed", "score", "pathwise")
        require(self.sampler in samplers, "sampler", f"one of {samplers}", repr(self.sampler))
        require(self.gradient in forms, "gradient", f"one of {forms}", repr(self.gradient))

    @override
    def _evaluate(
        self, likelihood: Likelihood, y: Values, mean: Values, variance: Values, moment: Moment
    ) -> Values:
        num_samples = check_num_samples(at_step(self.num_samples, moment.step))

        def estimator(likelihood: Likelihood, y: Row, mean: Row, variance: Row) -> Estimate:
            return self._estimate(likelihood, y, mean, variance, num_samples, moment.generator)

        return evaluate(estimator, likelihood, y, mean, variance, num_samples)

    def _estimate(
        self,
        likelihood: Likelihood,
        y: Row,
        mean: Row,
        variance: Row,
        num_samples: int,
        generator: torch.Generator | None,
    ) -> Estimate:
        rows = y, mean, variance
        sketch = draw_sketch(likelihood, *rows) if likelihood.log_concave else None
        peak = None if sketch is None else sketch.peak
        delta = draw_product(likelihood, *rows, peak, num_samples, generator, self.sampler)
        slopes = self._slopes(likelihood, *rows, delta, sketch)
        if sketch is None or self.exact_value:
            value = Quadrature().estimate(likelihood.frozen(), *rows).value
        else:
            value = sketch.value
        equal = torch.full_like(delta, 1 / num_samples)
        term = parameter_term(likelihood, y, mean + delta, equal)
        mean_slope, variance_slope = (slope.mean(0) for slope in slopes)
        return Estimate(value, mean_slope, variance_slope, term)

    def _slopes(
        self,
        likelihood: Likelihood,
        y: Row,
        mean: Row,
        variance: Row,
        delta: Points,
        sketch: Sketch | None,
    ) -> tuple[Points, ...]:
        """The slopes in mean and variance at each draw."""
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
        at = variates(delta, first, variance, sketch.peak)
        return tuple(fit.reduce(slope, at) for fit, slope in zip(sketch.fits, slopes, strict=True))

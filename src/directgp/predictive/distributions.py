"""Choose the predictive distribution of y by the likelihood's capabilities."""

import math
from typing import final

import torch
from typing_extensions import override

from directgp.errors import UnsupportedError
from directgp.integration.contract import ExtraZeros, has
from directgp.likelihoods.base import Likelihood, can_draw
from directgp.likelihoods.capabilities import (
    ClosedFormQuantiles,
    ConditionalCDF,
    GaussianPredictive,
    MappedCDF,
    ScaleMixture,
    has_two_labels,
)
from directgp.numerics.roots import TINY, rounded_down
from directgp.predictive.base import Distribution
from directgp.predictive.continuous import AveragedDistribution, StepDistribution
from directgp.predictive.counts import CountDistribution
from directgp.predictive.moments import label_probability
from directgp.predictive.sampled import SampledDistribution
from directgp.predictive.scale_mixture import ScaleMixtureDistribution
from directgp.shapes import Values


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
        return ScaleMixtureDistribution(likelihood, mean, variance)
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
    def tail(self, y: Values, above: bool) -> Values:
        if not has(self.likelihood, GaussianPredictive):
            return super().tail(y, above)
        # ½ erfc(|z|/√2); Φ of torch is ½(1 + erf), which loses the digits of its tail.
        z = (y - self.mean) / self.likelihood.predictive_deviation(self.variance)
        return 0.5 * torch.erfc((z if above else -z) * math.sqrt(0.5))

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
        return torch.where(rest > 0, self._base().quantile(rest.clamp(min=TINY)), 0.0)

    def _base(self) -> Distribution:
        return distribution_of(self.likelihood.base, self.mean, self.variance)

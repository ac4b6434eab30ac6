"""Define what likelihoods may have besides the contract, as protocols that callers ask for."""

from dataclasses import dataclass
from typing import Any, Protocol, cast, final, runtime_checkable

import numpy as np
from torch import Tensor

from directgp.integration.contract import Derivatives, has
from directgp.likelihoods.numeric import Draws
from directgp.numerics.autograd import Slopes
from directgp.numerics.random import Generator
from directgp.shapes import Values


@runtime_checkable
class ClosedFormLogPredictive(Protocol):
    """log E_q[p(y given f)] for q(f) = N(mean, variance) is a formula."""

    def log_predictive(self, y: Values, mean: Values, variance: Values) -> Values:
        """log E_q[p(y given f)], computed in float64 and returned in the dtype of the mean."""


@runtime_checkable
class LogPredictiveSlopes(Protocol):
    """The derivatives of log E_q[p(y given f)] are formulas."""

    def log_predictive_slopes(self, y: Values, mean: Values, variance: Values) -> Slopes:
        """log E_q[p(y given f)], and slopes in mean, variance and constants, in float64."""


@runtime_checkable
class ClosedFormMoments(Protocol):
    """Mean and variance of y under q(f) = N(mean, variance) are formulas."""

    def predictive_mean(self, mean: Values, variance: Values) -> Values:
        """E[y]."""

    def predictive_variance(self, mean: Values, variance: Values) -> Values:
        """Var[y]."""


@runtime_checkable
class PredictiveMeanSlopes(Protocol):
    """The derivatives of the mean of y under q are formulas."""

    def predictive_mean_slopes(self, mean: Values, variance: Values) -> Slopes:
        """E[y], and slopes in mean and variance."""


@runtime_checkable
class GaussianPredictive(Protocol):
    """y is f plus Gaussian noise, so that p(y) is Gaussian, too."""

    def predictive_deviation(self, variance: Values) -> Values:
        """√(v + σ²)."""


@runtime_checkable
class NoiseLatent(Protocol):
    """y is f_1 plus Gaussian noise of variance e^{f_2}."""

    def noise_variance(self, f: Values) -> Values:
        """e^{f_2}."""


@runtime_checkable
class ClosedFormMedian(Protocol):
    """The median of y under q(f) = N(mean, variance) is a formula."""

    def predictive_median(self, mean: Values, variance: Values) -> Values:
        """The y with P(Y ≤ y) = ½."""


@runtime_checkable
class ClosedFormQuantiles(Protocol):
    """P(Y ≤ y) under q(f) = N(mean, variance) and its inverse in y are formulas."""

    def predictive_cdf(self, y: Values, mean: Values, variance: Values) -> Values:
        """P(Y ≤ y)."""

    def predictive_quantile(self, level: Values, mean: Values, variance: Values) -> Values:
        """The y with P(Y ≤ y) = level."""


@runtime_checkable
class ClosedFormCRPS(Protocol):
    """The continuous ranked probability score under q(f) = N(mean, variance) is a formula."""

    def predictive_crps(self, y: Values, mean: Values, variance: Values) -> Values:
        """∫ (P(Y ≤ t) − 1{y ≤ t})² dt."""


@runtime_checkable
class ConditionalCDF(Protocol):
    """P(Y ≤ y given f) is known; quantiles, intervals, CRPS, moments and draws follow from it."""

    def cdf(self, y: Values, f: Values) -> Values:
        """P(Y ≤ y given f) for any y, or any count y ≥ 0; shapes broadcast; no gradient needed."""


@runtime_checkable
class MappedCDF(ConditionalCDF, Protocol):
    """A continuous family with one peak over f, `cdf` monotone in f, and a map of its support."""

    def argmax(self, y: Values) -> Values:
        """The f that maximises p(y given f), near which P(Y ≤ y given f) falls or rises."""

    def to_line(self, y: Values) -> Values:
        """Map the support to the real line, such as log y; NaN or infinite outside of it."""

    def from_line(self, x: Values) -> Values:
        """The inverse of `to_line`, increasing or decreasing."""

    def line_slope(self, x: Values) -> Values:
        """The size of the derivative of `from_line`."""


@runtime_checkable
class MappedSupport(Protocol):
    """The support is a part of the real line, with a map onto all of it."""

    def to_line(self, y: Values) -> Values:
        """Map the support to the real line, such as log y; NaN or infinite outside of it."""

    def from_line(self, x: Values) -> Values:
        """The inverse of `to_line`."""


@runtime_checkable
class Classes(Protocol):
    """Labels 0, …, K − 1 of any number of classes."""

    num_classes: int

    def log_class_probabilities(self, mean: Values, variance: Values) -> Values:
        """log P(Y = k) of every class under q, of shape (K, n), in float64."""


@runtime_checkable
class SoftmaxLink(Protocol):
    """p(k given f) = e^{f_k} / Σ_j e^{f_j}: y is the class of the largest f_k + Gumbel noise."""

    def logits(self, f: Values) -> Values:
        """Return f, of shape (..., K, n)."""


@runtime_checkable
class ShapeChecked(Protocol):
    """Constants need a check of their own."""

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise if the constants do not serve examples of this shape."""


@runtime_checkable
class ConditionalDraws(Protocol):
    """Draws of y given f, with numpy."""

    def draw(self, f: Draws, mean: Draws, random: np.random.RandomState) -> Draws:
        """Return draws of y given f, whose conditional mean is given, too."""


@runtime_checkable
class ScaleMixture(Protocol):
    """p(y given f) = ∫ N(y; f, w(t)) e^{log_mixing(t)} dt with a smooth density over t."""

    def mixture_variance(self, t: Values) -> Values:
        """Return w(t), the variance of component t."""

    def log_mixing(self, t: Values) -> Values:
        """Return the log density of t."""

    def tail_bounds(self, distance: Values, nats: float) -> Values:
        """Return bounds outside which Φ(−x/√(v + w(t)))·π(t) is below e^−nats of its maximum."""

    def mixture_width(self) -> Values:
        """Return the width in t of the narrowest peak of these integrands."""


@runtime_checkable
class GaussianMixture(Protocol):
    """p(y) under q(f) is a mixture of Gaussians about one centre, by quadrature."""

    def gaussian_mixture(self, mean: Values, variance: Values) -> tuple[Values, Values]:
        """Return deviations and weights, of shape (p, n)."""


@runtime_checkable
class ExactProductSampler(Protocol):
    """q̃(f) ∝ q(f)·p(y given f) has a sampler without rejection."""

    def sample_product(
        self, y: Values, mean: Values, variance: Values, num_samples: int, generator: Generator
    ) -> Values:
        """Draw from q̃; return the draws minus the mean, shape (k, ..., n)."""


@runtime_checkable
class Arrivals(Protocol):
    """Counts of events: Y ≤ y given f exactly when Λ, the arrival of event y + 1, exceeds e·λ(f).

    The distribution of Λ does not depend on f.
    """

    def log_arrival(self, y: Values, delta: Values) -> Derivatives:
        """Log density of log Λ at log(y+1) + δ, less its top at δ = 0, and its δ-derivatives."""

    def log_rate_slope(self, f: Values) -> Values:
        """Return the log of the derivative of the mean count in f."""


@runtime_checkable
class ChernoffWindow(Protocol):
    """Counts of an exponential family in f, for which Chernoff's bound holds.

    P(Y > k given f) left of the centre and P(Y ≤ k given f) right of it are at most p(k + ½ given
    f) over its maximum.
    """

    def window_centre(self, count: Values) -> Values:
        """Return the f that maximises p(k + ½ given f); NaN beyond the largest count."""


@runtime_checkable
class BoundedCounts(Protocol):
    """Counts of at most a number that each row brings."""

    def largest_target(self) -> Tensor:
        """Return the largest possible y of each row."""


@runtime_checkable
class Censored(Protocol):
    """y may be a censoring limit, not the true value. Do not compare predictions with it."""

    def observed_range(self, y: Values) -> tuple[Values, Values]:
        """Return values between which the quantity behind y is known to lie."""


def observed_range(likelihood: Any, y: Values) -> tuple[Values, Values]:
    """Return values between which the quantity behind y is known to lie, such as y and y."""
    if has(likelihood, Censored):
        return cast(Censored, likelihood).observed_range(y)
    return (y - 1, y) if likelihood.task == "count" else (y, y)


def has_two_labels(likelihood: Any) -> bool:
    """Return whether y is one of two labels, 0 and 1."""
    return likelihood.task == "classification" and not has(likelihood, Classes)


# Texts.


@final
@dataclass(frozen=True)
class ParameterText:
    """Texts about a trained parameter, for the warning that it ended at its floor."""

    parameter: str
    """Its name in the module, such as "raw_noise"."""

    subject: str
    """Its name in a sentence, such as "The noise variance"."""

    advice: str
    """Advice for the user, a sentence or two."""

    is_noise: bool = False
    """Whether the variance of f can take its place, so that a direct loss may drive it to 0."""


NOISE_ADVICE = (
    "Intervals may be too narrow away from the training rows; compare with objective='elbo' on "
    "rows that were not trained on."
)


@runtime_checkable
class ParameterTexts(Protocol):
    """There are texts for parameters that end at their floor."""

    parameter_texts: tuple[ParameterText, ...]


@runtime_checkable
class Described(Protocol):
    """Constants are printed in `summary()`."""

    def description(self, unit: float) -> dict[str, float]:
        """Return the parameters to print, for targets that were divided by unit."""


def parameter_texts(likelihood: Any) -> tuple[ParameterText, ...]:
    """Return the texts for parameters that end at their floor."""
    has_texts = has(likelihood, ParameterTexts)
    return cast(ParameterTexts, likelihood).parameter_texts if has_texts else ()


def description(likelihood: Any, unit: float) -> dict[str, float]:
    """Return the parameters to print in `summary()`, for targets that were divided by unit."""
    return cast(Described, likelihood).description(unit) if has(likelihood, Described) else {}

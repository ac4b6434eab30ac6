"""What some likelihoods can do beyond the required methods; rules and losses ask for these."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.likelihoods.base import Derivatives

Values = Float[Tensor, "..."]


@runtime_checkable
class ClosedFormLogPredictive(Protocol):
    """log E_q[p(y given f)] for q(f) = N(mean, variance) is a formula."""

    def log_predictive(self, y: Values, mean: Values, variance: Values) -> Values:
        """log E_q[p(y given f)], computed in float64 and returned in the dtype of the mean."""
        ...


@runtime_checkable
class ClosedFormGibbs(Protocol):
    """E_q[log p(y given f)] is a formula, or an integral smoother than the one over f."""

    def expected_log_prob(self, y: Values, mean: Values, variance: Values) -> Values:
        """E_q[log p(y given f)], computed in float64 and returned in the dtype of the mean."""
        ...


@runtime_checkable
class ClosedFormMoments(Protocol):
    """Mean and variance of y under q(f) = N(mean, variance) are formulas."""

    def predictive_mean(self, mean: Values, variance: Values) -> Values:
        """E[y]."""
        ...

    def predictive_variance(self, mean: Values, variance: Values) -> Values:
        """Var[y]."""
        ...


@runtime_checkable
class ClosedFormMedian(Protocol):
    """The median of y under q(f) = N(mean, variance) is a formula."""

    def predictive_median(self, mean: Values, variance: Values) -> Values:
        """The y with P(Y ≤ y) = ½."""
        ...


@runtime_checkable
class ClosedFormQuantiles(Protocol):
    """P(Y ≤ y) under q(f) = N(mean, variance) and its inverse in y are formulas."""

    def predictive_cdf(self, y: Values, mean: Values, variance: Values) -> Values:
        """P(Y ≤ y)."""
        ...

    def predictive_quantile(self, level: Values, mean: Values, variance: Values) -> Values:
        """The y with P(Y ≤ y) = level."""
        ...


@runtime_checkable
class ClosedFormCRPS(Protocol):
    """The continuous ranked probability score under q(f) = N(mean, variance) is a formula."""

    def predictive_crps(self, y: Values, mean: Values, variance: Values) -> Values:
        """∫ (P(Y ≤ t) − 1{y ≤ t})² dt."""
        ...


@runtime_checkable
class Binary(Protocol):
    """p(1 given f) + p(0 given f) = 1, so that one label tells all about the other."""

    def complement(self, y: Values) -> Values:
        """The other label."""
        ...


@runtime_checkable
class SymmetricLink(Protocol):
    """p(y given f) = g((2y−1)f) for y ∈ {0, 1}, normalised, and log g rises to 0."""

    strip: float

    def link_derivatives(self, x: Values) -> Derivatives:
        """log g and its first two derivatives."""
        ...


@runtime_checkable
class ClosedFormMode(Protocol):
    """The mode of q(f)·p(y given f) is a formula."""

    def product_mode(self, y: Values, mean: Values, variance: Values) -> Values:
        """Mode of q(f)·p(y given f), as its distance from the mean."""
        ...


@runtime_checkable
class ExactProductSampler(Protocol):
    """q̃(f) ∝ q(f)·p(y given f) is drawn from without rejection."""

    def sample_product(
        self,
        y: Values,
        mean: Values,
        variance: Values,
        num_samples: int,
        generator: torch.Generator | None,
    ) -> Values:
        """Draws from q̃ minus the mean, shape (k, ..., n)."""
        ...


@runtime_checkable
class ScaleMixture(Protocol):
    """p(y given f) = ∫ N(y; f, w(t)) e^{log_mixing(t)} dt with a smooth mixing density over t."""

    @property
    def trainable(self) -> bool:
        """Whether any parameter asks for a gradient."""
        ...

    def take(self, index: Tensor) -> "ScaleMixture":
        """The mixture for some of the examples."""
        ...

    def mixture_variance(self, t: Values) -> Values:
        """w(t), the variance of component t."""
        ...

    def log_mixing(self, t: Values) -> Values:
        """Log density of t."""
        ...

    def mixture_bounds(self, square: Values, variance: Values, nats: float) -> Values:
        """Bounds of t, shape (2, ...), outside which N(y; μ, v + w(t))·π(t) is negligible."""
        ...

    def tail_bounds(self, distance: Values, nats: float) -> Values:
        """Bounds of t, shape (2, ...), outside which Φ(−x/√(v + w(t)))·π(t) is negligible."""
        ...

    def mixture_width(self) -> Values:
        """Width in t of the narrowest peak of that integrand."""
        ...

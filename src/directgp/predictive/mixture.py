"""Compute the distribution of y under a mixture of models, p(y) = Σ_k w_k p_k(y)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast, final

import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

from directgp.errors import require
from directgp.integration.contract import has
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import GaussianPredictive, MappedSupport, observed_range
from directgp.numerics.roots import LARGEST, rounded_down, smallest_count_between, smallest_root
from directgp.predictive.api import (
    label_log_probabilities,
    point_prediction,
    predictive_cdf,
    predictive_log_density,
    predictive_quantiles,
)
from directgp.predictive.distributions import distribution_of
from directgp.predictive.moments import (
    centre,
    check_coverage,
    example_rows,
    predictive_variance,
    wide_levels,
)
from directgp.shapes import Marginals, Row, Values

_ONE_DEVIATION = (0.15865525393145707, 0.8413447460685429)
"""Φ(−1) and Φ(1)."""

_ROUNDING = 1e-9
"""Largest difference of the sum of weights from 1."""

_LINEAR = 1e-3
"""Part of the larger end of a bracket below which its coordinate is linear, if an end is 0."""


def in_support(likelihood: Likelihood, y: Values) -> Bool[Tensor, "..."]:
    """Return whether y lies in the support, if that is a part of the real line; else True."""
    if not has(likelihood, MappedSupport):
        return torch.ones_like(y, dtype=torch.bool)
    return torch.isfinite(cast(MappedSupport, likelihood).to_line(y))


def check_targets(likelihoods: Sequence[Likelihood], y: Values) -> None:
    """Raise `InvalidInputError` for targets that are in the support of none of the likelihoods."""
    first, *others = sorted(likelihoods, key=lambda each: has(each, MappedSupport))
    inside = torch.stack([in_support(likelihood, y) for likelihood in likelihoods]).any(0)
    # A likelihood on the whole line also checks whole numbers, labels and row values.
    if not (others and has(first, MappedSupport) and bool(inside.all())):
        first.check_targets(y)


@final
@dataclass(frozen=True)
class Component:
    """One model of a mixture, at new inputs."""

    weight: float
    """w_k."""

    likelihood: Likelihood
    """p_k(y given f), with the row values of the new rows."""

    marginals: Marginals
    """q_k(f) in float64, of shape (n,), or (p, n) for several latents."""

    @property
    def rows(self) -> Row:
        """One number for each example."""
        return example_rows(self.likelihood, self.marginals.mean)

    def log_density(self, y: Values) -> Values:
        """Return log p_k(y), −∞ outside of the support."""
        inside = in_support(self.likelihood, y)
        if bool(inside.all()):
            return predictive_log_density(self.likelihood, y, self.marginals)
        # Any y in the support, in place of the others.
        middle = cast(Any, self.likelihood).from_line(torch.zeros_like(y))
        possible = torch.where(inside, y, middle)
        value = predictive_log_density(self.likelihood, possible, self.marginals)
        return torch.where(inside, value, -torch.inf)

    def mean(self) -> Values:
        """Return E[y]; NaN or infinite where it does not exist."""
        value = centre(self.likelihood, self.marginals)
        if not self.likelihood.additive:
            return value
        undefined = self.likelihood.conditional_mean(self.marginals.mean).isnan()
        return torch.where(undefined, torch.nan, value)

    @property
    def has_variance(self) -> bool:
        """Whether the variance of y is surely finite, but for overflow."""
        return has(self.likelihood, GaussianPredictive) or not self.likelihood.additive

    def probability(self, index: Int[Tensor, " r"], y: Row, above: bool) -> Row:
        """Return P(Y ≤ y), or P(Y > y) if `above`, for some of the examples."""
        q = self.marginals
        distribution = distribution_of(
            self.likelihood.take(index), q.mean[..., index], q.variance[..., index]
        )
        return distribution.tail(y, above)


@final
@dataclass(frozen=True)
class PredictiveMixture:
    """p(y) = Σ_k w_k p_k(y) for each example, where model k has q_k(f) and a likelihood.

    With one component all numbers are those of the functions of a single model, to the last bit.

    Examples
    --------
    >>> import torch
    >>> from directgp.likelihoods import Gaussian
    >>> near, far = (Marginals(torch.tensor([m]).double(), torch.tensor([0.75]).double())
    ...              for m in (-2.0, 2.0))
    >>> noise = Gaussian(noise=0.25)
    >>> mixture = PredictiveMixture.of([0.5, 0.5], [noise, noise], [near, far])
    >>> mixture.deviation()
    tensor([2.2361], dtype=torch.float64)
    """

    components: tuple[Component, ...]
    """The models, of the same kind of targets; their weights sum to 1."""

    def __post_init__(self) -> None:
        weights = [component.weight for component in self.components]
        valid = min(weights, default=-1.0) > 0 and abs(math.fsum(weights) - 1) <= _ROUNDING
        require(valid, "weights of PredictiveMixture", "positive, with the sum 1", weights)
        dtypes = {component.marginals.mean.dtype for component in self.components}
        require(dtypes == {torch.float64}, "marginals of PredictiveMixture", "float64", dtypes)

    @classmethod
    def of(
        cls,
        weights: Sequence[float],
        likelihoods: Sequence[Likelihood],
        marginals: Sequence[Marginals],
    ) -> "PredictiveMixture":
        """Return the mixture of these models; a weight of 0 leaves a model out."""
        parts = zip(weights, likelihoods, marginals, strict=True)
        return cls(tuple(Component(float(w), *model) for w, *model in parts if w != 0))

    @property
    def single(self) -> Component | None:
        """The only component; None if there are several."""
        return self.components[0] if len(self.components) == 1 else None

    @property
    def task(self) -> str:
        """Kind of the targets."""
        return self.components[0].likelihood.task

    @property
    def device(self) -> torch.device:
        """Device of the numbers of all components."""
        return self.components[0].marginals.mean.device

    def average(self, function: Callable[[Component], Values]) -> Values:
        """Return Σ_k w_k·function(k)."""
        if self.single is not None:
            return function(self.single)
        values = [component.weight * function(component) for component in self.components]
        return torch.stack(torch.broadcast_tensors(*values)).sum(0)

    # Moments

    def point_prediction(self) -> Values:
        """Return E[y] = Σ_k w_k E_k[y]; where it is not finite or does not exist, the median."""
        if self.single is not None:
            return point_prediction(self.single.likelihood, self.single.marginals)
        mean = self.average(Component.mean)
        if bool(torch.isfinite(mean).all()):
            return mean
        (median,) = self.quantiles([0.5])
        return torch.where(torch.isfinite(mean), mean, median)

    def deviation(self) -> Values:
        """Return √(Σ_k w_k (v_k + (m_k − m)²)).

        If the variance of a component may be infinite, as with Student's t noise, it is half the
        width of the central 68 % interval of the mixture.
        """
        if not all(component.has_variance for component in self.components):
            ends = self.quantiles(_ONE_DEVIATION)
            return 0.5 * ends.diff(dim=0)[0]
        if self.single is not None:
            return predictive_variance(self.single.likelihood, self.single.marginals).sqrt()
        mean = self.average(Component.mean)

        def spread(component: Component) -> Values:
            variance = predictive_variance(component.likelihood, component.marginals)
            return variance + (component.mean() - mean).square()

        # Without a finite mean the variance is infinite.
        return torch.where(torch.isfinite(mean), self.average(spread).sqrt(), torch.inf)

    # Densities and probabilities

    def log_density(self, y: Num[Tensor, "..."]) -> Values:
        """Return log Σ_k w_k p_k(y).

        y may lie outside of the support of some components, but not of all.
        """
        if self.single is not None:
            return predictive_log_density(self.single.likelihood, y, self.single.marginals)
        wide = y.double()
        check_targets([component.likelihood for component in self.components], wide)
        return self._log_average(lambda component: component.log_density(wide))

    def label_log_probabilities(self) -> Float[Tensor, "c n"]:
        """Return log P(Y = k) of every label of a classification, two or more."""
        return self._log_average(
            lambda component: label_log_probabilities(component.likelihood, component.marginals)
        )

    def _log_average(self, function: Callable[[Component], Values]) -> Values:
        """Return log Σ_k w_k·exp(function(k))."""
        if self.single is not None:
            return function(self.single)
        values = [math.log(component.weight) + function(component) for component in self.components]
        return torch.logsumexp(torch.stack(torch.broadcast_tensors(*values)), 0)

    @torch.no_grad()
    def cdf(self, y: Num[Tensor, "..."]) -> Values:
        """Return P(Y ≤ y) = Σ_k w_k P_k(Y ≤ y)."""
        return self.average(lambda part: predictive_cdf(part.likelihood, y, part.marginals))

    def probabilities_below(self, y: Values) -> tuple[Values, Values]:
        """Return P(Y < y) and P(Y ≤ y) of counts and of censored targets, otherwise P(Y ≤ y)."""

        def up_to(component: Component, end: int) -> Values:
            value = observed_range(component.likelihood, y)[end]
            return predictive_cdf(component.likelihood, value, component.marginals)

        ranges = (observed_range(component.likelihood, y) for component in self.components)
        exact = all(low is high for low, high in ranges)
        above = self.average(lambda component: up_to(component, 1))
        return (above if exact else self.average(lambda component: up_to(component, 0))), above

    # Quantiles

    @torch.no_grad()
    def quantiles(self, levels: Sequence[float] | Values) -> Float[Tensor, "k n"]:
        """Find the smallest y with P(Y ≤ y) ≥ level, for each level and example.

        It lies between the smallest and the largest quantile of the components. Counts and labels
        are exact; for others the error is that of a single model, about 1e-12 of the scale of y.
        """
        if self.single is not None:
            return predictive_quantiles(self.single.likelihood, self.single.marginals, levels)
        ends = torch.stack(
            [
                predictive_quantiles(part.likelihood, part.marginals, levels)
                for part in self.components
            ]
        )
        lower = ends.amin(0)
        upper = ends.amax(0)
        shape = lower.shape
        level = wide_levels("quantiles of PredictiveMixture", levels, self.components[0].rows)
        flat = level.expand(shape).reshape(-1)
        search = self._smallest_integer if self.task in ("count", "classification") else self._root
        return search(flat, lower.reshape(-1), upper.reshape(-1), shape[-1]).reshape(shape)

    def interval(self, coverage: float) -> tuple[Values, Values]:
        """Find the central interval, with probability (1 − coverage)/2 on either side."""
        check_coverage("interval of PredictiveMixture", coverage)
        tail = 0.5 * (1 - coverage)
        lower, upper = self.quantiles([tail, 1 - tail])
        return lower, upper

    def _probability(self, index: Int[Tensor, " r"], y: Row, above: bool) -> Row:
        """Return P(Y ≤ y), or P(Y > y) if `above`, for some of the examples."""
        return self.average(lambda component: component.probability(index, y, above))

    def _smallest_integer(self, level: Row, lower: Row, upper: Row, n: int) -> Row:
        """Find the smallest whole y with P(Y ≤ y) ≥ level; row i is for the example i mod n."""

        def cdf(index: Tensor, y: Tensor) -> Tensor:
            return self._probability(index % n, y, False)

        return smallest_count_between(cdf, rounded_down(level), lower, upper)

    def _root(self, level: Row, lower: Row, upper: Row, n: int) -> Row:
        """Find y with P(Y ≤ y) = level, as a root in x of probit P(Y ≤ s·sinh x) − probit(level).

        Above the median P(Y > y) takes the place of 1 − P(Y ≤ y), for its digits. In x, equal steps
        are equal factors of y for ends of the bracket that differ by orders of magnitude. Row i is
        for the example i mod n.
        """
        small, large = torch.stack([lower.abs(), upper.abs()]).sort(0).values
        large = large.clamp(max=LARGEST)
        scale = torch.where(small > 0, small, _LINEAR * large).clamp(max=LARGEST)
        scale = torch.where(scale > 0, scale, 1.0)
        upper_half = level > 0.5
        side = torch.where(upper_half, -1.0, 1.0)
        target = torch.special.ndtri(torch.where(upper_half, 1 - level, level))

        def offset(index: Tensor, x: Tensor) -> Tensor:
            y = scale[index] * torch.sinh(x)
            tail = torch.empty_like(y)
            for above in (False, True):
                part = upper_half[index] == above
                if bool(part.any()):
                    tail[part] = self._probability(index[part] % n, y[part], above)
            gap: Tensor = side[index] * (torch.special.ndtri(tail) - target[index])
            return gap

        ends = (torch.asinh(end.clamp(-LARGEST, LARGEST) / scale) for end in (lower, upper))
        y = scale * torch.sinh(smallest_root(offset, *ends))
        y = torch.minimum(torch.maximum(y, lower), upper)
        # Beyond the largest number a quantile is infinite, as an end of its bracket.
        return torch.where(
            y.abs() < 0.5 * LARGEST, y, torch.copysign(torch.full_like(y, torch.inf), y)
        )

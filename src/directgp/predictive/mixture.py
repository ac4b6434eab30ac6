"""Compute the distribution of y under a mixture of models, p(y) = Σ_k w_k p_k(y)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor

from directgp.errors import require
from directgp.integration.contract import has
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import (
    Censored,
    GaussianMixture,
    GaussianPredictive,
    ScaleMixture,
    observed_range,
)
from directgp.numerics.roots import (
    LARGEST,
    OUTSIDE,
    rounded_down,
    smallest_count_between,
    smallest_root,
)
from directgp.predictive.api import (
    label_log_probabilities,
    point_prediction,
    predictive_cdf,
    predictive_crps,
    predictive_log_density,
    predictive_quantiles,
)
from directgp.predictive.component import Component, check_targets, each_quantiles
from directgp.predictive.mixture_counts import count_probabilities, counted_score
from directgp.predictive.mixture_crps import LEVELS, Gaussians, gaussian_score, integrated_score
from directgp.predictive.moments import (
    check_coverage,
    predictive_variance,
    wide_levels,
)
from directgp.predictive.scale_mixture import gaussians_of
from directgp.shapes import Marginals, Row, Values

ONE_DEVIATION = (0.15865525393145707, 0.8413447460685429)
"""Φ(−1) and Φ(1)."""

_ROUNDING = 1e-9
"""Largest difference of the sum of weights from 1."""

_CANCELLED = 1e-3
"""A root smaller than this part of the number it is a difference from has lost digits."""

_FARTHEST = 680.0
"""asinh(y/s) from which on a quantile counts as infinite: y is 1e295 times the scale s of y."""


def are_weights(weights: Sequence[float]) -> bool:
    """Return whether numbers are positive with the sum 1, up to rounding."""
    return min(weights, default=-1.0) > 0 and abs(math.fsum(weights) - 1) <= _ROUNDING


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
    >>> mixture.cdf(torch.tensor([0.0]))
    tensor([0.5000], dtype=torch.float64)
    """

    components: tuple[Component, ...]
    """The models, of the same kind of targets; their weights sum to 1."""

    def __post_init__(self) -> None:
        weights = [component.weight for component in self.components]
        require(
            are_weights(weights),
            "weights of PredictiveMixture",
            "positive, with the sum 1",
            weights,
        )
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
        return cls(
            tuple(Component(float(w), likelihood, q) for w, likelihood, q in parts if w != 0)
        )

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
            ends = self.quantiles(ONE_DEVIATION)
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
        logs = self._log_average(
            lambda component: label_log_probabilities(component.likelihood, component.marginals)
        )
        if self.single is not None or len(logs) > 2:
            return logs
        # log P = log(1 − P of the other) has more digits where P is near 1.
        other = logs.flip(0)
        return torch.where(logs > other, torch.log1p(-other.exp()), logs)

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
        rows = self.components[0].rows
        level = wide_levels("quantiles of PredictiveMixture", levels, rows)
        level = level.expand(-1, len(rows))
        search = (
            self._smallest_integers if self.task in ("count", "classification") else self._roots
        )
        return search(level)

    def interval(self, coverage: float) -> tuple[Values, Values]:
        """Find the central interval, with probability (1 − coverage)/2 on either side."""
        check_coverage("interval of PredictiveMixture", coverage)
        tail = 0.5 * (1 - coverage)
        lower, upper = self.quantiles([tail, 1 - tail])
        return lower, upper

    # Score

    @torch.no_grad()
    def crps(self, y: Num[Tensor, " n"]) -> Row:
        """Compute ∫ (P(Y ≤ t) − 1{y ≤ t})² dt, as `predictive_crps`.

        Gaussian, Student's t and changing noise are mixtures of Gaussians: a sum over their pairs.

        For labels it is Brier's score. Elsewhere the relative error is at most 1e-5, 1e-3 for
        counts spread over hundreds and for components that can only draw y.
        """
        if self.single is not None:
            return predictive_crps(self.single.likelihood, y, self.single.marginals)
        target = y.double()
        check_targets([component.likelihood for component in self.components], target)
        if self.task == "classification":
            return (self.average(Component.mean) - target).square()
        if (gaussians := self._gaussians()) is not None:
            return gaussian_score(gaussians, target)
        if self.task == "count":
            return counted_score(self.components, target)
        quantiles = each_quantiles(self.components, LEVELS)
        likelihood: Any = self.components[0].likelihood
        observed = has(likelihood, Censored)
        ends = likelihood.observed_range(target) if observed else (target, target)
        return integrated_score(self._tail, quantiles, ends)

    def _tail(self, rows: Int[Tensor, " r"], t: Tensor, above: bool) -> Tensor:
        """Return P(Y > t) or P(Y ≤ t) of some examples, for t of shape (..., r)."""
        index = rows.expand(t.shape).reshape(-1)
        return self._probability(index, t.reshape(-1), above).reshape(t.shape)

    def probabilities(
        self, index: Int[Tensor, " r"], first: Row, number: int
    ) -> Float[Tensor, "k r"]:
        """Return the probabilities of as many counts from the first on, for some examples."""
        return count_probabilities(self.components, index, first, number)

    def _gaussians(self) -> list[Gaussians] | None:
        """Return the components as mixtures of Gaussians; None if one is not, or E|y| is infinite.

        Those of censored targets are not of the target that is observed.
        """
        parts = []
        for component in self.components:
            likelihood: Any = component.likelihood
            mean, variance = component.marginals.mean, component.marginals.variance
            gaussians: tuple[Tensor, Tensor] | None = None
            if has(likelihood, Censored):
                return None
            if has(likelihood, GaussianPredictive):
                deviation = likelihood.predictive_deviation(variance)[None]
                gaussians = deviation, torch.ones_like(deviation)
            elif has(likelihood, GaussianMixture):
                gaussians = likelihood.gaussian_mixture(mean, variance)
            elif has(likelihood, ScaleMixture):
                gaussians = gaussians_of(likelihood, variance)
            if gaussians is None:
                return None
            deviations, weights = gaussians
            parts.append(Gaussians(component.weight * weights, component.mean(), deviations))
        return parts

    def _probability(self, index: Int[Tensor, " r"], y: Row, above: bool) -> Row:
        """Return P(Y ≤ y), or P(Y > y) if `above`, for some of the examples."""
        return self.average(lambda component: component.probability(index, y, above))

    def _smallest_integers(self, level: Float[Tensor, "k n"]) -> Float[Tensor, "k n"]:
        """Find the smallest whole y with P(Y ≤ y) ≥ level, between the components' quantiles."""
        n = level.shape[1]
        quantiles = [component.quantiles(level[:, 0]) for component in self.components]
        ends = torch.stack(quantiles).flatten(1)

        def cdf(index: Tensor, y: Tensor) -> Tensor:
            return self._probability(index % n, y, False)

        reached = rounded_down(level).reshape(-1)
        return smallest_count_between(cdf, reached, ends.amin(0), ends.amax(0)).reshape(-1, n)

    def _roots(self, level: Float[Tensor, "k n"]) -> Float[Tensor, "k n"]:
        """Find y with P(Y ≤ y) = level, from the quantile q of the heaviest component on.

        It is a root of probit P(Y ≤ y) − probit(level) in x with y = q + s·sinh(x): near q one of
        slope 1, as s = φ(z)/p(q), z = probit(level), and far away powers of y are lines. Above the
        median P(Y > y) takes the place of 1 − P(Y ≤ y), for its digits.
        """
        heaviest = max(self.components, key=lambda component: component.weight)
        start = heaviest.quantiles(level[:, 0])
        start = torch.where(start.isinf(), 0.0, start)
        z = torch.special.ndtri(level)
        log_density = torch.stack([heaviest.log_density(y) for y in start.nan_to_num()])
        log_slope = -0.5 * (z * z + math.log(2 * math.pi)) - log_density
        scale = torch.exp(log_slope).reshape(-1)
        scale = torch.where(torch.isfinite(scale) & (scale > 0), scale, 1.0)
        start = start.reshape(-1)
        y = self._root(level, start, scale, torch.arange(len(start), device=start.device))
        # y = q + s·sinh(x) has lost digits where q is much larger: start anew from y.
        lost = torch.nonzero(y.abs() < _CANCELLED * start.abs()).squeeze(-1)
        if len(lost):
            rounding = 4 * torch.finfo(y.dtype).eps * start[lost].abs()
            y[lost] = self._root(level, y[lost], rounding, lost)
        return y.reshape(level.shape)

    def _root(
        self,
        levels: Float[Tensor, "k m"],
        start: Row,
        scale: Row,
        chosen: Int[Tensor, " n"],
    ) -> Row:
        """Find y = start + scale·sinh(x), for some of the flattened levels."""
        level = levels.reshape(-1)[chosen]
        upper_half = level > 0.5
        side = torch.where(upper_half, -1.0, 1.0)
        target = torch.special.ndtri(torch.minimum(level, 1 - level))
        examples = chosen % levels.shape[1]

        def values(index: Tensor | slice, x: Tensor) -> Tensor:
            return (start[index] + scale[index] * torch.sinh(x)).clamp(-LARGEST, LARGEST)

        def offset(index: Tensor, x: Tensor) -> Tensor:
            y = values(index, x)
            tail = torch.empty_like(y)
            for above in (False, True):
                part = upper_half[index] == above
                if bool(part.any()):
                    tail[part] = self._probability(examples[index[part]], y[part], above)
            probit = torch.special.ndtri(tail).clamp(-OUTSIDE, OUTSIDE)
            gap: Tensor = side[index] * (probit - target[index])
            return gap

        x = smallest_root(offset, torch.zeros_like(start), _FARTHEST)
        infinite = torch.copysign(torch.full_like(x, torch.inf), x)
        return torch.where(x.abs() >= _FARTHEST, infinite, values(slice(None), x))

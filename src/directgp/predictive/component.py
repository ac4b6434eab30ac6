"""Compute the distribution of y under one model of a mixture."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from directgp.integration.contract import has
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import BoundedCounts, GaussianPredictive, MappedSupport
from directgp.predictive.api import predictive_log_density, predictive_quantiles
from directgp.predictive.distributions import distribution_of
from directgp.predictive.moments import centre, example_rows
from directgp.shapes import Marginals, Row, Values

_BLOCK = 2**15
"""Probabilities of counts at a time."""


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

    def quantiles(self, levels: Float[Tensor, " k"]) -> Float[Tensor, "k n"]:
        """Return the smallest y with P_k(Y ≤ y) ≥ level."""
        return predictive_quantiles(self.likelihood, self.marginals, levels)

    def chances(
        self, index: Int[Tensor, " r"], counts: Float[Tensor, "k r"]
    ) -> Float[Tensor, "k r"]:
        """Return the probabilities of counts ≥ 0, for some of the examples."""
        likelihood = self.likelihood.take(index)
        q = Marginals(self.marginals.mean[..., index], self.marginals.variance[..., index])
        possible = counts
        if has(likelihood, BoundedCounts):
            possible = torch.minimum(counts, cast(BoundedCounts, likelihood).largest_target())
        parts = possible.split(max(1, _BLOCK // counts.shape[1]))
        chances = torch.cat([predictive_log_density(likelihood, y, q).exp() for y in parts])
        return torch.where(counts == possible, chances, 0.0)

    def probability(self, index: Int[Tensor, " r"], y: Row, above: bool) -> Row:
        """Return P(Y ≤ y), or P(Y > y) if `above`, for some of the examples."""
        q = self.marginals
        distribution = distribution_of(
            self.likelihood.take(index), q.mean[..., index], q.variance[..., index]
        )
        return distribution.tail(y, above)


def each_quantiles(
    components: Sequence[Component], levels: Sequence[float]
) -> Float[Tensor, "c k n"]:
    """Return the quantiles of each component."""
    mean = components[0].marginals.mean
    level = torch.tensor(levels, dtype=torch.float64, device=mean.device)
    return torch.stack([component.quantiles(level) for component in components])

"""Distributions of y as torch has them, from the formulas of directgp."""

from typing import ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Num
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions.constraints import Constraint
from typing_extensions import override

from directgp.checks import require_all
from directgp.likelihoods.base import Likelihood
from directgp.predictive import (
    predictive_cdf,
    predictive_log_density,
    predictive_mean,
    predictive_variance,
)
from directgp.predictive.quantiles import distribution_of
from directgp.predictive.sampling import sample_targets
from directgp.shapes import Marginals

Values = Float[Tensor, "..."]


@final
class Conditional(Distribution):
    """p(y given f)."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(self, likelihood: Likelihood, f: Values) -> None:
        self.likelihood, self.f = likelihood, f
        super().__init__(f.shape, validate_args=False)

    @property
    @override
    def mean(self) -> Values:
        return self.likelihood.conditional_mean(self.f)

    @property
    @override
    def variance(self) -> Values:
        return self.likelihood.conditional_variance(self.f)

    @override
    def log_prob(self, value: Num[Tensor, "..."]) -> Values:
        return self.likelihood.log_prob(value, self.f)

    @override
    def sample(self, sample_shape: torch.Size | list[int] | tuple[int, ...] = ()) -> Values:
        f = self.f.expand(self._extended_shape(torch.Size(sample_shape)))
        return _drawn(self.likelihood, f)


@final
class Predictive(Distribution):
    """p(y) = E_q[p(y given f)], each example by itself.

    Values, tails and quantiles are exact, where GPyTorch has samples or nothing.
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(self, likelihood: Likelihood, marginals: Marginals) -> None:
        self.likelihood, self.marginals = likelihood, marginals
        super().__init__(marginals.mean.shape, validate_args=False)

    @property
    @override
    def mean(self) -> Values:
        return predictive_mean(self.likelihood, self.marginals)

    @property
    @override
    def variance(self) -> Values:
        return predictive_variance(self.likelihood, self.marginals)

    @override
    def log_prob(self, value: Num[Tensor, "..."]) -> Values:
        return predictive_log_density(self.likelihood, value, self.marginals)

    @override
    def cdf(self, value: Num[Tensor, "..."]) -> Values:
        """P(Y ≤ value)."""
        return predictive_cdf(self.likelihood, value, self.marginals)

    @override
    def icdf(self, value: float | Float[Tensor, "..."]) -> Values:
        """The smallest y with P(Y ≤ y) ≥ value; levels broadcast with the examples."""
        mean = self.marginals.mean
        level = torch.as_tensor(value, dtype=torch.float64, device=mean.device)
        rows = torch.broadcast_tensors(level, mean.double(), self.marginals.variance.double())
        inside = (level > 0) & (level < 1)
        require_all(inside.reshape(-1), level.reshape(-1), "level of icdf", "between 0 and 1")
        level, mean, variance = rows
        with torch.no_grad():
            found = distribution_of(self.likelihood, mean, variance).quantile(level[None])[0]
        return found.to(self.marginals.mean.dtype)

    @override
    def sample(self, sample_shape: torch.Size | list[int] | tuple[int, ...] = ()) -> Values:
        shape = self._extended_shape(torch.Size(sample_shape))
        mean, deviation = self.marginals.mean, self.marginals.variance.sqrt()
        with torch.no_grad():
            f = mean + deviation * torch.randn(shape, dtype=mean.dtype, device=mean.device)
        return _drawn(self.likelihood, f)


def _drawn(likelihood: Likelihood, f: Values) -> Values:
    """One y for each f, by torch's own source of randomness, as is the custom of its classes."""
    random = np.random.RandomState(int(torch.randint(2**31 - 1, ())))
    return torch.as_tensor(sample_targets(likelihood, f, random)).to(f)

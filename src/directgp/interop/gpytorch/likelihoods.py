"""Wrap a likelihood of directgp as a GPyTorch likelihood, with exact predictive distributions."""

from typing import Any, ClassVar, final

import numpy as np
import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import Likelihood as GPyTorchBase
from jaxtyping import Num
from torch import Tensor
from torch.distributions import Categorical, Distribution
from torch.distributions.constraints import Constraint
from typing_extensions import override

from directgp.errors import UnsupportedError, require, require_all
from directgp.interop.gpytorch.latents import latent_marginals
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import Classes
from directgp.likelihoods.gaussian import GaussianNoise
from directgp.log_expectations.api import expected_log_prob, log_expectation
from directgp.predictive import (
    predictive_cdf,
    predictive_log_density,
    predictive_mean,
    predictive_variance,
)
from directgp.predictive.distributions import distribution_of
from directgp.predictive.moments import example_rows
from directgp.shapes import Marginals, Values


@final
class GivenLatent(Distribution):
    """p(y given f), with f of shape (..., n), or (..., P, n) for P latents."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(self, likelihood: Likelihood, f: Values) -> None:
        self.likelihood = likelihood
        self.f = f
        super().__init__(example_rows(likelihood, f).shape, validate_args=False)

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
        f = self.f.expand(*sample_shape, *self.f.shape)
        return _drawn(self.likelihood, f)


@final
class Predictive(Distribution):
    """p(y) = E_q[p(y given f)] of each example, with exact values, tails and quantiles."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(self, likelihood: Likelihood, marginals: Marginals) -> None:
        self.likelihood = likelihood
        self.marginals = marginals
        super().__init__(example_rows(likelihood, marginals.mean).shape, validate_args=False)

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
        """Return P(Y ≤ value)."""
        return predictive_cdf(self.likelihood, value, self.marginals)

    @override
    def icdf(self, value: float | Values) -> Values:
        """Return the smallest y with P(Y ≤ y) ≥ value; levels broadcast with the examples."""
        mean = self.marginals.mean.double()
        variance = self.marginals.variance.double()
        level = torch.as_tensor(value, dtype=torch.float64, device=mean.device)
        inside = (level > 0) & (level < 1)
        require_all(inside.reshape(-1), level.reshape(-1), "level of icdf", "between 0 and 1")
        if self.likelihood.num_latent == 1:
            level, mean, variance = torch.broadcast_tensors(level, mean, variance)
        level = torch.broadcast_tensors(level, example_rows(self.likelihood, mean))[0]
        with torch.no_grad():
            quantiles = distribution_of(self.likelihood, mean, variance).quantile(level[None])[0]
        return quantiles.to(self.marginals.mean.dtype)

    @override
    def sample(self, sample_shape: torch.Size | list[int] | tuple[int, ...] = ()) -> Values:
        mean = self.marginals.mean
        deviation = self.marginals.variance.sqrt()
        shape = *sample_shape, *mean.shape
        with torch.no_grad():
            f = mean + deviation * torch.randn(shape, dtype=mean.dtype, device=mean.device)
        return _drawn(self.likelihood, f)


def _drawn(likelihood: Likelihood, f: Values) -> Values:
    """Draw one y for each f, seeded by torch's global generator, as torch's distributions do."""
    random = np.random.RandomState(int(torch.randint(2**31 - 1, ())))
    return torch.as_tensor(likelihood.sample(f, random)).to(f)


@final
class GPyTorchLikelihood(GPyTorchBase):
    """A likelihood of directgp as a GPyTorch likelihood.

    Called with latent values it returns p(y given f), called with q(f) it returns p(y), whose
    ``log_prob``, ``mean``, ``variance``, ``cdf`` and ``icdf`` are exact. Its expectations are those
    of directgp, so that GPyTorch's own objectives are accurate in the tails with it.

    A likelihood of P > 1 latents takes them as GPyTorch has tasks: q(f) is a
    ``MultitaskMultivariateNormal``, and latent values have shape (..., n, P). p(y) of classes is a
    ``torch.distributions.Categorical`` with exact probabilities.

    Parameters
    ----------
    base : directgp.likelihoods.Likelihood
        p(y given f). Its row constant, such as ``exposure=...``, is given in every call.

    Examples
    --------
    >>> import torch, gpytorch
    >>> from directgp.likelihoods import Poisson
    >>> q = gpytorch.distributions.MultivariateNormal(torch.tensor([0.5]), 0.3 * torch.eye(1))
    >>> likelihood = GPyTorchLikelihood(Poisson())
    >>> likelihood.log_marginal(torch.tensor([300.0]), q)
    tensor([-50.6238])
    >>> likelihood(q).icdf(0.95)
    tensor([5.])
    """

    def __init__(self, base: Likelihood) -> None:
        super().__init__()
        self.base = base

    @property
    def has_analytic_marginal(self) -> bool:
        """Whether p(y) is Gaussian."""
        return isinstance(self.base, GaussianNoise)

    def with_arguments(self, *params: Any, **row_values: Tensor | None) -> Likelihood:
        """Return the likelihood of directgp with these row values; other inputs are ignored."""
        constants = {name: values for name, values in row_values.items() if values is not None}
        argument = self.base.rows.argument
        if others := constants.keys() - {argument}:
            raise UnsupportedError(
                f"{type(self.base).__name__} has no use for {', '.join(sorted(others))}. "
                + (f"Give {argument}=, or leave it out." if argument else "Leave it out.")
            )
        return self.base.with_row_values(constants.get(argument) if argument else None)

    @override
    def forward(self, function_samples: Tensor, *params: Any, **kwargs: Any) -> GivenLatent:
        """Return p(y given f)."""
        likelihood = self.with_arguments(**kwargs)
        f = function_samples
        if (number := likelihood.num_latent) > 1:
            who = f"f of {type(likelihood).__name__}"
            shape = tuple(f.shape)
            fits = f.dim() > 1 and f.shape[-1] == number
            require(fits, who, f"of shape (..., n, {number})", shape)
            f = f.transpose(-1, -2)
        return GivenLatent(likelihood, f)

    @override
    def marginal(
        self, function_dist: MultivariateNormal, *params: Any, **kwargs: Any
    ) -> MultivariateNormal | Predictive | Categorical:
        """Return p(y): jointly Gaussian for one noise variance, else of each y separately."""
        likelihood = self.with_arguments(**kwargs)
        if not isinstance(likelihood, GaussianNoise) or likelihood.noise.numel() != 1:
            marginals = self._marginals(function_dist)
            if likelihood.num_latent > 1 and isinstance(likelihood, Classes):
                return _classes(likelihood, marginals)
            return Predictive(likelihood, marginals)
        noise = likelihood.noise.to(function_dist.mean)
        covariance = function_dist.lazy_covariance_matrix.add_diagonal(noise)
        if isinstance(function_dist, MultitaskMultivariateNormal):
            order = function_dist._interleaved
            return MultitaskMultivariateNormal(function_dist.mean, covariance, interleaved=order)
        return MultivariateNormal(function_dist.mean, covariance)

    @override
    def expected_log_prob(
        self, observations: Tensor, function_dist: MultivariateNormal, *params: Any, **kwargs: Any
    ) -> Tensor:
        """Return E_q[log p(y given f)] of each example."""
        q = self._marginals(function_dist)
        return expected_log_prob(self.with_arguments(**kwargs), observations, q.mean, q.variance)

    @override
    def log_marginal(
        self, observations: Tensor, function_dist: MultivariateNormal, *params: Any, **kwargs: Any
    ) -> Tensor:
        """Return log E_q[p(y given f)] of each example."""
        q = self._marginals(function_dist)
        return log_expectation(self.with_arguments(**kwargs), observations, q.mean, q.variance)

    def _marginals(self, q: MultivariateNormal) -> Marginals:
        return latent_marginals(type(self.base).__name__, q, self.base.num_latent)


def _classes(likelihood: Likelihood, marginals: Marginals) -> Categorical:
    """Return P(Y = k) of every class, differentiable and accurate also where it is tiny."""
    mean = marginals.mean
    variance = marginals.variance
    labels = torch.arange(likelihood.num_latent, device=mean.device)
    log_probabilities = [
        log_expectation(likelihood, k.expand(mean.shape[-1]), mean, variance) for k in labels
    ]
    return Categorical(logits=torch.stack(log_probabilities, -1), validate_args=False)

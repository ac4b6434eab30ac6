"""Likelihoods of directgp as GPyTorch likelihoods."""

from typing import Any, final

from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import Likelihood as GPyTorchBase
from torch import Tensor
from typing_extensions import override

from directgp.interop.gpytorch.distributions import Conditional, Predictive
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.counts import exposed
from directgp.likelihoods.gaussian import GaussianNoise
from directgp.log_expectations.evaluate import expected_log_prob, log_expectation
from directgp.shapes import Marginals


@final
class GPyTorchLikelihood(GPyTorchBase):
    """A likelihood of directgp wherever GPyTorch wants one of its own.

    Of latent values it makes p(y given f), of q(f) it makes p(y), whose ``log_prob``, ``mean``,
    ``variance``, ``cdf`` and ``icdf`` are exact. Its expectations are those of directgp, so that
    GPyTorch's own objectives are right in the tails with it.

    Parameters
    ----------
    base : directgp.likelihoods.Likelihood
        p(y given f). Counts take ``exposure=...`` in every call.

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

    def with_arguments(self, *params: Any, exposure: Tensor | None = None) -> Likelihood:
        """p(y given f) of directgp; inputs that GPyTorch hands on are passed over."""
        return exposed(self.base, exposure)

    @override
    def forward(self, function_samples: Tensor, *params: Any, **kwargs: Any) -> Conditional:
        """p(y given f)."""
        return Conditional(self.with_arguments(**kwargs), function_samples)

    @override
    def marginal(
        self, function_dist: MultivariateNormal, *params: Any, **kwargs: Any
    ) -> MultivariateNormal | Predictive:
        """p(y), jointly Gaussian where the noise is one number, each y by itself elsewhere."""
        likelihood = self.with_arguments(**kwargs)
        if not isinstance(likelihood, GaussianNoise) or likelihood.noise.numel() != 1:
            return Predictive(likelihood, _marginals(function_dist))
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
        """E_q[log p(y given f)] of each example."""
        q = _marginals(function_dist)
        return expected_log_prob(self.with_arguments(**kwargs), observations, q.mean, q.variance)

    @override
    def log_marginal(
        self, observations: Tensor, function_dist: MultivariateNormal, *params: Any, **kwargs: Any
    ) -> Tensor:
        """log E_q[p(y given f)] of each example."""
        q = _marginals(function_dist)
        return log_expectation(self.with_arguments(**kwargs), observations, q.mean, q.variance)


def _marginals(q: MultivariateNormal) -> Marginals:
    return Marginals(q.mean, q.variance)

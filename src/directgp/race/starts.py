"""Make the state from which a candidate starts: the ELBO solution of a simpler model."""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from directgp.likelihoods.starts import latent_starts, starting_likelihood
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.data import Data, Model
from directgp.training.result import TrainingResult
from directgp.training.validation import for_rows_of

_EXPLAINED = 0.05
"""Smallest share of the variance that an ELBO solution explains if a model starts from it."""


def start_of(model: Model, solution: TrainingResult, data: Data) -> TrainingResult:
    """Return a model with the kernel parameters and q(u) of an ELBO solution of the same scale.

    Where the solution explains the targets by noise alone, it is the untrained model.
    """
    before = solution.posterior
    if before.num_latent > model.posterior.num_latent:
        before = before.latent(0)
    mean = before.predict(data.X).mean
    likelihood = for_rows_of(model.likelihood, solution.likelihood)
    explained, variance = (float(values.var(correction=0)) for values in (mean, data.y))
    if likelihood.additive and not explained > _EXPLAINED * variance:
        return replace(solution, posterior=copy.deepcopy(model.posterior), likelihood=likelihood)
    if model.posterior.num_latent == before.num_latent > 1:
        own = model.posterior.Z.dim() > before.Z.dim()
        posterior = before.with_own_kernels() if own else _with_kernel(before, model.posterior)
        return replace(solution, posterior=posterior, likelihood=solution.likelihood)
    if type(likelihood) is type(solution.likelihood):
        posterior = _with_kernel(before, model.posterior)
        return replace(solution, posterior=posterior)
    # Scale the residuals: a likelihood starts with a tenth of the variance of its targets as noise.
    noise = math.sqrt(10) * (data.y - mean)
    if likelihood.num_latent > before.num_latent:
        posterior = _with_more_latents(
            _with_kernel(before, model.posterior.latent(0)), latent_starts(likelihood, noise)
        )
        return replace(solution, posterior=posterior, likelihood=likelihood)
    posterior = _with_kernel(before, model.posterior)
    if likelihood.additive:
        likelihood = starting_likelihood(type(likelihood), noise).to(data.X)
        likelihood = for_rows_of(likelihood, solution.likelihood)
    return replace(solution, posterior=posterior, likelihood=likelihood)


def _with_kernel(posterior: SparsePosterior, like: SparsePosterior) -> SparsePosterior:
    """Return a posterior with the kind of kernel of another one, at its own parameters."""
    twin = copy.deepcopy(posterior)
    kernel = copy.deepcopy(like.prior.kernel)
    kernel.load_state_dict(twin.prior.kernel.state_dict())
    twin.prior.kernel = kernel
    return twin


def _with_more_latents(
    posterior: SparsePosterior, starts: Sequence[tuple[float, float]]
) -> SparsePosterior:
    """Return a posterior with more latents: the first keeps its q(u), the others have q(u) = p(u).

    All start with the same kernel and inducing inputs, and with these constant means and variances.
    """
    prior = posterior.prior
    constant = getattr(prior.mean_function, "constant", torch.zeros(()))
    start_of_first = float(constant.detach()), float(prior.output_scale.detach())
    twin = posterior.with_latents(len(starts))
    twin.prior = prior.with_starts([start_of_first, *starts[1:]])
    with torch.no_grad():
        twin.u_mean[1:] = 0
        twin.u_chol[1:] = torch.eye(posterior.num_inducing).to(twin.u_chol)
    return twin

"""GPyTorch likelihoods as likelihoods of directgp: the same p(y given f), with stable formulas."""

from typing import Any

import gpytorch
import torch
from gpytorch.likelihoods import (
    BernoulliLikelihood,
    LikelihoodList,
    PoissonLikelihood,
    SoftmaxLikelihood,
    StudentTLikelihood,
    _GaussianLikelihoodBase,
    _MultitaskGaussianLikelihoodBase,
)
from linear_operator.operators import ZeroLinearOperator
from torch import Tensor

from directgp.checks import require_all
from directgp.errors import UnsupportedError, refuse, require
from directgp.interop.gpytorch.adapted import Adapted
from directgp.interop.gpytorch.likelihood import GPyTorchLikelihood
from directgp.interop.gpytorch.noise import GivenGaussian, GivenStudentT
from directgp.likelihoods import Likelihood, Poisson, Probit


def translated(
    likelihood: gpytorch.likelihoods.Likelihood,
    shape: torch.Size,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Likelihood:
    """p(y given f) for examples of this shape, with gradients to the likelihood's parameters."""
    if isinstance(likelihood, GPyTorchLikelihood):
        return likelihood.with_arguments(*args, **kwargs)
    # A subclass with a forward of its own is another likelihood.
    forward = type(likelihood).forward
    gpytorchs = (forward.__module__ or "").startswith("gpytorch.")
    if isinstance(likelihood, _GaussianLikelihoodBase) and gpytorchs:
        return GivenGaussian(_noise(likelihood, shape, args, kwargs))
    if forward is BernoulliLikelihood.forward:
        return Probit()
    if forward is PoissonLikelihood.forward:
        return Poisson(link="softplus")
    if forward is StudentTLikelihood.forward:
        return GivenStudentT(likelihood.deg_free, likelihood.noise.sqrt())
    return Adapted(likelihood, shape, args, kwargs)


def check_one_dimensional(likelihood: gpytorch.likelihoods.Likelihood) -> None:
    """Refuse likelihoods in which one y depends on several latent values, or on other y."""
    several = isinstance(likelihood, SoftmaxLikelihood | LikelihoodList)
    correlated = (getattr(likelihood, "rank", 0) or 0) > 0
    if several or correlated:
        why = (
            "whose noise is correlated between tasks" if correlated else "of several latent values"
        )
        raise UnsupportedError(
            f"The likelihood must be one of one latent value for each y. Got "
            f"{type(likelihood).__name__}, {why}. Use a likelihood such as GaussianLikelihood, "
            f"MultitaskGaussianLikelihood(rank=0), BernoulliLikelihood or one of directgp, or "
            f"gpytorch.mlls."
        )


def _noise(
    likelihood: _GaussianLikelihoodBase,
    shape: torch.Size,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Tensor:
    """The noise variance of each example, refused where it is none."""
    who = f"noise of {type(likelihood).__name__}"
    if isinstance(likelihood, _MultitaskGaussianLikelihoodBase):
        tasks = likelihood.num_tasks
        fits = len(shape) > 1 and shape[-1] == tasks
        require(fits, who, f"of q(f) for {tasks} tasks, of shape (..., n, {tasks})", tuple(shape))
    covariance = likelihood._shaped_noise_covar(shape, *args, **kwargs)
    if isinstance(covariance, ZeroLinearOperator):
        remedy = "Pass noise=... with every batch."
        refuse(who, f"given for examples of shape {tuple(shape)}", "that of others", remedy)
    noise: Tensor = covariance.diagonal(dim1=-1, dim2=-2)
    if noise.shape[-1] != shape[-1]:
        noise = noise.reshape(*noise.shape[:-1], *shape[-2:])
    require_all(noise > 0, noise, who, "positive")
    return noise

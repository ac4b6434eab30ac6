"""What an objective is given in a GPyTorch training loop: q(f) and targets, checked."""

import gpytorch
import numpy as np
import torch
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import AddedDiagLinearOperator
from torch import Tensor

from directgp.checks import require_all
from directgp.errors import InvalidInputError, UnsupportedError, require

_REMEDY = "Pass model(x), not likelihood(model(x))."


def checked_normal(who: str, q: object) -> MultivariateNormal:
    """What may be q(f), refused where it is something else."""
    if not isinstance(q, MultivariateNormal):
        raise UnsupportedError(
            f"{who} must be given q(f), a MultivariateNormal. Got {type(q).__name__}. {_REMEDY}"
        )
    return q


def check_noiseless(
    who: str,
    q: MultivariateNormal,
    variance: Tensor,
    likelihood: torch.nn.Module,
    model: torch.nn.Module,
) -> None:
    """Refuse p(y) in place of q(f)."""
    if _depends_on(variance, likelihood, model) or _has_noise(q, likelihood):
        raise InvalidInputError(
            f"{who} must be given q(f), the distribution of the latent function. Got one with the "
            f"noise of {type(likelihood).__name__} in its variances. {_REMEDY}"
        )


def check_targets(who: str, y: Tensor, q: MultivariateNormal) -> None:
    """Refuse targets of another shape than q(f): above all a column."""
    shape, events = tuple(q.mean.shape), len(q.event_shape)
    require(y.numel() > 0, f"y of {who}", "of at least one example", "none")
    try:
        fits = np.broadcast_shapes(tuple(y.shape), shape) == shape
    except ValueError:
        fits = False
    fits = fits and y.shape[-events:] == q.event_shape
    remedy = "Flatten a column y with y.squeeze(-1)." if y.shape[-1:] == (1,) else ""
    require(fits, f"y of {who}", f"of the shape of q(f), {shape}", tuple(y.shape), remedy)


def check_observed(who: str, y: Tensor) -> None:
    """Refuse missing targets that nobody announced."""
    remedy = (
        "Missing targets are passed over under gpytorch.settings.observation_nan_policy('mask')."
    )
    require_all(~torch.isnan(y), y, f"y of {who}", "a number", remedy)


def missing(likelihood: torch.nn.Module, y: Tensor) -> Tensor | None:
    """Where targets are missing and GPyTorch was told that they may be; None where none are."""
    policy = gpytorch.settings.observation_nan_policy.value()
    ours = isinstance(likelihood, gpytorch.likelihoods.GaussianLikelihoodWithMissingObs)
    if policy == "ignore" and not ours:
        return None
    nan = torch.isnan(y)
    return nan if bool(nan.any()) else None


def _depends_on(variance: Tensor, likelihood: torch.nn.Module, model: torch.nn.Module) -> bool:
    """Whether a gradient leads from the variances to parameters of the likelihood alone."""
    models = {id(each) for each in model.parameters()}
    parameters = [
        each for each in likelihood.parameters() if each.requires_grad and id(each) not in models
    ]
    if not parameters or not variance.requires_grad:
        return False
    found = torch.autograd.grad(variance.sum(), parameters, retain_graph=True, allow_unused=True)
    return any(each is not None for each in found)


def _has_noise(q: MultivariateNormal, likelihood: torch.nn.Module) -> bool:
    """Whether the covariance was made by adding the likelihood's own noise, for want of a graph."""
    covariance, noise = q.lazy_covariance_matrix, getattr(likelihood, "noise", None)
    if not isinstance(covariance, AddedDiagLinearOperator) or not isinstance(noise, Tensor):
        return False
    added: Tensor = covariance._diag_tensor.diagonal(dim1=-1, dim2=-2)
    try:
        return bool(torch.equal(added, noise.expand(added.shape)))
    except RuntimeError:
        return False

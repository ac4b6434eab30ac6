"""What a BoTorch model is made of: q(f), the noise of y, and the units of the user."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from directgp.errors import refuse, require
from directgp.likelihoods.base import Likelihood
from directgp.posteriors.sparse import SparsePosterior

_WHO = "fitted of DirectModel"
_ALLOWED = "an estimator of directgp, fitted, or a SparsePosterior"


@dataclass(frozen=True)
class Units:
    """Scaled x is (x − shift) / scale, and so is scaled y."""

    x_shift: Float64[Tensor, " d"]
    x_scale: Float64[Tensor, " d"]
    y_shift: Float64[Tensor, ""]
    y_scale: Float64[Tensor, ""]


@dataclass(frozen=True)
class Source:
    """A copy of a fitted model."""

    posterior: SparsePosterior
    likelihood: Likelihood | None
    units: Units


def source_of(fitted: Any, likelihood: Likelihood | None) -> Source:
    """A copy in float64 that asks for no gradients; refuses what is not fitted."""
    if isinstance(fitted, SparsePosterior):
        return Source(_held(fitted), likelihood, _plain(fitted))
    require(isinstance(fitted, BaseEstimator), _WHO, _ALLOWED, type(fitted).__name__)
    check_is_fitted(fitted)
    posterior = getattr(fitted, "posterior_", None)
    if not isinstance(posterior, SparsePosterior):
        refuse(_WHO, _ALLOWED, type(fitted).__name__, "Of a pipeline or a search, give the model.")
    require(
        likelihood is None,
        "likelihood of DirectModel",
        "left out where an estimator is given, which has its own",
        type(likelihood).__name__,
    )
    return Source(_held(posterior), fitted.likelihood_, _units(fitted.scalings_, posterior))


def _held(posterior: SparsePosterior) -> SparsePosterior:
    twin = copy.deepcopy(posterior).double().requires_grad_(False)
    # Training leaves its last gradients behind.
    twin.zero_grad()
    return twin


def _plain(posterior: SparsePosterior) -> Units:
    """Nothing is scaled."""
    zero = posterior.Z.new_zeros(posterior.Z.shape[-1], dtype=torch.float64)
    return Units(zero, zero + 1, zero[0].clone(), zero[0] + 1)


def _units(scalings: Any, posterior: SparsePosterior) -> Units:
    x, y = scalings.inputs, scalings.targets
    values = (x.shift, x.scale, y.shift[0], y.scale[0])
    device = posterior.Z.device
    return Units(*(torch.tensor(each, dtype=torch.float64, device=device) for each in values))

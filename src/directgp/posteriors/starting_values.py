"""Hyperparameters to start from, read off the data."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Num
from torch import Tensor

from directgp.posteriors.shortening import shortening

_ROWS = 1000
"""Rows whose distances are looked at."""


@dataclass(frozen=True)
class Start:
    """Where the hyperparameters of a prior start."""

    lengthscale: Float[Tensor, "..."]
    """() for one lengthscale, (d,) for one a feature."""

    output_scale: Float[Tensor, ""]
    mean: Float[Tensor, ""]


def starting_values(
    X: Float[Tensor, "n d"], latent: Num[Tensor, " n"] | None, *, ard: bool, constant_mean: bool
) -> Start:
    """Lengthscales from the spread of the inputs, scale and mean from rough values of f."""
    if latent is None:
        mean, scale = X.new_zeros(()), X.new_ones(())
    else:
        values = latent.to(X.dtype)
        mean = values.mean() if constant_mean else values.new_zeros(())
        scale = _or_one((values - mean).square().mean())
    lengthscale = _lengthscale(X, ard)
    if latent is not None:
        lengthscale = lengthscale * shortening(X, latent.to(X.dtype), lengthscale)
    return Start(lengthscale, scale, mean)


def _lengthscale(X: Float[Tensor, "n d"], ard: bool) -> Float[Tensor, "..."]:
    """√d standard deviations of each feature, or the median distance of two rows over √2.

    The two agree for independent features of one spread.
    """
    spread = X.std(0, correction=0)
    if ard:
        return _or_one(spread * X.shape[-1] ** 0.5)
    rows = X[torch.linspace(0, len(X) - 1, min(len(X), _ROWS), device=X.device).long()]
    distances = torch.pdist(rows)
    if len(distances) == 0:
        return X.new_ones(())
    median = _or_one(distances.median() / 2**0.5)
    return median if bool(distances.median() > 0) else _or_one(spread.square().sum().sqrt())


def _or_one(values: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The values, and 1 for those that say nothing."""
    return torch.where((values > 0) & torch.isfinite(values), values, 1.0)

"""Examples and models as training takes them, and the check that they fit each other."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor

from directgp.errors import require, require_all
from directgp.likelihoods.base import Likelihood, check_shape
from directgp.log_expectations.api import check_device, check_magnitude
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.result import TrainingResult


@dataclass(frozen=True)
class Data:
    """Inputs, targets and weights of examples."""

    X: Float[Tensor, "n d"]
    """Inputs."""

    y: Num[Tensor, " n"]
    """Targets."""

    weights: Num[Tensor, " n"] | None = None
    """Weight of each example; None for 1."""

    def __len__(self) -> int:
        return len(self.X)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Data":
        """Return the examples with each tensor changed by a function."""
        weights = None if self.weights is None else change(self.weights)
        return Data(change(self.X), change(self.y), weights)

    def take(self, index: Int[Tensor, " r"]) -> "Data":
        """Return the examples at an index."""
        return self.map(lambda tensor: tensor[index])


class Model(NamedTuple):
    """A posterior and a likelihood, to start from or trained."""

    posterior: SparsePosterior
    """q(u), with prior and inducing inputs."""

    likelihood: Likelihood
    """p(y | f), with its parameters."""

    name: str = ""
    """Kernel and likelihood in words, where a search compares several models."""

    @classmethod
    def of(cls, result: TrainingResult) -> "Model":
        """Return the model that a run has trained."""
        return cls(result.posterior, result.likelihood)


def check_data(who: str, data: Data, posterior: SparsePosterior, likelihood: Likelihood) -> None:
    """Raise `InvalidInputError` if shapes, devices, targets or weights do not fit the model."""
    X = data.X
    y = data.y
    weights = data.weights
    n = len(data)
    require(n >= 1, f"X of {who}", "at least one row", f"shape {tuple(X.shape)}")
    devices = X.device, y.device, posterior.Z.device
    placement = "{}, {} and {}".format(*devices)
    require(len({*devices}) == 1, f"X, y and posterior of {who}", "on one device", placement)
    check_device(f"device of {who}", X.device)
    posterior.check_inputs(X, f"X of {who}")
    wanted = likelihood.num_latent
    latents = posterior.num_latent
    needed = f"of {wanted} latent functions, as {type(likelihood).__name__} needs"
    remedy = f"Make them with posterior.with_latents({wanted})."
    require(latents == wanted, f"posterior of {who}", needed, latents, remedy)
    allowed = f"of shape ({n},), one target for each row of X"
    remedy = "Flatten a column with y.reshape(-1)." if y.numel() == n else ""
    require(y.shape == (n,), f"y of {who}", allowed, f"shape {tuple(y.shape)}", remedy)
    likelihood.check_targets(y)
    check_shape(likelihood, y.shape)
    check_magnitude(f"X of {who}", X)
    check_magnitude(f"y of {who}", y)
    for name, value in likelihood.named_parameters():
        parameter = f"{name} of {type(likelihood).__name__} in {who}"
        require(value.numel() == 1, parameter, "a single number", f"shape {tuple(value.shape)}")
    if weights is not None:
        require(weights.shape == (n,), f"weights of {who}", f"of shape ({n},)", weights.shape)
        valid = torch.isfinite(weights) & (weights >= 0)
        require_all(valid, weights, f"weights of {who}", "finite and at least 0")
        require(bool((weights > 0).any()), f"weights of {who}", "positive somewhere", "zeros")
        check_magnitude(f"weights of {who}", weights)

"""Training data, checked once at the door."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor

from directgp.checks import require_all
from directgp.errors import require
from directgp.likelihoods.base import Likelihood
from directgp.posteriors.sparse import SparsePosterior


@dataclass(frozen=True)
class Data:
    """Inputs, targets and weights of some examples."""

    X: Float[Tensor, "n d"]
    y: Num[Tensor, " n"]
    weights: Num[Tensor, " n"] | None = None

    def __len__(self) -> int:
        return len(self.X)

    def weighted_targets(self) -> Num[Tensor, " r"]:
        """The targets that have a weight."""
        return self.y if self.weights is None else self.y[self.weights > 0]

    def to(self, device: torch.device) -> "Data":
        """The same examples elsewhere."""
        weights = None if self.weights is None else self.weights.to(device)
        return Data(self.X.to(device), self.y.to(device), weights)

    def clone(self) -> "Data":
        """A copy."""
        weights = None if self.weights is None else self.weights.clone()
        return Data(self.X.clone(), self.y.clone(), weights)

    def take(self, index: Int[Tensor, " r"]) -> "Data":
        """Some of the examples."""
        weights = None if self.weights is None else self.weights[index]
        return Data(self.X[index], self.y[index], weights)


def check_data(who: str, data: Data, posterior: SparsePosterior, likelihood: Likelihood) -> None:
    """Refuse data that cannot be meant, before any work is done."""
    n = len(data.X)
    require(n >= 1, f"X of {who}", "at least one row", f"shape {tuple(data.X.shape)}")
    require(
        data.y.device == data.X.device == posterior.Z.device,
        f"X, y and posterior of {who}",
        "on one device",
        f"{data.X.device}, {data.y.device} and {posterior.Z.device}",
    )
    posterior.check_inputs(data.X, f"X of {who}")
    require(
        data.y.shape == (n,),
        f"y of {who}",
        f"of shape ({n},), one target for each row of X",
        f"shape {tuple(data.y.shape)}",
        "Flatten a column with y.reshape(-1)." if data.y.numel() == n else "",
    )
    likelihood.check_targets(data.y)
    likelihood.check_shape(data.y.shape)
    for name, parameter in likelihood.named_parameters():
        require(
            parameter.numel() == 1,
            f"{name} of {type(likelihood).__name__} in {who}",
            "a single number",
            f"shape {tuple(parameter.shape)}",
        )
    if data.weights is not None:
        weights = data.weights
        require(weights.shape == (n,), f"weights of {who}", f"of shape ({n},)", weights.shape)
        allowed = torch.isfinite(weights) & (weights >= 0)
        require_all(allowed, weights, f"weights of {who}", "finite and at least 0")
        require(bool((weights > 0).any()), f"weights of {who}", "positive somewhere", "zeros")

"""Small GPyTorch models, one for each kind of q(u)."""

from collections.abc import Callable
from typing import Any

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.variational import (
    CholeskyVariationalDistribution,
    CiqVariationalStrategy,
    DeltaVariationalDistribution,
    IndependentMultitaskVariationalStrategy,
    LMCVariationalStrategy,
    MeanFieldVariationalDistribution,
    NaturalVariationalDistribution,
    OrthogonallyDecoupledVariationalStrategy,
    UnwhitenedVariationalStrategy,
    VariationalStrategy,
)
from torch import Tensor

Strategy = Callable[[gpytorch.models.ApproximateGP, Tensor], Any]


class Model(gpytorch.models.ApproximateGP):
    """A constant mean, a scaled RBF kernel, and the strategy asked for."""

    def __init__(
        self, Z: Tensor, strategy: Strategy, batch: tuple[int, ...] = (), **priors: Any
    ) -> None:
        super().__init__(strategy(self, Z))
        shape = torch.Size(batch)
        self.mean_module = gpytorch.means.ConstantMean(batch_shape=shape)
        kernel = gpytorch.kernels.RBFKernel(batch_shape=shape, **priors)
        self.covar_module = gpytorch.kernels.ScaleKernel(kernel, batch_shape=shape)

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def whitened(model: Any, Z: Tensor) -> Any:
    return VariationalStrategy(model, Z, CholeskyVariationalDistribution(len(Z)))


def unwhitened(model: Any, Z: Tensor) -> Any:
    return UnwhitenedVariationalStrategy(model, Z, CholeskyVariationalDistribution(len(Z)))


def mean_field(model: Any, Z: Tensor) -> Any:
    return VariationalStrategy(model, Z, MeanFieldVariationalDistribution(len(Z)))


def delta(model: Any, Z: Tensor) -> Any:
    return VariationalStrategy(model, Z, DeltaVariationalDistribution(len(Z)))


def natural(model: Any, Z: Tensor) -> Any:
    return VariationalStrategy(model, Z, NaturalVariationalDistribution(len(Z)))


def contour(model: Any, Z: Tensor) -> Any:
    return CiqVariationalStrategy(model, Z, CholeskyVariationalDistribution(len(Z)))


def decoupled(model: Any, Z: Tensor) -> Any:
    covariance = whitened(model, Z[::4])
    return OrthogonallyDecoupledVariationalStrategy(
        covariance, Z, DeltaVariationalDistribution(len(Z))
    )


def batched(number: int) -> Strategy:
    """Several models, each with a q(u) of its own."""
    batch = torch.Size([number])

    def strategy(model: Any, Z: Tensor) -> Any:
        q = CholeskyVariationalDistribution(len(Z), batch_shape=batch)
        return VariationalStrategy(model, Z.expand(number, *Z.shape), q)

    return strategy


def independent(number: int) -> Strategy:
    """Several tasks, independent of each other."""

    def strategy(model: Any, Z: Tensor) -> Any:
        return IndependentMultitaskVariationalStrategy(batched(number)(model, Z), num_tasks=number)

    return strategy


def mixed(number: int, latents: int) -> Strategy:
    """Several tasks, each a sum of fewer latent functions."""

    def strategy(model: Any, Z: Tensor) -> Any:
        return LMCVariationalStrategy(
            batched(latents)(model, Z), num_tasks=number, num_latents=latents, latent_dim=-1
        )

    return strategy


STRATEGIES: dict[str, Strategy] = {
    each.__name__: each
    for each in (whitened, unwhitened, mean_field, delta, natural, contour, decoupled)
}

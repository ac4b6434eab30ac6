"""GPyTorch's sparse GP with a softmax likelihood: one independent function for each class.

Functions have a whitened q(u) with a full factor, a constant mean, and a scaled Matérn-5/2 kernel
with one lengthscale per feature. Inducing inputs start at centres of k-means and are trained for
each function.
"""

import math

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.likelihoods import SoftmaxLikelihood
from gpytorch.variational import (
    CholeskyVariationalDistribution,
    IndependentMultitaskVariationalStrategy,
    VariationalStrategy,
)
from sklearn.cluster import KMeans
from torch import Tensor

LEARNING_RATE = 0.1
"""Of the first step of Adam; it falls to 0 as a half cosine. Lower ones were slower."""

_PREDICTED_ROWS = 500
"""Rows whose samples are in memory at a time."""


class SoftmaxSVGP(gpytorch.models.ApproximateGP):
    """The functions of all classes, as a batch of models."""

    def __init__(self, Z: Tensor, num_classes: int) -> None:
        batch = torch.Size([num_classes])
        q = CholeskyVariationalDistribution(len(Z), batch_shape=batch)
        strategy = VariationalStrategy(self, Z.repeat(num_classes, 1, 1), q)
        super().__init__(IndependentMultitaskVariationalStrategy(strategy, num_tasks=num_classes))
        self.mean_module = gpytorch.means.ConstantMean(batch_shape=batch)
        kernel = MaternKernel(nu=2.5, ard_num_dims=Z.shape[-1], batch_shape=batch)
        # GPyTorch's start of 0.7 is too short for many standardised features: all rows are far.
        kernel.lengthscale = math.sqrt(Z.shape[-1])
        self.covar_module = ScaleKernel(kernel, batch_shape=batch)

    def forward(self, X: Tensor) -> MultivariateNormal:
        """Return the prior of all functions at X."""
        return MultivariateNormal(self.mean_module(X), self.covar_module(X))


def starting_model(
    X: Tensor, num_classes: int, num_inducing: int, seed: int
) -> tuple[SoftmaxSVGP, SoftmaxLikelihood]:
    """Return an untrained model with the device and dtype of X, and its likelihood."""
    number = min(num_inducing, len(torch.unique(X, dim=0)))
    found = KMeans(number, n_init=1, random_state=seed).fit(X.cpu().numpy())
    Z = torch.as_tensor(found.cluster_centers_).to(X)
    likelihood = SoftmaxLikelihood(num_classes=num_classes, mixing_weights=False)
    return SoftmaxSVGP(Z, num_classes).to(X), likelihood.to(X)


def train(
    model: SoftmaxSVGP,
    objective: gpytorch.mlls.MarginalLogLikelihood,
    X: Tensor,
    y: Tensor,
    *,
    steps: int,
    batch: int,
    rate: float = LEARNING_RATE,
) -> list[float]:
    """Train by Adam on batches; return the loss of each step."""
    adam = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    losses: list[float] = []
    rows = torch.randperm(len(y)).split(batch)
    while len(losses) < steps:
        for some in rows[: steps - len(losses)]:
            adam.zero_grad()
            loss = -objective(model(X[some]), y[some])
            loss.backward()
            adam.step()
            schedule.step()
            losses.append(loss.item())
        rows = torch.randperm(len(y)).split(batch)
    return losses


@torch.no_grad()
def predict_proba(model: SoftmaxSVGP, X: Tensor, num_samples: int) -> Tensor:
    """Return the probabilities of the classes, means of softmax(f) over samples of f."""
    found = []
    for rows in X.split(_PREDICTED_ROWS):
        q = model.eval()(rows)
        f = torch.distributions.Normal(q.mean, q.stddev).sample((num_samples,))
        found.append(f.softmax(-1).mean(0))
    return torch.cat(found)

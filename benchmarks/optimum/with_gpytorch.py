"""GPyTorch, as its documentation trains an SVGP; run in an environment that has it."""

import math
from typing import Any

import gpytorch
import numpy as np
import torch
from torch import Tensor

from benchmarks.optimum.jobs import Given, Parameters, Run, Settings, run_jobs
from benchmarks.optimum.recorder import Recorder, batches


class Model(gpytorch.models.ApproximateGP):
    """Model of its SVGP example with the given hyperparameters."""

    def __init__(self, given: Given, dtype: torch.dtype) -> None:
        Z = torch.tensor(given.Z, dtype=dtype)
        q = gpytorch.variational.CholeskyVariationalDistribution(len(Z), mean_init_std=0.0)
        strategy = gpytorch.variational.VariationalStrategy(
            self, Z, q, learn_inducing_locations=True
        )
        super().__init__(strategy)
        means = gpytorch.means
        self.mean_module = means.ZeroMean() if given.mean is None else means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
        self.to(dtype)
        self.covar_module.outputscale = torch.tensor(given.output_scale, dtype=dtype)
        lengthscale = torch.tensor(given.lengthscale, dtype=dtype)
        self.covar_module.base_kernel.lengthscale = lengthscale
        if given.mean is not None:
            self.mean_module.initialize(constant=torch.tensor(given.mean, dtype=dtype))

    def forward(self, x: Tensor) -> Any:
        """Return the prior at x."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class Poisson(gpytorch.likelihoods.likelihood._OneDimensionalLikelihood):
    """Count likelihood as its documentation describes, with the log outside exp."""

    def forward(self, function_samples: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Return p(y given f)."""
        return torch.distributions.Poisson(function_samples.exp())

    def log_marginal(self, observations: Tensor, function_dist: Any, *_: Any, **__: Any) -> Tensor:
        """Return log E[p(y given f)] with the library's Gauss–Hermite nodes."""
        places, weights = self.quadrature.locations, self.quadrature.weights
        places, weights = places.to(observations), weights.to(observations)
        f = function_dist.mean + (2 * function_dist.variance).sqrt() * places[:, None]
        log_p = self.forward(f).log_prob(observations)
        shares: Tensor = (weights / math.sqrt(math.pi)).log()[:, None]
        return torch.logsumexp(log_p + shares, 0)


def likelihood_of(given: Given) -> Any:
    """Return its likelihood of this kind."""
    if given.kind == "regression":
        gaussian = gpytorch.likelihoods.GaussianLikelihood()
        gaussian.noise = given.noise
        return gaussian
    return (
        gpytorch.likelihoods.BernoulliLikelihood() if given.kind == "classification" else Poisson()
    )


def parameters_of(model: Any, likelihood: Any) -> Parameters:
    """Return the parameters that determine the predictions."""
    strategy, kernel = model.variational_strategy, model.covar_module
    q = strategy._variational_distribution
    values = {
        "Z": strategy.inducing_points,
        "lengthscale": kernel.base_kernel.lengthscale.squeeze(),
        "output_scale": kernel.outputscale,
        "mean": getattr(model.mean_module, "constant", torch.tensor(0.0)),
        "noise": getattr(likelihood, "noise", torch.zeros(1)).squeeze(),
        "u_mean": q.variational_mean,
        "u_chol": q.chol_variational_covar.tril(),
        "jitter": torch.tensor(strategy.jitter_val),
    }
    return {name: value.detach().double().numpy().copy() for name, value in values.items()}


def train(given: Given, settings: Settings) -> Run:
    """Run the loop of the documentation until the time or step limit."""
    torch.manual_seed(settings.seed)
    dtype = getattr(torch, settings.dtype)
    X, y = torch.tensor(given.X, dtype=dtype), torch.tensor(given.y, dtype=dtype)
    recorder = Recorder(settings)
    model, likelihood = Model(given, dtype), likelihood_of(given).to(dtype)
    recorder.look = lambda: parameters_of(model, likelihood)
    mlls = gpytorch.mlls
    kind = mlls.VariationalELBO if given.objective == "elbo" else mlls.PredictiveLogLikelihood
    objective = kind(likelihood, model, num_data=len(y), beta=given.beta)
    model.train()
    likelihood.train()
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=settings.rate)
    claimed = np.nan
    for some in batches(len(y), settings.batch_size, settings.seed):
        rows = some if isinstance(some, slice) else torch.from_numpy(some)
        optimizer.zero_grad()
        loss = -objective(model(X[rows]), y[rows])
        loss.backward()
        if recorder.steps == 0:
            claimed = float(loss.detach())
            recorder.keep()
        optimizer.step()
        if recorder.step(float(loss.detach()) if settings.window else None):
            break
    return recorder.run(claimed if settings.batch_size is None else np.nan)


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_jobs(train)

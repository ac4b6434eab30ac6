"""GPyTorch as its documentation trains sparse models."""

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.mlls import PredictiveLogLikelihood, VariationalELBO
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
from torch import Tensor

from benchmarks.peers.cases import NUM_SAMPLES, Arrays
from benchmarks.peers.libraries.base import LEARNING_RATE
from benchmarks.peers.libraries.torch_base import TorchLibrary
from benchmarks.peers.protocol import serve


class SVGP(gpytorch.models.ApproximateGP):
    """Whitened q(u) with a full factor, zero mean, scaled ARD RBF kernel."""

    def __init__(self, Z: Tensor, jitter: float) -> None:
        q = CholeskyVariationalDistribution(len(Z))
        super().__init__(VariationalStrategy(self, Z, q, jitter_val=jitter))
        self.mean_module = gpytorch.means.ZeroMean()
        kernel = gpytorch.kernels.RBFKernel(ard_num_dims=Z.shape[-1])
        self.covar_module = gpytorch.kernels.ScaleKernel(kernel)

    def forward(self, X: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(X), self.covar_module(X))


class PoissonLikelihood(gpytorch.likelihoods.Likelihood):
    """Counts with rate exp(f); the base class draws f."""

    def forward(self, f: Tensor) -> torch.distributions.Poisson:
        return torch.distributions.Poisson(f.exp())


class GPyTorch(TorchLibrary):
    """`VariationalStrategy` with `PredictiveLogLikelihood` or `VariationalELBO`."""

    def version(self) -> str:
        return f"gpytorch {gpytorch.__version__}, torch {torch.__version__}"

    def set_up(self, arrays: Arrays) -> None:
        t = self.tensors(arrays)
        self._X, self._y = t["X"], t["y"]
        families = {
            "gaussian": gpytorch.likelihoods.GaussianLikelihood,
            "probit": gpytorch.likelihoods.BernoulliLikelihood,
            "poisson": PoissonLikelihood,
        }
        model, likelihood = SVGP(t["Z"], self.nugget), families[self.likelihood]()
        self._model, likelihood = model.to(t["Z"]), likelihood.to(t["Z"])
        model.covar_module.outputscale = t["output_scale"]
        model.covar_module.base_kernel.lengthscale = t["lengthscale"]
        if self.likelihood == "gaussian":
            likelihood.noise = t["noise"]
        strategy = model.variational_strategy
        strategy.variational_params_initialized.fill_(1)
        with torch.no_grad():
            strategy._variational_distribution.variational_mean.copy_(t["u_mean"])
            strategy._variational_distribution.chol_variational_covar.copy_(t["u_chol"])
        objectives = {"log_loss": PredictiveLogLikelihood, "elbo": VariationalELBO}
        self._mll = objectives[self.objective](likelihood, model, num_data=len(self._y))
        parameters = [*model.parameters(), *likelihood.parameters()]
        self._adam = torch.optim.Adam(parameters, lr=LEARNING_RATE)
        model.train()
        likelihood.train()

    def stochastic(self) -> bool:
        return self.likelihood == "poisson"

    def departures(self) -> dict[str, float]:
        # Its log Φ is a series below −1, with errors up to 1.9e-3.
        rough = self.likelihood == "probit" and self.objective == "elbo"
        return {"variance_jitter": self.nugget, "inaccuracy": 2e-4 if rough else 0.0}

    def _loss(self) -> Tensor:
        with gpytorch.settings.num_likelihood_samples(NUM_SAMPLES):
            loss: Tensor = -self._mll(self._model(self._X), self._y)
        return loss

    def loss(self) -> float:
        with torch.no_grad():
            return float(self._loss())

    def steps(self, number: int) -> None:
        for _ in range(number):
            self._adam.zero_grad()
            self._loss().backward()
            self._adam.step()

    def predict(self, X: Tensor, block: int) -> None:
        self._model.eval()
        with torch.no_grad():
            for rows in X.split(block):
                q = self._model(rows)
                self._predicted = q.mean, q.variance
        self._model.train()


if __name__ == "__main__":
    serve(GPyTorch())

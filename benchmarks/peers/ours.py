"""Step of directgp; the only file of the benchmark that uses its internals."""

import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from benchmarks.peers.cases import NUGGET, NUM_SAMPLES, Arrays
from benchmarks.peers.libraries.base import LEARNING_RATE
from benchmarks.peers.libraries.torch_base import TorchLibrary
from benchmarks.peers.protocol import serve
from directgp.likelihoods import Gaussian, Likelihood, Poisson, Probit
from directgp.log_expectations import BiasedMonteCarlo
from directgp.objectives import GibbsLoss, LogLoss
from directgp.objectives.base import Objective
from directgp.posteriors import Prior, SparsePosterior
from directgp.training.adam import AdamState
from directgp.training.data import Data, Model, Randomness
from directgp.training.problems import FreeProblem


def sparse_posterior(t: dict[str, Tensor], nugget: float) -> SparsePosterior:
    """Return the partly trained posterior of `cases.parameters`, on the device of its tensors."""
    Z = t["Z"]
    kernel = RBFKernel(ard_num_dims=Z.shape[-1])
    kernel.to(Z.dtype).lengthscale = t["lengthscale"].cpu()
    prior = Prior(kernel, output_scale=float(t["output_scale"]), dtype=Z.dtype)
    posterior = SparsePosterior(prior.to(Z.device), Z, nugget=nugget)
    posterior.set_q(t["u_mean"], t["u_chol"])
    return posterior


class DirectGP(TorchLibrary):
    """`AdamState` over a `FreeProblem`, as `train` runs it."""

    def version(self) -> str:
        return f"torch {torch.__version__}"

    def set_up(self, arrays: Arrays) -> None:
        t = self.tensors(arrays)
        self._posterior = sparse_posterior(t, NUGGET[self.dtype])
        self._problem = self._pose(Data(t["X"], t["y"]), float(arrays["noise"]))
        self._state = AdamState(self._problem, LEARNING_RATE)
        self._taken = 0

    def _pose(self, data: Data, noise: float) -> FreeProblem:
        families = {"gaussian": Gaussian(noise), "probit": Probit(), "poisson": Poisson()}
        likelihood: Likelihood = families[self.likelihood].to(data.X)
        rule = BiasedMonteCarlo(NUM_SAMPLES) if self.likelihood == "poisson" else "auto"
        loss = LogLoss(rule) if self.objective == "log_loss" else GibbsLoss()
        randomness = Randomness(torch.Generator(self.device).manual_seed(0), False)
        objective = Objective(loss, len(data), 1.0)
        return FreeProblem(Model(self._posterior, likelihood), data, objective, randomness)

    def loss(self) -> float:
        with torch.no_grad():
            return float(self._problem.value(0))

    def steps(self, number: int) -> None:
        left = number
        while left > 0:
            losses, trouble = self._state.steps(self._taken, left)
            if trouble:
                raise ArithmeticError(trouble)
            self._taken += len(losses)
            left -= len(losses)

    def predict(self, X: Tensor, block: int) -> None:
        self._posterior.predict(X, block)


if __name__ == "__main__":
    serve(DirectGP())

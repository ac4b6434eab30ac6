"""Make the paper's untrained models, and turn the state of a model into bytes."""

from typing import NamedTuple

from safetensors.torch import load, save
from torch import Tensor
from torch.nn import ModuleDict

from directgp.datasets import Task
from directgp.experiments import generator_of
from directgp.likelihoods import (
    Gaussian,
    Likelihood,
    PoissonExp,
    Probit,
    rough_latent,
    starting_likelihood,
)
from directgp.posteriors import SparsePosterior
from directgp.training import TrainingResult
from directgp_paper.experiments.cells import AIRLINE, PaperCell

_LIKELIHOODS: dict[Task, type[Likelihood]] = {
    "regression": Gaussian,
    "classification": Probit,
    "count": PoissonExp,
}
"""The likelihood of each task in the paper."""


class PaperModel(NamedTuple):
    """A posterior and a likelihood, to start from or trained."""

    posterior: SparsePosterior
    likelihood: Likelihood

    @classmethod
    def of(cls, result: TrainingResult) -> "PaperModel":
        """Return the model that a run has trained."""
        return cls(result.posterior, result.likelihood)

    def to_bytes(self) -> bytes:
        """Return the state of posterior and likelihood."""
        state = self._modules().state_dict()
        return save({name: value.detach().cpu().contiguous() for name, value in state.items()})

    def load_bytes(self, data: bytes) -> None:
        """Load the state of a model of the same shape."""
        self._modules().load_state_dict(load(data))

    def _modules(self) -> ModuleDict:
        return ModuleDict({"posterior": self.posterior, "likelihood": self.likelihood})


def paper_model(cell: PaperCell, X: Tensor, y: Tensor) -> PaperModel:
    """Return the untrained model of the paper, the same for all cells of a split.

    q(u) is the prior, and hyperparameters are initialised from the rows.
    """
    likelihood = starting_likelihood(_LIKELIHOODS[cell.task], y).to(y)
    latent = rough_latent(likelihood, y)
    posterior = SparsePosterior.from_data(
        X.cpu(),
        None if latent is None else latent.cpu(),
        num_inducing=min(cell.num_inducing, len(X)),
        generator=generator_of(cell.seed, cell.repeat),
        kernel="rbf",
        ard=cell.dataset == AIRLINE,
        mean="constant" if cell.task == "classification" else "zero",
    )
    return PaperModel(posterior.to(X.device), likelihood)

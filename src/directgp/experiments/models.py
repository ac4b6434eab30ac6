"""The model that every method of a cell starts from."""

from dataclasses import dataclass
from typing import Literal, cast, final

import torch
from safetensors.torch import load, save
from torch import Tensor

from directgp.datasets.problem import Task
from directgp.estimators.families import COUNTS, LABELS, REAL_VALUED
from directgp.estimators.starting_models import auto_inducing
from directgp.estimators.tables.scaling import Scaling
from directgp.experiments.training_rows import Array, CellData
from directgp.likelihoods.base import Likelihood
from directgp.posteriors.prior import KernelName, MeanName
from directgp.posteriors.sparse import SparsePosterior

FAMILIES = {"regression": REAL_VALUED, "classification": LABELS, "count": COUNTS}


@final
@dataclass(frozen=True)
class ScaledRows:
    """Tensors to train on and to judge by, and the units of y."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    offset: float
    scale: float

    @classmethod
    def of(
        cls,
        data: CellData,
        task: Task,
        dtype: Literal["float64", "float32"] = "float64",
        device: str = "cpu",
    ) -> "ScaledRows":
        """Inputs, and real-valued targets, with mean 0 and deviation 1 on the training rows."""
        inputs = Scaling.from_data(data.X_train)
        targets = Scaling.from_data(data.y_train[:, None])
        if task != "regression":
            targets = Scaling.identity(1)
        precision = torch.float64 if dtype == "float64" else torch.float32

        def tensors(X: Array, y: Array) -> tuple[Tensor, Tensor]:
            scaled = inputs.forward(X), targets.exact(y[:, None])[:, 0]
            return cast(
                tuple[Tensor, Tensor],
                tuple(torch.as_tensor(each).to(device, precision) for each in scaled),
            )

        return cls(
            tensors(data.X_train, data.y_train),
            tensors(data.X_validation, data.y_validation),
            tensors(data.X_test, data.y_test),
            float(targets.shift[0]),
            float(targets.scale[0]),
        )


@final
@dataclass(frozen=True)
class Model:
    """A posterior and its likelihood."""

    posterior: SparsePosterior
    likelihood: Likelihood

    def to_bytes(self) -> bytes:
        """All that training changed."""
        parts = {"posterior": self.posterior, "likelihood": self.likelihood}
        tensors = {
            f"{name}.{key}": value.detach().cpu().contiguous()
            for name, part in parts.items()
            for key, value in part.state_dict().items()
        }
        return save(tensors)

    def load(self, data: bytes) -> None:
        """Take over what another model of the same cell has learnt."""
        tensors = load(data)
        for name, part in (("posterior", self.posterior), ("likelihood", self.likelihood)):
            prefix = f"{name}."
            part.load_state_dict(
                {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            )


def starting_model(
    task: Task,
    X: Tensor,
    y: Tensor,
    *,
    likelihood: str,
    kernel: KernelName,
    ard: bool,
    mean: MeanName,
    num_inducing: int | None,
    generator: torch.Generator,
) -> Model:
    """Before training: q(u) at the prior, hyperparameters and inducing inputs that suit the rows.

    `num_inducing` None is as many as the estimators take; the generator is of the CPU.
    """
    latent = {"regression": y, "classification": None, "count": torch.log(y + 0.5)}[task]
    posterior = SparsePosterior.from_data(
        X.cpu(),
        None if latent is None else latent.cpu(),
        num_inducing=min(num_inducing or auto_inducing(len(X)), len(X)),
        kernel=kernel,
        ard=ard,
        mean=mean,
        generator=generator,
    )
    return Model(posterior.to(X.device), FAMILIES[task].named(likelihood, y))

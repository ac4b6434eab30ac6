"""The model that every method of a cell starts from."""

from dataclasses import dataclass
from typing import cast, final

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from directgp.estimators.families import COUNTS, LABELS, REAL_VALUED
from directgp.estimators.starting_models import auto_inducing
from directgp.estimators.tables.scaling import Scaling
from directgp.experiments.cells import Cell
from directgp.experiments.training_rows import Array, CellData
from directgp.likelihoods.base import Likelihood
from directgp.posteriors.prior import KernelName
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
    def of(cls, data: CellData, cell: Cell) -> "ScaledRows":
        """Inputs, and real-valued targets, with mean 0 and deviation 1 on the training rows."""
        inputs = Scaling.from_data(data.X_train)
        targets = Scaling.from_data(data.y_train[:, None])
        if cell.task != "regression":
            targets = Scaling.identity(1)
        settings = cell.settings
        dtype = torch.float64 if settings.dtype == "float64" else torch.float32

        def tensors(X: Array, y: Array) -> tuple[Tensor, Tensor]:
            scaled = inputs.forward(X), targets.exact(y[:, None])[:, 0]
            return cast(
                tuple[Tensor, Tensor],
                tuple(torch.as_tensor(each).to(settings.device, dtype) for each in scaled),
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


def starting_model(cell: Cell, X: Tensor, y: Tensor) -> Model:
    """Before training; the same for every method of a split."""
    settings = cell.settings
    latent = {"regression": y, "classification": None, "count": torch.log(y + 0.5)}[cell.task]
    seed = int(np.random.SeedSequence([cell.seed, cell.repeat]).generate_state(1)[0])
    posterior = SparsePosterior.from_data(
        X.cpu(),
        None if latent is None else latent.cpu(),
        num_inducing=min(settings.num_inducing or auto_inducing(len(X)), len(X)),
        kernel=cast(KernelName, settings.kernel),
        ard=settings.ard,
        mean="zero" if cell.task == "regression" else "constant",
        generator=torch.Generator().manual_seed(seed),
    )
    likelihood = FAMILIES[cell.task].named(settings.likelihood, y)
    return Model(posterior.to(X.device), likelihood)

"""The rows and the model that the paper's experiments start from."""

from torch import Tensor

from directgp.datasets.problem import Task
from directgp.experiments.models import Model, ScaledRows, starting_model
from directgp.experiments.paper.cells import CurveCell, PaperCell
from directgp.experiments.seeds import generator_of
from directgp.experiments.training_rows import CellData

_LIKELIHOODS: dict[Task, str] = {
    "regression": "gaussian",
    "classification": "probit",
    "count": "poisson",
}


def scaled(data: CellData, task: Task, device: str = "cpu") -> ScaledRows:
    """Inputs, and real-valued targets, normalised by the training rows, in float64."""
    return ScaledRows.of(data, task, device=device)


def start_of(cell: PaperCell, X: Tensor, y: Tensor) -> Model:
    """The paper's kernel, mean and likelihood, q(u) at the prior; the same for cells of a split."""
    return starting_model(
        cell.task,
        X,
        y,
        likelihood=_LIKELIHOODS[cell.task],
        kernel="rbf",
        ard=isinstance(cell, CurveCell) and cell.ard,
        mean="constant" if cell.task == "classification" else "zero",
        num_inducing=cell.num_inducing,
        generator=generator_of(cell.seed, cell.repeat),
    )

"""A user's table as training sees it: scaled, in canonical order, as tensors."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from directgp.estimators.tables.canonical import canonical
from directgp.estimators.tables.scaling import Scaling

Column = Float64[np.ndarray, " n"]


@dataclass(frozen=True)
class Scalings:
    """How inputs and targets were scaled."""

    inputs: Scaling
    targets: Scaling

    @classmethod
    def from_data(
        cls,
        X: Float64[np.ndarray, "n d"],
        y: Column,
        weights: Column | None,
        *,
        inputs: bool,
        targets: bool,
    ) -> "Scalings":
        """Mean 0 and deviation 1 where asked for; else as they are."""
        column = y.reshape(-1, 1)
        return cls(
            Scaling.from_data(X, weights) if inputs else Scaling.identity(X.shape[1]),
            Scaling.from_data(column, weights) if targets else Scaling.identity(1),
        )

    def scaled_targets(self, y: Column) -> Column:
        """The targets in the units of training."""
        scaled: Column = self.targets.forward(y.reshape(-1, 1))[:, 0]
        return scaled


@dataclass(frozen=True)
class TrainingTable:
    """Distinct training rows in the units and the order of training."""

    X: Float[Tensor, "n d"]
    y: Float[Tensor, " n"]
    weights: Float[Tensor, " n"] | None
    exposure: Float[Tensor, " n"] | None
    scalings: Scalings
    num_rows: int
    """Rows of the user's table that have a weight."""

    num_merged: int
    """How many of them repeat another one."""

    @property
    def count(self) -> float:
        """Rows, each as often as its weight says."""
        return float(len(self.y)) if self.weights is None else float(self.weights.sum())


def training_table(
    X: Float64[np.ndarray, "n d"],
    y: Column,
    weights: Column | None,
    exposure: Column | None,
    scalings: Scalings,
    *,
    turn: bool,
    real_valued: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> TrainingTable:
    """Scale, sort and merge rows.

    Parameters
    ----------
    X, y, weights, exposure : arrays
        As the user has them, checked.
    scalings : Scalings
        Of inputs and targets.
    turn : bool
        Whether columns may be turned round, so that their sign does not matter either.
    real_valued : bool
        Whether −y could as well have been the target.
    dtype, device
        Of the tensors.
    """
    table = canonical(
        scalings.inputs.forward(X),
        scalings.scaled_targets(y),
        weights,
        exposure,
        signed_target=real_valued,
    )
    signs = table.signs if turn else np.ones_like(table.signs)

    def tensor(values: np.ndarray) -> Tensor:
        return torch.as_tensor(values, dtype=dtype, device=device)

    return TrainingTable(
        # One 0, not two.
        X=tensor(table.X * signs + 0.0),
        y=tensor(table.y),
        weights=None if table.weights is None else tensor(table.weights),
        exposure=None if table.exposure is None else tensor(table.exposure),
        scalings=Scalings(scalings.inputs.flipped(signs), scalings.targets),
        num_rows=len(table.y) + table.num_merged,
        num_merged=table.num_merged,
    )

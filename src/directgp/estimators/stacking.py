"""Add the columns of a stack to the rows of a table."""

from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from directgp.estimators.preprocessing import ColumnScaling, TrainingTable
from directgp.estimators.settings import FitSettings
from directgp.likelihoods.base import Likelihood
from directgp.registry import LIKELIHOODS, ROW_CONSTANTS
from directgp.stack import Stack, fit_stack, sources_of
from directgp.stack.scales import Link


@final
@dataclass(frozen=True)
class Stacking:
    """A stack, the rows of a table, and the columns of the stack for them."""

    stack: Stack | None
    """The fitted models; None without a stack."""

    table: TrainingTable
    """The rows; their scalings include that of the columns."""

    columns: Float[Tensor, "n k"] | None = None
    """Scaled columns of the rows."""

    @classmethod
    def fitted(cls, settings: FitSettings, table: TrainingTable, seed: int) -> "Stacking":
        """Fit the models of a stack, and the scaling of its columns.

        The columns of a row come from models that have not seen the row. Those of several classes
        have the names of the classes.
        """
        link = _link(settings, table)
        proportional = table.row_argument and ROW_CONSTANTS[table.row_argument].proportional
        y = table.y.double().cpu().numpy()
        if link != "identity" and settings.task == "regression":
            y = table.scalings.targets_in_units(y)
            # Digits of float32 may not tell small values from 0; then no such likelihood is left.
            if y.min() <= 0 or (link == "logit" and y.max() >= 1):
                link, y = "identity", table.y.double().cpu().numpy()
        if link == "log" and settings.task == "regression":
            # scikit-learn clips means near 0, in units as small.
            y = y / np.median(y)
        stack, columns = fit_stack(
            sources_of(settings.stack, settings.task, "fit"),
            table.X.double().cpu().numpy(),
            y,
            task=settings.task,
            seed=seed,
            link=link,
            num_classes=settings.num_classes,
            weights=_array(table.weights),
            amounts=_array(table.row_values) if proportional else None,
            labels=settings.class_names,
        )
        scaling = ColumnScaling.from_data(columns)
        table = replace(table, scalings=replace(table.scalings, sources=scaling))
        return cls(stack, table, torch.as_tensor(scaling.forward(columns)).to(table.X))

    def extended(self, scaled: Float[Tensor, "m d"]) -> Float[Tensor, "m e"]:
        """Return scaled inputs of new rows, with the columns of the stack."""
        return with_columns(scaled, self.stack, self.table.scalings.sources)

    def of_new_rows(self) -> "Stacking":
        """Return the columns for rows that the models of the stack have not seen."""
        extended = self.extended(self.table.X)
        return replace(self, columns=extended[:, self.table.X.shape[1] :])


def with_columns(
    scaled: Float[Tensor, "m d"], stack: Stack | None, scaling: ColumnScaling | None
) -> Float[Tensor, "m e"]:
    """Return scaled inputs of new rows, with the scaled columns of a stack if there is one."""
    if stack is None or scaling is None:
        return scaled
    columns = scaling.forward(stack.columns(scaled.double().cpu().numpy()))
    return torch.cat([scaled, torch.as_tensor(columns).to(scaled)], 1)


def _array(values: Tensor | None) -> np.ndarray | None:
    return None if values is None else values.double().cpu().numpy()


def _link(settings: FitSettings, table: TrainingTable) -> Link:
    """Return the scale of f of the likelihoods, on which the columns are."""
    if settings.task == "classification":
        return "identity"
    if settings.task == "count":
        return "logit" if table.row_argument == "trials" else "log"
    likelihood = settings.likelihood
    if isinstance(likelihood, Likelihood):
        scales = {likelihood.latent_scale}
    else:
        scales = {LIKELIHOODS[name].load().latent_scale for name in settings.candidates}
    return "log" if "log" in scales else "logit" if "logit" in scales else "identity"

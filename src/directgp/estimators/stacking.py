"""Add the columns of a stack to the rows of a table."""

from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.estimators.preprocessing import ColumnScaling, TrainingTable
from directgp.estimators.settings import FitSettings


@final
@dataclass(frozen=True)
class Stacking:
    """A stack, the rows of a table, and the columns of the stack for them."""

    stack: Any
    """The fitted models; None without a stack."""

    table: TrainingTable
    """The rows; their scalings include that of the columns."""

    columns: Float[Tensor, "n k"] | None = None
    """Scaled columns of the rows."""

    @classmethod
    def fitted(cls, settings: FitSettings, table: TrainingTable, seed: int) -> "Stacking":
        """Fit the models of a stack, if candidates may see its columns."""
        if True not in settings.stacks(len(table.X)):
            return cls(None, table)
        from directgp.stack import fit_stack

        X, y = table.X.double().cpu().numpy(), table.y.double().cpu().numpy()
        stack, columns = fit_stack(settings.stack, X, y, None, seed=seed, task=settings.task)
        scaling = ColumnScaling.from_data(columns)
        table = replace(table, scalings=replace(table.scalings, sources=scaling))
        return cls(stack, table, torch.as_tensor(scaling.forward(columns)).to(table.X))

    def extended(self, scaled: Float[Tensor, "m d"]) -> Float[Tensor, "m e"]:
        """Return scaled inputs of new rows, with the columns of the stack."""
        scaling = self.table.scalings.sources
        if self.stack is None or scaling is None:
            return scaled
        columns = scaling.forward(self.stack.columns(scaled.double().cpu().numpy()))
        return torch.cat([scaled, torch.as_tensor(columns).to(scaled)], 1)

"""How good predictions were, where the target is known: sums over rows, taken block by block."""

from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from directgp.cli.prediction_columns import PREDICTED, Column, Columns

LABELS = {
    "nll": "NLL",
    "mse": "MSE",
    "error": "error",
    "mre": "MRE",
    "coverage": "coverage",
}


@final
class Scores:
    """Means over all rows whose target is known."""

    def __init__(self, classes: tuple[str, str] | None, task: str) -> None:
        self._classes, self._task = classes, task
        self._sums: dict[str, float] = {}
        self.rows = 0

    def add(
        self, model: Any, X: Any, y: Column, exposure: Column | None, predicted: Columns
    ) -> None:
        """Take a block of rows, some of whose targets may be NaN, into account."""
        known = np.isfinite(y)
        if not known.any():
            return
        given = {} if self._task != "count" else {"exposure": _some(exposure, known)}
        nll = -model.log_density(X.filter(known), y[known], **given)
        others = {name: values[known] for name, values in self._losses(y, predicted).items()}
        self.rows += len(nll)
        for name, values in {"nll": nll, **others}.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(values.sum())

    def means(self) -> dict[str, float]:
        """The scores by name."""
        return {name: total / self.rows for name, total in self._sums.items()}

    def _losses(self, y: Column, predicted: Columns) -> dict[str, NDArray[Any]]:
        if self._classes is not None:
            labels = np.asarray(predicted[PREDICTED].to_pylist(), dtype=object)
            return {"error": (labels == self._classes[1]) != (y > 0.5)}
        mean, lower, upper = (predicted[name].to_numpy() for name in ("mean", "lower", "upper"))
        covered = (lower <= y) & (y <= upper)
        if self._task == "count":
            return {"mre": np.abs(mean - y) / np.maximum(1, y), "coverage": covered}
        return {"mse": (mean - y) ** 2, "coverage": covered}


def _some(values: Column | None, known: NDArray[np.bool_]) -> Column | None:
    return None if values is None else values[known]

"""Predict with a model that directgp exported. Needs Python and NumPy, and nothing else.

    from predictor import load
    load("model.npz").predict(X)["mean"]

This file may be copied, changed and shipped with the model (Apache-2.0, the directgp authors).
"""

import json
from typing import Any

import numpy as np

OPERATIONS: dict[str, Any] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Max": np.maximum,
    "Min": np.minimum,
    "MatMul": np.matmul,
    "Less": np.less,
    "Equal": np.equal,
    "Where": np.where,
    "Exp": np.exp,
    "Log": np.log,
    "Sin": np.sin,
    "Sqrt": np.sqrt,
    "Floor": np.floor,
    "Round": np.rint,
    "IsNaN": np.isnan,
    "Cast": lambda x, to: x.astype(to),
    "Concat": lambda *parts, axis: np.concatenate(parts, axis),
    "Gather": lambda x, index, axis: np.take(x, index, axis),
    "GatherElements": lambda x, index, axis: np.take_along_axis(x, index, axis),
    "ReduceMax": lambda x, axes: x.max(tuple(axes), keepdims=True),
    "ReduceSum": lambda x, axes: x.sum(tuple(axes), keepdims=True),
    "Reshape": lambda x, shape: x.reshape(shape),
}
"""The operations of a program, with the names and the meaning of ONNX."""


class Predictor:
    """A program: operations on numbered values, of which number 0 is X."""

    def __init__(self, nodes: Any, constants: Any, outputs: Any, facts: Any) -> None:
        self._nodes = nodes
        self._constants = constants
        self._outputs = outputs
        self.facts = facts
        """What the outputs mean: names of features, classes, levels of quantiles."""

    def predict(self, X: Any, block: int = 1024) -> dict[str, Any]:
        """Return a dictionary of arrays with one row for each row of X."""
        X = np.asarray(X, dtype=np.float64)
        features = self.facts["num_features"]
        if X.ndim != 2 or X.shape[1] != features:
            raise ValueError(f"X must be of shape (n, {features}). Got {X.shape}.")
        gaps = np.isnan(X) if self.facts["missing"] == "impute" else False
        if not ((np.abs(X) <= 1e150) | gaps).all():
            raise ValueError("X must be finite, up to 1e150. Got NaN or a larger number.")
        starts = range(0, max(1, len(X)), block)
        parts = [self.run(X[start : start + block]) for start in starts]
        return {name: np.concatenate([part[name] for part in parts]) for name in self._outputs}

    def run(self, X: Any) -> dict[str, Any]:
        """Return the outputs for all rows at once, unchecked."""
        values: dict[int, Any] = {0: X, **self._constants}
        with np.errstate(all="ignore"):
            for op, inputs, output, attributes in self._nodes:
                arguments = [values[number] for number in inputs]
                values[output] = OPERATIONS[op](*arguments, **attributes)
        return {name: values[number] for name, number in self._outputs.items()}


def load(path: Any) -> Predictor:
    """Read a model that `directgp.export.to_numpy` wrote; the file holds no code."""
    with np.load(path, allow_pickle=False) as file:
        program = json.loads(bytes(file["program"]).decode())
        constants = {int(name): file[name] for name in file.files if name != "program"}
    if program["format"] != 1:
        raise ValueError(f"{path} has format {program['format']}; this reader knows 1.")
    return Predictor(program["nodes"], constants, program["outputs"], program["facts"])

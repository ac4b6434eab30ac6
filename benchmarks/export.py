"""Compare exported models with the estimator: error, size, time of one, 1,000 and 10⁶ rows.

``python -m benchmarks.export`` writes docs/tables/export*.md. Every format returns mean, deviation
and three quantiles, or probabilities. Times are the median of several runs on one thread; 10⁶
rows are one run, in blocks of 1,000. The estimator computes no deviation of counts.
"""

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from benchmarks.all import machine
from benchmarks.cost import Cell, estimator, table
from benchmarks.models import write
from benchmarks.peers.process import ROOT
from benchmarks.peers.tables import markdown, write_tables
from directgp.environment import versions
from directgp.export.formats import LEVELS, numpy_files, onnx_model, torch_program
from directgp.export.numpy_predictor import load
from directgp.export.predictions import program_of

Row = dict[str, Any]
Predict = Callable[[Any], dict[str, Any]]

LIKELIHOODS = ("gaussian", "student_t", "heteroscedastic", "probit", "softmax", "poisson")
MANY = 10**6
BLOCK = 1000
LONGEST = 120.0
"""Seconds up to which 10⁶ rows are predicted."""


def by_estimator(model: Any) -> Predict:
    """Return all that is exported, by the estimator."""

    def predict(X: Any) -> dict[str, Any]:
        if hasattr(model, "predict_proba"):
            return {"probabilities": model.predict_proba(X)}
        if model._task == "count":
            return {"mean": model.predict(X), "quantiles": model.predict_quantiles(X, LEVELS)}
        mean, std = model.predict(X, return_std=True)
        return {"mean": mean, "std": std, "quantiles": model.predict_quantiles(X, LEVELS)}

    return predict


def by_onnx(data: bytes) -> Predict:
    """Return the outputs of a session of one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return lambda X: dict(zip(names, session.run(None, {"X": X}), strict=True))


def seconds(predict: Predict, X: Any, repeats: int = 5) -> float:
    """Return the median time of predicting X."""
    predict(X)
    found = []
    for _ in range(repeats):
        since = time.perf_counter()
        predict(X)
        found.append(time.perf_counter() - since)
    return statistics.median(found)


def measure(likelihood: str) -> Row:
    """Fit a model, export it to every format, and compare."""
    cell = Cell(likelihood=likelihood)
    model, (X, y) = estimator(cell), table(cell)
    model.fit(X, y)
    since = time.perf_counter()
    program = program_of(model, LEVELS, None)
    exported = time.perf_counter() - since
    with tempfile.TemporaryDirectory() as folder:
        archive = numpy_files(program)["model.npz"]
        (Path(folder) / "model.npz").write_bytes(archive)
        reader = load(Path(folder) / "model.npz")
    wide, narrow = onnx_model(program, "float64"), onnx_model(program, "float32")
    module = torch_program(program).module()

    def by_torch(X: Any) -> dict[str, Any]:
        with torch.no_grad():
            return {name: value.numpy() for name, value in module(torch.from_numpy(X)).items()}

    formats = {
        "estimator": by_estimator(model),
        "torch.export": by_torch,
        "ONNX": by_onnx(wide),
        "NumPy": reader.predict,
    }
    random = np.random.default_rng(2)
    new = random.standard_normal((BLOCK, cell.features)).astype(np.float32).astype(np.float64)
    wanted = formats["estimator"](new)
    errors = {name: _error(predict(new), wanted) for name, predict in formats.items()}
    errors["ONNX, float32"] = _error(by_onnx(narrow)(new.astype(np.float32)), wanted)
    times = {}
    for name, predict in formats.items():
        one, block = seconds(predict, new[:1]), seconds(predict, new)
        times[name] = {"1": one, "1000": block}
        if block * MANY / BLOCK < LONGEST:
            since = time.perf_counter()
            for _ in range(MANY // BLOCK):
                predict(new)
            times[name][str(MANY)] = time.perf_counter() - since
    return {
        "likelihood": likelihood,
        "export_seconds": exported,
        "bytes": {"NumPy": len(archive), "ONNX": len(wide)},
        "errors": errors,
        "seconds": times,
    }


def _error(found: dict[str, Any], wanted: dict[str, Any]) -> float:
    """Return the largest difference, relative to one plus the value."""
    return max(
        float(np.max(np.abs(found[name] - value) / (1 + np.abs(value))))
        for name, value in wanted.items()
    )


def all_tables(rows: list[Row]) -> dict[str, str]:
    """Return the tables of errors and sizes, and of times."""
    formats = ["torch.export", "ONNX", "ONNX, float32", "NumPy"]
    errors = markdown(
        ["", *formats, "model.npz, kB", "model.onnx, kB", "export, s"],
        (
            [
                row["likelihood"],
                *(f"{row['errors'][name]:.0e}" for name in formats),
                *(f"{row['bytes'][name] / 1e3:.0f}" for name in ("NumPy", "ONNX")),
                f"{row['export_seconds']:.1f}",
            ]
            for row in rows
        ),
    )
    names = ["estimator", "torch.export", "ONNX", "NumPy"]
    lines = []
    for row in rows:
        for size, label in (("1", "1 row"), ("1000", "1,000 rows"), (str(MANY), "10⁶ rows")):
            found = [row["seconds"][name].get(size) for name in names]
            texts = ["–" if each is None else _milliseconds(each) for each in found]
            lines.append([f"{row['likelihood']}, {label}", *texts])
    return {"": errors, "times": markdown(["ms", *names], lines)}


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f}" if seconds >= 0.1 else f"{1e3 * seconds:.2g}"


def main() -> None:
    """Measure every likelihood, write results and tables."""
    parser = argparse.ArgumentParser(prog="benchmarks.export", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/export.json")
    parser.add_argument("--tables", type=Path, default=ROOT / "docs/tables")
    typed = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = []
    for name in LIKELIHOODS:
        rows.append(measure(name))
        print(rows[-1], flush=True)
    write(typed.out, {"machine": machine(), "versions": versions(), "models": rows})
    write_tables(typed.tables, "export", all_tables(rows))


if __name__ == "__main__":
    main()

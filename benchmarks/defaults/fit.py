"""Fit one method on one table, in a process and an interpreter of its own.

``python -m benchmarks.defaults.fit METHOD TABLE.npz RESULT.json`` is run by `benchmarks.defaults`.
"""

import json
import sys
import time
import warnings
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.defaults.methods import METHODS, is_ours
from benchmarks.defaults.scores import unit
from benchmarks.problems import Table


def measure(method: str, data: Table, device: str) -> dict[str, Any]:
    """Return the scores of a method, the time of its fit and its choices."""
    # Each environment has only its own libraries.
    methods = import_module(f"benchmarks.defaults.{'ours' if is_ours(method) else 'peers'}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wall, cpu = time.perf_counter(), time.process_time()
        judge = methods.fit(method, data, device)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        scores, choices = judge()
    rows = {"num_train": len(data.y), "num_test": len(data.y_test)}
    found = {"kind": data.kind, **rows, "unit": unit(data)}
    seconds = {"cpu_seconds": round(cpu, 3), "wall_seconds": round(wall, 3)}
    return {**found, **scores, **seconds, "choices": choices, "library": _library(method)}


def _library(method: str) -> str:
    package = METHODS[method].package
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return package


def main() -> None:
    """Read the table, fit the method and write the result."""
    method, source, target, device = sys.argv[1:]
    with np.load(source) as arrays:
        data = Table(str(arrays["kind"]), *(arrays[name] for name in Table._fields[1:]))  # type: ignore[arg-type]
    Path(target).write_text(json.dumps(measure(method, data, device)), encoding="utf-8")


if __name__ == "__main__":
    main()

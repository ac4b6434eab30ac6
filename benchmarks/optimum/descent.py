"""Run libraries on one problem and compute the exact objective over time."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.optimum.jobs import (
    Array,
    Given,
    Parameters,
    Run,
    Settings,
    result_path,
    write_jobs,
)
from benchmarks.optimum.reference import claim_at, objective_at

NEAR = 1e-3
"""Nats per example within which an objective counts as reached."""

_ROOT = Path(__file__).resolve().parents[2]

FLOORS = {"gpflow": 1e-3, "gpjax": 1e-3}
"""Share of each label that a library takes for sure."""

EXTRA = ("gpytorch",)
"""Libraries that add the jitter of K_uu to the variance of f too."""

_TOLERANCE = {"float64": 1e-6, "float32": 1e-4}

_INEXACT = {("gpytorch", "classification", "elbo"): 1e-3}
"""What libraries get wrong of their own objective: log Φ of GPyTorch is off by up to 0.002."""


@dataclass(frozen=True)
class Descent:
    """Objective of a library over time."""

    library: str
    settings: Settings
    seconds: Array
    objectives: Array
    steps: int
    total: float
    """Seconds of the whole run."""

    end: Parameters

    @property
    def best(self) -> float:
        """Return the lowest objective."""
        return float(self.objectives.min())

    def reached(self, target: float) -> float | None:
        """Return the seconds to a target, or None if it was not reached."""
        there = np.flatnonzero(self.objectives <= target)
        return float(self.seconds[there[0]]) if len(there) else None


def run(
    library: str, python: Path, given: Given, settings: Sequence[Settings], folder: Path
) -> list[Descent]:
    """Train in a process of the library's environment and evaluate its run."""
    given.save(folder / "given.npz")
    jobs = folder / f"{library}.json"
    write_jobs(jobs, folder / "given.npz", list(settings))
    module = f"benchmarks.optimum.with_{library}"
    command = [str(python), "-W", "ignore", "-m", module, str(jobs)]
    done = subprocess.run(command, cwd=_ROOT, env=_one_thread(), capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{library} must end without an error. It said:\n{done.stderr[-2000:]}")
    runs = [Run.load(result_path(jobs, number)) for number in range(len(settings))]
    return [judge(library, given, how, run) for how, run in zip(settings, runs, strict=True)]


def judge(library: str, given: Given, settings: Settings, run: Run) -> Descent:
    """Return the exact objective of a run, after checking the library's own value."""
    check_claim(library, given, settings, run)
    seconds, values = run.seconds, [objective_at(given, run.at(i)) for i in range(len(run.seconds))]
    if len(run.trace):
        _check_end(library, run.trace[-1, 1], values[-1])
        seconds, values = run.trace.T[0], list(run.trace.T[1])
    last = run.at(len(run.seconds) - 1)
    return Descent(library, settings, seconds, np.array(values), run.steps, run.total, last)


def check_claim(library: str, given: Given, settings: Settings, run: Run) -> None:
    """Raise if a library computes another objective at its first parameters."""
    if np.isnan(run.claimed):
        return
    at = run.at(0)
    if len(run.trace):
        expected = objective_at(given, at)
    else:
        extra = float(at["jitter"]) if library in EXTRA else 0.0
        expected = claim_at(given, at, FLOORS.get(library, 0.0), extra)
    inexact = _INEXACT.get((library, given.kind, given.objective), 0.0)
    allowed = max(inexact, _TOLERANCE[settings.dtype]) * max(1.0, abs(expected))
    if abs(run.claimed - expected) > allowed:
        raise ValueError(
            f"The objective of {library} must be {expected:.8g} at its first parameters. "
            f"Got {run.claimed:.8g}. Look at its parameters and its jitter."
        )


def _check_end(library: str, claimed: float, expected: float) -> None:
    # Keep the best state, which need not be the last.
    if not expected <= claimed + 1e-6 * max(1.0, abs(claimed)):
        raise ValueError(
            f"The last objective of {library} must be {expected:.8g}. Got {claimed:.8g}."
        )


def best_of(descents: Sequence[Descent]) -> float:
    """Return the lowest objective of all libraries."""
    return min(descent.best for descent in descents)


def _one_thread() -> Mapping[str, str]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    flags = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"}
    path = {"PYTHONPATH": os.pathsep.join(str(_ROOT / part) for part in ("src", "."))}
    return {**os.environ, **dict.fromkeys(names, "1"), **quiet, **flags, **path}

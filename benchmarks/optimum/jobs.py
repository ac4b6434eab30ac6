"""Input and output files of the libraries: numpy arrays only.

Libraries run in separate environments, so this file imports only numpy.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Parameters = dict[str, Array]

NAMES = ("Z", "lengthscale", "output_scale", "mean", "noise", "u_mean", "u_chol", "jitter")
"""Parameters of a model: whitened q(u); mean and noise are 0 where there are none."""


Kind = Literal["regression", "classification", "counts"]
Goal = Literal["elbo", "log_loss"]


@dataclass(frozen=True)
class Given:
    """Data, an objective, and the starting parameters."""

    kind: Kind
    objective: Goal
    beta: float
    X: Array
    y: Array
    Z: Array
    lengthscale: float
    output_scale: float
    mean: float | None
    """Of the prior where it is trained; None is a zero mean."""

    noise: float
    """Variance of a Gaussian likelihood."""

    def save(self, path: Path) -> None:
        """Write the arrays to a file."""
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        known = {name: value for name, value in content.items() if value is not None}
        np.savez(path, **known)

    @classmethod
    def load(cls, path: Path) -> "Given":
        """Read the arrays from a file."""
        with np.load(path) as arrays:
            content = {name: arrays[name] for name in arrays.files}
        plain = {name: a if a.ndim else a.item() for name, a in content.items()}
        return cls(**{"mean": None, **plain})


@dataclass(frozen=True)
class Settings:
    """Training settings; a library ignores settings that it does not support."""

    seconds: float
    """Processor time after which it ends."""

    steps: int | None = None
    rate: float = 0.01
    """Learning rate of Adam."""

    batch_size: int | None = None
    """Examples of a step; None is all."""

    dtype: Literal["float64", "float32"] = "float64"
    natural: bool = False
    """Natural gradients for q(u)."""

    window: int | None = None
    """End when the objectives of so many steps lie within 1e-4; None is never."""

    seed: int = 0

    @property
    def name(self) -> str:
        """Return the name for tables."""
        rows = "all rows" if self.batch_size is None else f"batches of {self.batch_size}"
        how = "natural gradients + Adam" if self.natural else "Adam"
        return f"{how} {self.rate:g}, {rows}, {self.dtype}"


@dataclass(frozen=True)
class Run:
    """Parameters of a library over time."""

    seconds: Array
    """When each of its parameters was."""

    parameters: Parameters
    """One of each of `NAMES` for each time, along the first axis."""

    claimed: float
    """The objective at the first parameters, as the library computes it."""

    steps: int
    total: float
    """Seconds of the whole run."""

    trace: Array
    """Seconds and objectives that the library knows exactly; shape (0, 2) for none."""

    def at(self, index: int) -> Parameters:
        """Return the parameters at one time."""
        return {name: values[index] for name, values in self.parameters.items()}

    def save(self, path: Path) -> None:
        """Write the arrays to a file."""
        names = ("seconds", "claimed", "steps", "total", "trace")
        content: dict[str, Any] = {name: getattr(self, name) for name in names}
        content |= {f"parameter.{name}": value for name, value in self.parameters.items()}
        np.savez(path, **content)

    @classmethod
    def load(cls, path: Path) -> "Run":
        """Read the arrays from a file."""
        with np.load(path) as arrays:
            content = {name: arrays[name] for name in arrays.files}
        parameters = {name: content.pop(f"parameter.{name}") for name in NAMES}
        plain = {name: a if a.ndim else a.item() for name, a in content.items()}
        return cls(parameters=parameters, **plain)


def write_jobs(path: Path, given: Path, runs: list[Settings]) -> None:
    """Write the jobs of one library process."""
    path.write_text(json.dumps({"given": str(given), "runs": [asdict(run) for run in runs]}))


def run_jobs(train: Callable[[Given, Settings], Run]) -> None:
    """Read the file named on the command line, train, and write each run beside it."""
    path = Path(sys.argv[1])
    jobs = json.loads(path.read_text())
    given = Given.load(Path(jobs["given"]))
    # Loading of libraries does not count as training; each run compiles again.
    train(given, Settings(seconds=0.0, steps=2))
    for number, settings in enumerate(jobs["runs"]):
        train(given, Settings(**settings)).save(result_path(path, number))


def result_path(jobs: Path, number: int) -> Path:
    """Return the path of the result of a job."""
    return jobs.with_suffix(f".{number}.npz")

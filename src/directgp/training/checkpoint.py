"""Save and resume the stages of a run in one file."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from directgp.errors import CheckpointError, cause_of, require
from directgp.io import Contents, FileKind, as_json, digest, on_cpu, read_file, write_file
from directgp.kernels.structured import StructuredKernel
from directgp.training.data import Data, Model
from directgp.training.distributed import ProcessGroup
from directgp.training.result import Count, StageResult, StageSpec, Strict
from directgp.training.run import Run

CHECKPOINT = FileKind(
    name="checkpoint",
    writer="directgp.train",
    key="directgp.checkpoint",
    schema=2,
    error=CheckpointError,
    if_unreadable="Check the path, or start without resuming.",
    if_damaged="Delete it and start again, or resume from another checkpoint.",
    if_other_schema="Resume with the version that wrote it, or start again.",
)

Tensors = dict[str, Tensor]
"""Maps a name to its tensor."""


class _Progress(Strict):
    """The current stage in a checkpoint; losses may be infinite."""

    losses: list[float]
    """The objective after each step."""

    evaluations: Count
    """Evaluations of the objective so far."""


class _Manifest(Strict):
    """A checkpoint without its tensors."""

    fingerprint: str
    """Digest of the data and settings of the run."""

    finished: list[StageSpec]
    """Results of the finished stages."""

    under_way: _Progress | None
    """The current stage; None between stages."""


def fingerprint(**entries: Any) -> str:
    """Return the sha256 of tensors (name, dtype, shape, bytes) and JSON values.

    It does not depend on the order of the entries; a tuple equals a list.
    """
    tensors = {name: value for name, value in entries.items() if isinstance(value, Tensor)}
    values = {name: value for name, value in entries.items() if name not in tensors}
    text = json.dumps(as_json(values, "fingerprint", tuples=True), sort_keys=True)
    return digest(text, {name: on_cpu(name, tensor) for name, tensor in tensors.items()})


@final
@dataclass(frozen=True)
class Checkpoints:
    """The file of a run's checkpoint, and how often it is written.

    Parameters
    ----------
    path : path
        The file. If it exists, a run with the same data and settings resumes from it, and ends with
        the same parameters bit for bit (on the CPU, with the same number of threads).
    every : int
        Steps between two writes. L-BFGS forgets its curvature at each write, so that a small number
        costs steps.
    """

    path: str | os.PathLike[str]
    every: int = 200

    def __post_init__(self) -> None:
        require(self.every >= 1, "every of Checkpoints", "at least 1", self.every)


@final
class Checkpoint:
    """The finished stages of a run and the state of the current one, in memory and in a file.

    A file with another fingerprint of data and settings raises an error. The first of several
    processes reads the file for all, and writes it.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        fingerprint: str,
        group: ProcessGroup | None = None,
    ) -> None:
        self._path = os.fspath(checkpoints.path)
        self.every = checkpoints.every
        """Steps between two writes."""
        self._fingerprint = fingerprint
        self._writes = group is None or group.is_main
        self._finished: list[StageResult] = []
        self._tensors: dict[str, Tensors] = {"finished": {}, "now": {}, "start": {}}
        self._progress: dict[str, Any] | None = None
        self._loaded = 0
        """Finished stages that the run has loaded or added."""
        self._resumed = True
        contents = self._read() if group is None else group.read(self._read)
        if contents is None:
            return
        if contents.manifest.get("fingerprint") != fingerprint:
            raise CheckpointError(
                f"The checkpoint {self._path} is of a run with other data or settings. Give "
                "the data and settings of that run, or another path."
            )
        with self.restoring():
            _Manifest.model_validate(contents.manifest)
        self._finished = [StageResult.from_json(stage) for stage in contents.manifest["finished"]]
        self._progress = contents.manifest["under_way"]
        self._resumed = False
        self._tensors = {part: under(f"{part}.", contents.tensors) for part in self._tensors}

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Raise `CheckpointError` in place of an error that contents of another run cause."""
        try:
            yield
        except (ArithmeticError, LookupError, TypeError, ValueError, RuntimeError) as error:
            CHECKPOINT.damaged(self._path, f"it does not fit the run ({cause_of(error)})", error)

    def restore_generator(self, generator: torch.Generator) -> None:
        """Set a generator to its state at the start of the run."""
        start = self._tensors["start"]
        if "generator" in start:
            with self.restoring():
                generator.set_state(start["generator"])
        start["generator"] = generator.get_state()

    def next_finished(self) -> tuple[StageResult, Tensors] | None:
        """Return result and model of the next stage, if the file has a result of it."""
        if self._loaded == len(self._finished):
            return None
        index = self._loaded
        self._loaded = self._loaded + 1
        return self._finished[index], under(f"{index}.", self._tensors["finished"])

    def resume_stage(self, run: Run) -> Tensors | None:
        """Replay the losses of the interrupted stage, once, and return its tensors."""
        if self._resumed or self._progress is None:
            return None
        self._resumed = True
        run.resume(self._progress["losses"], self._progress["evaluations"])
        return self._tensors["now"]

    def save_progress(self, run: Run, tensors: Tensors) -> None:
        """Write the state of the current stage."""
        # Copy the list: it grows with each step.
        self._write(tensors, {"losses": [*run.losses], "evaluations": run.evaluations})

    def finish(self, result: StageResult, tensors: Tensors) -> None:
        """Write the result and the model of the current stage."""
        index = len(self._finished)
        finished = {f"{index}.{name}": value.clone() for name, value in tensors.items()}
        self._tensors["finished"] |= finished
        self._finished.append(result)
        self._loaded += 1
        self._write({}, None)

    def resume_hint(self) -> str:
        """Return how to resume a run that was lost."""
        place = f"the end of {self._finished[-1].stage}" if self._finished else "the start"
        if self._progress is not None:
            place = f"step {len(self._progress['losses'])}"
        return (
            f"The checkpoint {self._path} is of {place}: start the job again with the same "
            "command, and it resumes from there."
        )

    def _read(self) -> Contents | None:
        """Read the file; create it if it does not exist."""
        if Path(self._path).exists():
            return read_file(CHECKPOINT, self._path)
        # Write now: a path without write access fails here, not after hours of work.
        self._write({}, None)
        return None

    def _write(self, now: Tensors, progress: dict[str, Any] | None) -> None:
        self._tensors["now"] = now
        self._progress = progress
        if not self._writes:
            return
        tensors = {
            f"{part}.{name}": tensor
            for part, named in self._tensors.items()
            for name, tensor in named.items()
        }
        manifest = {
            "fingerprint": self._fingerprint,
            "finished": [result.to_json() for result in self._finished],
            "under_way": progress,
        }
        write_file(CHECKPOINT, self._path, tensors, manifest)


def under(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """Return the tensors whose names start with a prefix, without the prefix."""
    size = len(prefix)
    return {name[size:]: value for name, value in tensors.items() if name.startswith(prefix)}


def require_like(saved: Mapping[str, Tensor], current: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless saved tensors have the names, shapes and dtypes of current ones.

    Saved values must be finite where current ones are. `copy_` would broadcast another shape
    silently.
    """
    if saved.keys() != current.keys():
        strange = sorted(saved.keys() ^ current.keys())[:3]
        names = ", ".join(strange)
        raise ValueError(f"these names are not in both the file and the run: {names}")
    for name, value in saved.items():
        expected = current[name]
        if value.shape != expected.shape or value.dtype != expected.dtype:
            raise ValueError(f"{name} has shape {list(value.shape)} and is {value.dtype}")
        if bool((expected.cpu().isfinite() & ~value.cpu().isfinite()).any()):
            raise ValueError(f"{name} holds NaN or infinity")


def open_checkpoint(
    checkpoints: Checkpoints | None,
    data: Data,
    model: Model,
    settings: object,
    group: ProcessGroup | None = None,
) -> Checkpoint | None:
    """Open the checkpoint of a run; return None without `checkpoints`.

    Raises `CheckpointError` if the file is of a run with other data, model or settings, and
    `InvalidInputError` if these differ between processes.
    """
    if checkpoints is None and group is None:
        return None
    start = model_tensors(model)
    # Add the row values: they are data, and not in the state of a likelihood.
    start |= {f"buffer.{name}": value for name, value in model.likelihood.named_buffers()}
    start |= {"X": data.X, "y": data.y}
    # Remove addresses: the text of a function or object has one, which differs between runs.
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(settings))
    every = None if checkpoints is None else checkpoints.every
    rest = {"every": every, "settings": text, "weights": data.weights}
    parts = [_description(model.posterior), _description(model.likelihood)]
    identity = fingerprint(model=parts, **rest, **start)
    if group is not None:
        group.require_same(identity)
    return None if checkpoints is None else Checkpoint(checkpoints, identity, group)


def model_tensors(model: Model) -> Tensors:
    """Return the parameters of a model, by name."""
    parts = {"posterior": model.posterior, "likelihood": model.likelihood}
    states = {name: part.state_dict() for name, part in parts.items()}
    return {f"{part}.{name}": at for part, state in states.items() for name, at in state.items()}


def _description(model: nn.Module) -> list[object]:
    """Return names of free parameters, classes and plain attributes, which are not in tensors."""
    free = [name for name, parameter in model.named_parameters() if parameter.requires_grad]

    def plain(part: nn.Module) -> dict[str, object]:
        attributes = {name: at for name, at in vars(part).items() if name != "training"}
        if isinstance(part, StructuredKernel):
            attributes |= {"expression": repr(part.expression), "coded": str(part.coded)}
        return {n: at for n, at in attributes.items() if isinstance(at, bool | int | float | str)}

    return [free, [[type(part).__name__, plain(part)] for part in model.modules()]]

"""Save and resume the stages of a run in one file."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from directgp.errors import CheckpointError, require
from directgp.io import Contents, FileKind, as_json, digest, on_cpu, read_file, write_file
from directgp.training.data import Data, Model
from directgp.training.distributed import ProcessGroup
from directgp.training.result import StageResult

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


def fingerprint(**entries: Any) -> str:
    """Return the sha256 of tensors (name, dtype, shape, bytes) and plain values.

    The order of the arguments, and of the keys of dicts, does not matter; lists and tuples are
    alike. Values are None, bools, numbers, strings, and lists, tuples and dicts of these.

    Examples
    --------
    >>> import torch
    >>> from directgp.training.checkpoint import fingerprint
    >>> X = torch.zeros(3, 2)
    >>> fingerprint(X=X, beta=0.5) == fingerprint(beta=0.5, X=X)
    True
    >>> fingerprint(X=X, beta=0.5) == fingerprint(X=X, beta=0.6)
    False
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
        The file. A run with the same data and settings that finds it resumes from there, and ends
        with the same parameters bit for bit (on the CPU, with the same number of threads).
    every : int
        Steps between two writes. L-BFGS forgets its curvature at each, so a small number costs
        steps.
    """

    path: str | os.PathLike[str]
    every: int = 200

    def __post_init__(self) -> None:
        require(self.every >= 1, "every of Checkpoints", "at least 1", self.every)


class StageProgress(NamedTuple):
    """The state of a stage that was interrupted."""

    losses: list[float]
    evaluations: int
    tensors: Tensors


@final
class Checkpoint:
    """The finished stages of a run and the state of the current one, in memory and in a file.

    Without `checkpoints` nothing is kept. A file with another fingerprint of data and settings is
    an error. Of several processes the first one reads for all, and writes.
    """

    def __init__(
        self,
        checkpoints: Checkpoints | None = None,
        fingerprint: str = "",
        group: ProcessGroup | None = None,
    ) -> None:
        self._checkpoints, self._fingerprint = checkpoints, fingerprint
        self._writes = checkpoints is not None and (group is None or group.is_main)
        self._finished: list[StageResult] = []
        self._tensors: Tensors = {}
        self._now: Tensors = {}
        self._start: Tensors = {}
        self._under_way: dict[str, Any] | None = None
        self._replayed = self._saved_steps = 0
        if checkpoints is not None:
            found = self._read() if group is None else group.read(self._read)
            if found is not None:
                self._load(found)

    @property
    def every(self) -> int | None:
        """Steps between two writes; None for never."""
        return None if self._checkpoints is None else self._checkpoints.every

    def restore_generator(self, generator: torch.Generator) -> None:
        """Set a generator to its state at the start of the run."""
        if "generator" in self._start:
            generator.set_state(self._start["generator"])
        self._start = {"generator": generator.get_state()}

    def next_finished(self) -> tuple[StageResult, Tensors] | None:
        """Return result and model of the next stage, if the file has it as finished."""
        if self._replayed == len(self._finished):
            return None
        index, self._replayed = self._replayed, self._replayed + 1
        return self._finished[index], under(f"{index}.", self._tensors)

    def resume_stage(self) -> StageProgress | None:
        """Return the stage that was interrupted, once."""
        found, self._under_way = self._under_way, None
        return None if found is None else StageProgress(**found, tensors=self._now)

    def save_progress(self, losses: list[float], evaluations: int, tensors: Tensors) -> None:
        """Write the state of the current stage."""
        self._write(tensors, {"losses": losses, "evaluations": evaluations})

    def finish(self, result: StageResult, tensors: Tensors) -> None:
        """Write the result and the model of the current stage."""
        if self._checkpoints is None:
            return
        index = len(self._finished)
        self._tensors |= {f"{index}.{name}": value.clone() for name, value in tensors.items()}
        self._finished.append(result)
        self._replayed += 1
        self._write({}, None)

    def resume_hint(self) -> str:
        """Return how to resume a run that was lost."""
        if self._checkpoints is None:
            return "There is no checkpoint: with checkpoints=Checkpoints(path) a job can resume."
        path, stages = os.fspath(self._checkpoints.path), len(self._finished)
        place = "the start" if stages == 0 else f"the end of {self._finished[-1].stage}"
        place = f"step {self._saved_steps}" if self._saved_steps > 0 else place
        return (
            f"The checkpoint {path} is of {place}: start the job again with the same command, and "
            "it resumes from there."
        )

    def _read(self) -> Contents | None:
        """Read the file; create it if it does not exist."""
        if self._checkpoints is not None and Path(self._checkpoints.path).exists():
            return read_file(CHECKPOINT, self._checkpoints.path)
        # A path that cannot be written to is an error now, not after hours of work.
        self._write({}, None)
        return None

    def _write(self, now: Tensors, under_way: dict[str, Any] | None) -> None:
        self._saved_steps = 0 if under_way is None else len(under_way["losses"])
        if self._checkpoints is None or not self._writes:
            return
        parts = {"finished": self._tensors, "now": now, "start": self._start}
        tensors = {
            f"{part}.{name}": at for part, some in parts.items() for name, at in some.items()
        }
        manifest = {
            "fingerprint": self._fingerprint,
            "finished": [result.to_json() for result in self._finished],
            "under_way": under_way,
        }
        write_file(CHECKPOINT, self._checkpoints.path, tensors, manifest)

    def _load(self, found: Contents) -> None:
        if self._checkpoints is not None and found.manifest.get("fingerprint") != self._fingerprint:
            raise CheckpointError(
                f"The checkpoint {os.fspath(self._checkpoints.path)} is of a run with other data "
                "or settings. Give the data and settings of that run, or another path."
            )
        self._finished = [StageResult.from_json(stage) for stage in found.manifest["finished"]]
        self._under_way = found.manifest["under_way"]
        self._saved_steps = 0 if self._under_way is None else len(self._under_way["losses"])
        self._tensors = under("finished.", found.tensors)
        self._now = under("now.", found.tensors)
        self._start = under("start.", found.tensors)


def under(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """Return the tensors whose names start with a prefix, without the prefix."""
    size = len(prefix)
    return {name[size:]: value for name, value in tensors.items() if name.startswith(prefix)}


def open_checkpoint(
    checkpoints: Checkpoints | None,
    data: Data,
    model: Model,
    settings: object,
    group: ProcessGroup | None = None,
) -> Checkpoint:
    """Return the checkpoint of a run with these data, this start and these settings.

    Raises `InvalidInputError` if another process has others.
    """
    if checkpoints is None and group is None:
        return Checkpoint()
    start = model_tensors(model)
    # Exposures are data, and not in the state of a likelihood.
    start |= {f"buffer.{name}": value for name, value in model.likelihood.named_buffers()}
    start |= {"X": data.X, "y": data.y}
    # The address in the text of a function or object differs between runs.
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(settings))
    every = None if checkpoints is None else checkpoints.every
    how = {"every": every, "settings": text, "weights": data.weights}
    parts = [_description(model.posterior), _description(model.likelihood)]
    known = fingerprint(model=parts, **how, **start)
    if group is not None:
        group.require_same(known)
    return Checkpoint(checkpoints, known, group)


def model_tensors(model: Model) -> Tensors:
    """Return the parameters of a model, by name."""
    tensors = {f"posterior.{name}": at for name, at in model.posterior.state_dict().items()}
    return tensors | {
        f"likelihood.{name}": at for name, at in model.likelihood.state_dict().items()
    }


def _description(model: nn.Module) -> list[object]:
    """Return names of free parameters, classes and plain attributes, which tensors do not tell."""
    free = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    parts = [
        [
            type(part).__name__,
            {
                name: at
                for name, at in vars(part).items()
                if name != "training" and isinstance(at, bool | int | float | str)
            },
        ]
        for part in model.modules()
    ]
    return [free, parts]

"""Save and resume the stages of a run in one file."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from directgp.errors import CheckpointError, require
from directgp.io import Contents, FileKind, as_json, digest, on_cpu, read_file, write_file
from directgp.likelihoods.base import Likelihood
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.data import Data
from directgp.training.distributed import Together
from directgp.training.result import StageResult

CHECKPOINT = FileKind(
    name="checkpoint",
    writer="save_checkpoint",
    key="directgp.checkpoint",
    schema=2,
    error=CheckpointError,
    if_unreadable="Check the path, or start without resuming.",
    if_damaged="Delete it and start again, or resume from another checkpoint.",
    if_other_schema="Resume with the version that wrote it, or start again.",
)


def save_checkpoint(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], manifest: Mapping[str, Any]
) -> None:
    """Write tensors and manifest to one file, which is the old one or the new one at any moment.

    Parameters
    ----------
    path : path
        The file; its folder must exist. What was there before is replaced in one step.
    tensors : mapping of names to tensors
        Of a bool, integer or floating dtype; copied to the CPU.
    manifest : mapping
        Of what JSON knows: dicts with string keys, lists, strings, numbers, bools and None. Floats
        come back exactly, NaN and infinities too.

    Raises
    ------
    CheckpointError
        The file could not be written; no half-written file takes the place of the old one.

    Examples
    --------
    >>> import tempfile, torch
    >>> from directgp.training.checkpoint import load_checkpoint, save_checkpoint
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_checkpoint(f"{folder}/run.ckpt", {"m": torch.ones(2)}, {"step": 7})
    ...     load_checkpoint(f"{folder}/run.ckpt")
    Contents(tensors={'m': tensor([1., 1.])}, manifest={'step': 7})
    """
    write_file(CHECKPOINT, path, tensors, manifest)


def load_checkpoint(path: str | os.PathLike[str]) -> Contents:
    """Read what `save_checkpoint` wrote, and check every byte of it.

    Parameters
    ----------
    path : path
        The file.

    Raises
    ------
    CheckpointError
        There is no such file, it is damaged, it is no checkpoint, or its schema is unknown.
    """
    return read_file(CHECKPOINT, path)


def fingerprint(**entries: Any) -> str:
    """sha256 over names, dtypes, shapes and bytes of tensors, and over plain values.

    Two runs with the same fingerprint have the same data and settings. The order of the
    arguments, and of the keys of dicts, does not matter; lists and tuples are alike.

    Parameters
    ----------
    **entries
        Tensors, or None, bools, numbers, strings, and lists, tuples and dicts of these.

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


Tensors = dict[str, Tensor]


@final
@dataclass(frozen=True)
class Checkpoints:
    """Where and how often a run is kept on disk, to be taken up again after a fault.

    Parameters
    ----------
    path : path
        The file. A run with the same data and settings that finds it goes on from there, and ends
        with the same parameters bit for bit (on the CPU, with the same number of threads).
    every : int
        Steps between two writes. L-BFGS forgets its curvature at each, so a small number costs
        steps.
    """

    path: str | os.PathLike[str]
    every: int = 200

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        require(self.every >= 1, "every of Checkpoints", "at least 1", self.every)


@dataclass(frozen=True)
class UnderWay:
    """A stage that was interrupted."""

    losses: list[float]
    evaluations: int
    tensors: Tensors


@final
class Journal:
    """What is known of the stages of a run, in order, and the writing of it.

    Parameters
    ----------
    checkpoints : Checkpoints
        Where, or None to keep nothing.
    fingerprint : str
        Of data and settings; a file with another one is refused.
    together : Together
        The processes of the run: the first one reads for all, and writes.
    """

    def __init__(
        self,
        checkpoints: Checkpoints | None = None,
        fingerprint: str = "",
        together: Together | None = None,
    ) -> None:
        self._checkpoints = checkpoints
        self._together = together or Together()
        self._fingerprint = fingerprint
        self._finished: list[StageResult] = []
        self._tensors: Tensors = {}
        self._now: Tensors = {}
        self._start: Tensors = {}
        self._under_way: dict[str, Any] | None = None
        self._replayed = self._kept = 0
        if checkpoints is not None:
            found = self._together.read(self._found_or_begun)
            if found is not None:
                self._load(checkpoints.path, found)

    @property
    def every(self) -> int | None:
        """Steps between two writes; None for never."""
        return None if self._checkpoints is None else self._checkpoints.every

    def rewind(self, generator: torch.Generator) -> None:
        """Set a generator to where it was when the run began."""
        if "generator" in self._start:
            generator.set_state(self._start["generator"])
        self._start = {"generator": generator.get_state()}

    def next_finished(self) -> tuple[StageResult, Tensors] | None:
        """The next stage, where the file knows how it ended."""
        if self._replayed == len(self._finished):
            return None
        index, self._replayed = self._replayed, self._replayed + 1
        return self._finished[index], under(f"{index}.", self._tensors)

    def take_up(self) -> UnderWay | None:
        """The stage that was under way, once."""
        found, self._under_way = self._under_way, None
        return None if found is None else UnderWay(**found, tensors=self._now)

    def keep(self, losses: list[float], evaluations: int, tensors: Tensors) -> None:
        """Write down where the present stage is."""
        self._write(tensors, {"losses": losses, "evaluations": evaluations})

    def finish(self, result: StageResult, tensors: Tensors) -> None:
        """Write down how the present stage ended."""
        if self._checkpoints is None:
            return
        index = len(self._finished)
        self._tensors |= {f"{index}.{name}": value.clone() for name, value in tensors.items()}
        self._finished.append(result)
        self._replayed += 1
        self._write({}, None)

    def way_back(self) -> str:
        """How a run that broke off is taken up again."""
        if self._checkpoints is None:
            return "No checkpoints were kept: with checkpoints=Checkpoints(path) a job can go on."
        path, stages = os.fspath(self._checkpoints.path), len(self._finished)
        place = "the start" if stages == 0 else f"the end of {self._finished[-1].stage}"
        place = f"step {self._kept}" if self._kept > 0 else place
        return (
            f"The checkpoint {path} is of {place}: start the job again with the same command, and "
            "it goes on from there."
        )

    def _found_or_begun(self) -> Contents | None:
        """What the file holds; where there is none, one is begun."""
        if self._checkpoints is not None and Path(self._checkpoints.path).exists():
            return load_checkpoint(self._checkpoints.path)
        # A path that cannot be written to is better known before the work than after it.
        self._write({}, None)
        return None

    def _write(self, now: Tensors, under_way: dict[str, Any] | None) -> None:
        self._kept = 0 if under_way is None else len(under_way["losses"])
        if self._checkpoints is None or not self._together.writes:
            return
        finished = {f"finished.{name}": value for name, value in self._tensors.items()}
        manifest = {
            "fingerprint": self._fingerprint,
            "finished": [result.to_json() for result in self._finished],
            "under_way": under_way,
        }
        present = {f"now.{name}": value for name, value in now.items()}
        start = {f"start.{name}": value for name, value in self._start.items()}
        save_checkpoint(self._checkpoints.path, finished | present | start, manifest)

    def _load(self, path: str | os.PathLike[str], found: Contents) -> None:
        if found.manifest.get("fingerprint") != self._fingerprint:
            raise CheckpointError(
                f"The checkpoint {os.fspath(path)} is of a run with other data or settings. Give "
                "the data and settings of that run, or another path."
            )
        self._finished = [StageResult.from_json(stage) for stage in found.manifest["finished"]]
        self._under_way = found.manifest["under_way"]
        self._kept = 0 if self._under_way is None else len(self._under_way["losses"])
        self._tensors = under("finished.", found.tensors)
        self._now = under("now.", found.tensors)
        self._start = under("start.", found.tensors)


def under(prefix: str, tensors: Tensors) -> Tensors:
    """The tensors whose names begin so, without the prefix."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def journal_for(
    checkpoints: Checkpoints | None,
    data: Data,
    posterior: SparsePosterior,
    likelihood: Likelihood,
    settings: object,
    together: Together | None = None,
) -> Journal:
    """The journal of a run with these data, this start and these settings.

    Several processes are refused unless all have the same.
    """
    together = together or Together()
    if checkpoints is None and together.alone:
        return Journal()
    start = {f"posterior.{name}": value for name, value in posterior.state_dict().items()}
    start |= {f"likelihood.{name}": value for name, value in likelihood.state_dict().items()}
    # Exposures are data, and no part of a state.
    start |= {f"buffer.{name}": value for name, value in likelihood.named_buffers()}
    start |= {"X": data.X, "y": data.y}
    # Functions and objects without a text of their own show where they are in memory.
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(settings))
    every = None if checkpoints is None else checkpoints.every
    how = {"every": every, "settings": text, "weights": data.weights}
    model = [_description(posterior), _description(likelihood)]
    known = fingerprint(model=model, **how, **start)
    together.require_same(known)
    return Journal(checkpoints, known, together)


def _description(model: nn.Module) -> list[object]:
    """Classes, plain attributes and what is free: what the tensors of a model do not tell."""
    free = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    parts = [
        [type(part).__name__, {name: at for name, at in vars(part).items() if _is_plain(name, at)}]
        for part in model.modules()
    ]
    return [free, parts]


def _is_plain(name: str, value: object) -> bool:
    return name != "training" and isinstance(value, bool | int | float | str)

"""One file that holds a run: tensors and a manifest, never half-written, never trusted."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from directgp.errors import CheckpointError
from directgp.files import FileKind, as_json, digest, on_cpu, read_file, write_file

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


@final
@dataclass(frozen=True)
class Checkpoint:
    """What `load_checkpoint` found."""

    tensors: dict[str, Tensor]
    """The tensors, on the CPU."""

    manifest: dict[str, Any]
    """The manifest, as it was saved."""


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
    Checkpoint(tensors={'m': tensor([1., 1.])}, manifest={'step': 7})
    """
    write_file(CHECKPOINT, path, tensors, manifest)


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
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
    return Checkpoint(*read_file(CHECKPOINT, path))


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

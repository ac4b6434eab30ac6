"""One file that holds a run: tensors and a manifest, never half-written, never trusted.

The file is a safetensors file. Its metadata holds the manifest as JSON, with a schema version,
and a sha256 over the manifest and the names, dtypes, shapes and bytes of all tensors. Nothing in
it is code.
"""

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, final

import torch
from safetensors.torch import load, save
from torch import Tensor

from directgp.errors import CheckpointError, refuse, require

SCHEMA = 1

_MANIFEST, _DIGEST = "directgp.checkpoint", "sha256"
_DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)
_START_AGAIN = "Delete it and start again, or resume from another checkpoint."


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
    copies = {name: _copy(name, tensor) for name, tensor in tensors.items()}
    text = json.dumps({"schema": SCHEMA, "manifest": _json(dict(manifest), "manifest")})
    metadata = {_MANIFEST: text, _DIGEST: _digest(text, copies)}
    data = save(copies, metadata)
    try:
        # A link stays a link: what it points to is replaced.
        _replace(Path(os.path.realpath(path)), data)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"The checkpoint {os.fspath(path)} could not be written: {error}."
            " Give a file in a folder that exists, can be written to and has space;"
            " a checkpoint that was there has not been damaged."
        ) from error


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
    name = os.fspath(path)
    tensors, metadata = _parse(name, _read(name))
    text = metadata.get(_MANIFEST)
    if text is None:
        _damaged(name, "it was not written by save_checkpoint")
    manifest = _unpack(name, text)
    if metadata.get(_DIGEST) != _digest(text, tensors):
        _damaged(name, "its contents do not match their sha256")
    return Checkpoint(tensors, manifest)


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
    text = json.dumps(_json(values, "fingerprint", tuples=True), sort_keys=True)
    return _digest(text, {name: _cpu(name, tensor) for name, tensor in tensors.items()})


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """sha256 of a text and of tensors on the CPU, each part announced by its length."""
    sha = hashlib.sha256()
    parts = [text]
    for name in sorted(tensors):
        parts += [name, str(tensors[name].dtype), str(list(tensors[name].shape))]
    sha.update(json.dumps(parts).encode())
    for name in sorted(tensors):
        # Flat first: a scalar cannot be viewed as bytes.
        sha.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def _cpu(name: str, tensor: Tensor) -> Tensor:
    """The tensor's values, contiguous on the CPU."""
    allowed = tensor.layout == torch.strided and tensor.dtype in _DTYPES
    require(
        allowed,
        f"tensor {name!r}",
        "dense, of a bool, integer or floating dtype",
        f"{tensor.layout}, {tensor.dtype}",
    )
    return tensor.detach().cpu().contiguous()


def _copy(name: str, tensor: Tensor) -> Tensor:
    """The tensor's values, shared with no other tensor."""
    require(name != "__metadata__", "name of a tensor", "free; safetensors uses this one", name)
    return _cpu(name, tensor).clone()


def _json(value: Any, where: str, tuples: bool = False) -> Any:
    """The value itself, refused unless JSON gives it back as it was."""
    if isinstance(value, dict):
        keys = [key for key in value if not isinstance(key, str)]
        require(not keys, f"keys of {where}", "strings", keys)
        return {key: _json(item, f"{where}[{key!r}]", tuples) for key, item in value.items()}
    if isinstance(value, list) or (tuples and isinstance(value, tuple)):
        return [_json(item, f"{where}[{i}]", tuples) for i, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    refuse(
        where,
        "None, a bool, number or string, or a list or dict of these",
        f"a {type(value).__name__}",
        "Convert it first; tensors go by names of their own.",
    )


def _replace(path: Path, data: bytes) -> None:
    """Put the data where the path points, in one step that survives a power cut."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(draft, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
    _flush_folder(path.parent)


def _flush_folder(folder: Path) -> None:
    """Make a renaming last; some systems cannot be asked for it."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def _read(name: str) -> bytes:
    """All bytes of a file, taken at once: it may be replaced at any moment."""
    try:
        return Path(name).read_bytes()
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"The checkpoint {name} could not be read: {error}."
            " Check the path, or start without resuming."
        ) from error


def _parse(name: str, data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file; `load` leaves the metadata out."""
    try:
        tensors: dict[str, Tensor] = load(data)
        length = int.from_bytes(data[:8], "little")
        metadata: dict[str, str] = json.loads(data[8 : 8 + length]).get("__metadata__") or {}
    except Exception as error:  # safetensors documents none for bytes that are not its own
        _damaged(name, f"it is not a whole safetensors file ({error})", error)
    return tensors, metadata


def _unpack(name: str, text: str) -> dict[str, Any]:
    """The manifest, if its schema is known."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        _damaged(name, "its manifest cannot be read", error)
    if not (isinstance(document, dict) and "schema" in document):
        _damaged(name, "its manifest has no schema")
    if document["schema"] != SCHEMA:
        raise CheckpointError(
            f"{name} is a checkpoint of schema {document['schema']!r}, and this version of directgp"
            f" reads schema {SCHEMA}. Resume with the version that wrote it, or start again."
        )
    manifest = document.get("manifest")
    if not isinstance(manifest, dict):
        _damaged(name, "its manifest is missing")
    return manifest


def _damaged(name: str, what: str, cause: Exception | None = None) -> NoReturn:
    """Say what is wrong with a file."""
    raise CheckpointError(
        f"{name} cannot be loaded as a checkpoint: {what}. {_START_AGAIN}"
    ) from cause

"""The file itself: safetensors, with a manifest of JSON and a checksum in its metadata.

The manifest stands beside the number of its schema. The sha256 is taken over the manifest and the
names, dtypes, shapes and bytes of all tensors.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load, save
from torch import Tensor

from directgp.errors import require
from directgp.files.digest import DTYPES, as_json, digest, on_cpu
from directgp.files.kind import FileKind
from directgp.files.replacing import replace_file

CHECKSUM = "sha256"


class Contents(NamedTuple):
    """What a file holds."""

    tensors: dict[str, Tensor]
    """The tensors, on the CPU."""

    manifest: dict[str, Any]


def write_file(
    kind: FileKind,
    path: str | os.PathLike[str],
    tensors: Mapping[str, Tensor],
    manifest: Mapping[str, Any],
) -> None:
    """Write tensors and manifest to one file, which is the old one or the new one at any moment."""
    copies = {name: _copy(name, tensor) for name, tensor in tensors.items()}
    plain = as_json(dict(manifest), "manifest")
    text = json.dumps({"schema": kind.schema, "manifest": plain})
    data = save(copies, {kind.key: text, CHECKSUM: digest(text, copies)})
    try:
        # A link stays a link: what it points to is replaced.
        replace_file(Path(os.path.realpath(path)), data)
    except (OSError, ValueError) as error:
        kind.unwritable(os.fspath(path), error)


def read_file(kind: FileKind, path: str | os.PathLike[str]) -> Contents:
    """Read what `write_file` wrote, and check every byte of it."""
    name = os.fspath(path)
    tensors, metadata = _parse(kind, name, _read(kind, name))
    text = metadata.get(kind.key)
    if text is None:
        kind.damaged(name, f"it was not written by {kind.writer}")
    manifest = _unpack(kind, name, text)
    if metadata.get(CHECKSUM) != digest(text, tensors):
        kind.damaged(name, "its contents do not match their sha256")
    return Contents(tensors, manifest)


def _copy(name: str, tensor: Tensor) -> Tensor:
    """The tensor's values, shared with no other tensor."""
    require(name != "__metadata__", "name of a tensor", "free; safetensors uses this one", name)
    return on_cpu(name, tensor).clone(memory_format=torch.contiguous_format)


def _read(kind: FileKind, name: str) -> bytes:
    """All bytes of a file, taken at once: it may be replaced at any moment."""
    try:
        return Path(name).read_bytes()
    except (OSError, ValueError) as error:
        kind.unreadable(name, error)


def _parse(kind: FileKind, name: str, data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file; `load` leaves the metadata out."""
    try:
        tensors: dict[str, Tensor] = load(data)
        length = int.from_bytes(data[:8], "little")
        metadata: dict[str, str] = json.loads(data[8 : 8 + length]).get("__metadata__") or {}
    except Exception as error:  # safetensors documents none for bytes that are not its own
        kind.damaged(name, f"it is not a whole safetensors file ({error})", error)
    strange = next(
        (tensor.dtype for tensor in tensors.values() if tensor.dtype not in DTYPES), None
    )
    if strange is not None:
        kind.damaged(name, f"{kind.writer} writes no tensors of {strange}")
    return tensors, metadata


def _unpack(kind: FileKind, name: str, text: str) -> dict[str, Any]:
    """The manifest, if its schema is known."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        kind.damaged(name, "its manifest cannot be read", error)
    if not (isinstance(document, dict) and "schema" in document):
        kind.damaged(name, "its manifest has no schema")
    kind.check_schema(name, document["schema"])
    manifest = document.get("manifest")
    if not isinstance(manifest, dict):
        kind.damaged(name, "its manifest is missing")
    return manifest

"""Write files of tensors with a manifest; read them and check everything in them."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, final

import torch
from safetensors.torch import load, save
from torch import Tensor

from directgp.errors import DirectGPError, refuse, require
from directgp.files import open_regular, replace_file
from directgp.text import plural

CHECKSUM = "sha256"
"""Key of the checksum in the metadata; it covers the manifest and all tensors."""

DTYPES = (
    *(torch.bool, torch.uint8, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)
"""Types of tensors that are written and read."""

MAX_TENSORS = 100_000
"""Largest number of tensors: 1,000 outputs with 100 each. To read one takes 20 µs and 1 kB."""

_MAX_HEADER = 100_000_000
"""Largest header in bytes, with the manifest: the limit of safetensors itself."""

_MAX_VALUES = 3_000_000
"""Largest number of JSON values in the header: 3 million losses, about 500 MB in memory."""


def digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """Return the sha256 of a text and of the names, types, shapes and bytes of CPU tensors."""
    sha = hashlib.sha256()
    parts = [text]
    for name in sorted(tensors):
        parts += [name, str(tensors[name].dtype), str(list(tensors[name].shape))]
    sha.update(json.dumps(parts).encode())
    for name in sorted(tensors):
        # Flat first: a scalar cannot be viewed as bytes.
        sha.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def on_cpu(name: str, tensor: Tensor) -> Tensor:
    """Return the tensor's values, contiguous on the CPU."""
    require(
        tensor.layout == torch.strided and tensor.dtype in DTYPES,
        f"tensor {name!r}",
        "dense, of a bool, integer or floating dtype",
        f"{tensor.layout}, {tensor.dtype}",
    )
    values = tensor.detach().cpu().contiguous()
    # A single number counts as contiguous with any stride, but then cannot be viewed as bytes.
    return values.clone(memory_format=torch.contiguous_format) if values.numel() == 1 else values


def as_json(value: Any, where: str, tuples: bool = False) -> Any:
    """Return a copy of the value; raise `InvalidInputError` if JSON would change it.

    With `tuples`, tuples become lists.
    """
    if isinstance(value, dict):
        keys = [key for key in value if not isinstance(key, str)]
        require(not keys, f"keys of {where}", "strings", keys)
        return {key: as_json(item, f"{where}[{key!r}]", tuples) for key, item in value.items()}
    if isinstance(value, list) or (tuples and isinstance(value, tuple)):
        return [as_json(item, f"{where}[{i}]", tuples) for i, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    refuse(
        where,
        "None, a bool, number or string, or a list or dict of these",
        f"a {type(value).__name__}",
        "Convert it first; give tensors apart, by name.",
    )


@final
@dataclass(frozen=True)
class FileKind:
    """A kind of file, such as a checkpoint or a model."""

    name: str
    """Name in error messages."""

    writer: str
    """The function that writes it."""

    key: str
    """Key of the manifest in the metadata; different for each kind."""

    schema: int
    """Version of the layout that is written, and the only one that is read."""

    error: type[DirectGPError]
    """Raised if such a file cannot be written or read."""

    if_unreadable: str
    """Remedy for a path that cannot be read."""

    if_damaged: str
    """Remedy for wrong contents."""

    if_other_schema: str
    """Remedy for another layout."""

    def damaged(self, path: str, what: str, cause: Exception | None = None) -> NoReturn:
        """Raise the error for a file with wrong contents."""
        raise self.error(
            f"{path} cannot be loaded as a {self.name}: {what}. {self.if_damaged}"
        ) from cause


class Contents(NamedTuple):
    """The contents of a file."""

    tensors: dict[str, Tensor]
    manifest: dict[str, Any]


def write_file(
    kind: FileKind,
    path: str | os.PathLike[str],
    tensors: Mapping[str, Tensor],
    manifest: Mapping[str, Any],
) -> None:
    """Write tensors and manifest to one file, atomically."""
    who = "name of a tensor"
    allowed = "another name; safetensors uses this one"
    require("__metadata__" not in tensors, who, allowed, "__metadata__")
    copies = {
        name: on_cpu(name, tensor).clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    text = json.dumps({"schema": kind.schema, "manifest": as_json(dict(manifest), "manifest")})
    data = save(copies, {kind.key: text, CHECKSUM: digest(text, copies)})
    try:
        # Do not write a file that `read_file` would reject.
        end = 8 + _header_size(data[:8])
        _check_tensors(_parsed(data[8:end].decode()), len(data) - end)
        replace_file(Path(path), data)
    except (OSError, ValueError) as error:
        raise kind.error(
            f"The {kind.name} {os.fspath(path)} could not be written: {error}."
            " Give a file in a folder that exists, can be written to and has space;"
            f" a {kind.name} that was there has not been damaged."
        ) from error


def read_file(kind: FileKind, path: str | os.PathLike[str]) -> Contents:
    """Read a file that `write_file` wrote, and check its schema and checksum.

    The header is checked before the tensors are read: it bounds the memory that they need.
    """
    name = os.fspath(path)
    try:
        # One handle: the file may be replaced at any moment.
        with open_regular(path) as file:
            header, data = _checked_bytes(file)
        tensors: dict[str, Tensor] = load(data)
    except (OSError, MemoryError) as error:
        why = str(error) or "it needs more memory than there is"
        raise kind.error(
            f"The {kind.name} {name} could not be read: {why}. {kind.if_unreadable}"
        ) from error
    except Exception as error:  # safetensors documents no exceptions for foreign bytes.
        kind.damaged(name, f"it is not a whole safetensors file ({error})", error)
    for tensor in tensors.values():
        if tensor.dtype not in DTYPES:
            kind.damaged(name, f"{kind.writer} writes no tensors of {tensor.dtype}")
    metadata: dict[str, str] = header.get("__metadata__") or {}
    text = metadata.get(kind.key)
    if text is None:
        kind.damaged(name, f"it was not written by {kind.writer}")
    manifest = _manifest(kind, name, text)
    if metadata.get(CHECKSUM) != digest(text, tensors):
        kind.damaged(name, "its contents do not match their sha256")
    return Contents(tensors, manifest)


def _checked_bytes(file: BinaryIO) -> tuple[dict[str, Any], bytes]:
    """Return the header and all bytes of a file; raise ValueError if the header is not sound."""
    size = os.fstat(file.fileno()).st_size
    start = file.read(8)
    start += file.read(_header_size(start))
    header = _parsed(start[8:].decode())
    _check_tensors(header, size - len(start))
    return header, start + file.read(size - len(start))


def _header_size(start: bytes) -> int:
    """Return the size of the header from the first 8 bytes; raise ValueError if it is too large."""
    if len(start) < 8:
        raise ValueError(f"the file has {plural(len(start), 'byte')}, too few for a header")
    size = int.from_bytes(start, "little")
    if size > _MAX_HEADER:
        raise ValueError(f"a header of {size:,} bytes, and {_MAX_HEADER:,} are allowed")
    return size


def _parsed(text: str) -> Any:
    """Return a JSON document; raise ValueError if it has too many values to be parsed."""
    if sum(text.count(mark) for mark in ",[{") > _MAX_VALUES:
        raise ValueError(f"more than {_MAX_VALUES:,} values in its header")
    return json.loads(text)


def _check_tensors(header: Any, size: int) -> None:
    """Raise ValueError unless the tensors listed in the header take `size` bytes in all."""
    if not isinstance(header, dict):
        raise ValueError("a header without tensors")
    entries = [entry for name, entry in header.items() if name != "__metadata__"]
    if len(entries) > MAX_TENSORS:
        raise ValueError(f"{len(entries):,} tensors, and {MAX_TENSORS:,} are allowed")
    try:
        end = max((entry["data_offsets"][1] for entry in entries), default=0)
    except (TypeError, LookupError) as error:
        raise ValueError("a tensor without a place") from error
    if end != size:
        raise ValueError(f"{size:,} bytes of tensors, and the header says {end}")


def _manifest(kind: FileKind, name: str, text: str) -> dict[str, Any]:
    """Return the manifest; raise the error of the kind if its schema is another one."""
    try:
        document = _parsed(text)
    except (ValueError, RecursionError) as error:
        kind.damaged(name, "its manifest cannot be read", error)
    if not (isinstance(document, dict) and "schema" in document):
        kind.damaged(name, "its manifest has no schema")
    if document["schema"] != kind.schema:
        raise kind.error(
            f"{name} is a {kind.name} of schema {document['schema']!r:.20}, and this version of"
            f" directgp reads schema {kind.schema}. {kind.if_other_schema}"
        )
    manifest = document.get("manifest")
    if not isinstance(manifest, dict):
        kind.damaged(name, "its manifest is missing")
    return manifest

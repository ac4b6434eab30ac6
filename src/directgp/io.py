"""Write files atomically, read untrusted files of tensors, and name versions and machine."""

import errno
import hashlib
import json
import os
import platform
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, final

import torch
from safetensors.torch import load, save
from torch import Tensor

from directgp.errors import DirectGPError, refuse, require

CHECKSUM = "sha256"
"""Key of the checksum in the metadata; it covers the manifest and all tensors."""

DTYPES = (
    *(torch.bool, torch.uint8, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)
"""Types of tensors that are written and read."""


def replace_file(path: Path, data: bytes) -> None:
    """Write the data to the path atomically; the old or the new file survives a power cut."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(draft, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException as error:
        with suppress(OSError):
            draft.unlink()
        if isinstance(error, OSError):
            # The error of a full disk does not name the file.
            error.filename = str(path)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Write the renaming to the disk, on systems that support it."""
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
    writer: str
    """Name in error messages, and the function that writes it."""

    key: str
    """Key of the manifest in the metadata; different for each kind."""

    schema: int
    """Version of the layout that is written, and the only one that is read."""

    error: type[DirectGPError]
    """Raised if such a file cannot be written or read."""

    if_unreadable: str
    if_damaged: str
    if_other_schema: str
    """Remedies for a path that cannot be read, for wrong contents and for another layout."""

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
    who, allowed = "name of a tensor", "another name; safetensors uses this one"
    require("__metadata__" not in tensors, who, allowed, "__metadata__")
    copies = {
        name: on_cpu(name, tensor).clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    text = json.dumps({"schema": kind.schema, "manifest": as_json(dict(manifest), "manifest")})
    data = save(copies, {kind.key: text, CHECKSUM: digest(text, copies)})
    try:
        # realpath: the target of a link is replaced, not the link.
        replace_file(Path(os.path.realpath(path)), data)
    except (OSError, ValueError) as error:
        raise kind.error(
            f"The {kind.name} {os.fspath(path)} could not be written: {error}."
            " Give a file in a folder that exists, can be written to and has space;"
            f" a {kind.name} that was there has not been damaged."
        ) from error


def read_file(kind: FileKind, path: str | os.PathLike[str]) -> Contents:
    """Read a file that `write_file` wrote, and check its schema and checksum."""
    name = os.fspath(path)
    try:
        # All bytes at once: the file may be replaced at any moment.
        data = Path(name).read_bytes()
    except (OSError, ValueError) as error:
        raise kind.error(
            f"The {kind.name} {name} could not be read: {error}. {kind.if_unreadable}"
        ) from error
    try:
        tensors: dict[str, Tensor] = load(data)
        # `load` leaves out the metadata, which are in the header.
        length = int.from_bytes(data[:8], "little")
        metadata: dict[str, str] = json.loads(data[8 : 8 + length]).get("__metadata__") or {}
    except Exception as error:  # safetensors documents no exceptions for foreign bytes.
        kind.damaged(name, f"it is not a whole safetensors file ({error})", error)
    for tensor in tensors.values():
        if tensor.dtype not in DTYPES:
            kind.damaged(name, f"{kind.writer} writes no tensors of {tensor.dtype}")
    text = metadata.get(kind.key)
    if text is None:
        kind.damaged(name, f"it was not written by {kind.writer}")
    manifest = _manifest(kind, name, text)
    if metadata.get(CHECKSUM) != digest(text, tensors):
        kind.damaged(name, "its contents do not match their sha256")
    return Contents(tensors, manifest)


def _manifest(kind: FileKind, name: str, text: str) -> dict[str, Any]:
    """Return the manifest, if its schema is known."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        kind.damaged(name, "its manifest cannot be read", error)
    if not (isinstance(document, dict) and "schema" in document):
        kind.damaged(name, "its manifest has no schema")
    if document["schema"] != kind.schema:
        raise kind.error(
            f"{name} is a {kind.name} of schema {document['schema']!r}, and this version of"
            f" directgp reads schema {kind.schema}. {kind.if_other_schema}"
        )
    manifest = document.get("manifest")
    if not isinstance(manifest, dict):
        kind.damaged(name, "its manifest is missing")
    return manifest


_LIBRARIES = ("directgp", "torch", "gpytorch", "numpy", "scipy", "scikit-learn")


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that affect the numbers."""
    found = {"python": platform.python_version()}
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            # A source tree that is not installed.
            found[library] = "not installed"
    return found


def machine() -> str:
    """Return the operating system and the processor: ``Linux x86_64``."""
    return f"{platform.system()} {platform.machine()}"


def cores() -> int:
    """Return the number of cores that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1

"""Write files atomically, and read tensors with a checked manifest from untrusted files."""

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, final

import torch
from safetensors.torch import load, save
from torch import Tensor

from directgp.errors import DirectGPError, refuse, require


def replace_file(path: Path, data: bytes) -> None:
    """Put the data where the path points, in one step that survives a power cut."""
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
            # A full disk does not say which file it has no room for.
            error.filename = str(path)
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


DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)


def digest(text: str, tensors: Mapping[str, Tensor]) -> str:
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


def on_cpu(name: str, tensor: Tensor) -> Tensor:
    """The tensor's values, contiguous on the CPU."""
    allowed = tensor.layout == torch.strided and tensor.dtype in DTYPES
    require(
        allowed,
        f"tensor {name!r}",
        "dense, of a bool, integer or floating dtype",
        f"{tensor.layout}, {tensor.dtype}",
    )
    values = tensor.detach().cpu().contiguous()
    # A single number counts as contiguous whatever its stride, and cannot be viewed as bytes then.
    return values.clone(memory_format=torch.contiguous_format) if values.numel() == 1 else values


def as_json(value: Any, where: str, tuples: bool = False) -> Any:
    """The value itself, refused unless JSON gives it back as it was."""
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
        "Convert it first; tensors go by names of their own.",
    )


@final
@dataclass(frozen=True)
class FileKind:
    """A kind of file, such as a checkpoint or a model."""

    name: str
    """What users call it."""

    writer: str
    """The function that writes it."""

    key: str
    """Where in the metadata the manifest is; no two kinds share it."""

    schema: int
    """Version of the layout that is written, and the only one that is read."""

    error: type[DirectGPError]
    """Raised where such a file cannot be written or read."""

    if_unreadable: str
    """What to do about a path that cannot be read."""

    if_damaged: str
    """What to do about a file that is not what it claims to be."""

    if_other_schema: str
    """What to do about a file of another layout."""

    def unwritable(self, path: str, cause: Exception) -> NoReturn:
        """Say that the file could not be written."""
        raise self.error(
            f"The {self.name} {path} could not be written: {cause}."
            " Give a file in a folder that exists, can be written to and has space;"
            f" a {self.name} that was there has not been damaged."
        ) from cause

    def unreadable(self, path: str, cause: Exception) -> NoReturn:
        """Say that nothing could be read at the path."""
        raise self.error(
            f"The {self.name} {path} could not be read: {cause}. {self.if_unreadable}"
        ) from cause

    def damaged(self, path: str, what: str, cause: Exception | None = None) -> NoReturn:
        """Say what is wrong with the contents."""
        raise self.error(
            f"{path} cannot be loaded as a {self.name}: {what}. {self.if_damaged}"
        ) from cause

    def check_schema(self, path: str, schema: object) -> None:
        """Refuse another layout."""
        if schema != self.schema:
            raise self.error(
                f"{path} is a {self.name} of schema {schema!r}, and this version of directgp"
                f" reads schema {self.schema}. {self.if_other_schema}"
            )


# The manifest stands beside the number of its schema. The sha256 is taken over the manifest and the
# names, dtypes, shapes and bytes of all tensors.


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

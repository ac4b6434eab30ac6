"""Check output paths, and write tables atomically."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet

from directgp.errors import InvalidInputError
from directgp.files import draft_of, make_folder, replacing

_MAX_PATH = 4096 if os.name == "posix" else 260
"""Largest number of bytes of a path."""

_LONGEST = 64
"""Bytes of the longest name that is written into a folder."""


def check_output_file(out: Path, force: bool, *, inputs: tuple[Path, ...] = ()) -> None:
    """Raise `InvalidInputError` if a file cannot be written to the path."""
    check_writable(out, Path(os.path.realpath(out)).parents)
    if not os.path.lexists(out):
        return
    if out.is_dir():
        refuse_path(out, "a new file", "is a folder", "Name a file in it.")
    if any(
        input_file.exists() and out.exists() and out.samefile(input_file) for input_file in inputs
    ):
        refuse_path(out, "a new file", "is an input", "Name another.")
    if not force:
        refuse_path(out, "a new file", "exists", "Name another, or replace it with --force.")


def check_output_folder(out: Path, held: set[str], replaceable: set[str], force: bool) -> None:
    """Raise `InvalidInputError` if the folder holds other files, or replaceable ones unforced."""
    check_writable(out, Path(os.path.realpath(out)).parents)
    if held and held != replaceable:
        refuse_path(out, "a new folder or that of a model", "holds other files", "Name another.")
    if held and not force:
        refuse_path(
            out, "a new folder", "holds a model", "Name another, or replace it with --force."
        )


def held_in(out: Path) -> set[str]:
    """Return the names in the folder, empty if it does not exist."""
    if not os.path.lexists(out):
        return set()
    if not out.is_dir():
        refuse_path(out, "a new folder", "is a file", "Name another.")
    return {entry.name for entry in out.iterdir()}


def check_writable(out: Path, folders: Sequence[Path]) -> None:
    """Raise `InvalidInputError` if the path cannot be created in the first folder that exists."""
    nearest = next(candidate for candidate in folders if os.path.lexists(candidate))
    place = Path(os.path.realpath(out))
    names = place.relative_to(nearest).parts if place.is_relative_to(nearest) else ()
    allowed = "in a folder that can be written to"
    try:
        # Permissions are not enough: nothing can be created in /proc, whatever they are. The file
        # has no name, so that nothing is left behind if the program is killed here.
        with TemporaryFile(dir=nearest):
            allowed = "a path that can be created"
            for name in names:
                # The name of a draft is longer.
                with suppress(FileNotFoundError):
                    os.lstat(draft_of(nearest / name))
            if len(os.fsencode(place)) + _LONGEST > _MAX_PATH:
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"--out must be {allowed}. Got {str(out)!r}. Name another."
        ) from error


def refuse_path(out: Path, allowed: str, what: str, remedy: str) -> NoReturn:
    """Raise `InvalidInputError` for the path of ``--out``."""
    raise InvalidInputError(f"--out must be {allowed}. Got {str(out)!r}, which {what}. {remedy}")


Write = Callable[[pa.Table], None]


@contextmanager
def writing(out: Path, schema: pa.Schema) -> Iterator[Write]:
    """Write a table in the format of the suffix; a failure leaves no file behind."""
    make_folder(Path(os.path.realpath(out)).parent)
    with replacing(out) as draft, ExitStack() as stack:
        yield _writer(stack, draft.name, out.name.lower(), schema)


def _writer(stack: ExitStack, draft: str, name: str, schema: pa.Schema) -> Write:
    sink: Any = stack.enter_context(pa.OSFile(draft, "wb"))
    if name.endswith(".gz"):
        sink = stack.enter_context(pa.CompressedOutputStream(sink, "gzip"))
    writer: Any
    if name.endswith(".parquet"):
        writer = pyarrow.parquet.ParquetWriter(sink, schema)
    elif name.endswith(".feather"):
        writer = pyarrow.ipc.new_file(sink, schema)
    else:
        mark = "\t" if ".tsv" in name[-len(".tsv.gz") :] else ","
        options = pyarrow.csv.WriteOptions(delimiter=mark, quoting_style="needed")
        writer = pyarrow.csv.CSVWriter(sink, schema, write_options=options)
    write: Write = stack.enter_context(writer).write_table
    return write

"""Open data files that may be damaged or hostile: regular, valid, and small enough for memory."""

import os
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from directgp.errors import refuse
from directgp.text import one_line

_NUMBER_BYTES = 8
"""Bytes of a value as a feature."""

_COPIES = 2
"""The columns that are read, and their features; preparation needs more for a while."""

_MAX_CAUSE = 200
"""Characters of the cause in an error message; causes may repeat what is in the file."""


@contextmanager
def readable(path: str) -> Iterator[None]:
    """Raise `InvalidInputError` with the path if Arrow or the system cannot read a file."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError, MemoryError, struct.error) as error:
        if isinstance(error, MemoryError):
            _refuse_size(path, "more than there is")
        if isinstance(error, UnicodeError):
            cause = "a name or a text in it is not UTF-8"
        else:
            cause = one_line(str(error).partition("\n")[0], _MAX_CAUSE) or type(error).__name__
        remedy = "Write it again, or give it the suffix of its format."
        got = f"{path!r}, with the error: {cause.rstrip('.')}"
        refuse("The data file", "readable", got, remedy)


def open_file(path: str) -> BinaryIO:
    """Open a file for reading; raise `InvalidInputError` for pipes, devices and sockets."""
    # Without O_NONBLOCK, a pipe that nobody writes to would block.
    flag: int = getattr(os, "O_NONBLOCK", 0)
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | flag))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        refuse("The data file", "a regular file", f"{path!r}, a pipe, a device or a socket")
    return file


def require_memory(
    shown: str, size: int, rows: int = 0, columns: int = 0, share: float = 1.0
) -> None:
    """Raise `InvalidInputError` if a table cannot fit in memory.

    `size` is its bytes as text, or unpacked. Only a share of its columns is to be read.
    """
    need, free = _COPIES * share * max(size, _NUMBER_BYTES * rows * columns), available_memory()
    if need > free:
        _refuse_size(shown, f"more than {need / 1e9:.3g} GB of {free / 1e9:.3g} GB")


def _refuse_size(shown: str, needs: str) -> NoReturn:
    remedy = "Take fewer rows or columns, or stream Parquet files with ParquetRows."
    refuse(
        "The data file", "a table that fits in memory", f"{shown!r}, which needs {needs}", remedy
    )


class ArrowSize(NamedTuple):
    """What the messages of an Arrow file or stream claim to hold."""

    unpacked: int
    rows: int
    batches: int


def arrow_size(source: BinaryIO) -> ArrowSize:
    """Return the sizes of all messages from here on; nothing is unpacked."""
    unpacked = rows = batches = 0
    for message in pa.ipc.MessageReader.open_stream(source):
        batch = _Table.root(message.metadata).table(2)
        if message.type not in ("record batch", "dictionary") or batch is None:
            continue
        if message.type == "dictionary":
            batch = batch.table(1) or batch
        else:
            rows, batches = rows + batch.long(0), batches + 1
        body = memoryview(message.body or b"")
        for start, length in batch.pairs(2):
            # A compressed buffer begins with its length; −1 says that this one is not compressed.
            known = int.from_bytes(body[start : start + 8], "little", signed=True)
            packed = batch.table(3) is not None and length >= 8 and known >= 0
            unpacked += known if packed else length
    return ArrowSize(unpacked, rows, batches)


class _Table(NamedTuple):
    """A table of a FlatBuffer, whose fields are numbered in the schema of Arrow (Message.fbs).

    Arrow has verified the offsets of messages that it returns.
    """

    data: memoryview
    start: int

    @classmethod
    def root(cls, buffer: pa.Buffer) -> "_Table":
        data = memoryview(buffer)
        return cls(data, _number(data, 0, "I"))

    def table(self, field: int) -> "_Table | None":
        """Return the table in a field, or None."""
        at = self._at(field)
        return None if at is None else _Table(self.data, at + _number(self.data, at, "I"))

    def long(self, field: int) -> int:
        """Return the number in a field, 0 by default."""
        at = self._at(field)
        return 0 if at is None else _number(self.data, at, "q")

    def pairs(self, field: int) -> Iterator[tuple[int, int]]:
        """Yield the pairs of numbers in a vector."""
        at = self._at(field)
        if at is not None:
            vector = at + _number(self.data, at, "I")
            number = _number(self.data, vector, "I")
            yield from struct.iter_unpack("<qq", self.data[vector + 4 : vector + 4 + 16 * number])

    def _at(self, field: int) -> int | None:
        index = self.start - _number(self.data, self.start, "i")
        slot = 4 + 2 * field
        if slot >= _number(self.data, index, "H"):
            return None
        offset = _number(self.data, index + slot, "H")
        return self.start + offset if offset else None


def _number(data: memoryview, at: int, kind: str) -> int:
    return int(struct.unpack_from(f"<{kind}", data, at)[0])


def available_memory() -> float:
    """Return the bytes that this process can still allocate; ∞ if the system does not tell."""
    found = [inf]
    with suppress(OSError, ValueError, IndexError):
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        found.append(1024.0 * int(lines["MemAvailable"].split()[0]))
    with suppress(OSError, ValueError, KeyError):
        # The group of a container, or of a batch system.
        name = Path("/proc/self/cgroup").read_text().partition("0::/")[2].splitlines()[:1]
        group = Path("/sys/fs/cgroup", *name)
        held = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        used = int((group / "memory.current").read_text()) - int(held["file"])
        found.append(float((group / "memory.max").read_text()) - used)
    if sys.platform != "win32":
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        with suppress(OSError, ValueError):
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            if limit != resource.RLIM_INFINITY:
                found.append(float(limit - pages * resource.getpagesize()))
    return max(0.0, min(found))


def valid_table(table: pa.Table) -> pa.Table:
    """Check every value of a table that was read, and return it in types that all functions have.

    The reader of Arrow files does not look at offsets, lengths and text: a wrong one would crash
    the process when it is used.
    """
    table.validate(full=True)
    if not any(map(pa.types.is_string_view, table.schema.types)):
        return table
    columns = [
        pc.cast(column, pa.string()) if pa.types.is_string_view(column.type) else column
        for column in table.columns
    ]
    return pa.table(columns, names=table.column_names)

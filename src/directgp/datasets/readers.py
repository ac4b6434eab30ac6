"""Define what can be read as a table, and open files that may be damaged or hostile."""

import os
import stat
import struct
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from directgp.datasets.columns import Mark, require_unique
from directgp.datasets.dialect import Reading
from directgp.errors import TableProblem, refuse, require
from directgp.text import one_line, plural, suggestion

_NUMBER_BYTES = 8
"""Bytes of a value as a feature."""

_COPIES = 2
"""Copies of the data in memory: the columns as read, and their features."""

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
    need = _COPIES * share * max(size, _NUMBER_BYTES * rows * columns)
    free = available_memory()
    if need > free:
        _refuse_size(shown, f"more than {need / 1e9:.3g} GB of {free / 1e9:.3g} GB")


def _refuse_size(shown: str, needs: str) -> NoReturn:
    remedy = "Take fewer rows or columns, or stream Parquet files with ParquetRows."
    refuse(
        "The data file", "a table that fits in memory", f"{shown!r}, which needs {needs}", remedy
    )


def available_memory() -> float:
    """Return the bytes that this process can still allocate."""
    # Imported late: it takes 20 ms.
    import psutil

    bounds = [float(psutil.virtual_memory().available)]
    with suppress(OSError, ValueError, KeyError):
        # The group of a container, or of a batch system, which psutil does not know.
        name = Path("/proc/self/cgroup").read_text().partition("0::/")[2].splitlines()[:1]
        group = Path("/sys/fs/cgroup", *name)
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        used = int((group / "memory.current").read_text()) - int(statistics["file"])
        bounds.append(float((group / "memory.max").read_text()) - used)
    if sys.platform != "win32":
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            bounds.append(float(limit - psutil.Process().memory_info().vms))
    return max(0.0, min(bounds))


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


def refuse_column(who: str, name: str, names: Iterable[str]) -> NoReturn:
    """Raise `InvalidInputError` for the name of a column that the table does not have."""
    refuse(who, "a column of the table", repr(name), suggestion(name, names, "Its columns"))


class ReadableTable(ABC):
    """A table, in a file if it has a path, of which all columns or some can be read."""

    decimal: Mark | None = None
    """Decimal mark of numbers in text, None if unknown; set when the names are read."""

    notes: tuple[str, ...] = ()
    """Notes on what was guessed; set when the names are read."""

    irregular: tuple[tuple[int, int], ...] = ()
    """Rows, from 1, that were left out in reading since they have more or fewer values than there
    are names, and how many values each has."""

    def __init__(
        self, shown: str, path: Path | None = None, reading: Reading | None = None
    ) -> None:
        self.shown = shown
        self.path = path
        self.reading = reading or Reading()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, all different; no values are read."""
        with readable(self.shown):
            names = tuple(self._names())
        got = f"no column in {self.shown!r}"
        require(len(names) > 0, "The table", "of columns with names", got)
        who = "Names of columns"
        where = f" in {self.shown!r}"
        require_unique(names, who, "different from each other", "Rename or remove them.", where)
        return names

    def read(self, columns: Sequence[str] | None = None, as_text: Collection[str] = ()) -> pa.Table:
        """Return the table, or some columns; columns of `as_text` stay as a text file has them."""
        chosen = list(self.names if columns is None else columns)
        names = set(self.names)
        for name in chosen:
            if name not in names:
                refuse_column(f"A column of {self.shown!r}", name, self.names)
        with readable(self.shown):
            return valid_table(self._read(chosen, set(as_text)))

    def row_numbers(self, num_rows: int) -> NDArray[np.int64]:
        """Return the number in the file, from 1, of each row of the table as read."""
        irregular = np.array([row for row, _ in self.irregular], dtype=np.int64)
        return np.delete(np.arange(1, num_rows + len(irregular) + 1), irregular - 1)

    def irregular_rows(self, *remedy: str) -> TableProblem:
        """Return the problem of rows that are too short or too long; an option leaves them out."""
        option, *values = remedy or ("--missing", "drop")
        rows = len(self.irregular)
        width = plural(len(self.names), "value")
        others = f" and {plural(rows - 1, 'other row')}" if rows > 1 else ""
        row, number = self.irregular[0]
        return TableProblem(
            f"Each row must have {width}, one for each column. In {self.shown!r}, row {row} has"
            f" {number}{others}. Correct them, or leave them out with"
            f" {' '.join([option, *values])}.",
            {option: values},
        )

    def rows_left_out(self) -> str:
        """Say how many rows are left out."""
        rows = plural(len(self.irregular), "row")
        return f"Left out {rows} with more or fewer values than there are names."

    @abstractmethod
    def _names(self) -> Sequence[str]: ...

    @abstractmethod
    def _read(self, columns: list[str], as_text: set[str]) -> pa.Table: ...

"""A table that has been found and can be read, in whole or in part."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from functools import cached_property

import pyarrow as pa

from directgp.datasets.wording import listed, refuse_name
from directgp.errors import refuse


class ReadableTable(ABC):
    """A table that has been found and can be read, in whole or in part."""

    def __init__(self, shown: str) -> None:
        self.shown = shown
        """What the user named."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, all different; no values are read."""
        names = self._names()
        if not names:
            refuse("The table", "of columns with names", f"no column in {self.shown!r}")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            got = f"{listed(twice)} more than once in {self.shown!r}"
            refuse("Names of columns", "different from each other", got, "Rename or remove them.")
        return names

    def read(self, columns: Sequence[str] | None = None, as_text: Collection[str] = ()) -> pa.Table:
        """The table, or some of its columns, some of them as they are written.

        What is as written in a file of text, such as 007 or NA, stays so; other formats know the
        types of their columns.
        """
        chosen = list(self.names if columns is None else columns)
        for name in chosen:
            if name not in self.names:
                refuse_name(f"A column of {self.shown!r}", name, self.names)
        table = self._read(chosen)
        written = [name for name in chosen if name in as_text]
        text = self._read_text(written) if written else table
        for name in written:
            table = table.set_column(chosen.index(name), name, text.column(name))
        return table

    @abstractmethod
    def _names(self) -> tuple[str, ...]: ...

    @abstractmethod
    def _read(self, columns: Sequence[str]) -> pa.Table: ...

    def _read_text(self, columns: Sequence[str]) -> pa.Table:
        return self._read(columns)

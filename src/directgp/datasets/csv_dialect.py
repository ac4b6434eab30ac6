"""How a text file separates its columns, and their names: read off its first row."""

import codecs
import csv
from dataclasses import dataclass
from typing import NoReturn, final

from directgp.errors import refuse

DELIMITERS = (",", ";", "\t")


@final
@dataclass(frozen=True)
class Dialect:
    """What the first row says of a text file."""

    delimiter: str

    written: tuple[str, ...]
    """Names of the columns as the file has them, with the spaces around them."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(name.strip() for name in self.written)

    def as_written(self, name: str) -> str:
        """How the file writes the name of a column."""
        return self.written[self.names.index(name)]


def dialect_of(head: bytes, whole: bool, shown: str, delimiters: tuple[str, ...]) -> Dialect:
    """The dialect, from the first bytes of a file, or all, and what may separate its columns."""
    lines = _decoded(head, whole, shown).splitlines(keepends=True)
    first_rows = {mark: _first_row(lines, mark) for mark in delimiters}
    delimiter = max(delimiters, key=lambda mark: len(first_rows[mark]))
    if not first_rows[delimiter]:
        refuse("The data file", "a table with a first row of names", f"an empty file, {shown!r}")
    return Dialect(delimiter, tuple(first_rows[delimiter]))


def _decoded(head: bytes, whole: bool, shown: str) -> str:
    # Bytes that are not all may end within a character.
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    try:
        text = decoder.decode(head, final=whole)
    except UnicodeDecodeError:
        refuse_encoding(shown)
    if "\0" in text:
        refuse_encoding(shown)
    return text


def refuse_encoding(shown: str, where: str = "") -> NoReturn:
    """Refuse a file with bytes that are no UTF-8."""
    remedy = "Save it again as CSV in UTF-8."
    refuse("The data file", "text in UTF-8", f"other bytes in {shown!r}{where}", remedy)


def _first_row(lines: list[str], delimiter: str) -> list[str]:
    try:
        return next((row for row in csv.reader(lines, delimiter=delimiter) if row), [])
    except csv.Error:
        return []

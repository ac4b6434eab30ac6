"""Guess how a text file is written: encoding, separators, decimal mark, and where the names are."""

import codecs
import csv
import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import NamedTuple, final

from directgp.datasets.columns import Mark
from directgp.errors import refuse
from directgp.text import NUMBER, listed, plural

DECIMALS: tuple[Mark, Mark] = (".", ",")
"""Decimal marks, the more frequent first."""

_DELIMITERS = (",", ";", "\t", "|")
"""Delimiters that are tried."""

_ROWS_TRIED = 1000
"""Rows at the start of a file from which its dialect is guessed."""

_NOT_IN_CP1252 = (b"\x81", b"\x8d", b"\x8f", b"\x90", b"\x9d")
"""Bytes that are no characters in Windows-1252."""


def _decides(mark: str, other_mark: str) -> re.Pattern[str]:
    """Return the pattern of texts that are numbers with this decimal mark only, unlike 1,234."""
    group = rf"([{other_mark}]\d{{3}})"
    thousands = r"[1-9]\d{0,2}"
    fraction = rf"\d*[{mark}](\d{{1,2}}|\d{{4,}})|0*[{mark}]\d{{3}}"
    digits = rf"{fraction}|{thousands}{group}+[{mark}]\d*|{thousands}{group}{{2,}}"
    return re.compile(rf"[-+($€£¥₹\s]*({digits})[)%$€£¥₹\s]*")


_DECIDES = {".": _decides(".", ","), ",": _decides(",", ".")}


@final
@dataclass(frozen=True)
class Reading:
    """How the user says that a file is to be read; None is guessed."""

    decimal: Mark | None = None
    """Decimal mark."""

    thousands: str | None = None
    """Mark of thousands."""

    encoding: str | None = None
    """Encoding of text."""

    sheet: str | None = None
    """Sheet of a workbook."""

    header: bool = True
    """Whether the first row has the names of the columns."""

    @property
    def known_decimal(self) -> Mark | None:
        """The decimal mark as given, or the mark that is not used for thousands."""
        if self.decimal is None and self.thousands in DECIMALS:
            return "," if self.thousands == "." else "."
        return self.decimal

    def decimals(self, likely: Mark | None) -> tuple[Mark, ...]:
        """Return the decimal marks that a column may have, the likely one first."""
        if self.known_decimal is not None:
            return (self.known_decimal,)
        return DECIMALS[::-1] if likely == "," else DECIMALS


@final
class Dialect(NamedTuple):
    """How a text file is written."""

    encoding: str
    """Encoding of the text."""

    delimiter: str
    """Character between two cells."""

    decimal: Mark | None
    """Decimal mark; None if no number of the file decides it."""

    names: tuple[str, ...]
    """Names of the columns, all different."""

    lines: int
    """Lines before the first row of values."""

    notes: tuple[str, ...]


def guess_encoding(blocks: Iterable[bytes], shown: str) -> str:
    """Return the first of "utf-8", "utf-16", "cp1252" and "latin-1" that fits all the bytes."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    is_utf_8 = True
    is_cp1252 = True
    for number, block in enumerate(chain(blocks, [b""])):
        if number == 0 and block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16"
        if b"\0" in block:
            remedy = "Save it again as CSV in UTF-8, or give --encoding."
            refuse("The data file", "text", f"other bytes in {shown!r}", remedy)
        is_cp1252 = is_cp1252 and not any(byte in block for byte in _NOT_IN_CP1252)
        try:
            if is_utf_8:
                decoder.decode(block, final=not block)
        except UnicodeDecodeError:
            is_utf_8 = False
    return "utf-8" if is_utf_8 else "cp1252" if is_cp1252 else "latin-1"


def guess_dialect(text: str, encoding: str, shown: str, reading: Reading, tabs: bool) -> Dialect:
    """Return the dialect of a file that starts with this text."""
    notes = []
    if encoding != "utf-8" and reading.encoding is None:
        notes.append(f"The file is not UTF-8; it is read as {encoding}.")
    rows = {mark: _rows(text, mark) for mark in (("\t",) if tabs else _DELIMITERS)}
    first_rows = {
        mark: place for mark in rows if (place := _first_of_names(rows[mark])) is not None
    }
    widths = {mark: len(rows[mark][place][1]) for mark, place in first_rows.items()}
    if max(widths.values(), default=1) == 1:
        # Rows that do not fit are reported later.
        first_rows = {}
        widths = {mark: len(mark_rows[0][1]) for mark, mark_rows in rows.items() if mark_rows}
    delimiter = max(widths, key=lambda mark: widths[mark], default=",")
    if not rows.get(delimiter):
        refuse("The data file", "a table with a first row of names", f"an empty file, {shown!r}")
    at = first_rows.get(delimiter, 0)
    table = rows[delimiter]
    lines, names = table[at]
    width = _usual(len(cells) for _, cells in table[at:])
    is_short = len(names) == width - 1 and at == 0 and len(table) > 1 and width > 2
    if is_short and all(not cells[-1].strip() for _, cells in table if len(cells) == width):
        # Every row of values ends with a delimiter.
        names = [*names, ""]
    elif is_short:
        # R writes the names of the rows into a column without a name.
        names = ["", *names]
        if reading.header:
            notes.append("The first column has no name; it is taken as the names of the rows.")
    if at:
        notes.append(f"Left out {plural(lines - 1, 'line')} above the names of the columns.")
    if not reading.header:
        lines = 0
        names = [f"x{j + 1}" for j in range(len(table[0][1]))]
    decimal = reading.known_decimal or _guess_decimal(table[at + 1 :], delimiter)
    if decimal == "," and reading.decimal is None:
        notes.append("Numbers are read with a decimal comma; --decimal . reads a point.")
    unique, renamed = unique_names([name.strip() for name in names])
    return Dialect(encoding, delimiter, decimal, unique, lines, (*notes, *renamed))


Rows = list[tuple[int, list[str]]]
"""Rows of cells, each with the number of lines to its end."""


def _rows(text: str, delimiter: str) -> Rows:
    """Return the first rows that are not empty."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    rows: Rows = []
    try:
        for cells in reader:
            if cells:
                rows.append((reader.line_num, cells))
            if len(rows) == _ROWS_TRIED:
                break
    except csv.Error:
        pass
    return rows


def _usual(numbers: Iterable[int]) -> int:
    """Return the number that occurs most often, the largest of several."""
    counts = Counter(numbers)
    return max(counts, key=lambda value: (counts[value], value))


def _first_of_names(rows: Rows) -> int | None:
    """Return which row has the names: the first as long as most rows, below titles only.

    A title is a row with at most one text. None if the rows do not fit this delimiter.
    """
    if not rows:
        return None
    width = _usual(len(cells) for _, cells in rows)
    at = next(i for i, (_, cells) in enumerate(rows) if len(cells) == width)
    titles = all(sum(bool(cell.strip()) for cell in cells) <= 1 for _, cells in rows[:at])
    if at and (not titles or any(NUMBER.fullmatch(cell.strip()) for cell in rows[at][1])):
        return None
    return at


def _guess_decimal(rows: Rows, delimiter: str) -> Mark | None:
    """Return the decimal mark of most numbers, or None without one.

    A number such as 1,234 decides only where ; separates columns.
    """
    cells = [cell.strip() for _, row in rows for cell in row]
    votes = {mark: sum(map(bool, map(_DECIDES[mark].fullmatch, cells))) for mark in DECIMALS}
    if votes["."] == votes[","] == 0 and delimiter == ";":
        votes[","] += any(re.fullmatch(r"[-+]?\d+,\d{3}", cell) for cell in cells)
    if votes["."] == votes[","]:
        return None
    return "," if votes[","] > votes["."] else "."


def unique_names(names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Append _2, _3, … to repeated names, and return a note if a name was changed.

    An empty name becomes ``Unnamed: j``, as in pandas.
    """
    named = [name or f"Unnamed: {j}" for j, name in enumerate(names)]
    unique: dict[str, None] = {}
    # Count by name: a file may have thousands of columns of the same name.
    copies = defaultdict[str, "count[int]"](lambda: count(2))
    for name in named:
        candidate = name
        while candidate in unique:
            candidate = f"{name}_{next(copies[name])}"
        unique[candidate] = None
    new = [candidate for candidate, name in zip(unique, named, strict=True) if candidate != name]
    return tuple(unique), (f"Columns of the same name were renamed: {listed(new)}.",) if new else ()

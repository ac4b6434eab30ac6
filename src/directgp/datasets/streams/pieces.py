"""Runs of rows that are read from first to last, and the share of each process in them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import final


@final
@dataclass(frozen=True)
class FileGroups:
    """A file, and how many rows each of its row groups has."""

    path: str
    size: int
    """Bytes; a file that has another size later on is no longer the same."""

    group_rows: tuple[int, ...]


@final
@dataclass(frozen=True)
class Piece:
    """Neighbouring rows of one file, in neighbouring row groups."""

    file: FileGroups
    groups: range
    start: int
    """First row, counted from the beginning of the first of the groups."""

    stop: int

    @property
    def rows(self) -> int:
        """How many they are."""
        return self.stop - self.start

    def cut(self, start: int, stop: int) -> "Piece":
        """Rows of this piece, counted from its own first row, in no more groups than needed."""
        first, last = self.start + start, self.start + stop
        ends = list(accumulate(self.file.group_rows[group] for group in self.groups))
        before = sum(end <= first for end in ends)
        until = sum(end < last for end in ends) + 1
        shift = ends[before - 1] if before else 0
        return Piece(self.file, self.groups[before:until], first - shift, last - shift)

    def place(self, row: int) -> str:
        """Where a row of this piece is found, in words."""
        left = self.start + row
        above = sum(self.file.group_rows[: self.groups.start])
        for group in self.groups:
            if left < self.file.group_rows[group]:
                break
            left -= self.file.group_rows[group]
            above += self.file.group_rows[group]
        return f"row {above + left + 1} (in row group {group}) of {self.file.path!r}"


def pieces_of(files: Sequence[FileGroups], least: int) -> tuple[Piece, ...]:
    """All rows in the order of the files, small row groups put together to about `least` rows."""
    return tuple(piece for file in files for piece in _pieces_of_file(file, least))


def share_of(pieces: Sequence[Piece], rank: int, size: int) -> tuple[Piece, ...]:
    """Part `rank` of `size` parts, whose numbers of rows differ by one at most.

    Parts are neighbouring rows, so that each process reads its own row groups, and at most two that
    are shared with a neighbour.
    """
    total = sum(piece.rows for piece in pieces)
    return tuple(_between(pieces, total * rank // size, total * (rank + 1) // size))


def _pieces_of_file(file: FileGroups, least: int) -> Iterator[Piece]:
    first, rows = 0, 0
    for group, more in enumerate(file.group_rows):
        rows += more
        if rows >= least:
            yield Piece(file, range(first, group + 1), 0, rows)
            first, rows = group + 1, 0
    if rows:
        yield Piece(file, range(first, len(file.group_rows)), 0, rows)


def _between(pieces: Sequence[Piece], start: int, stop: int) -> Iterator[Piece]:
    before = 0
    for piece in pieces:
        first, last = max(start - before, 0), min(stop - before, piece.rows)
        if first < last:
            yield piece.cut(first, last)
        before += piece.rows

"""Plan and gather rows in random order."""

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from directgp.datasets.streams.files import Columns, Piece
from directgp.datasets.streams.reading import (
    Batch,
    Decoder,
    DType,
    Opener,
    PieceReader,
    Scaling,
    empty_batch,
    joined,
)

# A plan says of each block which pieces to take how many rows from, always their next ones. So a
# run that resumes knows what came before without reading it.


Takes = list[tuple[int, int]]
"""Numbers of pieces, and how many rows to take from each."""

_OPEN = 4
"""Pieces that are read at the same time. Each needs the memory of a page of every column."""

_LONGEST_TURN = 2**14
"""Rows that are taken from a piece in one turn."""

_TURNS = 16
"""Turns, at least, that fill a buffer."""


def longest_turn(buffer_rows: int) -> int:
    """Rows that are taken from a piece in one turn."""
    return min(_LONGEST_TURN, max(1, buffer_rows // _TURNS))


def in_order(sizes: Sequence[int], block: int) -> Iterator[Takes]:
    """All rows of the pieces in their order, in blocks of as many rows; the last may have fewer."""
    return _blocks(enumerate(sizes), block, block)


def shuffled(sizes: Sequence[int], buffer_rows: int, rng: np.random.Generator) -> Iterator[Takes]:
    """All rows of the pieces, in buffers whose rows come from several pieces, drawn at random.

    Pieces come in random order, and the next turn is that of an open piece with a chance in
    proportion to the rows it still has.
    """
    first = _first_buffer(sum(sizes), buffer_rows, rng)
    return _blocks(_turns(sizes, longest_turn(buffer_rows), rng), first, buffer_rows)


def _blocks(turns: Iterable[tuple[int, int]], first: int, others: int) -> Iterator[Takes]:
    """The turns in their order, cut where a block is full."""
    takes: Takes = []
    room = first
    for piece, rows in turns:
        while rows:
            taken = min(rows, room)
            takes.append((piece, taken))
            rows, room = rows - taken, room - taken
            if not room:
                yield takes
                takes, room = [], others
    if takes:
        yield takes


def _first_buffer(total: int, buffer_rows: int, rng: np.random.Generator) -> int:
    """Rows of the first buffer: fewer than of the others, so that epochs are cut differently."""
    if total <= buffer_rows:
        return buffer_rows
    return int(rng.integers(buffer_rows // 2 + 1, buffer_rows + 1))


def _turns(
    sizes: Sequence[int], longest: int, rng: np.random.Generator
) -> Iterator[tuple[int, int]]:
    waiting = rng.permutation(len(sizes)).tolist()
    left: dict[int, int] = {}
    while waiting or left:
        while waiting and len(left) < _OPEN:
            piece = waiting.pop()
            left[piece] = sizes[piece]
        piece = _drawn(left, rng)
        rows = min(longest, left[piece])
        yield piece, rows
        left[piece] -= rows
        if not left[piece]:
            del left[piece]


def _drawn(left: dict[int, int], rng: np.random.Generator) -> int:
    """One of the pieces, with a chance in proportion to its rows."""
    ends = np.cumsum(list(left.values()))
    return list(left)[int(np.searchsorted(ends, rng.integers(ends[-1]), side="right"))]


_LEAST_CHUNK = 2**10
_MOST_CHUNK = 2**14
"""Rows of a piece that are decoded at once: few enough for the cache of a processor."""


@final
@dataclass(frozen=True)
class Reading:
    """What is read of each row, and as what."""

    columns: Columns
    dtype: DType
    scaling: Scaling | None

    def empty(self, rows: int) -> Batch:
        """Arrays for as many rows."""
        weighted = self.columns.weights is not None
        return empty_batch(rows, len(self.columns.features), weighted, self.dtype)


@final
class Gatherer:
    """Takes rows of pieces in turns; files are open from the first row taken to the last."""

    def __init__(self, pieces: Sequence[Piece], reading: Reading, block: int) -> None:
        self._pieces = pieces
        self._decoder = Decoder(reading.columns, reading.scaling)
        chunk = min(_MOST_CHUNK, max(_LEAST_CHUNK, block // 16))
        self._opener = Opener(reading.columns.names, chunk)
        self._readers: dict[int, PieceReader] = {}
        self._skipped: Counter[int] = Counter()

    def skip(self, takes: Takes) -> None:
        """Pass over rows of pieces that are not open so far; what is not needed stays shut."""
        for piece, rows in takes:
            self._skipped[piece] += rows

    def fill(self, takes: Takes, batch: Batch) -> Batch:
        """Write the rows to the batch, and give back the part of it that is filled."""
        start = 0
        for piece, rows in takes:
            reader = self._reader(piece)
            for part in reader.take(rows):
                self._decoder.write(part, batch, start)
                start += len(part)
            if reader.finished:
                self._readers.pop(piece).close()
        return batch.rows(0, start)

    def close(self) -> None:
        """Let go of all files."""
        while self._readers:
            self._readers.popitem()[1].close()

    def _reader(self, number: int) -> PieceReader:
        if number not in self._readers:
            piece = self._pieces[number]
            rest = piece.cut(self._skipped[number], piece.rows)
            self._readers[number] = self._opener.open(rest)
        return self._readers[number]


def blocks_in_order(
    pieces: Sequence[Piece], reading: Reading, rows: int
) -> Generator[Batch, None, None]:
    """All rows in their order, in blocks of as many; the last may have fewer."""
    with closing(Gatherer(pieces, reading, rows)) as gatherer:
        for takes in in_order([piece.rows for piece in pieces], rows):
            number = sum(rows for _, rows in takes)
            yield gatherer.fill(takes, reading.empty(number))


class Buffer(NamedTuple):
    """Rows in the order in which they are given out."""

    start: int
    """Rows given out before them, in all epochs."""

    batch: Batch

    @property
    def stop(self) -> int:
        """Rows given out with them."""
        return self.start + len(self.batch.y)


@final
@dataclass(frozen=True)
class ShuffledRows:
    """The rows of a share, in an order that is drawn anew for each epoch.

    The order is a function of the files, the size of the buffer, the seed, the epoch and the share.
    """

    pieces: tuple[Piece, ...]
    reading: Reading
    buffer_rows: int
    seed: int
    share: tuple[int, int]

    @property
    def rows(self) -> int:
        """Rows of an epoch."""
        return sum(piece.rows for piece in self.pieces)

    def buffers(self, position: int) -> Iterator[Buffer]:
        """All buffers, without end, from the one that has row `position` of all epochs."""
        into = self.reading.empty(min(self.buffer_rows, self.rows))
        first = position // self.rows
        for epoch in count(first):
            passed = position - self.rows * epoch if epoch == first else 0
            yield from self._epoch(epoch, passed, into)

    def _epoch(self, epoch: int, passed: int, into: Batch) -> Iterator[Buffer]:
        plan = shuffled([piece.rows for piece in self.pieces], self.buffer_rows, self._rng(epoch))
        before = 0
        with closing(Gatherer(self.pieces, self.reading, self.buffer_rows)) as gatherer:
            for number, takes in enumerate(plan, 1):
                rows = sum(rows for _, rows in takes)
                if before + rows <= passed:
                    gatherer.skip(takes)
                else:
                    order = self._rng(epoch, number).permutation(rows)
                    batch = gatherer.fill(takes, into).take(order)
                    yield Buffer(self.rows * epoch + before, batch)
                before += rows

    def _rng(self, epoch: int, buffer: int = 0) -> np.random.Generator:
        return np.random.default_rng([self.seed, epoch, *self.share, buffer])


_BLOCK = 2**14


def sampled(
    pieces: Sequence[Piece], reading: Reading, number: int, rng: np.random.Generator
) -> Batch:
    """As many different rows, each set of them as likely as any other, in random order."""
    total = sum(piece.rows for piece in pieces)
    chosen = np.sort(rng.choice(total, number, replace=False, shuffle=False))
    needed, places = _needed(pieces, chosen)
    rows = joined(list(_rows_at(places, blocks_in_order(needed, reading, _BLOCK))))
    return rows.take(rng.permutation(number))


def _needed(
    pieces: Sequence[Piece], chosen: NDArray[np.int64]
) -> tuple[list[Piece], NDArray[np.int64]]:
    """The parts of pieces from the first to the last row chosen, and the chosen places in them."""
    needed, places = [], []
    before = kept = 0
    for piece in pieces:
        here = _places_between(chosen, before, before + piece.rows)
        if len(here):
            needed.append(piece.cut(int(here[0]), int(here[-1]) + 1))
            places.append(here - here[0] + kept)
            kept += needed[-1].rows
        before += piece.rows
    return needed, np.concatenate(places)


def _rows_at(places: NDArray[np.int64], blocks: Iterator[Batch]) -> Iterator[Batch]:
    """The rows at these places, which rise."""
    before = 0
    for block in blocks:
        here = _places_between(places, before, before + len(block.y))
        if len(here):
            yield block.take(here)
        before += len(block.y)


def _places_between(places: NDArray[np.int64], start: int, stop: int) -> NDArray[np.int64]:
    """The places from `start` on and before `stop`, counted from `start`."""
    first, last = np.searchsorted(places, [start, stop])
    return places[first:last] - start

"""Plan the order of rows, and gather them block by block.

A plan lists for each block how many rows to take from which piece, always the next rows of the
piece. So a stream that resumes knows what came before without reading it.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from directgp.datasets.streams.files import Piece
from directgp.datasets.streams.reading import Batch, Decoder, Opener, PieceReader, join_batches

Takes = list[tuple[int, int]]
"""Pairs of the index of a piece and the number of rows to take from it."""

_MAX_OPEN = 4
"""Pieces that are read at the same time; each needs the memory of a page of every column."""

_MAX_TURN = 2**14
"""Rows that are taken from a piece in one turn, at most."""

_MIN_TURNS = 16
"""Turns that fill a buffer, at least."""

_MIN_CHUNK, _MAX_CHUNK = 2**10, 2**14
"""Rows of a piece that are decoded at once: few enough for the cache of a processor."""

_SAMPLE_BLOCK = 2**14
"""Rows that are read at once for a sample."""


def longest_turn(buffer_rows: int) -> int:
    """Return how many rows are taken from a piece in one turn."""
    return min(_MAX_TURN, max(1, buffer_rows // _MIN_TURNS))


def in_order(sizes: Sequence[int], block: int) -> Iterator[Takes]:
    """Plan all rows in their order, in blocks of `block` rows; the last may have fewer."""
    return _blocks(enumerate(sizes), block, block)


def shuffled(sizes: Sequence[int], buffer_rows: int, rng: np.random.Generator) -> Iterator[Takes]:
    """Plan all rows, in buffers whose rows come from several pieces.

    Pieces are opened in random order. The next turn goes to an open piece with a probability
    proportional to the rows it still has. The first buffer is smaller by a random number of rows,
    so that epochs are divided differently.
    """
    first = buffer_rows
    if sum(sizes) > buffer_rows:
        first = int(rng.integers(buffer_rows // 2 + 1, buffer_rows + 1))
    return _blocks(_turns(sizes, longest_turn(buffer_rows), rng), first, buffer_rows)


def _blocks(turns: Iterable[tuple[int, int]], first: int, others: int) -> Iterator[Takes]:
    """Divide the turns into blocks, of which the first may have another size."""
    takes: Takes = []
    space = first
    for piece, rows in turns:
        while rows:
            taken = min(rows, space)
            takes.append((piece, taken))
            rows, space = rows - taken, space - taken
            if not space:
                yield takes
                takes, space = [], others
    if takes:
        yield takes


def _turns(
    sizes: Sequence[int], longest: int, rng: np.random.Generator
) -> Iterator[tuple[int, int]]:
    waiting = rng.permutation(len(sizes)).tolist()
    left: dict[int, int] = {}
    while waiting or left:
        while waiting and len(left) < _MAX_OPEN:
            piece = waiting.pop()
            left[piece] = sizes[piece]
        ends = np.cumsum(list(left.values()))
        piece = list(left)[int(np.searchsorted(ends, rng.integers(ends[-1]), side="right"))]
        rows = min(longest, left[piece])
        yield piece, rows
        left[piece] -= rows
        if not left[piece]:
            del left[piece]


@final
class Gatherer:
    """Takes rows of pieces in turns; a file is open from its first row taken to its last."""

    def __init__(self, pieces: Sequence[Piece], decoder: Decoder, block: int) -> None:
        self._pieces = pieces
        self._decoder = decoder
        chunk = min(_MAX_CHUNK, max(_MIN_CHUNK, block // 16))
        self._opener = Opener(decoder.columns.names, chunk)
        self._readers: dict[int, PieceReader] = {}
        self._skipped: Counter[int] = Counter()

    def skip(self, takes: Takes) -> None:
        """Skip rows of pieces that are not open yet."""
        for piece, rows in takes:
            self._skipped[piece] += rows

    def fill(self, takes: Takes, batch: Batch) -> Batch:
        """Write the rows to the batch, and return the part of it that is filled."""
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
        """Close all files."""
        while self._readers:
            self._readers.popitem()[1].close()

    def _reader(self, number: int) -> PieceReader:
        if number not in self._readers:
            piece = self._pieces[number]
            rest = piece.cut(self._skipped[number], piece.rows)
            self._readers[number] = self._opener.open(rest)
        return self._readers[number]


def blocks_in_order(
    pieces: Sequence[Piece], decoder: Decoder, rows: int
) -> Generator[Batch, None, None]:
    """Yield all rows in their order, in blocks of `rows` rows; the last may have fewer."""
    with closing(Gatherer(pieces, decoder, rows)) as gatherer:
        for takes in in_order([piece.rows for piece in pieces], rows):
            yield gatherer.fill(takes, decoder.empty(sum(number for _, number in takes)))


class Buffer(NamedTuple):
    """Shuffled rows of a stream."""

    start: int
    """Index of the first row in the stream, over all epochs."""

    batch: Batch

    @property
    def stop(self) -> int:
        """Index after the last row in the stream."""
        return self.start + len(self.batch.y)


@final
@dataclass(frozen=True)
class ShuffledRows:
    """The rows of a share, in another random order in each epoch.

    The order is a function of the files, the size of the buffer, the seed, the epoch and the share.
    """

    pieces: tuple[Piece, ...]
    decoder: Decoder
    buffer_rows: int
    seed: int
    share: tuple[int, int]

    @property
    def rows(self) -> int:
        """Rows of an epoch."""
        return sum(piece.rows for piece in self.pieces)

    def buffers(self, position: int) -> Iterator[Buffer]:
        """Yield buffers without end, from the one that has row `position` of the stream."""
        batch = self.decoder.empty(min(self.buffer_rows, self.rows))
        first = position // self.rows
        for epoch in count(first):
            passed = position - self.rows * epoch if epoch == first else 0
            yield from self._epoch(epoch, passed, batch)

    def _epoch(self, epoch: int, passed: int, batch: Batch) -> Iterator[Buffer]:
        plan = shuffled([piece.rows for piece in self.pieces], self.buffer_rows, self._rng(epoch))
        before = 0
        with closing(Gatherer(self.pieces, self.decoder, self.buffer_rows)) as gatherer:
            for number, takes in enumerate(plan, 1):
                rows = sum(rows for _, rows in takes)
                if before + rows <= passed:
                    gatherer.skip(takes)
                else:
                    order = self._rng(epoch, number).permutation(rows)
                    filled = gatherer.fill(takes, batch).take(order)
                    yield Buffer(self.rows * epoch + before, filled)
                before += rows

    def _rng(self, epoch: int, buffer: int = 0) -> np.random.Generator:
        return np.random.default_rng([self.seed, epoch, *self.share, buffer])


def sample_rows(
    pieces: Sequence[Piece], decoder: Decoder, number: int, rng: np.random.Generator
) -> Batch:
    """Draw rows without replacement, in random order."""
    total = sum(piece.rows for piece in pieces)
    chosen = np.sort(rng.choice(total, number, replace=False, shuffle=False))
    needed, places = _needed(pieces, chosen)
    parts, before = [], 0
    for block in blocks_in_order(needed, decoder, _SAMPLE_BLOCK):
        here = _places_between(places, before, before + len(block.y))
        if len(here):
            parts.append(block.take(here))
        before += len(block.y)
    return join_batches(parts).take(rng.permutation(number))


def _needed(
    pieces: Sequence[Piece], chosen: NDArray[np.int64]
) -> tuple[list[Piece], NDArray[np.int64]]:
    """Return the parts of pieces from the first to the last row chosen, and the rows in them."""
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


def _places_between(places: NDArray[np.int64], start: int, stop: int) -> NDArray[np.int64]:
    """Return the sorted places from `start` to before `stop`, relative to `start`."""
    first, last = np.searchsorted(places, [start, stop])
    return places[first:last] - start

"""Rows of several pieces, gathered as a plan says."""

from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import final

from directgp.datasets.streams.batch import Batch, DType, empty_batch
from directgp.datasets.streams.columns import Columns
from directgp.datasets.streams.decoding import Decoder
from directgp.datasets.streams.pieces import Piece
from directgp.datasets.streams.plans import Takes, in_order
from directgp.datasets.streams.reading import Opener, PieceReader
from directgp.datasets.streams.scaling import Scaling

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

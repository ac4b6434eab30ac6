"""Rows drawn at random from all rows."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from directgp.datasets.streams.batch import Batch, joined
from directgp.datasets.streams.gathering import Reading, blocks_in_order
from directgp.datasets.streams.pieces import Piece

_BLOCK = 2**14


def sampled(
    pieces: Sequence[Piece], reading: Reading, number: int, rng: np.random.Generator
) -> Batch:
    """As many different rows, each set of them as likely as any other, in random order."""
    total = sum(piece.rows for piece in pieces)
    chosen = np.sort(rng.choice(total, number, replace=False, shuffle=False))
    rows = joined(list(_rows_at(chosen, pieces, reading)))
    return rows.take(rng.permutation(number))


def _rows_at(
    chosen: NDArray[np.int64], pieces: Sequence[Piece], reading: Reading
) -> Iterator[Batch]:
    """The rows at these places, which rise; pieces with none of them stay shut."""
    before = 0
    for piece in pieces:
        here = _between(chosen, before, before + piece.rows)
        if len(here):
            yield from _rows_of(piece.cut(0, int(here[-1]) + 1), here, reading)
        before += piece.rows


def _rows_of(piece: Piece, chosen: NDArray[np.int64], reading: Reading) -> Iterator[Batch]:
    before = 0
    for block in blocks_in_order([piece], reading, _BLOCK):
        here = _between(chosen, before, before + len(block.y))
        if len(here):
            yield block.take(here)
        before += len(block.y)


def _between(places: NDArray[np.int64], start: int, stop: int) -> NDArray[np.int64]:
    """The places from `start` on and before `stop`, counted from `start`."""
    first, last = np.searchsorted(places, [start, stop])
    return places[first:last] - start

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
        here = _between(chosen, before, before + piece.rows)
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
        here = _between(places, before, before + len(block.y))
        if len(here):
            yield block.take(here)
        before += len(block.y)


def _between(places: NDArray[np.int64], start: int, stop: int) -> NDArray[np.int64]:
    """The places from `start` on and before `stop`, counted from `start`."""
    first, last = np.searchsorted(places, [start, stop])
    return places[first:last] - start

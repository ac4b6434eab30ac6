"""Which rows come together: plans made from numbers of rows alone, before anything is read.

A plan says of each block which pieces to take how many rows from, always their next ones. So a run
that resumes knows what came before without reading it.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

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

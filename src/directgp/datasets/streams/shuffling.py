"""Endless rows in random order, epoch after epoch, from any row on."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, final

import numpy as np

from directgp.datasets.streams.batch import Batch
from directgp.datasets.streams.gathering import Gatherer, Reading
from directgp.datasets.streams.pieces import Piece
from directgp.datasets.streams.plans import shuffled


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

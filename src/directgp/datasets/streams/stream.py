"""Stream batches of rows that need not fit in memory, in random order.

A plan lists for each buffer how many rows to take from which piece, always the next rows of the
piece. So a stream that resumes knows what came before without reading it.
"""

import copy
import os
import threading
import weakref
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, final

import numpy as np

from directgp.datasets.streams import reading
from directgp.datasets.streams.files import FilePath, Piece, open_files, share_of
from directgp.datasets.streams.reading import Batch, Decoder, DType, Gatherer, Scaling, Takes
from directgp.errors import require

_MAX_OPEN = 4
"""Pieces that are read at the same time; each needs the memory of a page of every column."""

_MAX_BUFFERS = 3
"""Buffers in memory: the one in use, and two that are read ahead."""

_THREAD = "directgp rows"
"""Name of the thread that reads ahead."""


def turn_rows(buffer_rows: int) -> int:
    """Return how many rows are taken from a piece in one turn; 16 turns or more fill a buffer."""
    return min(2**14, max(1, buffer_rows // 16))


def shuffled(sizes: Sequence[int], buffer_rows: int, rng: np.random.Generator) -> Iterator[Takes]:
    """Plan all rows, in buffers whose rows come from several pieces.

    Pieces are opened in random order. The next turn goes to an open piece with a probability
    proportional to the rows it still has. The first buffer is smaller by a random number of rows,
    so that epochs are divided differently.
    """
    first = buffer_rows
    if sum(sizes) > buffer_rows:
        first = int(rng.integers(buffer_rows // 2 + 1, buffer_rows + 1))
    return reading.divide_turns(_turns(sizes, turn_rows(buffer_rows), rng), first, buffer_rows)


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
    """The rows of a share, in an order that files, buffer, seed, epoch and share determine."""

    pieces: tuple[Piece, ...]
    decoder: Decoder
    buffer_rows: int
    seed: int
    share: tuple[int, int]

    @property
    def rows(self) -> int:
        """Rows of an epoch."""
        return sum(piece.rows for piece in self.pieces)

    def buffers(self, position: int) -> Generator[Buffer, None, None]:
        """Yield buffers without end, from the one that has row `position` of the stream."""
        scratch = self.decoder.empty(min(self.buffer_rows, self.rows))
        sizes = [piece.rows for piece in self.pieces]
        start = position - position % self.rows
        for epoch in count(position // self.rows):
            plan = shuffled(sizes, self.buffer_rows, self._rng(epoch))
            with closing(Gatherer(self.pieces, self.decoder, self.buffer_rows)) as gatherer:
                for number, takes in enumerate(plan, 1):
                    rows = sum(taken for _, taken in takes)
                    if start + rows <= position:
                        gatherer.skip(takes)
                    else:
                        order = self._rng(epoch, number).permutation(rows)
                        yield Buffer(start, gatherer.fill(takes, scratch).take(order))
                    start += rows

    def _rng(self, epoch: int, buffer: int = 0) -> np.random.Generator:
        return np.random.default_rng([self.seed, epoch, *self.share, buffer])


@final
class ReadAhead:
    """Reads buffers from an iterator in a background thread."""

    def __init__(self, buffers: Generator[Buffer, None, None]) -> None:
        self._buffers = buffers
        self._thread = ThreadPoolExecutor(1, _THREAD)
        self._held: deque[Future[Buffer]] = deque()
        self._process = os.getpid()

    def at(self, position: int) -> Buffer | None:
        """Drop buffers up to the one that has the row, and return it; None if it will not come."""
        # A forked process has no reading thread: return None, and the stream starts a new one.
        while os.getpid() == self._process:
            while len(self._held) < _MAX_BUFFERS:
                self._held.append(self._thread.submit(next, self._buffers))
            buffer = self._held[0].result()
            if position < buffer.stop:
                return buffer if buffer.start <= position else None
            self._held.popleft()
        return None

    def close(self) -> None:
        """End the thread and close the files; may be called again."""
        if os.getpid() != self._process:
            return
        # The garbage collector may call this in the thread, which cannot wait for itself.
        outside = not threading.current_thread().name.startswith(_THREAD)
        self._thread.shutdown(wait=outside, cancel_futures=True)
        if outside:
            self._buffers.close()


@final
class RowStream:
    """Batches of rows in random order, epoch after epoch, read ahead by a background thread.

    Every epoch has each row once, in another order. All batches have the same number of rows; a
    batch may have the end of one epoch and the beginning of the next.
    """

    def __init__(self, rows: ShuffledRows, batch_size: int) -> None:
        self._rows = rows
        self._batch_size = batch_size
        self._position = 0
        self._closed = False
        self._ahead: ReadAhead | None = None
        # Ends the reader, also when the stream is collected as garbage.
        self._end: weakref.finalize[..., RowStream] | None = None

    def next(self) -> Batch:
        """Wait for the next batch and return it."""
        parts = []
        position = self._position
        end = position + self._batch_size
        while position < end:
            buffer = self._buffer_at(position)
            stop = min(end, buffer.stop)
            parts.append(buffer.batch.rows(position - buffer.start, stop - buffer.start))
            position = stop
        # Last: an interrupt before this line leaves the stream where it was.
        self._position = end
        return reading.join_batches(parts)

    @property
    def rows(self) -> int:
        """Rows of one epoch."""
        return self._rows.rows

    @property
    def epochs(self) -> float:
        """Number of epochs returned so far, with the fraction of the current one."""
        return self._position / self.rows

    def state(self) -> dict[str, int]:
        """Return the state of the stream, for `restore`."""
        return {"taken": self._position, **self._identity()}

    def restore(self, state: dict[str, int]) -> None:
        """Continue from the state of a stream of the same files, seed, share and buffer."""
        remedy = "Resume with the same files, seed, buffer and number of processes."
        for name, here in self._identity().items():
            got = state.get(name)
            allowed = f"that of the stream, {here}"
            require(got == here, f"{name} of the state", allowed, got, remedy)
        taken = state.get("taken", -1)
        require(taken >= 0, "taken of the state", "a number of rows", state.get("taken"))
        self._stop()
        self._position = taken

    def close(self) -> None:
        """End the thread and close the files; may be called again."""
        self._closed = True
        self._stop()

    def __enter__(self) -> "RowStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _identity(self) -> dict[str, int]:
        """Return the settings that determine the order of the rows."""
        rows = self._rows
        (rank, size) = self._rows.share
        order = {"seed": rows.seed, "share": rank, "shares": size}
        return order | {"rows": rows.rows, "buffer_rows": rows.buffer_rows}

    def _buffer_at(self, position: int) -> Buffer:
        buffer = self._ahead.at(position) if self._ahead else None
        while buffer is None:
            require(not self._closed, "The stream", "open", "next() after close()")
            # At the beginning, or after an interrupt that left the reader ahead of the stream.
            self._stop()
            self._ahead = ReadAhead(self._rows.buffers(position))
            self._end = weakref.finalize(self, self._ahead.close)
            buffer = self._ahead.at(position)
        return buffer

    def _stop(self) -> None:
        # A finalizer that is never called would keep the buffers of its reader.
        if self._end is not None:
            self._end()
        self._end = None
        self._ahead = None


@final
class ParquetRows:
    """Rows of Parquet files that need not fit in memory.

    Parameters
    ----------
    path : path or sequence of paths
        Files, and folders with files whose names end with ``.parquet``, at any depth. Names that
        begin with ``.`` or ``_`` are ignored.
    target : str
        Name of the column of y.
    features : sequence of str, optional
        Names of the columns of X; by default all other columns of numbers.
    weights : str, optional
        Name of the column of weights.
    positive : object, optional
        The value of the target that is class 1; all others are class 0. Without it the target is
        numbers.
    dtype : {"float64", "float32"}
        Type of the arrays.
    buffer_rows : int
        Rows that are shuffled at once. More rows mix better. The memory is a small multiple of
        theirs for files of any size.

    Examples
    --------
    >>> import tempfile, pyarrow as pa, pyarrow.parquet
    >>> folder = tempfile.mkdtemp()
    >>> table = pa.table({"age": [30, 40, 50, 60], "delay": [1.5, 0.0, 2.5, 4.0]})
    >>> pyarrow.parquet.write_table(table, f"{folder}/flights.parquet")
    >>> rows = ParquetRows(folder, target="delay")
    >>> rows.num_rows, rows.feature_names
    (4, ('age',))
    >>> with rows.standardised().batches(batch_size=2, seed=0) as stream:
    ...     batch = stream.next()
    >>> batch.X.shape, batch.y.shape, stream.epochs
    ((2, 1), (2,), 0.5)
    """

    def __init__(
        self,
        path: FilePath | Sequence[FilePath],
        target: str,
        *,
        features: Sequence[str] | None = None,
        weights: str | None = None,
        positive: object | None = None,
        dtype: DType = "float64",
        buffer_rows: int = 2**18,
    ) -> None:
        allowed = "'float32' or 'float64'"
        require(dtype in ("float32", "float64"), "dtype of ParquetRows", allowed, repr(dtype))
        require(buffer_rows >= 1, "buffer_rows of ParquetRows", "at least 1", buffer_rows)
        self._columns, self._pieces = open_files(
            path, target, features, weights, positive, turn_rows(buffer_rows)
        )
        self.buffer_rows = buffer_rows
        self.dtype: DType = dtype
        self.scaling: Scaling | None = None
        """Offsets and scales of the columns; None if they are not scaled."""

    @property
    def num_rows(self) -> int:
        """Rows in all files."""
        return sum(piece.rows for piece in self._pieces)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns of X."""
        return self._columns.features

    @property
    def target(self) -> str:
        """Name of the column of y."""
        return self._columns.target

    def sample(self, number: int, seed: int = 0) -> Batch:
        """Draw rows without replacement, in random order."""
        allowed = f"from 1 to the number of rows, {self.num_rows:,}"
        require(1 <= number <= self.num_rows, "number of rows of a sample", allowed, number)
        require(seed >= 0, "seed of a sample", "at least 0", seed)
        return reading.sample_rows(
            self._pieces, self._decoder(), number, np.random.default_rng(seed)
        )

    def standardised(self, target: bool = False) -> "ParquetRows":
        """Return the same rows with features, and optionally the target, of mean 0 and deviation 1.

        All rows are read once. Means and deviations are weighted; a constant column is only
        centred.
        """
        classes = target and self._columns.positive is not None
        remedy = "Leave target=False."
        require(not classes, "A target that is standardised", "numbers", "classes", remedy)
        blocks = reading.blocks_in_order(self._pieces, Decoder(self._columns, "float64", None))
        scaled_target = self.target if target else None
        return self.scaled(reading.measure_scaling(blocks, self.feature_names, scaled_target))

    def scaled(self, scaling: Scaling) -> "ParquetRows":
        """Return the same rows with a given scaling, such as the training rows' scaling."""
        allowed = f"of {len(self.feature_names)} features, as the rows are"
        same = len(scaling.offsets) == len(scaling.scales) == len(self.feature_names)
        require(same, "scaling", allowed, f"one of {len(scaling.offsets)}")
        twin = copy.copy(self)
        twin.scaling = scaling
        return twin

    def batches(self, batch_size: int, seed: int, share: tuple[int, int] = (0, 1)) -> RowStream:
        """Return an endless stream of batches in random order.

        share=(r, w) selects part r of w parts, whose numbers of rows differ by at most one, for
        process r of w.
        """
        rank, size = share
        allowed = f"(r, w) with 0 ≤ r < w ≤ {self.num_rows:,}, the number of rows"
        require(0 <= rank < size <= self.num_rows, "share of batches", allowed, share)
        require(seed >= 0, "seed of batches", "at least 0", seed)
        pieces = share_of(self._pieces, rank, size)
        rows = ShuffledRows(pieces, self._decoder(), self.buffer_rows, seed, share)
        allowed = f"from 1 to {rows.rows:,}, the rows of an epoch"
        require(1 <= batch_size <= rows.rows, "batch_size", allowed, batch_size)
        return RowStream(rows, batch_size)

    def blocks(self, rows: int = 2**16) -> Generator[Batch, None, None]:
        """Yield all rows in the order of the files, in blocks; the last may have fewer rows."""
        require(rows >= 1, "rows of a block", "at least 1", rows)
        return reading.blocks_in_order(self._pieces, self._decoder(), rows)

    def _decoder(self) -> Decoder:
        return Decoder(self._columns, self.dtype, self.scaling)

"""Read rows of Parquet files as checked, scaled numbers."""

import math
import os
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, NoReturn, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from directgp.datasets.columns import plain_values
from directgp.datasets.readers import readable
from directgp.datasets.streams.files import Columns, Piece, group_ends, refuse_value
from directgp.errors import require

DType = Literal["float32", "float64"]
"""Types of the arrays."""

Takes = list[tuple[int, int]]
"""Pairs of the index of a piece and the number of rows to take from it."""

_ROUNDING = 2.0**-48
"""A column whose range is at most this part of its largest value counts as constant."""

_BUFFER_BYTES = 2**16
"""Bytes of each column of a file held at once; columns of a row group are never read whole."""

_MAX_FOOTERS = 8
"""Number of files whose metadata stay in memory: they take long to read."""

_MIN_CHUNK = 2**10
"""Smallest number of rows of a piece that are decoded at once."""

_MAX_CHUNK = 2**14
"""Largest number of rows decoded at once: few enough for the cache of a processor."""


class Batch(NamedTuple):
    """Rows as C-contiguous arrays of one type."""

    X: NDArray[Any]
    """Features, of shape (n, d)."""

    y: NDArray[Any]
    """Targets, of shape (n,)."""

    weights: NDArray[Any] | None = None
    """Weights, of shape (n,), if a column of weights was named."""

    def rows(self, start: int, stop: int) -> "Batch":
        """Return rows `start` to `stop`, without a copy."""
        return Batch._make(None if part is None else part[start:stop] for part in self)

    def take(self, index: NDArray[np.int64]) -> "Batch":
        """Return a copy of the rows at these indices."""
        return Batch._make(None if part is None else part.take(index, axis=0) for part in self)


def join_batches(parts: Sequence[Batch]) -> Batch:
    """Concatenate batches; a single one is not copied."""
    if len(parts) == 1:
        return parts[0]
    arrays = zip(*parts, strict=True)
    return Batch._make(None if column[0] is None else np.concatenate(column) for column in arrays)


@final
@dataclass(frozen=True)
class Scaling:
    """z = (x − offset) / scale for each feature, and for the target."""

    offsets: tuple[float, ...]
    scales: tuple[float, ...]
    target_offset: float = 0.0
    target_scale: float = 1.0


def measure_scaling(
    blocks: Iterable[Batch], features: tuple[str, ...], target: str | None
) -> Scaling:
    """Return the weighted means and deviations of all rows; a constant column is only centred."""
    names = (*features, target) if target else features
    total = 0.0
    mean = np.zeros(len(names))
    squares = np.zeros(len(names))
    low = np.full(len(names), np.inf)
    high = np.full(len(names), -np.inf)
    for block in blocks:
        values = np.column_stack([block.X, block.y]) if target else block.X
        weights = np.ones(len(values)) if block.weights is None else block.weights
        if block.weights is not None:
            values = values[weights > 0]
            weights = weights[weights > 0]
        if not len(values):
            continue
        columns = np.ascontiguousarray(values.T)
        more = float(weights.sum())
        low = np.minimum(low, columns.min(axis=1))
        high = np.maximum(high, columns.max(axis=1))
        with np.errstate(over="ignore", invalid="ignore"):
            # Sum relative to the first row: sums of numbers far from 0 lose their last digits.
            first = columns[:, :1]
            block_mean = first + ((columns - first) * weights).sum(axis=1, keepdims=True) / more
            block_squares = ((columns - block_mean) ** 2 * weights).sum(axis=1)
            # Merge the moments of two blocks as Chan, Golub and LeVeque (1983) do.
            both = total + more
            shift = block_mean[:, 0] - mean
            mean = mean + shift * (more / both)
            squares = squares + block_squares + shift**2 * (total * more / both)
            total = both
    require(total > 0, "Weights", "positive somewhere", "a weight of zero for every row")
    with np.errstate(over="ignore"):
        constant = high - low <= _ROUNDING * np.maximum(np.abs(low), np.abs(high))
    offsets = mean.tolist()
    scales = np.where(constant, 1.0, np.sqrt(squares / total)).tolist()
    for name, scale in zip(names, scales, strict=True):
        allowed = "of numbers whose squares are finite"
        remedy = "Give it in a larger unit."
        require(math.isfinite(scale), f"Column {name!r}", allowed, "larger ones", remedy)
        allowed = "of numbers whose squares are not 0"
        remedy = "Give it in a smaller unit."
        require(scale > 0, f"Column {name!r}", allowed, "smaller ones", remedy)
    d = len(features)
    return Scaling(tuple(offsets[:d]), tuple(scales[:d]), *offsets[d:], *scales[d:])


class Chunk(NamedTuple):
    """Some rows of a piece, as they were read."""

    table: pa.RecordBatch
    """The rows."""

    piece: Piece
    """The piece to which they belong."""

    start: int
    """Index of the first row in the piece."""

    def column(self, name: str) -> pa.Array:
        """Return a column; raise `InvalidInputError` if values are missing."""
        values = plain_values(self.table.column(name))
        if values.null_count:
            missing = pc.is_null(values).to_numpy(zero_copy_only=False)
            self.refuse(name, missing, "without missing values", "a missing value")
        return values

    def check_finite(self, name: str, written: NDArray[Any]) -> None:
        """Raise `InvalidInputError` if numbers converted from a column are not finite."""
        bad = ~np.isfinite(written)
        if bad.any():
            value = numbers(self.column(name))[bad.argmax()]
            self.refuse(name, bad, f"finite in {written.dtype.name}", f"{value:g}")

    def refuse(self, name: str, bad: NDArray[np.bool_], allowed: str, got: str) -> NoReturn:
        """Raise `InvalidInputError` for the first of the bad values."""
        place = self.piece.place(self.start + int(bad.argmax()))
        refuse_value(name, allowed, f"{got} in {place}")


@final
class Decoder:
    """Converts rows to scaled numbers of one type."""

    def __init__(self, columns: Columns, dtype: DType, scaling: Scaling | None) -> None:
        self.columns = columns
        self._dtype = dtype
        d = len(columns.features)
        scaled = scaling or Scaling((0.0,) * d, (1.0,) * d)
        features = zip(scaled.offsets, scaled.scales, strict=True)
        target = (scaled.target_offset, scaled.target_scale)
        weights = (0.0, 1.0)
        # Use NumPy's float64, so that float32 is scaled in float64 and rounded once.
        self._scaling = np.array([*features, target, weights])

    def empty(self, rows: int) -> Batch:
        """Return uninitialised arrays for this number of rows."""
        weights = None if self.columns.weights is None else np.empty(rows, self._dtype)
        X = np.empty((rows, len(self.columns.features)), self._dtype)
        return Batch(X, np.empty(rows, self._dtype), weights)

    def write(self, chunk: Chunk, out: Batch) -> None:
        """Write the rows to a batch of their number, and check that they are finite."""
        names = self.columns.names
        arrays = [*out.X.T, out.y, *([] if out.weights is None else [out.weights])]
        with np.errstate(over="ignore", invalid="ignore"):
            for name, array, (offset, scale) in zip(names, arrays, self._scaling, strict=False):
                is_target = name == self.columns.target
                values = self._target(chunk) if is_target else numbers(chunk.column(name))
                plain = offset == 0 and scale == 1
                array[:] = values if plain else (values - offset) / scale
        if not all(part is None or np.isfinite(part).all() for part in out):
            for name, array in zip(names, arrays, strict=True):
                chunk.check_finite(name, array)
        if out.weights is not None and (out.weights < 0).any():
            chunk.refuse(names[-1], out.weights < 0, "at least 0", "a weight below 0")

    def _target(self, chunk: Chunk) -> NDArray[Any]:
        name = self.columns.target
        values = chunk.column(name)
        if self.columns.positive is None:
            return numbers(values)
        if pa.types.is_floating(values.type):
            chunk.check_finite(name, numbers(values))
        return numbers(pc.equal(values, self.columns.positive_scalar(values.type)))


def numbers(values: pa.Array) -> NDArray[Any]:
    """Return the values as an array of numbers; integers and floats are not copied."""
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        # Use safe=False: integers beyond 2⁵³ are rounded without an error.
        values = pc.cast(values, pa.float64(), safe=False)
    return np.asarray(values.to_numpy(zero_copy_only=False))


@final
class PieceReader:
    """Reads the rows of a piece from first to last, in chunks of a given number of rows."""

    def __init__(self, piece: Piece, footer: Any, names: Sequence[str], chunk_rows: int) -> None:
        from pyarrow.parquet import ParquetFile

        self._piece = piece
        groups = list(piece.groups)
        self._file = ParquetFile(
            piece.path, metadata=footer, pre_buffer=False, buffer_size=_BUFFER_BYTES
        )
        self._tables = self._file.iter_batches(chunk_rows, groups, list(names), use_threads=False)
        self._rest: pa.RecordBatch | None = None
        skipped = piece.start - (piece.ends[groups[0] - 1] if groups[0] else 0)
        self._given = -skipped
        for _ in self.take(skipped):
            pass

    def take(self, rows: int) -> Iterator[Chunk]:
        """Yield the next rows, in one chunk or more."""
        while rows:
            with readable(self._piece.path):
                table = self._rest or next(self._tables, None)
                if table is None:
                    raise pa.ArrowInvalid("it has fewer rows than its metadata say")
                table.validate(full=True)
            part = table.slice(0, rows)
            self._rest = table.slice(rows) if table.num_rows > rows else None
            yield Chunk(part, self._piece, self._given)
            self._given += part.num_rows
            rows -= part.num_rows

    @property
    def finished(self) -> bool:
        """Whether all rows have been read."""
        return self._given == self._piece.rows

    def close(self) -> None:
        """Close the file."""
        self._tables.close()
        self._file.close()


def _read_footer(path: str, size: int, ends: tuple[int, ...]) -> Any:
    """Return the metadata of a file; raise `InvalidInputError` if it is not the same file."""
    from pyarrow.parquet import read_metadata

    footer = read_metadata(path) if os.path.getsize(path) == size else None
    same = footer is not None and group_ends(footer) == ends
    who = f"The data file {path!r}"
    remedy = "Start again with files that are complete."
    got = "another size or other row groups"
    require(same, who, "unchanged while it is read", got, remedy)
    return footer


@final
class Gatherer:
    """Takes rows of pieces in turns; a file is open from its first row taken to its last."""

    def __init__(self, pieces: Sequence[Piece], decoder: Decoder, block: int) -> None:
        self._pieces = pieces
        self._decoder = decoder
        self._chunk_rows = min(_MAX_CHUNK, max(_MIN_CHUNK, block // 16))
        self._footer = lru_cache(_MAX_FOOTERS)(_read_footer)
        self._readers: dict[int, PieceReader] = {}
        self._skipped: Counter[int] = Counter()

    def skip(self, takes: Takes) -> None:
        """Skip rows of pieces that are not open yet."""
        for number, rows in takes:
            self._skipped[number] += rows

    def fill(self, takes: Takes, batch: Batch) -> Batch:
        """Write the rows to the batch, and return the part of it that is filled."""
        start = 0
        for number, rows in takes:
            if number not in self._readers:
                piece = self._pieces[number]
                piece = piece.cut(self._skipped[number], piece.rows)
                with readable(piece.path):
                    footer = self._footer(piece.path, piece.size, piece.ends)
                    names = self._decoder.columns.names
                    self._readers[number] = PieceReader(piece, footer, names, self._chunk_rows)
            for chunk in self._readers[number].take(rows):
                stop = start + chunk.table.num_rows
                self._decoder.write(chunk, batch.rows(start, stop))
                start = stop
            if self._readers[number].finished:
                self._readers.pop(number).close()
        return batch.rows(0, start)

    def close(self) -> None:
        """Close all files."""
        while self._readers:
            self._readers.popitem()[1].close()


def divide_turns(turns: Iterable[tuple[int, int]], first: int, others: int) -> Iterator[Takes]:
    """Divide turns, the rows to take from pieces, into blocks of `first`, then `others` rows."""
    takes: Takes = []
    space = first
    for piece, rows in turns:
        while rows:
            taken = min(rows, space)
            takes.append((piece, taken))
            rows = rows - taken
            space = space - taken
            if not space:
                yield takes
                takes = []
                space = others
    if takes:
        yield takes


def blocks_in_order(
    pieces: Sequence[Piece], decoder: Decoder, rows: int = 2**14
) -> Generator[Batch, None, None]:
    """Yield all rows in their order, in blocks of `rows` rows; the last may have fewer."""
    turns = enumerate(piece.rows for piece in pieces)
    with closing(Gatherer(pieces, decoder, rows)) as gatherer:
        for takes in divide_turns(turns, rows, rows):
            yield gatherer.fill(takes, decoder.empty(sum(number for _, number in takes)))


def sample_rows(
    pieces: Sequence[Piece], decoder: Decoder, number: int, rng: np.random.Generator
) -> Batch:
    """Draw rows without replacement, in random order; read only pieces that have some of them."""
    sizes = np.array([piece.rows for piece in pieces])
    ends = np.cumsum(sizes)
    chosen = np.sort(rng.choice(ends[-1], number, replace=False, shuffle=False))
    needed, piece_of = np.unique(np.searchsorted(ends, chosen, side="right"), return_inverse=True)
    # Rows of pieces that are not needed, before each piece that is.
    skipped = ends[needed] - np.cumsum(sizes[needed])
    places = chosen - skipped[piece_of]
    parts = []
    before = 0
    for block in blocks_in_order([pieces[needed_piece] for needed_piece in needed], decoder):
        first, last = np.searchsorted(places, [before, before + len(block.y)])
        if first < last:
            parts.append(block.take(places[first:last] - before))
        before += len(block.y)
    return join_batches(parts).take(rng.permutation(number))

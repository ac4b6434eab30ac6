"""Read rows of Parquet files as checked, scaled numbers."""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from directgp.datasets.columns import level_counts
from directgp.datasets.streams.files import (
    Columns,
    FileGroups,
    Piece,
    positive_scalar,
    readable,
    refuse_value,
)
from directgp.errors import refuse, require
from directgp.text import suggestion

DType = Literal["float32", "float64"]


class Batch(NamedTuple):
    """Rows as arrays of one type, each with its rows side by side in memory."""

    X: NDArray[Any]
    """The features, of shape (n, d)."""

    y: NDArray[Any]
    """The target, of shape (n,)."""

    weights: NDArray[Any] | None = None
    """Of shape (n,), where a column of weights was named."""

    def rows(self, start: int, stop: int) -> "Batch":
        """The rows from `start` on and before `stop`; no copy is made."""
        weights = None if self.weights is None else self.weights[start:stop]
        return Batch(self.X[start:stop], self.y[start:stop], weights)

    def take(self, index: NDArray[np.int64]) -> "Batch":
        """The rows at these places, copied."""
        weights = None if self.weights is None else self.weights.take(index)
        return Batch(self.X.take(index, axis=0), self.y.take(index), weights)


def empty_batch(rows: int, features: int, weighted: bool, dtype: DType) -> Batch:
    """Arrays that are still to be filled."""
    weights = np.empty(rows, dtype) if weighted else None
    return Batch(np.empty((rows, features), dtype), np.empty(rows, dtype), weights)


def joined(parts: Sequence[Batch]) -> Batch:
    """The rows of all the parts, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    weights = [part.weights for part in parts if part.weights is not None]
    X = np.concatenate([part.X for part in parts])
    y = np.concatenate([part.y for part in parts])
    return Batch(X, y, np.concatenate(weights) if weights else None)


Vector = NDArray[np.float64]

_ROUNDING = 2.0**-48
"""A column whose range is no more than this part of its largest value does not vary."""


@final
@dataclass(frozen=True)
class Scaling:
    """z = (x − offset) / scale for each feature, and for the target."""

    offsets: tuple[float, ...]
    scales: tuple[float, ...]
    target_offset: float = 0.0
    target_scale: float = 1.0


def measured(blocks: Iterable[Batch], features: tuple[str, ...], target: str | None) -> Scaling:
    """The means and deviations of all rows, weighted where they have weights.

    A column that is constant, but for rounding, is only centred. The target is scaled if named.
    """
    names = (*features, target) if target else features
    moments = _Moments(len(names))
    for block in blocks:
        values = np.column_stack([block.X, block.y]) if target else block.X
        moments.add(values, block.weights)
    require(moments.total > 0, "Weights", "positive somewhere", "a weight of zero for every row")
    _check_spread(names, moments.scales())
    offsets, scales = moments.mean.tolist(), moments.scales().tolist()
    if target is None:
        return Scaling(tuple(offsets), tuple(scales))
    return Scaling(tuple(offsets[:-1]), tuple(scales[:-1]), offsets[-1], scales[-1])


def _check_spread(names: tuple[str, ...], scales: Vector) -> None:
    for name, scale in zip(names, scales.tolist(), strict=True):
        allowed, remedy = "of numbers whose squares are finite", "Give it in a larger unit."
        require(math.isfinite(scale), f"Column {name!r}", allowed, "larger ones", remedy)


@final
class _Moments:
    """Mean and sum of squared deviations of each column, of all blocks so far."""

    def __init__(self, columns: int) -> None:
        self.total = 0.0
        self.mean: Vector = np.zeros(columns)
        self.squares: Vector = np.zeros(columns)
        self.least: Vector = np.full(columns, np.inf)
        self.most: Vector = np.full(columns, -np.inf)

    def add(self, values: NDArray[np.float64], weights: Vector | None) -> None:
        """Merge those of a block with what is known (Chan, Golub and LeVeque 1983)."""
        if weights is not None:
            values, weights = values[weights > 0], weights[weights > 0]
        if not len(values):
            return
        columns = np.ascontiguousarray(values.T)
        with np.errstate(over="ignore", invalid="ignore"):
            self._merge(*_block_moments(columns, weights))
        self.least = np.minimum(self.least, columns.min(axis=1))
        self.most = np.maximum(self.most, columns.max(axis=1))

    def scales(self) -> Vector:
        """Deviation of each column, 1 where a column does not vary."""
        largest = np.maximum(np.abs(self.least), np.abs(self.most))
        with np.errstate(over="ignore"):
            constant = self.most - self.least <= _ROUNDING * largest
        return np.where(constant, 1.0, np.sqrt(self.squares / self.total))

    def _merge(self, total: float, mean: Vector, squares: Vector) -> None:
        both = self.total + total
        apart = mean - self.mean
        self.mean = self.mean + apart * (total / both)
        self.squares = self.squares + squares + apart**2 * (self.total * total / both)
        self.total = both


def _block_moments(columns: Vector, weights: Vector | None) -> tuple[float, Vector, Vector]:
    """Sum of weights, and of each column the mean and the sum of squared deviations from it."""
    total = float(columns.shape[1] if weights is None else weights.sum())
    # From the first row on, since sums of numbers far from 0 lose their last digits.
    first = columns[:, 0]
    mean = first + _sums(columns - first[:, None], weights) / total
    return total, mean, _sums((columns - mean[:, None]) ** 2, weights)


def _sums(columns: Vector, weights: Vector | None) -> Vector:
    sums: Vector = (columns if weights is None else columns * weights).sum(axis=1)
    return sums


@final
@dataclass(frozen=True)
class Rows:
    """Columns of some rows as they were read, and where these are."""

    table: pa.RecordBatch
    piece: Piece
    start: int
    """Rows of the piece that come before."""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def column(self, name: str) -> pa.Array:
        """The values of a column, none of them missing."""
        values = self.table.column(self.table.schema.get_field_index(name))
        if pa.types.is_dictionary(values.type):
            values = pc.cast(values, values.type.value_type)
        if values.null_count:
            self.refuse(name, pc.is_null(values).to_numpy(zero_copy_only=False), "a missing value")
        return values

    def refuse(
        self,
        name: str,
        bad: NDArray[np.bool_],
        what: str,
        allowed: str = "finite, with a value in every row",
    ) -> None:
        """Refuse the first of the bad values."""
        place = self.piece.place(self.start + int(bad.argmax()))
        refuse_value(name, allowed, f"{what} in {place}")


@final
class Decoder:
    """Writes rows to arrays."""

    def __init__(self, columns: Columns, scaling: Scaling | None) -> None:
        self._columns = columns
        d = len(columns.features)
        scaled = scaling or Scaling((0.0,) * d, (1.0,) * d)
        # Of float64, so that float32 is scaled in float64 and rounded once.
        self._offsets = np.array([*scaled.offsets, scaled.target_offset])
        self._scales = np.array([*scaled.scales, scaled.target_scale])
        self._plain = (self._offsets == 0) & (self._scales == 1)

    def write(self, rows: Rows, batch: Batch, start: int) -> None:
        """Write the rows to the batch, from row `start` on."""
        out = batch.rows(start, start + len(rows))
        with np.errstate(over="ignore", invalid="ignore"):
            for place, name in enumerate(self._columns.features):
                out.X[:, place] = self._scaled(numbers(rows.column(name)), place)
            out.y[:] = self._scaled(self._target(rows), -1)
            if out.weights is not None and self._columns.weights is not None:
                out.weights[:] = numbers(rows.column(self._columns.weights))
        self._check(rows, out)

    def _target(self, rows: Rows) -> NDArray[Any]:
        values = rows.column(self._columns.target)
        if self._columns.positive is None:
            return numbers(values)
        if pa.types.is_floating(values.type):
            _refuse_unless_finite(rows, self._columns.target, numbers(values))
        one = positive_scalar(self._columns.positive, values.type, self._columns.target)
        return numbers(pc.equal(values, one))

    def _scaled(self, values: NDArray[Any], place: int) -> NDArray[Any]:
        if self._plain[place]:
            return values
        scaled: NDArray[np.float64] = values - self._offsets[place]
        scaled /= self._scales[place]
        return scaled

    def _check(self, rows: Rows, out: Batch) -> None:
        if not (np.isfinite(out.X).all() and np.isfinite(out.y).all()):
            for place, name in enumerate(self._columns.features):
                _refuse_unless_finite(rows, name, out.X[:, place])
            _refuse_unless_finite(rows, self._columns.target, out.y)
        if out.weights is not None and self._columns.weights is not None:
            _refuse_unless_finite(rows, self._columns.weights, out.weights)
            if (out.weights < 0).any():
                bad = out.weights < 0
                rows.refuse(self._columns.weights, bad, "a weight below 0", "at least 0")


def numbers(values: pa.Array) -> NDArray[Any]:
    """The values as an array of numbers; whole numbers and floats are not copied."""
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        # Not checked for precision: whole numbers beyond 2⁵³ are rounded.
        values = pc.cast(values, pa.float64(), safe=False)
    return np.asarray(values.to_numpy(zero_copy_only=False))


def _refuse_unless_finite(rows: Rows, name: str, written: NDArray[Any]) -> None:
    bad = ~np.isfinite(written)
    if bad.any():
        value = written[bad.argmax()]
        found = "a value too large for " + written.dtype.name
        raw = rows.column(name)
        if pa.types.is_floating(raw.type):
            given = numbers(raw)[bad.argmax()]
            found = found if np.isfinite(given) else f"{value:g}"
        rows.refuse(name, bad, found)


_BUFFER = 2**16
"""Bytes of each column of a file held at once; columns of a row group are never read whole."""

_FOOTERS = 8
"""Files whose description is kept, which takes long to read where there are many row groups."""


@final
class Opener:
    """Opens files for reading some of their columns."""

    def __init__(self, names: Sequence[str], chunk: int) -> None:
        self._names = list(names)
        self._chunk = chunk
        self._footer = lru_cache(_FOOTERS)(_footer)

    def open(self, piece: Piece) -> "PieceReader":
        """A reader of the piece, which has to be closed."""
        from pyarrow.parquet import ParquetFile

        with readable(piece.file.path):
            _check_unchanged(piece.file)
            footer = self._footer(piece.file)
            file = ParquetFile(
                piece.file.path, metadata=footer, pre_buffer=False, buffer_size=_BUFFER
            )
        return PieceReader(piece, file, self._names, self._chunk)


@final
class PieceReader:
    """Gives out the rows of a piece from first to last."""

    def __init__(self, piece: Piece, file: Any, names: list[str], chunk: int) -> None:
        self._piece = piece
        self._file = file
        self._chunks = file.iter_batches(chunk, list(piece.groups), names, use_threads=False)
        self._rest: pa.RecordBatch | None = None
        self._given = -piece.start
        for _ in self.take(piece.start):
            pass

    def take(self, rows: int) -> Iterator[Rows]:
        """The next rows, in one part or more."""
        while rows:
            chunk = self._next_chunk()
            part = chunk.slice(0, rows)
            self._rest = chunk.slice(rows) if chunk.num_rows > rows else None
            yield Rows(part, self._piece, self._given)
            self._given += part.num_rows
            rows -= part.num_rows

    @property
    def finished(self) -> bool:
        """Whether all rows have been given out."""
        return self._given == self._piece.rows

    def close(self) -> None:
        """Let go of the file."""
        self._chunks.close()
        self._file.close()

    def _next_chunk(self) -> pa.RecordBatch:
        if self._rest is not None:
            return self._rest
        with readable(self._piece.file.path):
            chunk = next(self._chunks, None)
        _require_same(chunk is not None, self._piece.file.path, "fewer rows than it says")
        return chunk


def _footer(file: FileGroups) -> Any:
    from pyarrow.parquet import read_metadata

    footer = read_metadata(file.path)
    rows = tuple(footer.row_group(group).num_rows for group in range(footer.num_row_groups))
    _require_same(rows == file.group_rows, file.path, "other row groups")
    return footer


def _check_unchanged(file: FileGroups) -> None:
    size = os.path.getsize(file.path)
    _require_same(size == file.size, file.path, f"{size:,} bytes after {file.size:,}")


def _require_same(same: bool, path: str, got: str) -> None:
    who, remedy = f"The data file {path!r}", "Begin again with files that are complete."
    require(same, who, "the same as long as it is read", got, remedy)


_CHUNK = 2**14
_MOST = 100
"""Other classes that are remembered, to name them."""


def check_positive(pieces: Sequence[Piece], columns: Columns) -> None:
    """Refuse a positive class that no row has: the target is read until one does."""
    if columns.positive is None:
        return
    opener = Opener([columns.target], _CHUNK)
    others: dict[str, int] = {}
    for piece in pieces:
        with closing(opener.open(piece)) as reader:
            for rows in reader.take(piece.rows):
                if _occurs(rows, columns):
                    return
                if len(others) < _MOST:
                    others |= level_counts(pa.chunked_array([rows.column(columns.target)]))
    remedy = suggestion(str(columns.positive), sorted(others), "Its values")
    allowed = f"a value of the target {columns.target!r}"
    refuse("positive", allowed, repr(columns.positive), remedy)


def _occurs(rows: Rows, columns: Columns) -> bool:
    values: pa.Array = rows.column(columns.target)
    one = positive_scalar(columns.positive, values.type, columns.target)
    return bool(pc.any(pc.equal(values, one)).as_py())

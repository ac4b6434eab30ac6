"""Read rows of Parquet files as checked, scaled numbers."""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, NoReturn, final

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
    refuse_value,
)
from directgp.datasets.tables import readable
from directgp.errors import refuse, require
from directgp.text import suggestion

DType = Literal["float32", "float64"]
Vector = NDArray[np.float64]

_ROUNDING = 2.0**-48
"""A column whose range is at most this part of its largest value counts as constant."""

_BUFFER_BYTES = 2**16
"""Bytes of each column of a file held at once; columns of a row group are never read whole."""

_MAX_FOOTERS = 8
"""Files whose metadata are kept: with many row groups they take long to read."""

_CHECK_ROWS = 2**14
"""Rows decoded at once in the search for the positive class."""

_MAX_CLASSES = 100
"""Other classes that are remembered for the error message."""


class Batch(NamedTuple):
    """Rows as C-contiguous arrays of one type."""

    X: NDArray[Any]
    """The features, of shape (n, d)."""

    y: NDArray[Any]
    """The target, of shape (n,)."""

    weights: NDArray[Any] | None = None
    """Of shape (n,), if a column of weights was named."""

    def rows(self, start: int, stop: int) -> "Batch":
        """Return rows `start` to `stop`, without a copy."""
        weights = None if self.weights is None else self.weights[start:stop]
        return Batch(self.X[start:stop], self.y[start:stop], weights)

    def take(self, index: NDArray[np.int64]) -> "Batch":
        """Return a copy of the rows at these indices."""
        weights = None if self.weights is None else self.weights.take(index)
        return Batch(self.X.take(index, axis=0), self.y.take(index), weights)


def join_batches(parts: Sequence[Batch]) -> Batch:
    """Concatenate batches; a single one is not copied."""
    if len(parts) == 1:
        return parts[0]
    weights = [part.weights for part in parts if part.weights is not None]
    X = np.concatenate([part.X for part in parts])
    y = np.concatenate([part.y for part in parts])
    return Batch(X, y, np.concatenate(weights) if weights else None)


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
    """Return the means and standard deviations of all rows, weighted if there are weights.

    A column that is constant, up to rounding, is only centred. The target is scaled if named.
    """
    names = (*features, target) if target else features
    total, mean, squares = 0.0, np.zeros(len(names)), np.zeros(len(names))
    low, high = np.full(len(names), np.inf), np.full(len(names), -np.inf)
    for block in blocks:
        values, weights = np.column_stack([block.X, block.y]) if target else block.X, block.weights
        if weights is not None:
            values, weights = values[weights > 0], weights[weights > 0]
        if not len(values):
            continue
        columns = np.ascontiguousarray(values.T)
        low, high = np.minimum(low, columns.min(axis=1)), np.maximum(high, columns.max(axis=1))
        # The moments of two blocks are merged as by Chan, Golub and LeVeque (1983).
        with np.errstate(over="ignore", invalid="ignore"):
            more, block_mean, block_squares = _block_moments(columns, weights)
            both, shift = total + more, block_mean - mean
            mean = mean + shift * (more / both)
            squares = squares + block_squares + shift**2 * (total * more / both)
            total = both
    require(total > 0, "Weights", "positive somewhere", "a weight of zero for every row")
    with np.errstate(over="ignore"):
        constant = high - low <= _ROUNDING * np.maximum(np.abs(low), np.abs(high))
    offsets, scales = mean.tolist(), np.where(constant, 1.0, np.sqrt(squares / total)).tolist()
    for name, scale in zip(names, scales, strict=True):
        allowed, remedy = "of numbers whose squares are finite", "Give it in a larger unit."
        require(math.isfinite(scale), f"Column {name!r}", allowed, "larger ones", remedy)
    if target is None:
        return Scaling(tuple(offsets), tuple(scales))
    return Scaling(tuple(offsets[:-1]), tuple(scales[:-1]), offsets[-1], scales[-1])


def _block_moments(columns: Vector, weights: Vector | None) -> tuple[float, Vector, Vector]:
    """Return the sum of weights, and mean and sum of squared deviations of each column."""
    ones = 1.0 if weights is None else weights
    total = float(columns.shape[1] if weights is None else weights.sum())
    # Relative to the first row, since sums of numbers far from 0 lose their last digits.
    first = columns[:, :1]
    mean = first + ((columns - first) * ones).sum(axis=1, keepdims=True) / total
    return total, mean[:, 0], ((columns - mean) ** 2 * ones).sum(axis=1)


@final
@dataclass(frozen=True)
class PieceRows:
    """Columns of some rows of a piece, as they were read."""

    table: pa.RecordBatch
    piece: Piece
    start: int
    """Index of the first row in the piece."""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def column(self, name: str) -> pa.Array:
        """Return a column; raise `InvalidInputError` if values are missing."""
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
    ) -> NoReturn:
        """Raise `InvalidInputError` for the first of the bad values."""
        place = self.piece.place(self.start + int(bad.argmax()))
        refuse_value(name, allowed, f"{what} in {place}")

    def check_finite(self, name: str, written: NDArray[Any]) -> None:
        """Raise `InvalidInputError` if numbers converted from a column are not finite."""
        bad = ~np.isfinite(written)
        if bad.any():
            first = bad.argmax()
            found = f"a value too large for {written.dtype.name}"
            raw = self.column(name)
            if pa.types.is_floating(raw.type) and not np.isfinite(numbers(raw)[first]):
                found = f"{written[first]:g}"
            self.refuse(name, bad, found)


@final
class Decoder:
    """Converts rows to scaled numbers of one type."""

    def __init__(self, columns: Columns, dtype: DType, scaling: Scaling | None) -> None:
        self.columns = columns
        self._dtype = dtype
        d = len(columns.features)
        scaled = scaling or Scaling((0.0,) * d, (1.0,) * d)
        # float64, so that float32 is scaled in float64 and rounded once.
        self._offsets = np.array([*scaled.offsets, scaled.target_offset])
        self._scales = np.array([*scaled.scales, scaled.target_scale])
        self._plain = (self._offsets == 0) & (self._scales == 1)

    def empty(self, rows: int) -> Batch:
        """Return uninitialised arrays for this number of rows."""
        weights = None if self.columns.weights is None else np.empty(rows, self._dtype)
        X = np.empty((rows, len(self.columns.features)), self._dtype)
        return Batch(X, np.empty(rows, self._dtype), weights)

    def write(self, rows: PieceRows, batch: Batch, start: int) -> None:
        """Write the rows to the batch, from row `start` on, and check that they are finite."""
        out, columns = batch.rows(start, start + len(rows)), self.columns
        with np.errstate(over="ignore", invalid="ignore"):
            for place, name in enumerate(columns.features):
                out.X[:, place] = self._scale(numbers(rows.column(name)), place)
            out.y[:] = self._scale(self._target(rows), -1)
            if out.weights is not None and columns.weights is not None:
                out.weights[:] = numbers(rows.column(columns.weights))
        if not (np.isfinite(out.X).all() and np.isfinite(out.y).all()):
            for place, name in enumerate(columns.features):
                rows.check_finite(name, out.X[:, place])
            rows.check_finite(columns.target, out.y)
        if out.weights is not None and columns.weights is not None:
            rows.check_finite(columns.weights, out.weights)
            if (out.weights < 0).any():
                rows.refuse(columns.weights, out.weights < 0, "a weight below 0", "at least 0")

    def _target(self, rows: PieceRows) -> NDArray[Any]:
        name, positive = self.columns.target, self.columns.positive
        values = rows.column(name)
        if positive is None:
            return numbers(values)
        if pa.types.is_floating(values.type):
            rows.check_finite(name, numbers(values))
        return numbers(pc.equal(values, positive_scalar(positive, values.type, name)))

    def _scale(self, values: NDArray[Any], place: int) -> NDArray[Any]:
        if self._plain[place]:
            return values
        scaled: Vector = values - self._offsets[place]
        scaled /= self._scales[place]
        return scaled


def numbers(values: pa.Array) -> NDArray[Any]:
    """Return the values as an array of numbers; integers and floats are not copied."""
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        # safe=False: integers beyond 2⁵³ are rounded without an error.
        values = pc.cast(values, pa.float64(), safe=False)
    return np.asarray(values.to_numpy(zero_copy_only=False))


@final
class Opener:
    """Opens pieces for reading some columns, and caches the metadata of their files."""

    def __init__(self, names: Sequence[str], chunk: int) -> None:
        self._names = list(names)
        self._chunk = chunk
        self._footer = lru_cache(_MAX_FOOTERS)(_read_footer)

    def open(self, piece: Piece) -> "PieceReader":
        """Return a reader of the piece; the caller closes it."""
        from pyarrow.parquet import ParquetFile

        file = piece.file
        with readable(file.path):
            size = os.path.getsize(file.path)
            _require_same(size == file.size, file.path, f"{size:,} bytes after {file.size:,}")
            options = {"pre_buffer": False, "buffer_size": _BUFFER_BYTES}
            opened = ParquetFile(file.path, metadata=self._footer(file), **options)
        return PieceReader(piece, opened, self._names, self._chunk)


@final
class PieceReader:
    """Reads the rows of a piece from first to last."""

    def __init__(self, piece: Piece, file: Any, names: list[str], chunk: int) -> None:
        self._piece = piece
        self._file = file
        self._chunks = file.iter_batches(chunk, list(piece.groups), names, use_threads=False)
        self._rest: pa.RecordBatch | None = None
        first = piece.groups.start
        skipped = piece.start - (piece.file.ends[first - 1] if first else 0)
        self._given = -skipped
        for _ in self.take(skipped):
            pass

    def take(self, rows: int) -> Iterator[PieceRows]:
        """Yield the next rows, in one part or more."""
        while rows:
            chunk = self._next_chunk()
            part = chunk.slice(0, rows)
            self._rest = chunk.slice(rows) if chunk.num_rows > rows else None
            yield PieceRows(part, self._piece, self._given)
            self._given += part.num_rows
            rows -= part.num_rows

    @property
    def finished(self) -> bool:
        """Whether all rows have been read."""
        return self._given == self._piece.rows

    def close(self) -> None:
        """Close the file."""
        self._chunks.close()
        self._file.close()

    def _next_chunk(self) -> pa.RecordBatch:
        if self._rest is not None:
            return self._rest
        with readable(self._piece.file.path):
            chunk = next(self._chunks, None)
        _require_same(chunk is not None, self._piece.file.path, "fewer rows than its metadata have")
        return chunk


def _read_footer(file: FileGroups) -> Any:
    from pyarrow.parquet import read_metadata

    footer = read_metadata(file.path)
    rows = tuple(footer.row_group(group).num_rows for group in range(footer.num_row_groups))
    _require_same(rows == file.group_rows, file.path, "other row groups")
    return footer


def _require_same(same: bool, path: str, got: str) -> None:
    who, remedy = f"The data file {path!r}", "Start again with files that are complete."
    require(same, who, "unchanged while it is read", got, remedy)


def check_positive(pieces: Sequence[Piece], columns: Columns) -> None:
    """Raise `InvalidInputError` if no row has the positive class; stop reading at the first."""
    target, positive = columns.target, columns.positive
    if positive is None:
        return
    opener = Opener([target], _CHECK_ROWS)
    others: dict[str, int] = {}
    for piece in pieces:
        with closing(opener.open(piece)) as reader:
            for rows in reader.take(piece.rows):
                values = rows.column(target)
                one = positive_scalar(positive, values.type, target)
                if pc.any(pc.equal(values, one)).as_py():
                    return
                if len(others) < _MAX_CLASSES:
                    others |= level_counts(pa.chunked_array([values]))
    remedy = suggestion(str(positive), sorted(others), "Its values")
    refuse("positive", f"a value of the target {target!r}", repr(positive), remedy)

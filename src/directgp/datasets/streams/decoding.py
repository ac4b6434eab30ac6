"""From columns of Arrow to rows of numbers, refused where a value is none."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from directgp.datasets.streams.batch import Batch
from directgp.datasets.streams.columns import Columns, positive_scalar
from directgp.datasets.streams.pieces import Piece
from directgp.datasets.streams.scaling import Scaling
from directgp.datasets.streams.survey import refuse_value


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

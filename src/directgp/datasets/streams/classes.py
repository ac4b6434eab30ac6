"""Whether the class that is called positive occurs at all."""

from collections.abc import Sequence
from contextlib import closing

import pyarrow as pa
import pyarrow.compute as pc

from directgp.datasets.levels import level_counts
from directgp.datasets.streams.columns import Columns, positive_scalar
from directgp.datasets.streams.decoding import Rows
from directgp.datasets.streams.pieces import Piece
from directgp.datasets.streams.reading import Opener
from directgp.datasets.wording import suggestion
from directgp.errors import refuse

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

"""Values of a column as text."""

import pyarrow as pa
import pyarrow.compute as pc


def level_counts(column: pa.ChunkedArray) -> dict[str, int]:
    """How often each value occurs, as text; missing ones aside."""
    found = pc.value_counts(pc.cast(column, pa.string()).drop_null())
    return dict(zip(found.field(0).to_pylist(), found.field(1).to_pylist(), strict=True))

"""Small Parquet files with numbered rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from directgp.datasets.streams import Batch, ParquetRows, RowStream


def write(path: Path, columns: dict[str, Any], group: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pyarrow.parquet.write_table(table, path, row_group_size=group)
    return path


def numbered(folder: Path, files: Sequence[Sequence[int]], **options: Any) -> ParquetRows:
    """Rows 0, 1, 2, … in files with row groups of these sizes; x is −number, y is the number."""
    first = 0
    for place, groups in enumerate(files):
        path = folder / f"part-{place:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        schema = pa.schema({"x": pa.float64(), "y": pa.int64()})
        with pyarrow.parquet.ParquetWriter(path, schema) as writer:
            for rows in groups:
                number = np.arange(first, first + rows)
                writer.write_table(pa.table({"x": -1.0 * number, "y": number}))
                first += rows
    return ParquetRows(folder, "y", **options)


def numbers(batch: Batch) -> NDArray[np.int64]:
    """The numbers of the rows, which have stayed together."""
    np.testing.assert_array_equal(batch.X[:, 0], -batch.y)
    return batch.y.astype(np.int64)


def drawn(stream: RowStream, rows: int) -> NDArray[np.int64]:
    """Numbers of the next rows."""
    parts: list[NDArray[np.int64]] = []
    while sum(map(len, parts)) < rows:
        parts.append(numbers(stream.next()))
    return np.concatenate(parts)[:rows]

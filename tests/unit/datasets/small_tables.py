"""A small table; tests change one property at a time."""

from typing import Any

import numpy as np
import pyarrow as pa

ROWS = 30


def small(**columns: Any) -> pa.Table:
    """Two features and a regression target in 30 rows, with columns added or replaced."""
    i = np.arange(ROWS)
    return pa.table({"a": i * 1.5, "b": i % 7 + 0.5, "y": i * 0.1} | columns)


def repeated(*values: Any) -> list[Any]:
    """The values over and over, one a row."""
    return [values[i % len(values)] for i in range(ROWS)]

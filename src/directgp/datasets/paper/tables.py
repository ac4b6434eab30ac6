"""From matrices to a table in the form of the known copies."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Matrix = NDArray[np.generic]
"""Numbers of any type."""


def paper_table(X: Matrix, y: Matrix, names: Sequence[str] | None = None) -> pa.Table:
    """Features ``x0``, ``x1`` and so on, unless named, and the target ``y``.

    Single precision, as in the known copies, so that numbers from their home have the fingerprint
    of the copy.
    """
    columns = names or [f"x{j}" for j in range(X.shape[1])]
    features = {
        name: X[:, j].astype(np.float32) for j, name in zip(range(X.shape[1]), columns, strict=True)
    }
    return pa.table(features | {"y": np.ravel(y).astype(np.float32)})

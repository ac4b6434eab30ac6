"""Features with their names, as the estimators take them from a table."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def named_columns(X: NDArray[np.float64], names: Sequence[str]) -> pa.Table:
    """A table of the columns of X, so that a model keeps and checks their names."""
    return pa.table([pa.array(column) for column in X.T], names=list(names))

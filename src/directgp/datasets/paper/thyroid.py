"""The home of thyroid, an archive of NumPy's."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from directgp.datasets.paper.tables import paper_table


def read_thyroid(files: Sequence[Path]) -> pa.Table:
    """Arrays X and y; what would have to be unpickled is refused."""
    with np.load(files[0], allow_pickle=False) as arrays:
        return paper_table(arrays["X"], arrays["y"])

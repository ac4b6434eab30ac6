"""Stream rows of Parquet files that do not fit in memory, in batches of numbers."""

from directgp.datasets.streams.reading import Batch, Scaling
from directgp.datasets.streams.stream import ParquetRows, RowStream

__all__ = ["Batch", "ParquetRows", "RowStream", "Scaling"]

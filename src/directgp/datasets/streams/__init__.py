"""Rows of Parquet files that need not fit in memory, in batches of numbers."""

from directgp.datasets.streams.reading import Batch, Scaling
from directgp.datasets.streams.stream import ParquetRows, RowStream

__all__ = ["Batch", "ParquetRows", "RowStream", "Scaling"]

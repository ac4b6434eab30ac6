"""Rows of Parquet files that need not fit in memory, in batches of numbers."""

from directgp.datasets.streams.batch import Batch
from directgp.datasets.streams.row_stream import RowStream
from directgp.datasets.streams.rows import ParquetRows
from directgp.datasets.streams.scaling import Scaling

__all__ = ["Batch", "ParquetRows", "RowStream", "Scaling"]

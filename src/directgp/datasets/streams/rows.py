"""Rows of Parquet files, as they are asked for: shuffled, in order, or a sample."""

import copy
from collections.abc import Generator, Sequence
from typing import final

import numpy as np

from directgp.datasets.streams.batch import Batch, DType
from directgp.datasets.streams.classes import check_positive
from directgp.datasets.streams.gathering import Reading, blocks_in_order
from directgp.datasets.streams.paths import Named, parquet_files
from directgp.datasets.streams.pieces import pieces_of, share_of
from directgp.datasets.streams.plans import longest_turn
from directgp.datasets.streams.row_stream import RowStream
from directgp.datasets.streams.sampling import sampled
from directgp.datasets.streams.scaling import Scaling, measured
from directgp.datasets.streams.shuffling import ShuffledRows
from directgp.datasets.streams.survey import survey
from directgp.errors import require


@final
class ParquetRows:
    """Rows of Parquet files that need not fit in memory.

    Parameters
    ----------
    path : path or sequence of paths
        Files, and folders with files whose names end with ``.parquet``, at any depth. Names that
        begin with ``.`` or ``_`` are left out.
    target : str
        Name of the column of y.
    features : sequence of str, optional
        Names of the columns of X; all other columns of numbers unless given.
    weights : str, optional
        Name of the column of weights.
    positive : object, optional
        The value of the target that is class 1; all others are class 0. Without it the target is
        taken as numbers.
    dtype : {"float64", "float32"}
        Type of what comes out.
    buffer_rows : int
        Rows that are shuffled at once. More mix better and take more memory, which is a small
        multiple of them whatever the number of rows.

    Examples
    --------
    >>> import tempfile, pyarrow as pa, pyarrow.parquet
    >>> folder = tempfile.mkdtemp()
    >>> table = pa.table({"age": [30, 40, 50, 60], "delay": [1.5, 0.0, 2.5, 4.0]})
    >>> pyarrow.parquet.write_table(table, f"{folder}/flights.parquet")
    >>> rows = ParquetRows(folder, target="delay")
    >>> rows.num_rows, rows.feature_names
    (4, ('age',))
    >>> with rows.standardised().batches(batch_size=2, seed=0) as stream:
    ...     batch = stream.next()
    >>> batch.X.shape, batch.y.shape, stream.epochs
    ((2, 1), (2,), 0.5)
    """

    def __init__(
        self,
        path: Named | Sequence[Named],
        target: str,
        *,
        features: Sequence[str] | None = None,
        weights: str | None = None,
        positive: object | None = None,
        dtype: DType = "float64",
        buffer_rows: int = 2**18,
    ) -> None:
        allowed = "'float32' or 'float64'"
        require(dtype in ("float32", "float64"), "dtype of ParquetRows", allowed, repr(dtype))
        require(buffer_rows >= 1, "buffer_rows of ParquetRows", "at least 1", buffer_rows)
        files = parquet_files(path)
        self._columns, self._files = survey(files, target, features, weights, positive)
        self._pieces = pieces_of(self._files, longest_turn(buffer_rows))
        check_positive(self._pieces, self._columns)
        self.buffer_rows = buffer_rows
        self.dtype: DType = dtype
        self.scaling: Scaling | None = None
        """What is taken from the columns, and by what they are divided; None: nothing."""

    @property
    def num_rows(self) -> int:
        """Rows in all files."""
        return sum(piece.rows for piece in self._pieces)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns of X."""
        return self._columns.features

    @property
    def target(self) -> str:
        """Name of the column of y."""
        return self._columns.target

    def sample(self, number: int, seed: int = 0) -> Batch:
        """Rows drawn from all rows without replacement, in random order."""
        allowed = f"from 1 to the number of rows, {self.num_rows:,}"
        require(1 <= number <= self.num_rows, "number of rows of a sample", allowed, number)
        require(seed >= 0, "seed of a sample", "at least 0", seed)
        return sampled(self._pieces, self._reading(), number, np.random.default_rng(seed))

    def standardised(self, target: bool = False) -> "ParquetRows":
        """The same rows, each feature with mean 0 and deviation 1, and the target where asked.

        All rows are read once. Weights count, and a constant column is only centred.
        """
        classes = target and self._columns.positive is not None
        remedy = "Leave target=False."
        require(not classes, "A target that is standardised", "numbers", "classes", remedy)
        plain = Reading(self._columns, "float64", None)
        blocks = blocks_in_order(self._pieces, plain, 2**14)
        return self.scaled(measured(blocks, self.feature_names, self.target if target else None))

    def scaled(self, scaling: Scaling) -> "ParquetRows":
        """The same rows under a given scaling, such as that of the rows of training."""
        allowed = f"of {len(self.feature_names)} features, as the rows are"
        same = len(scaling.offsets) == len(scaling.scales) == len(self.feature_names)
        require(same, "scaling", allowed, f"one of {len(scaling.offsets)}")
        twin = copy.copy(self)
        twin.scaling = scaling
        return twin

    def batches(self, batch_size: int, seed: int, share: tuple[int, int] = (0, 1)) -> RowStream:
        """Batches in random order without end.

        With share=(r, w) they are of part r of w parts, whose numbers of rows differ by one at
        most: each of w processes asks for its own.
        """
        rank, size = share
        allowed = f"(r, w) with 0 ≤ r < w ≤ {self.num_rows:,}, the number of rows"
        require(0 <= rank < size <= self.num_rows, "share of batches", allowed, share)
        require(seed >= 0, "seed of batches", "at least 0", seed)
        pieces = share_of(self._pieces, rank, size)
        rows = ShuffledRows(pieces, self._reading(), self.buffer_rows, seed, share)
        allowed = f"from 1 to {rows.rows:,}, the rows of an epoch"
        require(1 <= batch_size <= rows.rows, "batch_size", allowed, batch_size)
        return RowStream(rows, batch_size)

    def blocks(self, rows: int = 2**16) -> Generator[Batch, None, None]:
        """All rows in the order of the files, in blocks; the last may have fewer rows."""
        require(rows >= 1, "rows of a block", "at least 1", rows)
        return blocks_in_order(self._pieces, self._reading(), rows)

    def _reading(self) -> Reading:
        return Reading(self._columns, self.dtype, self.scaling)

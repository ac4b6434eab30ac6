"""Reading of a piece from its first row to its last, never held whole."""

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, final

import pyarrow as pa

from directgp.datasets.streams.decoding import Rows
from directgp.datasets.streams.pieces import FileGroups, Piece
from directgp.datasets.streams.survey import readable
from directgp.errors import require

_BUFFER = 2**16
"""Bytes of each column of a file held at once; columns of a row group are never read whole."""

_FOOTERS = 8
"""Files whose description is kept, which takes long to read where there are many row groups."""


@final
class Opener:
    """Opens files for reading some of their columns."""

    def __init__(self, names: Sequence[str], chunk: int) -> None:
        self._names = list(names)
        self._chunk = chunk
        self._footer = lru_cache(_FOOTERS)(_footer)

    def open(self, piece: Piece) -> "PieceReader":
        """A reader of the piece, which has to be closed."""
        from pyarrow.parquet import ParquetFile

        with readable(piece.file.path):
            _check_unchanged(piece.file)
            footer = self._footer(piece.file)
            file = ParquetFile(
                piece.file.path, metadata=footer, pre_buffer=False, buffer_size=_BUFFER
            )
        return PieceReader(piece, file, self._names, self._chunk)


@final
class PieceReader:
    """Gives out the rows of a piece from first to last."""

    def __init__(self, piece: Piece, file: Any, names: list[str], chunk: int) -> None:
        self._piece = piece
        self._file = file
        self._chunks = file.iter_batches(chunk, list(piece.groups), names, use_threads=False)
        self._rest: pa.RecordBatch | None = None
        self._given = -piece.start
        for _ in self.take(piece.start):
            pass

    def take(self, rows: int) -> Iterator[Rows]:
        """The next rows, in one part or more."""
        while rows:
            chunk = self._next_chunk()
            part = chunk.slice(0, rows)
            self._rest = chunk.slice(rows) if chunk.num_rows > rows else None
            yield Rows(part, self._piece, self._given)
            self._given += part.num_rows
            rows -= part.num_rows

    @property
    def finished(self) -> bool:
        """Whether all rows have been given out."""
        return self._given == self._piece.rows

    def close(self) -> None:
        """Let go of the file."""
        self._chunks.close()
        self._file.close()

    def _next_chunk(self) -> pa.RecordBatch:
        if self._rest is not None:
            return self._rest
        with readable(self._piece.file.path):
            chunk = next(self._chunks, None)
        _require_same(chunk is not None, self._piece.file.path, "fewer rows than it says")
        return chunk


def _footer(file: FileGroups) -> Any:
    from pyarrow.parquet import read_metadata

    footer = read_metadata(file.path)
    rows = tuple(footer.row_group(group).num_rows for group in range(footer.num_row_groups))
    _require_same(rows == file.group_rows, file.path, "other row groups")
    return footer


def _check_unchanged(file: FileGroups) -> None:
    size = os.path.getsize(file.path)
    _require_same(size == file.size, file.path, f"{size:,} bytes after {file.size:,}")


def _require_same(same: bool, path: str, got: str) -> None:
    who, remedy = f"The data file {path!r}", "Begin again with files that are complete."
    require(same, who, "the same as long as it is read", got, remedy)

"""Parquet, and Arrow's own format, which is that of Feather."""

from collections.abc import Sequence
from typing import Any, final

import pyarrow as pa
import pyarrow.ipc

from directgp.datasets.table_file import TableFile

_BUFFER = 1 << 20
"""Bytes of a Parquet file held at once while its columns are decoded."""

_ARROW_FILE = b"ARROW1"
"""How a file of Arrow's begins; a stream does not."""


@final
class ParquetTable(TableFile):
    """A Parquet file."""

    def _names(self) -> tuple[str, ...]:
        from pyarrow.parquet import read_schema

        try:
            return tuple(read_schema(self.path).names)
        except (pa.ArrowException, OSError) as error:
            self.refuse_damaged(error)

    def _read(self, columns: Sequence[str]) -> pa.Table:
        from pyarrow.parquet import ParquetFile

        try:
            with ParquetFile(self.path, pre_buffer=False, buffer_size=_BUFFER) as file:
                return file.read(columns=list(columns)).select(list(columns))
        except (pa.ArrowException, OSError) as error:
            self.refuse_damaged(error)


@final
class ArrowTable(TableFile):
    """A file or a stream of Arrow's."""

    def _names(self) -> tuple[str, ...]:
        try:
            with pa.OSFile(self.shown) as source:
                return tuple(_reader(source).schema.names)
        except (pa.ArrowException, OSError) as error:
            self.refuse_damaged(error)

    def _read(self, columns: Sequence[str]) -> pa.Table:
        fields = sorted(self.names.index(name) for name in columns)
        try:
            with pa.OSFile(self.shown) as source:
                return _reader(source, included_fields=fields).read_all().select(list(columns))
        except (pa.ArrowException, OSError) as error:
            self.refuse_damaged(error)


def _reader(source: Any, **options: Any) -> Any:
    start = source.read(len(_ARROW_FILE))
    source.seek(0)
    kind = pa.ipc.open_file if start == _ARROW_FILE else pa.ipc.open_stream
    return kind(source, options=pa.ipc.IpcReadOptions(**options))

"""Read Parquet and Arrow files, whose sizes are known before they are unpacked."""

import struct
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple, final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
from typing_extensions import override

from directgp.datasets.readers import (
    ReadableTable,
    available_memory,
    open_file,
    require_memory,
)

_BUFFER_BYTES = 1 << 20
"""Bytes of a Parquet file held at once while its columns are decoded."""

_ARROW_FILE = b"ARROW1"
"""First bytes of an Arrow file; a stream has other bytes."""

_ARROW_START = 8
"""Position at which the stream in an Arrow file starts."""


@final
class ParquetTable(ReadableTable):
    """A Parquet file."""

    @override
    def _names(self) -> Sequence[str]:
        from pyarrow.parquet import read_schema

        with open_file(self.shown) as source:
            return list(read_schema(source).names)

    @override
    def _read(self, columns: list[str], as_text: set[str]) -> pa.Table:
        from pyarrow.parquet import ParquetFile

        with (
            open_file(self.shown) as source,
            ParquetFile(source, pre_buffer=False, buffer_size=_BUFFER_BYTES) as file,
        ):
            groups = [file.metadata.row_group(j) for j in range(file.num_row_groups)]
            size = sum(group.total_byte_size for group in groups)
            rows = sum(group.num_rows for group in groups)
            width = len(self.names)
            require_memory(self.shown, size, rows, width, len(columns) / width)
            wanted = set(columns)
            kinds = (pa.types.is_string, pa.types.is_binary)
            fields = [field for field in file.schema_arrow if field.name in wanted]
            texts = [field.name for field in fields if any(kind(field.type) for kind in kinds)]
            if texts and size * rows > available_memory():
                require_memory(self.shown, self._text_bytes(texts))
            return file.read(columns=columns).select(columns)

    def _text_bytes(self, columns: list[str]) -> int:
        """Return the bytes of columns of text, which are few in the file if a long text recurs."""
        from pyarrow.parquet import ParquetFile

        total = 0
        options = {"pre_buffer": False, "buffer_size": _BUFFER_BYTES, "read_dictionary": columns}
        with open_file(self.shown) as source, ParquetFile(source, **options) as file:
            for batch in file.iter_batches(columns=columns, use_threads=False):
                batch.validate(full=True)
                for column in batch.columns:
                    lengths = pc.binary_length(column.dictionary).take(column.indices)
                    total += pc.sum(pc.cast(lengths, pa.int64())).as_py() or 0
        return total


@final
class ArrowTable(ReadableTable):
    """An Arrow file or stream."""

    @override
    def _names(self) -> Sequence[str]:
        with open_file(self.shown) as source:
            index = self._index(source)
            start = source.tell()
            schema = pa.ipc.open_stream(source).schema
            if index is not None and not schema.equals(index.schema):
                raise pa.ArrowInvalid("its index has other columns than there are")
            source.seek(start)
            self._size = arrow_size(source)
            if index is not None and self._size.batches != index.num_record_batches:
                raise pa.ArrowInvalid("its index has another number of batches than there are")
            return list(schema.names)

    @override
    def _read(self, columns: list[str], as_text: set[str]) -> pa.Table:
        wanted = set(columns)
        width = len(self.names)
        fields = [j for j, name in enumerate(self.names) if name in wanted]
        require_memory(
            self.shown, self._size.unpacked, self._size.rows, width, len(columns) / width
        )
        with open_file(self.shown) as source:
            self._index(source)
            options = pa.ipc.IpcReadOptions(included_fields=fields)
            return pa.ipc.open_stream(source, options=options).read_all().select(columns)

    @staticmethod
    def _index(source: BinaryIO) -> Any:
        """Move to the stream of messages, and return the index of a file, or None.

        Do not read through the index: it may point to bytes that `arrow_size` has not measured.
        """
        is_file = source.read(len(_ARROW_FILE)) == _ARROW_FILE
        index = pa.ipc.open_file(source) if is_file else None
        source.seek(_ARROW_START if is_file else 0)
        return index


class ArrowSize(NamedTuple):
    """Sizes that the messages of an Arrow file or stream state."""

    unpacked: int
    rows: int
    batches: int


def arrow_size(source: BinaryIO) -> ArrowSize:
    """Return the sizes of all messages from here on; nothing is unpacked."""
    unpacked = rows = batches = 0
    for message in pa.ipc.MessageReader.open_stream(source):
        batch = _Table.root(message.metadata).table(2)
        if message.type not in ("record batch", "dictionary") or batch is None:
            continue
        if message.type == "dictionary":
            batch = batch.table(1) or batch
        else:
            rows = rows + batch.long(0)
            batches = batches + 1
        body = memoryview(message.body or b"")
        for start, length in batch.pairs(2):
            # A compressed buffer begins with its length; −1 says that this one is not compressed.
            unpacked_length = int.from_bytes(body[start : start + 8], "little", signed=True)
            packed = batch.table(3) is not None and length >= 8 and unpacked_length >= 0
            unpacked += unpacked_length if packed else length
    return ArrowSize(unpacked, rows, batches)


class _Table(NamedTuple):
    """A table of a FlatBuffer, whose fields are numbered in the schema of Arrow (Message.fbs).

    Arrow has verified the offsets of messages that it returns.
    """

    data: memoryview
    start: int

    @classmethod
    def root(cls, buffer: pa.Buffer) -> "_Table":
        data = memoryview(buffer)
        return cls(data, _number(data, 0, "I"))

    def table(self, field: int) -> "_Table | None":
        """Return the table in a field, or None."""
        at = self._at(field)
        return None if at is None else _Table(self.data, at + _number(self.data, at, "I"))

    def long(self, field: int) -> int:
        """Return the number in a field, 0 by default."""
        at = self._at(field)
        return 0 if at is None else _number(self.data, at, "q")

    def pairs(self, field: int) -> Iterator[tuple[int, int]]:
        """Yield the pairs of numbers in a vector."""
        at = self._at(field)
        if at is not None:
            vector = at + _number(self.data, at, "I")
            number = _number(self.data, vector, "I")
            yield from struct.iter_unpack("<qq", self.data[vector + 4 : vector + 4 + 16 * number])

    def _at(self, field: int) -> int | None:
        index = self.start - _number(self.data, self.start, "i")
        slot = 4 + 2 * field
        if slot >= _number(self.data, index, "H"):
            return None
        offset = _number(self.data, index + slot, "H")
        return self.start + offset if offset else None


def _number(data: memoryview, at: int, kind: str) -> int:
    return int(struct.unpack_from(f"<{kind}", data, at)[0])

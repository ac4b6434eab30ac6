"""Damaged and hostile files are refused in one sentence, before they can do harm."""

import gzip
import os
import resource
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from openpyxl import Workbook

from directgp.datasets import columnar, readers, tables
from directgp.datasets.dialect import unique_names
from directgp.datasets.encoding import Encoding
from directgp.datasets.problem import prepare
from directgp.datasets.readers import available_memory
from directgp.datasets.streams import ParquetRows
from directgp.datasets.tables import read_table
from directgp.errors import InvalidInputError


def refused(path: Path | str) -> str:
    with pytest.raises(InvalidInputError) as refusal:
        read_table(path)
    message = str(refusal.value)
    assert message.isprintable() and message.endswith(".")
    return message


def write_arrow(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def offsets(*values: int) -> bytes:
    return np.array(values, np.int32).tobytes()


CODES = [0, 1, 1, 0, 1, 0, 0, 1, 1]

CODED = pa.DictionaryArray.from_arrays(pa.array(CODES, pa.int8()), ["a", "b"])

DAMAGE = [
    (["abc", "def"], offsets(0, 3, 6), offsets(0, 3, 2**30)),
    (["abc", "def"], offsets(0, 3, 6), offsets(0, -5, 6)),
    (["abc", "def"], b"abcdef", b"\xff\xfecdef"),
    (CODED, bytes(CODES), bytes(CODES[:-1]) + b"\x4d"),
    (CODED, bytes(CODES), bytes(CODES[:-1]) + b"\xfd"),
]


@pytest.mark.parametrize(("column", "before", "after"), DAMAGE)
def test_values_that_would_crash_the_process(
    column: Any, before: bytes, after: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "t.feather"
    write_arrow(path, pa.table({"x": column}))
    content = path.read_bytes()
    assert content.count(before) == 1
    path.write_bytes(content.replace(before, after))
    assert "The data file must be readable. Got" in refused(path)


def test_damaged_names(tmp_path: Path) -> None:
    path = tmp_path / "t.feather"
    write_arrow(path, pa.table({"a name": [1, 2]}))
    content = path.read_bytes()
    path.write_bytes(content.replace(b"a name", b"a\xffname"))
    assert "a name or a text in it is not UTF-8" in refused(path)
    path.write_bytes(content.replace(b"a name", b"b name", 1))
    assert "its index has other columns than there are" in refused(path)


def test_types_without_functions_of_arrow(tmp_path: Path) -> None:
    path, rows = tmp_path / "t.arrow", 40
    runs = pa.RunEndEncodedArray.from_arrays([rows], ["a"])
    text = pa.array(["a", "b"] * 20)
    columns = {"view": text.cast(pa.string_view()), "runs": runs, "y": np.arange(rows) / 7}
    write_arrow(path, pa.table(columns))
    with pytest.raises(InvalidInputError, match="Column 'runs' has values of type run_end"):
        prepare(read_table(path), "y", name="t", source="t")
    problem, _ = prepare(read_table(path), "y", name="t", source="t", drop=["runs"])
    assert problem.feature_names == ("view=b",)


def test_times_that_python_does_not_have() -> None:
    table = pa.table({"far": pa.array([2**60] * 40, pa.timestamp("s")), "y": np.arange(40) / 7})
    with pytest.raises(InvalidInputError, match=r"such as 'a value of type timestamp\[s\]'"):
        prepare(table, "y", name="t", source="t")


def test_a_file_with_fewer_rows_than_it_says(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pa.table({"x": [1.0, 2.0], "y": [1.0, 2.0]}), path)
    rows = ParquetRows(path, "y")
    reader = pyarrow.parquet.ParquetFile.iter_batches
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            pyarrow.parquet.ParquetFile,
            "iter_batches",
            lambda *a, **k: (each for each in [*reader(*a, **k)][1:]),
        )
        with pytest.raises(InvalidInputError, match="fewer rows than its metadata say"):
            list(rows.blocks())


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".xlsx", ".parquet", ".feather"])
@pytest.mark.parametrize("make", [pipe, device, listening])
def test_files_that_are_not_regular(
    make: Callable[[Path], None], suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path(f"t{suffix}"))
    message = refused(f"t{suffix}")
    assert "a pipe, a device or a socket" in message or "No such device" in message


def many_lines(path: Path) -> None:
    path.write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 300_000))


def few_bytes_of_many_values(path: Path) -> None:
    path.write_bytes(b"a,b\n" + b"1,2\n" * 100_000)


def packed_sheet(path: Path) -> None:
    Workbook().save(path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as parts:
        parts.writestr("xl/large.xml", b" " * 2_000_000)


def far_cells(path: Path) -> None:
    book = Workbook(write_only=True)
    sheet = book.create_sheet()
    for _ in range(1001):
        sheet.append([1, *[None] * 200, 2])
    book.save(path)


def runs_of_a_value(path: Path) -> None:
    pyarrow.parquet.write_table(pa.table({"x": np.zeros(300_000), "y": np.ones(300_000)}), path)


def a_text_that_recurs(path: Path) -> None:
    text = pa.DictionaryArray.from_arrays(np.zeros(1000, np.int8), ["x" * 10_000])
    pyarrow.parquet.write_table(pa.table({"a": text}), path, store_schema=False)


def packed_columns(path: Path) -> None:
    table = pa.table({"x": np.zeros(100_000), "y": pa.nulls(100_000)})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(path), "wb") as sink:
        with pa.ipc.new_file(sink, table.schema, options=options) as writer:
            writer.write_table(table)


def rows_without_bytes(path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink:
        table = pa.table({"x": pa.nulls(200_000), "y": pa.nulls(200_000)})
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)


BOMBS: list[tuple[Callable[[Path], None], str]] = [
    (many_lines, ".csv.gz"),
    (few_bytes_of_many_values, ".csv"),
    (packed_sheet, ".xlsx"),
    (far_cells, ".xlsx"),
    (runs_of_a_value, ".parquet"),
    (a_text_that_recurs, ".parquet"),
    (packed_columns, ".feather"),
    (rows_without_bytes, ".arrow"),
]


@pytest.mark.parametrize(("make", "suffix"), BOMBS)
def test_tables_that_do_not_fit_in_memory(
    make: Callable[[Path], None], suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"t{suffix}"
    make(path)
    assert read_table_or_none(path)
    for module in (columnar, readers):
        monkeypatch.setattr(module, "available_memory", lambda: 2e6)
    assert "The data file must be a table that fits in memory. Got" in refused(path)


def read_table_or_none(path: Path) -> bool:
    """Whether the file can be used with the memory of this machine; the sheet has no table."""
    try:
        return bool(read_table(path).num_rows)
    except InvalidInputError as error:
        return "first row of names" in str(error)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_sizes_of_arrow_files_are_known_before_they_are_unpacked(
    compression: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "t.arrow"
    coded = pa.array(["red", "green"] * 3000).dictionary_encode()
    table = pa.table({"x": np.zeros(6000), "text": ["abc"] * 6000, "coded": coded})
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as sink:
        with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=2000)
    with open(path, "rb") as source:
        size = columnar.arrow_size(source)
    assert (size.rows, size.batches) == (6000, 3)
    # Buffers are padded to 8 bytes, and offsets are written once for each batch.
    assert table.nbytes <= size.unpacked < table.nbytes + 200


def test_an_arrow_file_that_ends_before_its_index_says(tmp_path: Path) -> None:
    path = tmp_path / "t.feather"
    schema = pa.schema({"x": pa.float64()})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for part in (1.0, 2.0):
            writer.write_table(pa.table({"x": [part] * 9}))
    content = path.read_bytes()
    messages = [at for at in range(0, len(content), 8) if content[at : at + 4] == b"\xff" * 4]
    # The second batch becomes the mark of the end.
    path.write_bytes(content[: messages[2] + 4] + bytes(4) + content[messages[2] + 8 :])
    assert "another number of batches than there are" in refused(path)


def test_a_line_without_end(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"a," * 600_000)
    assert "text whose first line ends within 1,048,576 bytes" in refused(path)


def test_a_sheet_with_a_row_of_any_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_MAX_SHEET_ROWS", 1000)
    path = tmp_path / "t.xlsx"
    book = Workbook()
    for row in (["a", "b"], [1, 2], [3, 4]):
        book.active.append(row)
    book.save(path)
    with zipfile.ZipFile(path) as parts:
        held = {name: parts.read(name) for name in parts.namelist()}
    with zipfile.ZipFile(path, "w") as parts:
        for name, data in held.items():
            parts.writestr(name, data.replace(b'<row r="3"', b'<row r="98765432109"'))
    assert "The sheet must be at most 1,000 rows." in refused(path)


def test_the_memory_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    free = available_memory()
    assert free > 1e6
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + 10**9
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert 0 <= available_memory() <= 1e9 + 1e8


def test_many_columns_of_one_name() -> None:
    # The 20,000th name is found without a search from _2 on, which takes minutes.
    names, notes = unique_names(["x"] * 20_000)
    assert names[-1] == "x_20000" and len(set(names)) == 20_000 and len(notes) == 1


def test_names_are_not_listed_again_for_each_column(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    names: Any = vars(Encoding)["column_names"]

    def count(self: Encoding) -> Any:
        asked.append(self)
        return names.fget(self)

    monkeypatch.setattr(Encoding, "column_names", property(count))
    table = pa.table({**{f"c{j}": np.arange(30.0) + j for j in range(200)}, "y": np.arange(30) / 7})
    prepare(table, "y", name="t", source="t")
    assert len(asked) < 10

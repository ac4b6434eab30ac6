"""Files and columns that cannot be used raise a clear error, before training where possible."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from directgp.datasets.streams import ParquetRows, Scaling
from directgp.errors import InvalidInputError
from tests.unit.datasets.streams.small_files import numbered, write

GOOD: dict[str, Any] = {"x": [1.0, 2.0, 3.0, 4.0], "y": [1, 2, 3, 4]}
TEXT = ["a", "b", "a", "b"]


def refusal(*args: Any, **options: Any) -> str:
    """Why the rows are refused when they are opened."""
    with pytest.raises(InvalidInputError) as caught:
        ParquetRows(*args, **options)
    return str(caught.value)


def refusal_met(rows: ParquetRows) -> str:
    """Why the rows are refused when they are read."""
    with pytest.raises(InvalidInputError) as caught, rows.batches(1, 0) as stream:
        for _ in range(100):
            stream.next()
    with pytest.raises(InvalidInputError, match=re.escape(str(caught.value))):
        list(rows.blocks())
    return str(caught.value)


def test_a_path_without_parquet_files_raises(tmp_path: Path) -> None:
    write(tmp_path / "some" / "flights.parquet", GOOD)
    (tmp_path / "empty").mkdir()
    absent = str(tmp_path / "some" / "flight.parquet")
    assert refusal(absent, "y") == (
        f"The data must be a file or a folder that exists. Got {absent!r}."
        " Did you mean 'flights.parquet'?"
    )
    assert refusal(tmp_path / "no" / "where", "y").endswith("Check the path.")
    assert refusal(tmp_path / "empty", "y") == (
        "The data must be Parquet files. Got none whose name ends with .parquet in"
        f" {str(tmp_path / 'empty')!r}. Name the folder that has them, or the files."
    )
    assert refusal([], "y").startswith("The data must be at least one Parquet file or folder.")
    twice = refusal([tmp_path / "some", tmp_path / "some" / "flights.parquet"], "y")
    assert "flights.parquet' more than once. Name each file once" in twice


def test_file_that_is_not_parquet_raises(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_text("x,y\n1,2\n")
    assert re.fullmatch(
        r"The data file must be readable\. Got '.*t\.parquet', with the error: .*\. Write it again,"
        r" or give it the suffix of its format\.",
        refusal(path, "y"),
    )
    write(tmp_path / "a.parquet", GOOD)
    assert "t.parquet', with the error" in refusal(tmp_path, "y")


def test_files_without_rows_raise(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", pa.table(GOOD).slice(0, 0))
    assert refusal(tmp_path, "y").startswith("The data must be at least one row. Got none in 1 fil")
    write(tmp_path / "b.parquet", GOOD)
    assert ParquetRows(tmp_path, "y").num_rows == 4


def test_unknown_column_names_raise(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", GOOD | {"price": GOOD["x"]})
    for options in ({"target": "prise"}, {"target": "y", "weights": "prise"}):
        assert refusal(path, **options) == (
            f"A column asked of {str(path)!r} must be a column of the table. Got 'prise'."
            " Did you mean 'price'?"
        )
    assert "Got 'z'. Its columns: 'x', 'y' and 'price'." in refusal(path, "y", features=["z"])
    assert "Put a single name in a list." in refusal(path, "y", features="price")
    for features in (["x", "x"], ["x", "y"]):
        assert "Columns must be used once. Got '" in refusal(path, "y", features=features)
    only = write(tmp_path / "only.parquet", {"y": [1], "t": ["a"]})
    assert refusal(only, "y") == (
        "Features must be at least one column of numbers. Got none besides the target 'y' in"
        f" {str(only)!r}. Add columns of numbers."
    )


def test_duplicate_column_names_raise(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1.0]), pa.array([2.0]), pa.array([3])], ["x", "x", "y"])
    write(tmp_path / "t.parquet", table)
    assert refusal(tmp_path, "y").startswith(
        "Columns that are used must be of different names. Got 2 of the name 'x'"
    )


@pytest.mark.parametrize(
    "values", [TEXT, pa.array(TEXT).dictionary_encode(), pa.array([1, 2, 3, 4], pa.date32())]
)
def test_columns_that_are_not_numbers_raise(tmp_path: Path, values: Any) -> None:
    path = write(tmp_path / "t.parquet", GOOD | {"t": values})
    shown = f"values of type {pa.table({'t': values}).schema.field('t').type} in {str(path)!r}"
    code = "Leave it out of features, or write it to the files as numbers."
    assert refusal(path, "y", features=["x", "t"]) == (
        f"Column 't' must be numbers. Got {shown}. {code}"
    )
    assert refusal(path, "y", weights="t").startswith("Column 't' must be numbers.")
    assert refusal(path, "t") == (
        f"The target 't' must be numbers. Got {shown}. Give positive=, the value that is class 1."
    )


def test_file_with_other_columns_raises(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", GOOD)
    other = write(tmp_path / "b.parquet", {"x": GOOD["x"], "z": GOOD["y"]})
    assert refusal(tmp_path, "y").startswith(f"A column asked of {str(other)!r} must")
    write(other, GOOD | {"x": TEXT})
    assert refusal(tmp_path, "y").startswith(
        f"Column 'x' must be numbers. Got values of type string in {str(other)!r}."
    )
    write(other, {"y": [1.5], "more": TEXT[:1], "x": [3]})
    assert ParquetRows(tmp_path, "y").num_rows == 5


def test_a_wrong_positive_class_raises(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", GOOD | {"t": TEXT, "d": pa.array([1] * 4, pa.date32())})
    assert refusal(path, "t", positive="A") == (
        "positive must be a value of the target 't'. Got 'A'. Did you mean 'a'?"
    )
    assert refusal(path, "y", positive=7).endswith("Got 7. Its values: '1', '2', '3' and '4'.")
    assert refusal(path, "y", positive="1") == (
        "positive must be a value of the target 'y', of type int64. Got '1' of type str."
    )
    assert refusal(path, "y", positive=1.5).endswith("Got 1.5 of type float.")
    assert refusal(path, "d", positive=1).startswith("The target 'd' must be classes. Got values o")
    with pytest.raises(
        InvalidInputError, match=r"standardised must be numbers. Got classes. Leave"
    ):
        ParquetRows(path, "t", positive="a").standardised(target=True)


def test_types_of_columns_that_differ_from_the_schema_do_not_end_the_process(
    tmp_path: Path,
) -> None:
    # Looking at the metadata of such a column ends the process; reading it raises an error.
    path = write(tmp_path / "t.parquet", GOOD)
    content = path.read_bytes()
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    refused = 0
    for at in range(start, start + 50):
        path.write_bytes(content[:at] + bytes([content[at] ^ 2]) + content[at + 1 :])
        try:
            list(ParquetRows(path, "y").blocks())
        except InvalidInputError:
            refused += 1
    assert refused > 10


@pytest.mark.parametrize("column", ["x", "y", "w"])
@pytest.mark.parametrize(
    ("bad", "shown"),
    [(None, "a missing value"), (np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")],
)
def test_bad_values_raise_when_read(
    tmp_path: Path, column: str, bad: float | None, shown: str
) -> None:
    allowed = "without missing values" if bad is None else "finite in float64"
    columns = {"x": [1.0] * 7, "y": [2.0] * 7, "w": [3.0] * 7} | {column: [1.0] * 5 + [bad, 1.0]}
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pa.table(columns), path, row_group_size=2, write_statistics=False)
    assert refusal_met(ParquetRows(path, "y", weights="w", buffer_rows=3)) == (
        f"Column {column!r} must be {allowed}. Got {shown} in row 6"
        f" of {str(path)!r} (row group 3)."
        " Fill in or leave out such rows when you write the file."
    )


def test_negative_weights_and_overflow_raise_when_read(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", GOOD | {"w": [1.0, 1.0, -1.0, 1.0]})
    assert "Got a weight below 0 in row 3 of" in refusal_met(ParquetRows(path, "y", weights="w"))
    path = write(tmp_path / "t.parquet", GOOD | {"x": [1.0, 1e39, 0.0, 0.0]})
    assert "must be finite in float32. Got 1e+39 in row 2 of" in refusal_met(
        ParquetRows(path, "y", dtype="float32")
    )
    path = write(tmp_path / "t.parquet", GOOD | {"y": [1.0, np.nan, 0.0, 0.0]})
    assert "Column 'y' must be finite" in refusal_met(ParquetRows(path, "y", positive=1.0))


def test_impossible_scalings_raise(tmp_path: Path) -> None:
    rows = ParquetRows(write(tmp_path / "t.parquet", GOOD | {"x": [1e200, -1e200, 0.0, 0.0]}), "y")
    with pytest.raises(InvalidInputError, match=r"'x' must be of numbers whose squares are finite"):
        rows.standardised()
    tiny = ParquetRows(write(tmp_path / "tiny.parquet", GOOD | {"x": [1e-200, 0.0, 0.0, 0.0]}), "y")
    words = r"'x' must be of numbers whose squares are not 0\. .* Give it in a smaller unit\."
    with pytest.raises(InvalidInputError, match=words):
        tiny.standardised()
    with pytest.raises(InvalidInputError, match=r"scaling must be of 1 features, as the rows are"):
        rows.scaled(Scaling((0.0, 0.0), (1.0, 1.0)))
    path = write(tmp_path / "w.parquet", GOOD | {"w": [0, 0, 0, 0]})
    with pytest.raises(InvalidInputError, match=r"Weights must be positive somewhere"):
        ParquetRows(path, "y", weights="w").standardised()


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    number = np.random.default_rng(0).standard_normal(200_000)
    path = write(tmp_path / "t.parquet", {"x": number, "y": number})
    rows = ParquetRows(path, "y")
    blocks = rows.blocks(1000)
    next(blocks)
    size = path.stat().st_size
    os.truncate(path, size // 3)
    with pytest.raises(InvalidInputError, match=r"readable\. Got '.*t.parquet', with the error"):
        list(blocks)
    with pytest.raises(InvalidInputError, match=r"t.parquet' must be unchanged while it is read"):
        list(rows.blocks())
    path.unlink()
    with rows.batches(10, 0) as stream, pytest.raises(InvalidInputError, match="with the error"):
        stream.next()


def test_a_file_with_other_row_groups(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", GOOD)
    rows = ParquetRows(path, "y")
    write(path, GOOD, group=3)
    with pytest.raises(
        InvalidInputError, match=r"Got another size or other row groups. Start agai"
    ):
        list(rows.blocks())


@pytest.mark.parametrize(
    ("number", "seed", "message"),
    [
        (0, 0, "sample must be from 1 to the number of rows, 20. Got 0."),
        (21, 0, "sample must be from 1 to the number of rows, 20. Got 21."),
        (1, -1, "seed of a sample must be at least 0. Got -1."),
    ],
)
def test_an_impossible_sample_raises(tmp_path: Path, number: int, seed: int, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        numbered(tmp_path, [[20]]).sample(number, seed)


def test_buffers_and_blocks_without_rows_raise(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="buffer_rows of ParquetRows must be at least 1"):
        numbered(tmp_path, [[20]], buffer_rows=0)
    with pytest.raises(InvalidInputError, match=r"rows of a block must be at least 1. Got 0"):
        numbered(tmp_path, [[20]]).blocks(0)

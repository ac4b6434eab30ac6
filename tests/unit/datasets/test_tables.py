"""Tables read from files equal those written, or raise a clear error."""

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from openpyxl import Workbook

from directgp.datasets.dialect import Reading, guess_encoding
from directgp.datasets.tables import SUFFIXES, open_table, read_table, stem_of
from directgp.errors import InvalidInputError

ROWS: list[dict[str, Any]] = [
    {"x.1": 1.5, "sex": "M", "name": 'said "no",\ntwice', "n": 3, "flag": True},
    {"x.1": None, "sex": None, "name": "Zoë; über", "n": 0, "flag": False},
    {"x.1": -2e-300, "sex": "F", "name": "tab\there", "n": -7, "flag": True},
]
TABLE = pa.Table.from_pylist(ROWS)


def write_text(path: Path, delimiter: str = ",", encoding: str = "utf-8", end: str = "\n") -> None:
    """By Python's own writer, which knows nothing of Arrow."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", newline="", encoding=encoding) as stream:
        writer = csv.writer(stream, delimiter=delimiter, lineterminator=end)
        writer.writerow(TABLE.column_names)
        writer.writerows(
            ["NA" if value is None else value for value in row.values()] for row in ROWS
        )


def write(path: Path) -> None:
    if path.suffix in (".parquet", ".pq"):
        pyarrow.parquet.write_table(TABLE, path)
    elif path.suffix == ".xlsx":
        book = Workbook()
        for row in (TABLE.column_names, *(list(row.values()) for row in ROWS)):
            book.active.append(row)
        book.save(path)
    elif path.suffix in (".feather", ".arrow", ".ipc"):
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, TABLE.schema) as writer:
            writer.write_table(TABLE)
    else:
        write_text(path, "\t" if ".tsv" in path.name else ",")


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".CSV", ".Parquet"])
def test_every_format(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"house.v2{suffix}"
    write(tmp_path / f"low{suffix.lower()}")
    (tmp_path / f"low{suffix.lower()}").rename(path)
    assert read_table(path).to_pylist() == ROWS
    some = read_table(str(path), ["n", "x.1"])
    assert some.to_pylist() == [{"n": row["n"], "x.1": row["x.1"]} for row in ROWS]
    assert open_table(path).names == tuple(ROWS[0])
    assert stem_of(path) == "house.v2"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # A workbook that is written row by row has rows of different lengths.
        ([["a", "b"], [1], [2, 3.5]], {"a": [1, 2], "b": [None, 3.5]}),
        ([["a", "b"], [1, 2], [3, False]], {"a": [1, 3], "b": ["2", "False"]}),
        ([["a", "b"], [1, 2.5], [3, True]], {"a": [1, 3], "b": ["2.5", "True"]}),
    ],
)
def test_sheets_with_odd_cells(
    rows: list[Any], expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.xlsx"
    book = Workbook(write_only=True)
    sheet = book.create_sheet()
    for row in rows:
        sheet.append(row)
    book.save(path)
    closed: list[Any] = []
    monkeypatch.setattr(Workbook, "close", lambda self: closed.append(self))
    assert read_table(path).to_pydict() == expected
    assert len(closed) == 1


def test_a_stream_of_arrow(tmp_path: Path) -> None:
    path = tmp_path / "t.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)
    assert read_table(path).to_pylist() == ROWS


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_dialects_of_text(delimiter: str, encoding: str, end: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    write_text(path, delimiter, encoding, end)
    assert read_table(path).to_pylist() == ROWS


@pytest.mark.parametrize("mark", ["", "NA", "N/A", "null", "NaN", "nan", "?", " ?", '"NA"'])
def test_missing_values_of_text(mark: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"number,text\n1,x\n{mark},{mark}\n2.5, y \n")
    table = read_table(path)
    assert table.to_pydict() == {"number": [1.0, None, 2.5], "text": ["x", None, "y"]}


@pytest.mark.parametrize(
    ("content", "expected", "note"),
    [
        (
            "a;b\n1,5;x\n2;y\n",
            {"a": [1.5, 2.0], "b": ["x", "y"]},
            "Numbers are read with a decimal",
        ),
        ("a|b\n1.5|x\n", {"a": [1.5], "b": ["x"]}, ""),
        ("a,b,a\n1,2,3\n", {"a": [1], "b": [2], "a_2": [3]}, "Columns of the same name were"),
        (
            "Title\n\na,b\n1,2\n3,4\n",
            {"a": [1, 3], "b": [2, 4]},
            "Left out 2 lines above the names",
        ),
        (
            "a b,c\n1,2,3\n4,5,6\n",
            {"Unnamed: 0": [1, 4], "a b": [2, 5], "c": [3, 6]},
            "The first column has no name",
        ),
        ("a,b\n1,2,\n3,4,\n", {"a": [1, 3], "b": [2, 4], "Unnamed: 2": [None, None]}, ""),
        (
            "a,b\n1,2,\n3,4,5\n",
            {"Unnamed: 0": [1, 3], "a": [2, 4], "b": [None, 5]},
            "The first column has no name",
        ),
        ('a,b\n"0,637",x\n', {"a": [0.637], "b": ["x"]}, "Numbers are read with a decimal comma"),
        ("a;;b;\n1;2;3;\n", {"a": [1], "Unnamed: 1": [2], "b": [3], "Unnamed: 3": [None]}, ""),
    ],
)
def test_what_is_guessed_is_said(
    content: str, expected: dict[str, list[Any]], note: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content)
    table = open_table(path)
    assert table.read().to_pydict() == expected
    assert table.notes[0].startswith(note) if note else not table.notes


@pytest.mark.parametrize("encoding", ["utf-16", "cp1252", "latin-1"])
def test_encodings_are_guessed(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    # In Latin-1 alone, the byte 0x81 is a character.
    name = "Zürich\x81" if encoding == "latin-1" else "Zürich"
    path.write_bytes(("a,b\n" + "1,x\n" * 400_000 + f"1,{name}\n").encode(encoding))
    table = open_table(path)
    assert table.read(["b"]).column("b")[-1].as_py() == name
    assert table.notes == (f"The file is not UTF-8; it is read as {encoding}.",)


@pytest.mark.parametrize(
    ("blocks", "encoding"),
    [
        ([b"a\xc3", b"\xbc"], "utf-8"),
        ([b"a\xc3"], "cp1252"),
        ([b"a", b"\xfc", b"b"], "cp1252"),
        # Valid in UTF-8, and what follows is not; the byte 0x81 is in Latin-1 alone.
        ([b"\xc3\x81", b"\xfc"], "latin-1"),
        ([b"a", b"\xfc", b"\x81"], "latin-1"),
    ],
)
def test_encodings_of_blocks(blocks: list[bytes], encoding: str) -> None:
    assert guess_encoding(blocks, "t.csv") == encoding


def test_a_file_is_not_read_as_a_whole_to_guess_its_encoding() -> None:
    def blocks() -> Iterator[bytes]:
        yield b"a\0"
        pytest.fail("The first block decides.")

    with pytest.raises(InvalidInputError, match="must be text"):
        guess_encoding(blocks(), "t.csv")


def test_what_is_known_of_a_file_is_not_guessed(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("1,234;é;7\n2,5;é;8\n".encode("cp437"))
    reading = Reading(decimal=".", encoding="cp437", header=False)
    table = open_table(path, reading)
    assert table.read().to_pydict() == {"x1": ["1,234", "2,5"], "x2": ["é", "é"], "x3": [7, 8]}
    assert table.notes == ()
    with pytest.raises(InvalidInputError, match="--encoding must be that of"):
        open_table(path, Reading(encoding="ascii")).read()


@pytest.mark.parametrize("encoding", ["UTF-8", "utf8", "utf-8", "utf-16-le", "utf-16"])
@pytest.mark.parametrize("header", [True, False])
def test_a_byte_order_mark_is_no_text(encoding: str, header: bool, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    mark = "" if encoding == "utf-16" else "\ufeff"
    path.write_bytes(f"{mark}a,b\n1,2\n".encode(encoding))
    table = open_table(path, Reading(encoding=encoding, header=header))
    expected = {"a": [1], "b": [2]} if header else {"x1": ["a", "1"], "x2": ["b", "2"]}
    assert table.read().to_pydict() == expected


def test_spaces_around_names(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(" a , b\n1,2\n")
    assert read_table(path).to_pydict() == {"a": [1], "b": [2]}
    assert read_table(path, ["b"]).to_pydict() == {"b": [2]}


def test_types_are_inferred_from_all_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    # More than a block of Arrow's, so that the first one alone says "whole numbers".
    path.write_text("a\n" + "123456\n" * 1_300_000 + "0.5\n")
    last = read_table(path).column("a")[-1].as_py()
    assert last == 0.5


def test_columns_as_written(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("code,x\n007,1\nNA,2\n 12,?\n")
    table = open_table(path).read(as_text=["code"])
    assert table.to_pydict() == {"code": ["007", "NA", " 12"], "x": [1, 2, None]}
    assert read_table(path).to_pydict()["code"] == [7, None, 12]


BAD_FILES: list[tuple[str, bytes, str]] = [
    ("t.csv", b"", "The data file must be a table with a first row of names. Got an empty file"),
    (
        "t.csv",
        b"\n\n",
        "The data file must be a table with a first row of names. Got an empty file",
    ),
    (
        "t.csv",
        b"a,b\n1,2\n3\n4,5\n",
        "Each row must have 2 values, one for each column. In 't.csv', row 2 has 1. Correct"
        " them, or leave them out with --missing drop.",
    ),
    ("t.tsv", b"a\tb\n1\t2\n1\t2\t3\n", "one for each column. In 't.tsv', row 2 has 3."),
    ("t.csv", b"a,b\n" + b"1,x\n" * 400_000 + b"\xe9\n", "In 't.csv', row 400001 has 1."),
    ("t.csv", b"PK\x03\x04\x00\x00", "The data file must be text. Got other bytes in 't.csv'."),
    ("t.csv.gz", b"a,b\n1,2\n", "The data file must be readable. Got 't.csv.gz', with the error: "),
    (
        "t.csv.gz",
        gzip.compress(b"a,b\n1,2\n", mtime=0)[:-9],
        "The data file must be readable. Got 't.csv.gz'",
    ),
    ("t.parquet", b"", "The data file must be readable. Got 't.parquet', with the error: "),
    ("t.parquet", b"a,b\n1,2\n" * 9, "Write it again, or give it the suffix of its format."),
    ("t.feather", b"", "The data file must be readable. Got 't.feather', with the error: "),
    (
        "t.feather",
        b"FEA1" + b"\0" * 99,
        "The data file must be readable. Got 't.feather', with the error: ",
    ),
    (
        "t.arrow",
        b"ARROW1\0\0garbage",
        "The data file must be readable. Got 't.arrow', with the error: ",
    ),
    ("t.xlsx", b"PK", "The data file must be a workbook. Got 't.xlsx', with the error: "),
    (
        "t.xls",
        b"PK",
        "The data file must be CSV (.csv, .tsv or .txt, also with .gz), Excel (.xlsx), Parquet"
        " (.parquet, .pq) or Feather (.feather, .arrow, .ipc). Got 't.xls'. Save the sheet as"
        " .xlsx.",
    ),
    (
        "t.json",
        b"{}",
        "Got 't.json'. Rename it if it is one of these, or write it again as CSV.",
    ),
]


@pytest.mark.parametrize(("name", "content", "words"), BAD_FILES)
def test_files_that_are_refused(
    name: str, content: bytes, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(content)
    with pytest.raises(InvalidInputError) as refusal:
        read_table(name)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_damage_within_a_file(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pa.table({"a": list(range(1000))}), path)
    content = bytearray(path.read_bytes())
    content[20:400] = b"\xff" * 380
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match="The data file must be readable"):
        read_table(path)


def test_paths_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("houses.csv").write_text("a\n1\n")
    words = {
        "house.csv": "The data file must be a file that exists. Got 'house.csv'. Did you mean"
        " 'houses.csv'?",
        "nothing/like.it": "The data file must be a file that exists. Got 'nothing/like.it'. Check"
        " the path.",
        ".": "The data file must be a file. Got the folder '.'. Name one of the files in it, such"
        " as 'houses.csv'.",
    }
    for path, expected in words.items():
        with pytest.raises(InvalidInputError) as refusal:
            read_table(path)
        assert str(refusal.value) == expected


def test_columns_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("t.csv", "t.parquet", "t.feather"):
        write(Path(name))
        with pytest.raises(InvalidInputError) as refusal:
            read_table(name, ["n", "Sexx"])
        assert str(refusal.value) == (
            f"A column of {name!r} must be a column of the table. Got 'Sexx'. Did you mean 'sex'?"
        )

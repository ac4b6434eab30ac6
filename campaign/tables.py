"""Read damaged and hostile tables of every format, and prepare them for training.

A trial makes one table and takes it the whole way in its process: all columns, the problem of a
target, the features of the same table as new data, and the stream of a Parquet file. It holds if
each step works or is refused in one sentence that is safe to print.
"""

import datetime
import gzip
import io
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet

from campaign.trials import HELD, Trial
from directgp.cli.data import open_data
from directgp.cli.options import DataOptions
from directgp.datasets.streams import ParquetRows
from directgp.datasets.tables import SUFFIXES, read_table
from directgp.errors import DirectGPError

SUMS = ("read", "refused")

ROWS = 40

NAMES = (
    *("x", "", " ", "a,b", 'say "hi"', "'", "--drop", "=1+1", "@SUM(A1)", "x=a", "nan", "y", "1"),
    *(
        "\x1b[31mred",
        "\x1b]0;title\x07",
        "\x9b2J",
        "\x00",
        "\r",
        "new\nline",
        "tab\t",
        "\u202eevil",
    ),
    *(
        "\u200b",
        "\ufeffx",
        "é" * 300,
        "x" * 5000,
        "$x^{$",
        "<script>",
        "日本",
        "😀",
        "\ud7ff",
        "\uffff",
    ),
)

TEXTS = (
    *("", "NA", "1,5", "1.234,5", "$1e999", "1e400", "-0", "٣", "²", "∞", "true", "31.12.2020"),
    *(
        "0000-00-00",
        "9999-12-31T23:59:59",
        "0001-01-01T00:00:00+23:59",
        "(1)",
        "=cmd()",
        *NAMES[13:],
    ),
)

HOSTILE_WORDS = (0, 1, -1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 2**32, 255, 8, 2**40)


def attack(number: int) -> Trial:
    random = np.random.default_rng([24, number])
    form = str(random.choice(list(WRITERS)))
    damage = str(random.choice(list(DAMAGES)))
    kind = f"{form}, {damage}"
    data = DAMAGES[damage](WRITERS[form](_table(random), random), random)
    suffix = f".{form.split(' ')[0]}"
    if damage == "suffix":
        suffix = str(random.choice(SUFFIXES))
    done = {"read": 0, "refused": 0}
    with tempfile.TemporaryDirectory(prefix="directgp-tables.") as folder:
        path = Path(folder) / f"table{suffix}"
        path.write_bytes(data)
        for name, step in _steps(path, random):
            try:
                with warnings.catch_warnings():
                    # Warnings of openpyxl about parts of a workbook that it ignores.
                    warnings.simplefilter("ignore")
                    step()
                done["read"] += 1
            except DirectGPError as error:
                wrong = _unfit(str(error))
                if wrong:
                    return Trial(kind, "traceback", f"{name}: {wrong}: {str(error)[:300]!r}", done)
                done["refused"] += 1
            except Exception as error:
                seen = f"{name}: {type(error).__name__}: {str(error)[:300]!r}"
                return Trial(kind, "traceback", seen, done)
    return Trial(kind, HELD, facts=done)


def _unfit(message: str) -> str:
    """Return what is wrong with a message, empty if it is safe and a sentence."""
    if not message.replace("\u2026", "").isprintable():
        return "control characters"
    if len(message) > 300_000:
        return "a long message"
    return "" if message.endswith((".", "?", "…")) else "no sentence"


def _steps(path: Path, random: np.random.Generator) -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "read_table", lambda: read_table(path)
    options: Any = DataOptions(
        data=str(path),
        target=str(random.choice(["y", "label", "x"])),
        missing=random.choice(["error", "drop", "level", "impute"]),
        dates=random.choice(["error", "days", "dmy"]),
        categories=["i"] if random.random() < 0.2 else None,
    )

    def prepare() -> None:
        opened = open_data(options, "fit" if random.random() < 0.7 else "compare")
        opened.problem.fingerprint()
        again = opened.encoding.encode(read_table(path))
        if not np.array_equal(again.X[opened.problem.rows], opened.problem.X, equal_nan=True):
            raise ValueError("the same table has other features as new data")

    yield "open_data", prepare
    if path.name.endswith((".parquet", ".pq")):

        def stream() -> None:
            for batch in ParquetRows(path, "y").blocks(16):
                if not np.isfinite(batch.X).all():
                    raise ValueError("a number of a stream is not finite")

        yield "ParquetRows", stream


def _table(random: np.random.Generator) -> pa.Table:
    """Return a table with columns of many types, some with hostile names and values."""
    rows = int(random.choice([0, 1, 7, ROWS, ROWS, ROWS]))
    x = random.normal(size=rows)
    hostile = random.random() < 0.4
    columns: dict[str, Any] = {"x": x, "i": random.integers(0, 5, rows), "y": x + 0.1}
    columns["label"] = random.choice(["yes", "no", "perhaps"], rows).tolist()
    for name, make in COLUMNS.items():
        if random.random() < 0.3:
            columns[name] = make(random, rows)
    if random.random() < 0.3:
        gaps = random.random(rows) < 0.2
        columns["gaps"] = pa.array(x, mask=gaps)
    if hostile:
        for name in random.choice(NAMES, 3).tolist():
            columns[name] = random.choice(TEXTS, rows).tolist()
        columns["values"] = random.choice([1e308, -1e308, 5e-324, np.inf, np.nan, 0.0], rows)
    if random.random() < 0.03:
        columns |= {f"w{j}": random.normal(size=rows) for j in range(3000)}
    return pa.table(columns)


def _texts(random: np.random.Generator, rows: int) -> pa.Array:
    return pa.array(random.choice(["a", "bb", "ccc", "déjà"], rows).tolist(), pa.string())


def _times(random: np.random.Generator, rows: int) -> list[datetime.datetime]:
    days = random.integers(0, 3000, rows).tolist()
    return [datetime.datetime(2020, 1, 1) + datetime.timedelta(day) for day in days]


def _masked(values: pa.Array, random: np.random.Generator) -> pa.Array:
    gaps = pa.array(random.random(len(values)) < 0.3)
    return pa.compute.if_else(gaps, pa.scalar(None, values.type), values)


COLUMNS: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "text": _texts,
    "gappy text": lambda random, rows: _masked(_texts(random, rows), random),
    "large": lambda random, rows: _texts(random, rows).cast(pa.large_string()),
    "view": lambda random, rows: _texts(random, rows).cast(pa.string_view()),
    "coded": lambda random, rows: _texts(random, rows).dictionary_encode(),
    "gappy coded": lambda random, rows: _masked(_texts(random, rows), random).dictionary_encode(),
    "bool": lambda random, rows: random.random(rows) < 0.5,
    "day": lambda random, rows: pa.array(_times(random, rows)).cast(pa.date32()),
    "when": lambda random, rows: pa.array(_times(random, rows)),
    "zoned": lambda random, rows: pa.array(_times(random, rows), pa.timestamp("us", "UTC")),
    "decimal": lambda random, rows: pa.array(random.integers(0, 99, rows)).cast(
        pa.decimal128(30, 2)
    ),
    "half": lambda random, rows: random.normal(size=rows).astype(np.float16),
    "list": lambda random, rows: pa.array([[1, 2]] * rows, pa.list_(pa.int64())),
    "struct": lambda random, rows: pa.array(
        [{"a": 1, "b": "x"}] * rows, pa.struct({"a": pa.int64(), "b": pa.string()})
    ),
    "bytes": lambda random, rows: pa.array([b"\xff\x00"] * rows, pa.binary()),
    "empty": lambda random, rows: pa.nulls(rows),
    "runs": lambda random, rows: pa.compute.run_end_encode(_texts(random, rows)),
    "bytes view": lambda random, rows: pa.array([b"a"] * rows, pa.binary_view()),
    "map": lambda random, rows: pa.array([[("a", 1)]] * rows, pa.map_(pa.string(), pa.int64())),
    "wide decimal": lambda random, rows: pa.array(random.integers(0, 99, rows)).cast(
        pa.decimal256(60, 2)
    ),
    "clock": lambda random, rows: pa.array(random.integers(0, 86_400, rows), pa.int32()).cast(
        pa.time32("s")
    ),
    "duration": lambda random, rows: pa.array(random.integers(0, 99, rows), pa.duration("ms")),
    "far": lambda random, rows: pa.array(random.integers(-(2**62), 2**62, rows), pa.timestamp("s")),
    "coded numbers": lambda random, rows: pa.array(random.integers(0, 5, rows)).dictionary_encode(),
    "coded days": lambda random, rows: pa.array(_times(random, rows)).dictionary_encode(),
    "fixed": lambda random, rows: pa.array([b"ab"] * rows, pa.binary(2)),
    "sparse": lambda random, rows: pa.UnionArray.from_sparse(
        pa.array(random.integers(0, 2, rows), pa.int8()),
        [pa.array(np.zeros(rows)), _texts(random, rows)],
    ),
    "uuid": lambda random, rows: pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([b"0" * 16] * rows, pa.binary(16))
    ),
    "unsigned": lambda random, rows: random.integers(0, 2**63, rows).astype(np.uint64),
}

NESTED = (
    *("list", "struct", "bytes", "runs", "bytes view", "map", "fixed", "sparse", "uuid", "far"),
    *("duration", "wide decimal"),
)
"""Columns that text files and workbooks cannot have."""

NOT_PARQUET = ("view", "runs", "bytes view", "sparse", "duration", "far")
"""Columns that Parquet files cannot have."""


def _flat(table: pa.Table) -> pa.Table:
    """Return the table with values that a text file or a workbook can have."""
    plain = table.select([name for name in table.column_names if name not in NESTED])

    def flat(column: pa.ChunkedArray) -> pa.ChunkedArray:
        kind = column.type
        if pa.types.is_dictionary(kind):
            return column.cast(kind.value_type)
        if kind in (pa.large_string(), pa.string_view()):
            return column.cast(pa.string())
        return column.cast(pa.float32()) if kind == pa.float16() else column

    return pa.table([flat(column) for column in plain.columns], names=plain.column_names)


def _csv(table: pa.Table, random: np.random.Generator) -> bytes:
    mark = str(random.choice([",", ";", "\t", "|"]))
    out = io.BytesIO()
    pyarrow.csv.write_csv(_flat(table), out, pyarrow.csv.WriteOptions(delimiter=mark))
    data = out.getvalue()
    encoding = str(random.choice(["utf-8", "utf-8", "utf-16", "utf-8-sig", "latin-1", "cp1252"]))
    return data.decode().encode(encoding, "replace")


def _xlsx(table: pa.Table, random: np.random.Generator) -> bytes:
    from openpyxl import Workbook
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    def cell(value: Any) -> Any:
        if isinstance(value, str):
            value = ILLEGAL_CHARACTERS_RE.sub("", value)[:30_000]
        if isinstance(value, datetime.datetime):
            value = value.replace(tzinfo=None)
        return value

    book = Workbook()
    flat = _flat(table)
    flat = flat.select(flat.column_names[:50])
    for row in [flat.column_names, *zip(*(c.to_pylist() for c in flat.columns), strict=True)]:
        book.active.append([cell(value) for value in row])
    out = io.BytesIO()
    book.save(out)
    if random.random() < 0.5:
        return out.getvalue()
    # Without compression, damage reaches the XML; with a wrong checksum it is refused sooner.
    plain = io.BytesIO()
    with zipfile.ZipFile(out) as packed, zipfile.ZipFile(plain, "w") as unpacked:
        for name in packed.namelist():
            unpacked.writestr(name, packed.read(name))
    return plain.getvalue()


def _parquet(table: pa.Table, random: np.random.Generator) -> bytes:
    out = io.BytesIO()
    compression = str(random.choice(["none", "snappy", "gzip", "zstd", "lz4"]))
    groups = int(random.choice([10, 1000]))
    table = table.select([name for name in table.column_names if name not in NOT_PARQUET])
    pyarrow.parquet.write_table(
        table,
        out,
        compression=compression,
        row_group_size=groups,
        use_dictionary=bool(random.random() < 0.5),
        data_page_version=str(random.choice(["1.0", "2.0"])),
        write_page_checksum=False,
    )
    return out.getvalue()


def _feather(compression: str) -> Callable[[pa.Table, np.random.Generator], bytes]:
    def write(table: pa.Table, random: np.random.Generator) -> bytes:
        out = io.BytesIO()
        options = pa.ipc.IpcWriteOptions(compression=compression or None)
        chunk = int(random.choice([10, 1000]))
        table = table.unify_dictionaries()
        with pa.ipc.new_file(out, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=chunk)
        return out.getvalue()

    return write


def _stream(table: pa.Table, random: np.random.Generator) -> bytes:
    out = io.BytesIO()
    compression = random.choice(np.array([None, "lz4"], dtype=object))
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(out, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=int(random.choice([10, 1000])))
    return out.getvalue()


WRITERS: dict[str, Callable[[pa.Table, np.random.Generator], bytes]] = {
    "csv": _csv,
    "csv.gz": lambda table, random: gzip.compress(_csv(table, random), 1, mtime=0),
    "xlsx": _xlsx,
    "parquet": _parquet,
    "feather": _feather(""),
    "feather lz4": _feather("lz4"),
    "feather zstd": _feather("zstd"),
    "arrow": _stream,
}


def _flips(data: bytes, random: np.random.Generator) -> bytes:
    damaged = bytearray(data)
    for _ in range(int(random.choice([1, 1, 1, 3, 30]))):
        damaged[_place(damaged, random)] ^= 1 << int(random.integers(8))
    return bytes(damaged)


def _words(data: bytes, random: np.random.Generator) -> bytes:
    damaged, size = bytearray(data), int(random.choice([1, 2, 4, 8]))
    for _ in range(int(random.choice([1, 1, 3]))):
        word = int(random.choice(np.array(HOSTILE_WORDS, dtype=object))) % 2 ** (8 * size)
        at = _place(damaged, random) // size * size
        damaged[at : at + size] = word.to_bytes(size, "little")
    return bytes(damaged)


def _place(data: bytearray, random: np.random.Generator) -> int:
    """Return a place; half of them near the ends, where formats keep their metadata."""
    n = max(1, len(data))
    near = min(n, 2_000)
    which = random.random()
    if which < 0.5:
        return int(random.integers(n))
    return int(random.integers(near)) if which < 0.7 else n - 1 - int(random.integers(near))


def _spliced(data: bytes, random: np.random.Generator) -> bytes:
    a, b, c = sorted(random.integers(0, len(data) + 1, 3).tolist())
    return random.choice(  # type: ignore[no-any-return]
        np.array(
            [
                data[:a] + data[b:],
                data[:b] + data[a:],
                data[:a] + data[b:c] + data[a:b] + data[c:],
                data[:a] + random.bytes(int(random.integers(1, 50))) + data[a:],
                data + data,
            ],
            dtype=object,
        )
    )


DAMAGES: dict[str, Callable[[bytes, np.random.Generator], bytes]] = {
    "whole": lambda data, random: data,
    "flips": _flips,
    "words": _words,
    "truncated": lambda data, random: data[: int(random.integers(len(data) + 1))],
    "spliced": _spliced,
    "suffix": lambda data, random: data,
}

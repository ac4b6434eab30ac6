"""Tables written to files block by block, and put in place in one step."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet

from directgp.cli.places import draft_of

Write = Callable[[pa.Table], None]


@contextmanager
def writing(out: Path, schema: pa.Schema) -> Iterator[Write]:
    """Write a table in the format of the suffix; nothing is left behind if that fails."""
    # A link stays a link: what it points to is replaced.
    place = Path(os.path.realpath(out))
    draft = draft_of(place)
    try:
        with ExitStack() as stack:
            yield _writer(stack, draft, out.name.lower(), schema)
        with open(draft, "rb+") as file:
            os.fsync(file.fileno())
        draft.replace(place)
    finally:
        draft.unlink(missing_ok=True)


def _writer(stack: ExitStack, draft: Path, name: str, schema: pa.Schema) -> Write:
    sink: Any = stack.enter_context(pa.OSFile(str(draft), "wb"))
    if name.endswith(".gz"):
        sink = stack.enter_context(pa.CompressedOutputStream(sink, "gzip"))
    writer: Any
    if name.endswith(".parquet"):
        writer = pyarrow.parquet.ParquetWriter(sink, schema)
    elif name.endswith(".feather"):
        writer = pyarrow.ipc.new_file(sink, schema)
    else:
        mark = "\t" if ".tsv" in name[-len(".tsv.gz") :] else ","
        options = pyarrow.csv.WriteOptions(delimiter=mark, quoting_style="needed")
        writer = pyarrow.csv.CSVWriter(sink, schema, write_options=options)
    write: Write = stack.enter_context(writer).write_table
    return write

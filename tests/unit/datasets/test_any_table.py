"""Any table becomes a problem or raises a clear error."""

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from directgp.datasets.encoding import Encoding
from directgp.datasets.problem import prepare
from directgp.datasets.tables import open_table, read_table
from directgp.errors import InvalidInputError

ROWS = 12

VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "float": (pa.float64(), st.floats(width=64)),
    "tame": (pa.float64(), st.integers(-3, 3).map(lambda k: k / 2)),
    "small": (pa.float32(), st.floats(width=32)),
    "int": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "count": (pa.int32(), st.integers(0, 5)),
    "bool": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.text(max_size=5)),
    "level": (pa.string(), st.sampled_from(["x", "z", "", "1,5", "yes"])),
    "decimal": (pa.decimal128(8, 2), st.decimals(-999, 999, places=2)),
    "date": (pa.date32(), st.dates()),
    "bytes": (pa.binary(), st.binary(max_size=3)),
    "list": (pa.list_(pa.int8()), st.lists(st.integers(0, 9), max_size=2)),
    "nothing": (pa.null(), st.none()),
}


@st.composite
def columns(draw: st.DrawFn) -> pa.ChunkedArray:
    kind, values = VALUES[draw(st.sampled_from(sorted(VALUES)))]
    if draw(st.integers(0, 3)) == 0:
        values = values | st.none()
    # A few values that recur are likelier to be usable than as many as there are rows.
    pool = draw(st.lists(values, min_size=1, max_size=6))
    picks = draw(st.lists(st.sampled_from(pool), min_size=ROWS, max_size=ROWS))
    column = pa.array(picks, kind)
    if pa.types.is_string(kind) and draw(st.booleans()):
        column = column.dictionary_encode()
    return pa.chunked_array([column[:5], column[5:]])


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(
    table=st.dictionaries(st.text(max_size=3), columns(), min_size=1, max_size=3),
    target=columns(),
    task=st.sampled_from([None, "regression", "classification", "count"]),
    missing=st.sampled_from(["error", "drop", "level", "impute"]),
    dates=st.sampled_from(["error", "days", "dmy", "mdy"]),
    positive=st.sampled_from([None, "x", "1"]),
)
def test_any_table_gives_a_problem_or_an_error(
    table: dict[str, Any], target: Any, task: Any, missing: Any, dates: Any, positive: str | None
) -> None:
    arrow = pa.table({**table, "the target": target})
    try:
        problem, encoding = prepare(
            arrow,
            "the target",
            task=task,
            name="t",
            source="t",
            missing=missing,
            dates=dates,
            positive=positive,
        )
    except InvalidInputError as refusal:
        assert str(refusal).endswith((".", "?"))
        return
    assert problem.X.shape == (len(problem.y), len(problem.feature_names))
    known = problem.X[~np.isnan(problem.X)] if missing == "impute" else problem.X
    assert np.isfinite(known).all() and np.isfinite(problem.y).all()
    assert len(set(problem.feature_names)) == len(problem.feature_names) > 0
    assert np.ptp(problem.y) > 0
    again = Encoding.model_validate_json(encoding.model_dump_json())
    encoded = again.encode(arrow.take(problem.rows))
    assert encoded.usable.all() and np.array_equal(encoded.X, problem.X, equal_nan=True)


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(
    content=st.lists(
        st.sampled_from(
            [b"a", b"1.5", b",", b";", b"\t", b'"', b"\n", b"\r\n", b" ", b"\xe9", b"\0"]
        ),
        max_size=20,
    ),
    start=st.sampled_from([b"", b"\xef\xbb\xbf", b"a,b\n", b"\xff\xfe"]),
    suffix=st.sampled_from([".csv", ".tsv", ".txt"]),
)
def test_any_file_gives_a_table_or_an_error(
    content: list[bytes], start: bytes, suffix: str, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / f"any{suffix}"
    path.write_bytes(start + b"".join(content))
    try:
        table = read_table(path)
    except InvalidInputError as refusal:
        assert str(refusal).endswith((".", "?"))
        return
    assert tuple(table.column_names) == open_table(path).names

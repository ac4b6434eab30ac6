"""Features of the training table and of new tables."""

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from directgp.datasets.encoding import CategoryColumn, Encoding, NumberColumn
from tests.unit.datasets.small_tables import ROWS, repeated, small

KINDS: list[Any] = [
    pa.array(repeated(1, -2, 3), pa.int8()),
    pa.array(repeated(1, 2, 2**60 + 1), pa.uint64()),
    pa.array(np.array(repeated(0.5, 2.25), dtype=np.float16)),
    pa.array(repeated(0.1, 2.5), pa.float32()),
    pa.array(repeated(Decimal("1.50"), Decimal("-2.25")), pa.decimal128(5, 2)),
    pa.array(repeated(True, False, False)),
    pa.chunked_array([repeated(1.5, 2.5)[:7], [], repeated(1.5, 2.5)[7:]]),
]


@pytest.mark.parametrize("column", KINDS, ids=lambda column: str(column.type))
def test_numbers_of_every_type(column: Any) -> None:
    X = Encoding.learn(pa.table({"c": column})).apply(pa.table({"c": column}))
    assert X.dtype == np.float64
    assert X[:, 0].tolist() == [float(value) for value in column.to_pylist()]


SEX = repeated("M", "F", "I", "F", "?=;")


@pytest.mark.parametrize(
    "column",
    [
        pa.array(SEX),
        pa.array(SEX, pa.large_string()),
        pa.array(SEX, pa.string_view()),
        pa.array(SEX).dictionary_encode(),
        pa.chunked_array(
            [pa.array(SEX[:4]).dictionary_encode(), pa.array(SEX[4:]).dictionary_encode()]
        ),
    ],
    ids=lambda column: f"{column.type}, {type(column).__name__}",
)
def test_categories_of_every_type(column: Any) -> None:
    table = pa.table({"sex": column})
    encoding = Encoding.learn(table)
    assert encoding.feature_names == ("sex=?=;", "sex=I", "sex=M")
    expected = [[float(value == level) for level in ("?=;", "I", "M")] for value in SEX]
    assert encoding.apply(table).tolist() == expected


def test_the_base_is_the_most_frequent_level_and_else_the_first() -> None:
    table = pa.table({"c": repeated("b", "c", "c"), "tie": repeated("z", "b", "c")})
    columns = Encoding.learn(table).columns
    assert columns == (
        CategoryColumn(name="c", base="c", levels=("b",)),
        CategoryColumn(name="tie", base="b", levels=("c", "z")),
    )


def test_new_tables_may_have_other_columns_order_types_and_levels() -> None:
    encoding = Encoding.learn(small(sex=repeated("M", "F", "F")).drop_columns("y"))
    new = pa.table({"extra": ["?"], "sex": ["M"], "b": pa.array([2], pa.int8()), "a": [7]})
    assert encoding.feature_names == ("a", "b", "sex=M")
    assert encoding.apply(new).tolist() == [[7.0, 2.0, 1.0]]
    assert encoding.apply(new.slice(0, 0)).shape == (0, 3)


def test_levels_that_look_like_numbers_are_found_in_a_column_of_numbers() -> None:
    encoding = Encoding.learn(pa.table({"code": repeated("1", "2", "A", "A")}))
    assert encoding.apply(pa.table({"code": [2, 1]})).tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_columns_with_one_value_are_left_out() -> None:
    encoding = Encoding.learn(small(one=repeated(3), same=repeated("x")).drop_columns("y"))
    assert encoding.columns == (NumberColumn(name="a"), NumberColumn(name="b"))


def test_encoding_json_round_trip_and_invalid_json() -> None:
    encoding = Encoding.learn(small(sex=repeated("M", "F", "F")).drop_columns("y"))
    text = encoding.model_dump_json()
    assert Encoding.model_validate_json(text) == encoding
    for wrong in (text.replace("number", "word"), text.replace('"a"', "3"), text[:-1] + ',"x":1}'):
        with pytest.raises(ValidationError):
            Encoding.model_validate_json(wrong)


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("2020-01-01", 0),
        ("2020-1-1", 0),
        ("2020-01-01 10:30", 10.5),
        ("2020-01-01 10:30:00", 10.5),
        ("2020-01-01T10:30:00Z", 10.5),
        ("2020-01-01T12:30:00+02:00", 10.5),
        ("2020-01-01T10:30:00.5", 10.5 + 0.5 / 3600),
    ],
)
def test_dates_of_iso_8601_are_read_from_text_and_from_times(text: str, hours: float) -> None:
    encoding = Encoding(columns=(NumberColumn(name="when", dates="%Y-%m-%d"),))
    assert encoding.verbatim == ()
    time = dt.datetime(2020, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=hours)
    for value in (text, time):
        found = encoding.apply(pa.table({"when": [value]})).item()
        assert found == pytest.approx(18262 + hours / 24, rel=1e-15)


@pytest.mark.parametrize(
    ("trained", "file", "texts", "numbers"),
    [
        (".", ",", ["1,234", "0,5", "unknown"], [1.234, 0.5, np.nan]),
        (",", ".", ["1,234", "0.5", "unknown"], [1234, 0.5, np.nan]),
        # Another column than the text decides: what reads more numbers is taken.
        (",", ".", ["1,5", "2,25"], [1.5, 2.25]),
        (",", None, ["1,234", "7"], [1.234, 7]),
        (".", None, ["1,234", "7"], [1234, 7]),
        # A group of thousands does not begin with 0.
        (".", ",", ["0.637", "0.125"], [0.637, 0.125]),
        (".", None, ["0,637", "1,234"], [np.nan, 1234]),
    ],
)
def test_the_decimal_mark_is_that_of_the_file(
    trained: Any, file: Any, texts: list[str], numbers: list[float]
) -> None:
    encoding = Encoding(columns=(NumberColumn(name="a", decimal=trained),))
    found = encoding.encode(pa.table({"a": texts}), file).X[:, 0]
    assert np.array_equal(found, numbers, equal_nan=True)


def test_true_and_false_with_a_text_among_them() -> None:
    encoding = Encoding.learn(pa.table({"f": repeated(True, False)}))
    encoded = encoding.encode(pa.table({"f": ["true", "False", "unknown", "1", "TRUE"]}))
    assert encoded.X[encoded.usable, 0].tolist() == [1.0, 0.0, 1.0, 1.0]
    assert list(encoded.reasons) == [2]
    # In a column of numbers they are texts.
    numbers = Encoding(columns=(NumberColumn(name="f"),))
    assert not numbers.encode(pa.table({"f": ["true"]})).usable.any()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5)", None),
        ("(5", None),
        ("(5)", -5),
        ("($5.00)", -5),
        ("$-5.00", -5),
        ("€ −5", -5),
        ("-$5", -5),
        ("- 5 €", -5),
        ("$+5", 5),
        ("-$-5", None),
        ("$", None),
        ("1,234.5 USD", 1234.5),
    ],
)
def test_signs_and_brackets(text: str, number: float | None) -> None:
    encoded = Encoding(columns=(NumberColumn(name="a"),)).encode(pa.table({"a": [text]}))
    assert encoded.X[encoded.usable, 0].tolist() == ([] if number is None else [number])


def test_a_column_without_values_has_gaps() -> None:
    encoding = Encoding(columns=(NumberColumn(name="a"), NumberColumn(name="b", imputed=True)))
    encoded = encoding.encode(pa.table({"a": [1, 2], "b": pa.nulls(2)}))
    assert encoded.usable.all() and np.isnan(encoded.X[:, 1]).all()
    encoded = encoding.encode(pa.table({"a": pa.nulls(1), "b": [2]}))
    assert not encoded.usable.any() and encoded.reasons == {0: "a is missing"}


def test_missing_entries_of_a_dictionary_are_missing() -> None:
    indices = pa.array([i % 2 for i in range(ROWS)])
    column = pa.DictionaryArray.from_arrays(indices, pa.array([None, "x"]))
    encoding = Encoding(columns=(CategoryColumn(name="c", base="x", levels=("z",)),))
    with pytest.raises(ValueError, match=r"row 1, where c is missing, and 14 other rows"):
        encoding.apply(pa.table({"c": column}))

"""Levels of columns: by value, in any type of column."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from directgp.datasets import Encoding
from directgp.datasets.columns import ISO, NumberFormat
from directgp.datasets.levels import UNSEEN, Level, code_levels, learn_levels, levels_of_codes
from directgp.registry import ColumnKind

LARGE = 2**60 + 1
"""A number that a float cannot hold."""


@pytest.mark.parametrize(
    ("values", "levels"),
    [
        ([" b", "a", "NA", None, "b "], ("a", "b")),
        (["007", "7"], ("007", "7")),
        ([3, 1, None, 3], (1, 3)),
        ([LARGE, LARGE - 1], (LARGE - 1, LARGE)),
        ([2.5, 7.0, float("nan")], (2.5, 7)),
        ([True, False, None], (0, 1)),
        ([Decimal("1.50"), Decimal("2.00")], (1.5, 2)),
        (pa.array(["x", None, "y"]).dictionary_encode(), ("x", "y")),
        (pa.array([5, None, 4]).dictionary_encode(), (4, 5)),
    ],
)
def test_levels_are_different_values_in_order(
    values: list[object], levels: tuple[Level, ...]
) -> None:
    column = pa.chunked_array([values])
    assert learn_levels(column) == levels
    codes = code_levels(column, levels).codes
    back = levels_of_codes(codes, levels).to_pylist()
    assert {value for value in back if value is not None} == {*levels}
    assert np.isnan(codes).sum() == back.count(None)


@pytest.mark.parametrize(
    "values", [["7", "LARGE", "x"], [7, LARGE, 8], [7.0, float(LARGE), 8.0]], ids=str
)
def test_numbers_are_known_in_text_and_other_types(values: list[object]) -> None:
    column = pa.chunked_array([[str(LARGE) if value == "LARGE" else value for value in values]])
    coded = code_levels(column, (7, LARGE))
    exact = not isinstance(values[0], float)
    assert coded.codes.tolist() == [0.0, 1.0 if exact else UNSEEN, UNSEEN]


def test_text_is_known_in_numbers() -> None:
    coded = code_levels(pa.chunked_array([[7, None, 8]]), ("7", "a"))
    assert coded.codes[0] == 0.0 and np.isnan(coded.codes[1]) and coded.codes[2] == UNSEEN
    assert [(value, rows.tolist()) for value, rows in coded.unseen] == [("8", [2])]


def test_decimal_commas() -> None:
    column = pa.chunked_array([["2,5", "1.000,0", "x"]])
    assert code_levels(column, (2.5, 1000), ",").codes.tolist() == [0.0, 1.0, UNSEEN]


@pytest.mark.parametrize("levels", [("(new 1)", "a"), (0, 1, 3), (0.5, 0)])
def test_an_unseen_level_is_another_value_than_all_levels(levels: tuple[Level, ...]) -> None:
    values = levels_of_codes(np.array([UNSEEN, 0.0, np.nan]), levels).to_pylist()
    assert values[0] not in levels and values[1:] == [levels[0], None]


def test_a_card_keeps_levels_and_kinds() -> None:
    table = pa.table(
        {"id": [3, LARGE, 3], "day": [0.5, 1.5, 2.5], "city": ["a", "b", None], "w": [1, 2, 3]}
    )
    kinds: dict[str, ColumnKind] = {"id": "group", "day": "time", "city": "category"}
    encoding = Encoding.learn(table, missing="level", kinds=kinds)
    again = Encoding.model_validate_json(encoding.model_dump_json())
    assert again == encoding
    assert again.kinds == {**kinds, "w": "number"}
    encoded = again.encode(table)
    assert encoded.usable.all() and not encoded.reasons
    assert again.table(encoded.X).to_pydict() == {
        "id": [3, LARGE, 3],
        "day": [0.5, 1.5, 2.5],
        "city": ["a", "b", None],
        "w": [1.0, 2.0, 3.0],
    }


def test_dates_go_to_estimators_as_they_were() -> None:
    random = np.random.default_rng(0)
    since = random.integers(-(10**15), 10**15, 100)
    column = pa.chunked_array([pa.array(since, pa.timestamp("us"))])
    days = since / 86_400_000_000
    table = pa.table({"day": days})
    formats = {"day": NumberFormat(dates=ISO)}
    encoding = Encoding.learn(table, formats, kinds={"day": "time"})
    features = encoding.encode(pa.table({"day": column})).X
    assert np.array_equal(features[:, 0], days)
    assert encoding.table(features)["day"].to_pylist() == column.to_pylist()

"""The exact error texts of tables that cannot be used."""

import datetime as dt
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from directgp.datasets.encoding import Encoding
from directgp.datasets.problem import prepare
from directgp.errors import InvalidInputError
from tests.unit.datasets.small_tables import ROWS, repeated, small

INF = float("inf")
DAY = dt.date(2020, 1, 31)


def many_labels(number: int) -> pa.Table:
    """Two rows of each label."""
    return pa.table({"a": [*range(2 * number)], "y": [*range(number)] * 2})


REFUSED: list[tuple[Callable[[], pa.Table], dict[str, Any], str]] = [
    (
        small,
        {"target": "Y"},
        "The target must be a column of the table. Got 'Y'. Did you mean 'y'?",
    ),
    (
        small,
        {"target": "price"},
        "The target must be a column of the table. Got 'price'. Its columns: 'a', 'b' and 'y'.",
    ),
    (
        lambda: pa.table({"5.1": repeated(1, 2), "-3e2": repeated(1, 2)}),
        {},
        "The target must be a column of the table. Got 'y'. The first row has numbers"
        " instead of names: add a row of names above, or use --no-header and columns x1, x2, …",
    ),
    (
        small,
        {"drop": ["a", "y"]},
        "A column to drop must be another one than the target. Got 'y'.",
    ),
    (
        small,
        {"drop": ["ab"]},
        "A column to drop must be a column of the table. Got 'ab'. Did you mean 'b' or 'a'?",
    ),
    (
        small,
        {"categories": ["a", "aa"]},
        "A column to use as categories must be a column of the table. Got 'aa'. Did you mean 'a'?",
    ),
    (
        small,
        {"needed": ["hours"]},
        "A column to use as exposure or weight must be a column of the table. Got 'hours'. Its"
        " columns: 'a', 'b' and 'y'.",
    ),
    (
        small,
        {"needed": ["y"]},
        "A column to use as exposure or weight must be another one than the target. Got 'y'.",
    ),
    (
        small,
        {"drop": ["a", "b"]},
        "The table must be of a target and features. Got no column that varies besides 'y'."
        " Add columns to predict it from.",
    ),
    (
        lambda: small(a=repeated(1), b=repeated("x")),
        {},
        "The table must be of a target and features. Got no column that varies besides 'y'."
        " Add columns to predict it from.",
    ),
    (lambda: small().slice(0, 19), {}, "The table must have at least 20 rows. Got 19."),
    (lambda: small().slice(0, 0), {}, "The table must have at least 20 rows. Got 0."),
    (
        lambda: small(when=repeated(DAY)),
        {},
        "Column 'when' has dates or times, such as '2020-01-31': use --dates days or --drop when.",
    ),
    (
        lambda: small(
            **{"made on": repeated(dt.datetime(2020, 1, 1))}, took=repeated(dt.timedelta(1))
        ),
        {},
        "Column 'made on' has dates or times, such as '2020-01-01 00:00:00': use --dates days or"
        " --drop 'made on'. Column 'took' has dates or times, such as '1 day, 0:00:00': use --dates"
        " days or --drop took.",
    ),
    (
        lambda: small(id=[f"id{i}" for i in range(ROWS)]),
        {},
        "Column 'id' must be of categories that recur. Got 30 different texts in 30 rows, such as"
        " 'id0'. Leave out identifiers and free text with --drop id.",
    ),
    (
        lambda: small(p=repeated("31.12.2020", "1.1.2021", "2.1.2021")),
        {},
        "Column 'p' has dates or times, such as '31.12.2020': use --dates days or --drop p.",
    ),
    (
        lambda: small(pair=repeated([1, 2])),
        {},
        "Column 'pair' has values of type list<item: int64>, no numbers or text: use --drop pair.",
    ),
    (
        lambda: small(pair=repeated([1, 2])),
        {"categories": ["pair"]},
        "Column 'pair' has values of type list<item: int64>, no numbers or text: use --drop pair.",
    ),
    (
        lambda: small(price=[f"{sign} {i}" for i, sign in enumerate(repeated("$", "USD", "€"))]),
        {},
        "Column 'price' has several currencies, '$' and '€': use --drop price.",
    ),
    (
        lambda: small(**{"s=x": repeated(1, 2), "s": repeated("x", "z", "z")}),
        {},
        "Names of features must be different after categories are encoded. Got 's=x' more than"
        " once. Rename the column of that name.",
    ),
    (
        lambda: small(m=repeated(None, 1.0, float("nan")), s=repeated("x", None)),
        {},
        "Values are missing in 'm' (20) and 's' (15), of 30 rows: use --missing impute or"
        " --missing drop.",
    ),
    (
        lambda: small(m=repeated(None, 1.0, float("nan"))),
        {"missing": "drop"},
        "The table must have at least 20 rows without gaps. Got 10.",
    ),
    (
        lambda: small(m=pa.nulls(ROWS), n=repeated(float("nan"))),
        {"missing": "drop"},
        "Column 'm' has no values: use --drop m. Column 'n' has no values: use --drop n.",
    ),
    (
        lambda: small(y=pa.nulls(ROWS, pa.float64())),
        {},
        "Column 'y' has no values: use another --target.",
    ),
    (
        lambda: small(i=repeated(1.0, -INF, 2.0)),
        {},
        "Column 'i' must be finite. Got −∞ in row 2. Correct it, or drop the column.",
    ),
    (
        lambda: small(y=repeated(1.5, INF, 2.5)),
        {},
        "The target 'y' must be finite. Got inf in row 2 and others in 9 rows. Correct or remove"
        " such rows.",
    ),
    (
        lambda: small(y=repeated(1.5, INF)),
        {},
        "The target 'y' must be finite. Got inf in row 2 and others in 14 rows. Correct or remove"
        " such rows.",
    ),
    (
        lambda: small(y=repeated(4)),
        {},
        "The target 'y' must be different in some rows. Got 4 in every row. Name another target.",
    ),
    (
        lambda: small(y=repeated("no")),
        {},
        "The target 'y' must be of two or more classes. Got 'no' in every row. Name another"
        " target.",
    ),
    (
        lambda: small(y=repeated(1)),
        {"task": "classification"},
        "The target 'y' must be of two or more classes. Got '1' in every row. Name another target.",
    ),
    (
        lambda: small(y=["once", *repeated("red", "green")[1:]]),
        {},
        "The target 'y' must be numbers or classes of at least 2 rows each. Got one row in 1 class:"
        " 'once'. Correct these rows, or give --positive LABEL to predict one class against the"
        " rest.",
    ),
    (
        lambda: many_labels(101),
        {"task": "classification"},
        "The target 'y' must be numbers or at most 100 classes. Got 101 classes: '0', '1', '10',"
        " '100', '11', '12', '13', '14' and 93 more. Correct these rows, or give --positive LABEL"
        " to predict one class against the rest.",
    ),
    (
        lambda: small(y=repeated("red", "green", "blue")),
        {"task": "count"},
        "The target 'y' must be numbers for the task count. Got 3 classes: 'blue', 'green' and"
        " 'red'. Use --task classification.",
    ),
    (
        lambda: small(y=repeated("red", "green", "blue")),
        {"positive": "gren"},
        "The positive class must be a class of the target. Got 'gren'. Did you mean 'green' or"
        " 'red'?",
    ),
    (
        small,
        {"positive": "1", "task": "regression"},
        "--positive must be given for classification alone. Got it with the task regression."
        " Leave one of them out.",
    ),
    (
        lambda: small(y=repeated(DAY)),
        {},
        "Column 'y' has dates or times, such as '2020-01-31': use --dates days or another"
        " --target.",
    ),
    (
        lambda: small(y=repeated(DAY)),
        {"task": "regression"},
        "Column 'y' has dates or times, such as '2020-01-31': use --dates days or another"
        " --target.",
    ),
    (
        lambda: small(y=[3, 1, -2, *repeated(0, 1)[3:]]),
        {"task": "count"},
        "The target 'y' must be whole numbers of at least 0, as counts are. Got -2 in row 3. Use"
        " --task regression if it is not a count.",
    ),
    (
        lambda: small(y=[0.5, *repeated(0, 1, 2)[1:]], m=[1.0, None, *repeated(2)[2:]]),
        {"task": "count", "missing": "drop"},
        "The target 'y' must be whole numbers of at least 0, as counts are. Got 0.5 in row 1. Use"
        " --task regression if it is not a count.",
    ),
    # Rows keep their numbers when others have been left out above them.
    (
        lambda: small(y=[*repeated(0, 1, 2)[:-1], 0.5], m=[None, *repeated(2, 3)[1:]]),
        {"task": "count", "missing": "drop"},
        "The target 'y' must be whole numbers of at least 0, as counts are. Got 0.5 in row 30. Use"
        " --task regression if it is not a count.",
    ),
    (
        lambda: small(i=[None, *repeated(1.0, 2.0)[1:-1], INF]),
        {"missing": "drop"},
        "Column 'i' must be finite. Got ∞ in row 30. Correct it, or drop the column.",
    ),
]


@pytest.mark.parametrize(("table", "options", "words"), REFUSED)
def test_tables_that_are_refused(
    table: Callable[[], pa.Table], options: dict[str, Any], words: str
) -> None:
    options = {"target": "y", "name": "t", "source": "t.csv", **options}
    with pytest.raises(InvalidInputError) as refusal:
        prepare(table(), **options)
    assert str(refusal.value) == words


NEW_TABLES: list[tuple[dict[str, Any], str]] = [
    (
        {"Sex": repeated("M")},
        "The table must have all columns used in training. Got no 'sex'. Did you mean 'Sex'?",
    ),
    (
        {"sex": repeated("X", "M", "Z")},
        "Rows must be as in training. Got row 1, where sex is 'X', not seen in training (predicted"
        " as 'F'), and 19 other rows. Correct or remove such rows.",
    ),
    (
        {"sex": repeated("M", None)},
        "Rows must be as in training. Got row 2, where sex is missing, and 14 other rows. Correct"
        " or remove such rows.",
    ),
    (
        {"sex": repeated([1])},
        "Column 'sex' must be categories, as in training. Got values of type list<item: int64>.",
    ),
    (
        {"sex": repeated("M"), "a": repeated("1,5", "2")},
        "Rows must be as in training. Got row 1, where a is '1,5', which is not a number, and 14"
        " other rows. Correct or remove such rows.",
    ),
    (
        {"sex": repeated("M"), "a": repeated("12", "twelve")},
        "Rows must be as in training. Got row 2, where a is 'twelve', which is not a number, and"
        " 14 other rows. Correct or remove such rows.",
    ),
    (
        {"sex": repeated("M"), "a": repeated(DAY)},
        "Column 'a' must be numbers, as in training. Got values of type date32[day].",
    ),
    (
        {"sex": repeated("M"), "a": repeated(1.0, INF)},
        "Rows must be as in training. Got row 2, where a is infinite, and 14 other rows. Correct or"
        " remove such rows.",
    ),
]


@pytest.mark.parametrize(("columns", "words"), NEW_TABLES)
def test_new_tables_that_are_refused(columns: dict[str, Any], words: str) -> None:
    encoding = Encoding.learn(small(sex=repeated("M", "F", "F")).drop_columns("y"))
    with pytest.raises(InvalidInputError) as refusal:
        encoding.apply(small(**columns))
    assert str(refusal.value) == words


@pytest.mark.parametrize(
    ("levels", "rows", "refused"),
    [
        (50, 60, False),
        (51, 1019, True),
        (51, 1020, False),
        (500, 10_000, False),
        (501, 20_000, True),
        (3, 3, True),
        (2, 2, False),
    ],
)
def test_how_many_levels_are_too_many(levels: int, rows: int, refused: bool) -> None:
    table = pa.table({"c": [f"level {i % levels}" for i in range(rows)]})
    if refused:
        with pytest.raises(InvalidInputError, match="must be of categories that recur"):
            Encoding.learn(table)
    else:
        assert len(Encoding.learn(table).feature_names) == levels - 1

"""Tables become problems: features, targets, guessed tasks and notes."""

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from directgp.datasets.problem import Problem, prepare
from directgp.datasets.targets import coded, guess_task
from directgp.errors import InvalidInputError
from directgp.registry import Task
from tests.unit.datasets.small_tables import ROWS, repeated, small


def prepared(table: pa.Table, **options: Any) -> Problem:
    return prepare(table, "y", name="t", source="t.csv", **options)[0]


def test_a_problem_has_encoded_features_and_its_facts() -> None:
    table = small(sex=repeated("M", "F", "F"), same=repeated(1), id=list(range(ROWS)))
    problem, encoding = prepare(table, "y", name="t", source="t.csv", drop=["id"])
    assert (problem.name, problem.source, problem.target) == ("t", "t.csv", "y")
    assert problem.task == "regression"
    assert problem.classes is None
    assert problem.feature_names == encoding.feature_names == ("a", "b", "sex=M")
    sex = [float(value == "M") for value in repeated("M", "F", "F")]
    expected = np.column_stack([table["a"], table["b"], sex])
    assert np.array_equal(problem.X, expected)
    assert problem.y.tolist() == table["y"].to_pylist()
    assert problem.rows.tolist() == list(range(ROWS))
    assert problem.notes == (
        "The target 'y' suggests the task regression: it has numbers with fractions. Choose another"
        " task with --task.",
        "Left out because it has one value only: 'same'.",
        "Column 'sex' is encoded as 1 column of 0 and 1; its base level is 'F'.",
    )


def test_needed_columns_are_numbers_of_the_rows_that_are_kept() -> None:
    table = small(w=[None, *(f"{i:,}" for i in range(1000, 999 + ROWS))])
    problem = prepared(table, needed=["w"], missing="drop")
    assert problem.feature_names == ("a", "b")
    assert problem.needed["w"].tolist() == list(range(1000, 999 + ROWS))
    without = prepared(table.slice(1), drop=["w"])
    assert problem.fingerprint() == without.fingerprint()
    # Few different numbers in text are categories where they are features, but not here.
    few = prepared(small(w=repeated("1", "2")), needed=["w"])
    assert few.needed["w"].tolist() == list(map(float, repeated(1, 2)))
    message = "Column 'w' must be of numbers. Got 'b' in row 2. Name another."
    with pytest.raises(InvalidInputError, match=message):
        prepared(small(w=repeated("1", "b")), needed=["w"])


def test_rows_with_missing_values_are_left_out() -> None:
    table = small(m=[None, float("nan"), *range(2, ROWS)], s=[*repeated("x", "z")[:-1], None])
    problem = prepared(table, missing="drop", task="regression")
    assert problem.rows.tolist() == list(range(2, ROWS - 1))
    assert problem.X[:, 2].tolist() == list(range(2, ROWS - 1))
    assert problem.y.tolist() == table["y"].to_pylist()[2:-1]
    assert problem.notes[0] == "Left out 3 rows with missing values: 'm' (2) and 's' (1)."


def test_missing_values_of_columns_left_out_do_not_matter() -> None:
    assert len(prepared(small(m=repeated(None, 1.0)), drop=["m"]).y) == ROWS


@pytest.mark.parametrize("name", ["", "__index_level_0__", "Unnamed: 0"])
def test_columns_without_a_name_are_left_out(name: str) -> None:
    problem = prepared(small(**{name: range(ROWS)}))
    assert problem.feature_names == ("a", "b")
    assert problem.notes[0] == f"Left out because they have no name: {name!r}."


def test_sign_and_name_of_a_currency_are_the_same() -> None:
    prices = [f"{sign} {i}" for i, sign in enumerate(repeated("$", "USD"))]
    assert prepared(small(price=prices)).X[:, 2].tolist() == list(range(ROWS))


@pytest.mark.parametrize("mark", ["/", "-", "."])
@pytest.mark.parametrize("order", ["days", "dmy", "mdy"])
@pytest.mark.parametrize("year", ["2020", "20"])
def test_the_order_of_day_and_month(mark: str, order: Any, year: str) -> None:
    if (mark, year) == ("-", "20"):
        year += "20 10:30"
    texts = repeated(f"01{mark}02{mark}{year}", f"03{mark}04{mark}{year}")
    problem = prepared(small(when=texts), dates=order)
    month_first = order == "mdy" or (order == "days" and mark == "/")
    dates = (dt.date(2020, 1, 2), dt.date(2020, 3, 4))
    if not month_first:
        dates = (dt.date(2020, 2, 1), dt.date(2020, 4, 3))
    expected = [float((day - dt.date(1970, 1, 1)).days) for day in dates]
    assert np.floor(problem.X[:, 2]).tolist() == repeated(*expected)
    words = ", the month first" if month_first else ", the day first"
    if order == "days":
        words += "; --dates dmy or mdy sets the order"
    assert f"Column 'when' has dates such as {texts[0]!r}, used as days since 1970{words}." in (
        problem.notes
    )


@pytest.mark.parametrize("text", ["31{}12{}2020", "12{}31{}2020"])
@pytest.mark.parametrize("mark", ["/", "-", "."])
def test_an_order_that_reads_few_dates_is_not_used(text: str, mark: str) -> None:
    text = text.format(mark, mark)
    for order in ("days", "dmy", "mdy"):
        problem = prepared(small(when=repeated(text, f"01{mark}01{mark}2020")), dates=order)
        assert problem.X[:, 2].tolist() == repeated(18627.0, 18262.0)
        first = "day" if text.startswith("31") else "month"
        assert problem.notes[0].endswith(f"used as days since 1970, the {first} first.")


def test_dates_are_categories_if_they_are_named() -> None:
    days = repeated(dt.date(2020, 1, 1), dt.date(2020, 1, 2), dt.date(2020, 1, 2))
    problem = prepared(small(day=days), categories=["day"])
    assert problem.feature_names == ("a", "b", "day=2020-01-01")
    assert problem.X[:, 2].tolist() == repeated(1.0, 0.0, 0.0)


def test_a_class_may_be_called_not_another() -> None:
    problem = prepared(small(y=repeated("spam", "not spam", "unknown")))
    assert problem.classes == ("not spam", "spam", "unknown")
    assert problem.y.tolist() == repeated(1.0, 0.0, 2.0)


def test_intervals_of_months_have_no_number_of_days() -> None:
    intervals = pa.array([(1, 2, 3)] * ROWS, pa.month_day_nano_interval())
    with pytest.raises(InvalidInputError, match=r"'a' has values of type month_day_nano_interval"):
        prepared(small(a=intervals), dates="days")


def test_decimals_that_may_be_thousands_have_a_note() -> None:
    texts = [f"{number:.3f}" for number in np.linspace(1.001, 8.999, ROWS)]
    problem = prepared(small(a=texts), decimals=(",", "."))
    assert problem.X[0, 0] == 1001
    assert problem.notes[0] == "Column 'a' has numbers such as '1.001', read as 1,001."
    problem = prepared(small(a=[f"0{text[1:]}" for text in texts]), decimals=(",", "."))
    assert problem.X[0, 0] == 0.001


@pytest.mark.parametrize(
    ("labels", "positive", "classes"),
    [
        ((0, 1), None, ("0", "1")),
        ((2, 10), None, ("2", "10")),
        ((1.0, -1.0), None, ("-1", "1")),
        ((0.5, 1e20), None, ("0.5", "1e+20")),
        ((-0.0, 0.0, 1.0), None, ("0", "1")),
        ((True, False), None, ("false", "true")),
        (("b", "a"), None, ("a", "b")),
        (("yes", "zero"), None, ("zero", "yes")),
        (("Positive", "unknown"), None, ("unknown", "Positive")),
        (("b", "a"), "a", ("b", "a")),
        ((0, 1), "0", ("1", "0")),
        (("b", "a", "c"), "b", ("not b", "b")),
        ((1, 2, 3), "3", ("not 3", "3")),
    ],
)
def test_two_labels_make_a_classification(
    labels: tuple[Any, ...], positive: str | None, classes: tuple[str, str]
) -> None:
    column = repeated(*labels)
    problem = prepared(small(y=column), positive=positive)
    assert problem.task == "classification"
    assert problem.classes == classes
    one = {"true": True, "false": False}.get(classes[1], classes[1])
    expected = [float(value == (type(value)(one) if one is not True else True)) for value in column]
    assert problem.y.tolist() == expected
    assert problem.one_against_rest == (len(labels) > 2 and positive is not None)
    rest = problem.one_against_rest
    again = coded(pa.chunked_array([column]), "y", "classification", classes, rest)
    assert again.tolist() == expected
    assert problem.notes[-1].startswith(f"Class 1 is {classes[1]!r} ({sum(expected):.0f} rows)")


@pytest.mark.parametrize(
    ("labels", "task", "classes"),
    [
        (("b", "c", "a"), None, ("a", "b", "c")),
        (("yes", "no", "unknown"), None, ("no", "unknown", "yes")),
        ((10, 9, 2), "classification", ("2", "9", "10")),
        ((0.5, -1.0, 3.0, 3.5), "classification", ("-1", "0.5", "3", "3.5")),
    ],
)
def test_more_labels_make_classes_in_order(
    labels: tuple[Any, ...], task: Task | None, classes: tuple[str, ...]
) -> None:
    column = repeated(*labels)
    problem = prepared(small(y=column), task=task)
    assert (problem.task, problem.classes) == ("classification", classes)
    assert problem.num_classes == len(classes)
    places = {label: sorted(labels).index(label) for label in labels}
    expected = [float(places[label]) for label in column]
    assert problem.y.tolist() == expected
    assert coded(pa.chunked_array([column]), "y", "classification", classes).tolist() == expected
    start = f"The {len(classes)} classes in order, with their numbers of rows: {classes[0]!r} ("
    assert problem.notes[-1].startswith(start)


def test_a_dictionary_of_three_texts_is_a_classification() -> None:
    column = pa.array(repeated("b", "c", "a")).dictionary_encode()
    problem = prepared(small(y=column))
    assert problem.classes == ("a", "b", "c")
    assert problem.y.tolist() == repeated(1.0, 2.0, 0.0)


def test_missing_labels_and_other_labels_of_three_classes() -> None:
    column = pa.chunked_array([["c", None, "a"]])
    found = coded(column, "y", "classification", ("a", "b", "c"))
    np.testing.assert_array_equal(found, [2.0, np.nan, 0.0])
    with pytest.raises(InvalidInputError) as refusal:
        coded(pa.chunked_array([["a", "d"]]), "y", "classification", ("a", "b", "c"))
    assert str(refusal.value) == (
        "The target 'y' must be of the classes 'a', 'b' and 'c'. Got other labels with their"
        " counts: 'd' (1). Correct or remove these rows."
    )


def test_new_targets_are_coded_as_in_training() -> None:
    assert coded(pa.chunked_array([[1, 2]]), "y", "count", None).tolist() == [1.0, 2.0]
    assert coded(
        pa.chunked_array([["c", "b"]]), "y", "classification", ("not b", "b"), True
    ).tolist() == [0, 1]
    with pytest.raises(InvalidInputError) as refusal:
        coded(pa.chunked_array([["a", "c", "c"]]), "y", "classification", ("a", "b"))
    assert str(refusal.value) == (
        "The target 'y' must be of the classes 'a' and 'b'. Got other labels with their counts:"
        " 'c' (2). Correct or remove these rows."
    )
    # The name of a class says nothing about the rest.
    with pytest.raises(InvalidInputError, match=r"other labels with their counts: 'unsure' \(1\)"):
        labels = pa.chunked_array([["ill", "unsure"]])
        coded(labels, "y", "classification", ("not ill", "ill"))
    with pytest.raises(InvalidInputError, match="whole numbers of at least 0"):
        coded(pa.chunked_array([[1.5]]), "y", "count", None)


def test_a_task_that_is_given_is_not_guessed() -> None:
    for task in ("regression", "count"):
        problem = prepared(small(y=repeated(0, 1)), task=task)
        assert problem.task == task
        assert problem.notes == ()
        assert problem.y.tolist() == repeated(0.0, 1.0)


def test_fingerprints_tell_problems_apart() -> None:
    other_y = small(y=repeated(0.5, 1.5, 3.0))
    tables = [
        small(),
        small(a=repeated(1.0, 2.0)),
        other_y,
        small().rename_columns(["A", "b", "y"]),
    ]
    prints = {prepared(table, task="regression").fingerprint() for table in tables}
    prints.add(prepared(small(y=repeated(0, 1)), task="count").fingerprint())
    prints.add(prepared(small(y=repeated(0, 1)), task="regression").fingerprint())
    prints.add(prepared(small(y=repeated(0, 1))).fingerprint())
    prints.add(prepared(small().slice(0, 25)).fingerprint())
    assert len(prints) == 8
    assert prepared(small()).fingerprint() == prepared(small()).fingerprint()
    assert all(len(one) == 64 for one in prints)


def test_the_fingerprint_does_not_depend_on_the_layout_in_memory() -> None:
    problem = prepared(small())
    turned = {**vars(problem), "X": np.asfortranarray(problem.X), "y": np.repeat(problem.y, 2)[::2]}
    assert Problem(**turned).fingerprint() == problem.fingerprint()


RNG = np.random.default_rng(0)

TWO = "it has 2 different values"
FAR = "its whole numbers are too far apart for counts"
CLOSE = "its whole numbers scatter less than counts do"
MANY = "different numbers"
COUNTS = "that scatter as counts do"

GUESSES: list[tuple[str, Any, str, str]] = [
    ("bools", [True, False] * 9, "classification", TWO),
    ("two words", ["b", "a"] * 9, "classification", TWO),
    ("three words", ["b", "a", "c"] * 9, "classification", "it has 3 different values"),
    ("two numbers", [3.5, 7.0] * 9, "classification", TWO),
    ("two numbers with gaps", [3.5, None, 7.0, np.nan] * 9, "classification", TWO),
    ("fractions", RNG.normal(size=99), "regression", "it has numbers with fractions"),
    ("delays", RNG.integers(-9, 9, 999), "regression", "it has negative numbers"),
    ("tens", RNG.integers(0, 11, 999) * 10, "regression", FAR),
    ("years", 2010 - RNG.poisson(13, 4000), "regression", CLOSE),
    ("grades", RNG.binomial(4, 0.6, 500) + 3, "regression", CLOSE),
    ("prices", RNG.integers(150, 5000, 20000) * 100, "regression", MANY),
    ("scores", RNG.integers(25, 346, 442), "regression", MANY),
    ("rings", RNG.poisson(9.9, 4000), "count", COUNTS),
    ("walkers", RNG.integers(4, 21, 4000), "count", "whole numbers from 4 to 20 that scatter"),
    ("rare", RNG.poisson(0.1, 300), "count", COUNTS),
    ("in few rows", RNG.poisson(3.0, 30), "count", COUNTS),
    ("as floats", RNG.poisson(3.0, 90) * 1.0, "count", COUNTS),
    ("with a long tail", RNG.negative_binomial(1, 0.02, 9000), "count", COUNTS),
]


@pytest.mark.parametrize(
    ("values", "task", "words"), [row[1:] for row in GUESSES], ids=[row[0] for row in GUESSES]
)
def test_the_task_is_guessed_with_a_reason(values: Any, task: str, words: str) -> None:
    guessed, reason = guess_task(pa.chunked_array([pa.array(values)]))
    assert guessed == task
    assert words in reason


def test_the_order_of_rows_does_not_matter() -> None:
    values = RNG.poisson(4.0, 200)
    guesses = {guess_task(pa.chunked_array([RNG.permutation(values)])) for _ in range(5)}
    assert len(guesses) == 1

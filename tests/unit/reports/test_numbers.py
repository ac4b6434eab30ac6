import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from directgp.datasets.wording import joined, several
from directgp.experiments.stats import SIGNIFICANT
from directgp.reports.numbers import (
    decimals_of,
    duration,
    number,
    p_value,
    percent,
    short,
    with_error,
)


@pytest.mark.parametrize(
    ("values", "errors", "decimals"),
    [
        ([0.3], [0.021], 3),
        ([0.3], [0.0355], 2),
        ([0.3], [0.0009], 4),
        ([1234.0], [56.0], 0),
        ([0.3, 5.0], [0.02, math.nan], 3),
        ([0.3], [0.0], 4),
        ([math.inf, -0.04245], [math.nan, math.nan], 5),
        ([12.0], [math.nan], 2),
        ([0.0], [math.nan], 0),
        ([math.nan], [math.nan], 0),
    ],
)
def test_decimals_show_the_error(values: list[float], errors: list[float], decimals: int) -> None:
    assert decimals_of(values, errors) == decimals


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [
        (-0.1034, 3, "−0.103"),
        (0.0, 2, "0.00"),
        (12345.6, 0, "12,346"),
        (1e7, 3, "1.00·10⁷"),
        (-2.5e-9, 10, "−2.50·10⁻⁹"),
        (math.inf, 2, "∞"),
        (-math.inf, 2, "−∞"),
        (math.nan, 2, "–"),
    ],
)
def test_numbers_are_read(value: float, decimals: int, text: str) -> None:
    assert number(value, decimals) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.0, "1"),
        (0.30517, "0.305"),
        (1250.0, "1,250"),
        (100000.0, "1.00·10⁵"),
        (0.00012, "1.20·10⁻⁴"),
        (9.999, "10"),
    ],
)
def test_short_numbers(value: float, text: str) -> None:
    assert short(value) == text


def test_errors_are_left_out_where_they_are_not_known() -> None:
    assert with_error(0.3661, 0.0123, 3) == "0.366 ± 0.012"
    assert with_error(0.3661, math.nan, 3) == "0.366"
    assert with_error(math.inf, math.nan, 3) == "∞"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.12, "4.1 s"), (59.6, "60 s"), (83.0, "1 min 23 s"), (7300.0, "2 h 1 min"), (math.nan, "–")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_words() -> None:
    assert percent(0.9061) == "90.6 %"
    assert percent(math.nan) == "–"
    assert [p_value(p) for p in (0.0004, 0.012, 0.5)] == ["p < 0.001", "p = 0.012", "p = 0.5"]
    assert [p_value(p) for p in (0.0504, 0.04996, 0.0496, 0.0512, 0.055)] == [
        "p = 0.0504",
        "p = 0.04996",
        "p = 0.0496",
        "p = 0.051",
        "p = 0.055",
    ]
    assert [p_value(p) for p in (SIGNIFICANT, 1.0)] == ["p = 0.05", "p = 1"]
    assert [several(1, "row"), several(2000, "row")] == ["1 row", "2,000 rows"]
    assert [joined(["a"]), joined(["a", "b"]), joined(["a", "b", "c"])] == [
        "a",
        "a and b",
        "a, b and c",
    ]


@given(st.floats(0.0495, 0.0505))
def test_a_p_value_is_on_the_side_where_it_is(p: float) -> None:
    said = float(p_value(p).removeprefix("p = "))
    assert (said < SIGNIFICANT) == (p < SIGNIFICANT)
    assert (said == SIGNIFICANT) == (p == SIGNIFICANT)

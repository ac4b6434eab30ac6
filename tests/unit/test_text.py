import json
import math
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from directgp.experiments.stats import SIGNIFICANT
from directgp.text import (
    counted,
    csv_cell,
    decimals_for,
    did_you_mean,
    duration,
    entry,
    fixed,
    joined,
    number,
    one_line,
    p_value,
    percent,
    plural,
    rough_time,
    shell_word,
    strict_json,
    suggestion,
    text_table,
    visible,
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
    assert decimals_for(values, errors) == decimals


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [
        (-0.1034, 3, "−0.103"),
        (-0.0001, 3, "0.000"),
        (0.0, 2, "0.00"),
        (12345.6, 0, "12,346"),
        (1e7, 3, "1·10⁷"),
        (-2.5e-9, 10, "−2.5·10⁻⁹"),
        (math.inf, 2, "∞"),
        (-math.inf, 2, "−∞"),
        (math.nan, 2, "–"),
    ],
)
def test_fixed_decimals(value: float, decimals: int, text: str) -> None:
    assert fixed(value, decimals) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.05, "0.05"),
        (1.0, "1"),
        (0.30517, "0.305"),
        (1250.0, "1,250"),
        (13828.0, "13,828"),
        (100000.0, "100,000"),
        (1.5e6, "1.5·10⁶"),
        (0.000012, "0.000012"),
        (1.74e-8, "1.74·10⁻⁸"),
        (9.999, "10"),
        (math.inf, "∞"),
    ],
)
def test_significant_digits(value: float, text: str) -> None:
    assert number(value) == text and number(-value) == f"−{text}"


def test_zero_and_nan() -> None:
    assert (number(0.0), number(-0.0), number(math.nan)) == ("0", "0", "–")


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0.3661, 0.0123, "0.366 ± 0.012"),
        (0.3661, math.nan, "0.366"),
        (-1.2, 0.5, "−1.2 ± 0.5"),
        (-1.96e-6, 1.66e-6, "(−2.0 ± 1.7)·10⁻⁶"),
        (1.13e-5, 4.2e-9, "(1.1300 ± 0.0004)·10⁻⁵"),
        (1.5e9, 2.5e8, "(1.50 ± 0.25)·10⁹"),
        (-1e-9, 0.00009, "0.00000 ± 0.00009"),
        (math.inf, math.nan, "∞"),
        (2.0, 0.0, "2"),
    ],
)
def test_errors_decide_the_digits(value: float, error: float, text: str) -> None:
    assert with_error(value, error) == text


def test_errors_with_fixed_decimals() -> None:
    assert with_error(2.0, 0.1, 2) == "2.00 ± 0.10"
    assert with_error(2.0, math.inf, 2) == "2.00"
    assert with_error(math.nan, 0.1, 2) == "–"
    assert with_error(0.0, 0.0, 2) == "0.00 ± 0.00"
    assert with_error(0.0, 0.0, 7) == "0 ± 0"


def test_percent() -> None:
    assert [percent(0.9061, 1), percent(0.9), percent(0.955)] == ["90.6 %", "90 %", "95.5 %"]
    assert percent(math.nan) == "–"


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (0.0004, "p < 0.001"),
        (0.012, "p = 0.012"),
        (0.0496, "p = 0.0496"),
        (0.04996, "p = 0.04996"),
        (SIGNIFICANT, "p = 0.05"),
        (0.0504, "p = 0.0504"),
        (0.0512, "p = 0.051"),
        (0.5, "p = 0.5"),
        (1.0, "p = 1"),
        (math.nan, ""),
    ],
)
def test_p_values(p: float, text: str) -> None:
    assert p_value(p) == text


@given(st.floats(0.0495, 0.0505))
def test_a_p_value_shows_its_side_of_the_level(p: float) -> None:
    shown = float(p_value(p).removeprefix("p = "))
    assert (shown < SIGNIFICANT) == (p < SIGNIFICANT)
    assert (shown == SIGNIFICANT) == (p == SIGNIFICANT)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (4.12, "4.1 s"),
        (59.6, "1 min 0 s"),
        (83.0, "1 min 23 s"),
        (7300.0, "2 h 1 min"),
        (math.nan, "–"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.1, "1 s"), (23.0, "25 s"), (200.0, "3 min"), (5400.0, "1.5 h")]
)
def test_estimates_are_rough(seconds: float, text: str) -> None:
    assert rough_time(seconds) == f"about {text}"


def test_plurals_and_lists() -> None:
    assert [plural(1, "row"), plural(2000, "row")] == ["1 row", "2,000 rows"]
    assert plural(2, "study", "studies") == "2 studies"
    assert [joined(list("abc")[:n]) for n in (1, 2, 3)] == ["a", "a and b", "a, b and c"]
    assert joined(["a", "b", "c"], "or") == "a, b or c"
    assert counted({"a": 3, "b": 1}) == "'a' (3) and 'b' (1)"


def test_similar_names_are_suggested() -> None:
    assert did_you_mean("Prise", ["price", "PRICE"]) == "Did you mean 'price' or 'PRICE'?"
    assert suggestion("pric", ["price", "size"], "Columns") == "Did you mean 'price'?"
    assert suggestion("x", ["price", "size"], "Columns") == "Columns: 'price' and 'size'."
    assert suggestion("x", [], "Columns") == "Columns: none."


def test_one_line() -> None:
    assert one_line("a\n b\x1b[1m") == r"a b\x1b[1m"
    assert one_line("abcdef", 4) == "abc…"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Größe in m²", "Größe in m²"),
        ("a\xa0b\u2009c 日本 😀", "a\xa0b\u2009c 日本 😀"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b2J", r"\u009b2J"),
        ("abc\u202efed", r"abc\u202efed"),
        ("a\u200bb\ufeff", r"a\u200bb\ufeff"),
        ("\U000e0041", r"\U000e0041"),
        ("a\r\nb\tc\x00", r"a\x0d\x0ab\x09c\x00"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_nobody_sees_is_made_visible(text: str, shown: str) -> None:
    assert visible(text) == shown == visible(visible(text))
    assert visible(f"{text}\n", keep="\n") == f"{visible(text, keep=chr(10))}\n"


def test_words_for_a_shell_are_visible_and_mean_the_same() -> None:
    words = ["plain", "it's", "two words", "\x1b[31m'red'\\", "\u202eevil", "a\nb"]
    line = " ".join(map(shell_word, words))
    assert line.startswith("plain ") and line.isprintable()
    script = f"printf '%s\\0' {line}"
    bash = {"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"}
    out = subprocess.run(["bash", "-c", script], capture_output=True, check=True, env=bash).stdout
    assert out.decode().split("\0")[:-1] == words


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\r=1"),
        ("-12", "-12"),
        ("+1.5e-3", "+1.5e-3"),
        ("-1,5", "-1,5"),
        ("a=b", "a=b"),
        ("two\nlines", "two\nlines"),
        ("\x1b[2J", r"\x1b[2J"),
    ],
)
def test_cells_of_csv_are_no_formulas(text: str, cell: str) -> None:
    assert csv_cell(text) == cell


def test_tables_align_their_columns() -> None:
    rows = [("name", "value"), ("a", "1.5"), ("long name", "12")]
    assert text_table(rows, right=(1,)).splitlines() == [
        "name        value",
        "a             1.5",
        "long name      12",
    ]


def test_lines_do_not_break_within_a_number_and_its_error() -> None:
    text = entry("loss", f"{'x' * 79} 1 ± 2")
    assert [line.strip() for line in text.splitlines()] == [f"loss          {'x' * 79}", "1 ± 2"]


def test_json_has_null_for_numbers_that_are_not_finite() -> None:
    text = strict_json({"β": (1.0, math.nan), 2: [math.inf, None]})
    assert json.loads(text) == {"β": [1.0, None], "2": [None, None]}
    assert "β" in text and strict_json("β", ascii_only=True) == '"\\u03b2"'

"""The task is guessed from what targets of each kind look like."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from directgp.datasets.targets import guess_task

RNG = np.random.default_rng(0)

TWO = "it has 2 different values"
FAR = "its whole numbers are too far apart for counts"
CLOSE = "its whole numbers scatter less than counts do"
MANY = "different numbers"
COUNTS = "that scatter as counts do"

GUESSES: list[tuple[str, Any, str, str]] = [
    ("bools", [True, False] * 9, "classification", TWO),
    ("two words", ["b", "a"] * 9, "classification", TWO),
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
def test_guesses(values: Any, task: str, words: str) -> None:
    guessed, reason = guess_task(pa.chunked_array([pa.array(values)]))
    assert guessed == task
    assert words in reason


def test_the_order_of_rows_does_not_matter() -> None:
    values = RNG.poisson(4.0, 200)
    guesses = {guess_task(pa.chunked_array([RNG.permutation(values)])) for _ in range(5)}
    assert len(guesses) == 1

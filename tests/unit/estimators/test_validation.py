"""Errors for data that the estimators cannot use, and their texts."""

import re
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from directgp.errors import InvalidInputError
from directgp.estimators.validation import (
    RowValues,
    check_classes,
    check_counts,
    check_finite,
    check_sample_weight,
    check_whole,
)

FIT = "SparseGPRegressor.fit"
COUNT_FIT = "SparseGPCountRegressor.fit"
CLASS_FIT = "SparseGPClassifier.fit"


def said(check: Callable[[], object]) -> str:
    """The refusal, which is a ValueError too."""
    with pytest.raises(InvalidInputError) as caught:
        check()
    assert isinstance(caught.value, ValueError)
    return str(caught.value)


def with_values(*places: tuple[int, int], value: float) -> np.ndarray:
    X = np.zeros((9, 2))
    for place in places:
        X[place] = value
    return X


def test_nan_is_counted_and_its_first_place_named() -> None:
    X = with_values((7, 1), (8, 0), (8, 1), value=np.nan)
    assert said(lambda: check_finite("X", X, FIT, ["height", "age"])) == (
        "Input X contains NaN. SparseGPRegressor.fit got 3 of them, the first in row 7, "
        "column 'age'. Fit with missing='impute', or drop these rows first."
    )


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinity_is_named_in_the_words_of_scikit_learn(value: float) -> None:
    X = with_values((2, 0), value=value)
    assert said(lambda: check_finite("X", X, FIT)).startswith(
        "Input X contains infinity or a value too large for dtype('float64'). "
        "SparseGPRegressor.fit got one, in row 2, column 0."
    )


def test_names_may_come_as_an_array() -> None:
    X = with_values((2, 1), value=np.nan)
    names = np.array(["a", "<b>"], dtype=object)
    assert "row 2, column '<b>'" in said(lambda: check_finite("X", X, FIT, names))


def test_targets_that_are_not_finite_are_named_by_row() -> None:
    y = np.array([0.0, np.inf, np.nan, np.nan])
    assert said(lambda: check_finite("y", y, FIT)) == (
        "Input y contains NaN. SparseGPRegressor.fit got 2 of them, the first in row 2. "
        "Drop these rows first."
    )
    assert "Input y contains infinity" in said(lambda: check_finite("y", y[:2], FIT))


def test_finite_data_pass() -> None:
    check_finite("X", np.array([[1e150, -5e-324]]), FIT)
    check_finite("y", np.array([1e150, 0.0, -1e150, 5e-324]), FIT)


@pytest.mark.parametrize("value", [1.1e150, -1e300])
def test_huge_data_are_refused(value: float) -> None:
    assert said(lambda: check_finite("X", np.array([[0.0, value]]), FIT)) == (
        "Input X contains a value beyond ±1e+150. SparseGPRegressor.fit got one, in row 0, column "
        "1. Give this column in another unit."
    )
    assert "Give y in another unit." in said(lambda: check_finite("y", np.array([value]), FIT))


def test_counts_that_float64_rounds_are_refused() -> None:
    check_counts(np.array([2.0**53]), COUNT_FIT)
    assert "up to 9,007,199,254,740,992" in said(
        lambda: check_counts(np.array([2.0**54]), COUNT_FIT)
    )


def test_negative_counts_are_named() -> None:
    assert said(lambda: check_counts(np.array([0.0, -2.0, -3.5]), COUNT_FIT)) == (
        "y of SparseGPCountRegressor.fit must be counts, 0, 1, 2, …. Got -2.0 in row 1 "
        "(and 1 more). Use SparseGPRegressor for real-valued targets."
    )


def test_fractions_are_no_counts_and_may_be_rates() -> None:
    text = said(lambda: check_counts(np.array([0.0, 2.0, 0.5]), COUNT_FIT))
    assert "Got 0.5 in row 2. " in text
    assert "exposure=" in text


def test_counts_pass() -> None:
    check_counts(np.array([0.0, 1.0, 1e6]), COUNT_FIT)
    check_counts(np.array([0, 1, 10**6]), COUNT_FIT)


def test_one_class_is_too_few() -> None:
    text = said(lambda: check_classes(np.array(["no"]), CLASS_FIT))
    assert text.startswith(
        "y of SparseGPClassifier.fit must be of at least two classes. Got one class, 'no'."
    )
    assert re.search(r"\bclass(es)?\b", text)


@pytest.mark.parametrize("classes", [[0, 1], ["a", "b", "c"], [False, True], [-1.5, 2.0]])
def test_two_or_more_classes_pass(classes: list[object]) -> None:
    check_classes(np.array(classes), CLASS_FIT)


@pytest.mark.parametrize(
    ("exposure", "sentence"),
    [
        (
            [1.0, 0.0, -1.0],
            "must be positive, from 1e-150 to 1e+150. Got 0.0 in row 1 (and 1 more).",
        ),
        ([1.0, 2.0, np.nan], "Got nan in row 2."),
        ([np.inf, 2.0, 1.0], "Got inf in row 0."),
        ([1.0, 2.0], "must be of shape (3,). Got shape (2,)."),
        ([[1.0], [1.0], [1.0]], "Got shape (3, 1)."),
        (["a", "b", "c"], "must be numbers. Got a list with values that are not numbers."),
    ],
)
def test_exposures_are_positive_numbers_one_a_row(exposure: list[float], sentence: str) -> None:
    text = said(lambda: RowValues("exposure", exposure).checked(3, COUNT_FIT))
    assert text.startswith("exposure of SparseGPCountRegressor.fit must be ")
    assert sentence in text


def test_exposures_come_back_as_floats() -> None:
    exposure = RowValues("exposure", pd.Series([1, 2, 3])).checked(3, COUNT_FIT).values
    assert exposure.dtype == np.float64
    assert exposure.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ([1.0, -1.0, -2.0], "must be at least 0. Got -1.0 in row 1 (and 1 more)."),
        ([1e308, 1e308, 1.0], "must be of a sum up to 1e+150. Got inf."),
    ],
)
def test_weights_are_not_negative_and_can_be_added(weights: list[float], sentence: str) -> None:
    text = said(lambda: check_sample_weight(weights, np.zeros((3, 1)), FIT))
    assert f"sample_weight of SparseGPRegressor.fit {sentence}" in text


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        ([0.0, 0.0, 0.0], r"(.*weight.*zero.*)|(.*zero.*weight.*)"),
        ([1.0, 1.0], "shape"),
        ([1.0, np.nan, 1.0], "sample_weight contains NaN"),
    ],
)
def test_weights_are_refused_as_scikit_learn_does(weights: list[float], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        check_sample_weight(weights, np.zeros((3, 1)), FIT)


def test_weights_come_back_as_floats() -> None:
    X = np.zeros((3, 1))
    assert check_sample_weight(None, X, FIT) is None
    weights = check_sample_weight(pd.Series([0, 1, 2]), X, FIT)
    assert weights is not None and weights.dtype == np.float64
    assert weights.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("value", [1.5, 2.0, 0, -1, "2", None])
def test_numbers_of_things_are_whole(value: object) -> None:
    words = said(lambda: check_whole(value, 1, "n_samples of sample_y"))
    assert words == f"n_samples of sample_y must be an integer of at least 1. Got {value!r}."
    check_whole(np.int64(3), 1, "n_samples of sample_y")

"""The rows of a cell of the paper's experiments."""

from dataclasses import replace

import numpy as np
import pytest

from directgp.errors import InvalidInputError
from directgp.experiments.paper.fits import paper_parts, paper_rows
from tests.unit.experiments.paper.made_up import fit_cell
from tests.unit.experiments.small import problem


def test_regression_is_split_67_8_25() -> None:
    parts = paper_parts("pol", "regression", 15_000)
    assert (parts.training, parts.validation, parts.test) == (10_050, 1_200, 3_750)


def test_song_has_ten_thousand_test_rows_and_no_more_training_rows_for_it() -> None:
    parts = paper_parts("song", "regression", 515_345)
    assert parts.test == 10_000
    assert parts.training == pytest.approx(0.67 * 515_345, abs=1)


def test_labels_and_counts_have_a_tenth_to_validate_and_a_thousand_to_judge() -> None:
    parts = paper_parts("banana", "classification", 5_300)
    assert (parts.validation, parts.test, parts.training) == (530, 1_000, 3_770)


def test_airline_has_a_hundred_thousand_test_rows_and_chooses_nothing() -> None:
    parts = paper_parts("airline", "classification", 2_055_733)
    assert (parts.validation, parts.test, parts.training) == (0, 100_000, 1_955_733)


def test_no_row_is_in_two_parts_and_smaller_sizes_are_parts_of_larger_ones() -> None:
    given = problem(n=100)
    numbered = replace(given, X=np.arange(100.0)[:, None])
    small, large = (
        paper_rows(fit_cell("pol", "elbo", size=size, data="x"), numbered) for size in (20, 60)
    )
    parts = [large.train[0], large.validation[0], large.test[0]]
    assert len(np.unique(np.concatenate(parts))) == 60 + 8 + 25
    assert np.array_equal(small.train[0], large.train[0][:20])
    assert np.array_equal(small.test[0], large.test[0])
    assert large.num_training == 67


def test_repeats_have_other_rows() -> None:
    given = problem(n=100)
    first, second = (
        paper_rows(fit_cell("pol", "elbo", repeat, size=20, data="x"), given) for repeat in (0, 1)
    )
    assert not np.array_equal(first.test[0], second.test[0])


def test_more_rows_than_there_are_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="size must be from 1 to 67"):
        paper_rows(fit_cell("pol", "elbo", size=68), problem(n=100))

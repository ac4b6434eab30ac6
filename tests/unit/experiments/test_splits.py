"""Random splits."""

import numpy as np
import pytest

from directgp.errors import InvalidInputError
from directgp.experiments.plan import parts_of, split
from tests.unit.experiments.small import problem


@pytest.mark.parametrize(
    ("rows", "training", "validation", "test"),
    [
        (100, 55, 20, 25),
        (442, 244, 88, 110),
        (1000, 650, 100, 250),
        (15000, 10050, 1200, 3750),
        (2_000_000, 1_975_000, 5000, 20_000),
    ],
)
def test_sizes_of_the_parts(rows: int, training: int, validation: int, test: int) -> None:
    parts = parts_of(rows)
    assert (parts.training, parts.validation, parts.test) == (training, validation, test)


def test_parts_share_no_row() -> None:
    found = split(problem(n=200), repeat=0, size=parts_of(200).training, seed=1)
    rows = np.concatenate(found)
    assert sorted(rows.tolist()) == list(range(200))


def test_sizes_share_what_they_can() -> None:
    small, large = (split(problem(n=200), 3, size, seed=1) for size in (20, 90))
    assert small[0].tolist() == large[0][:20].tolist()
    assert [each.tolist() for each in small[1:]] == [each.tolist() for each in large[1:]]


def test_repeats_and_seeds_differ_and_come_back() -> None:
    def rows(repeat: int, seed: int) -> list[int]:
        return list(split(problem(n=200), repeat, 50, seed)[0])

    assert rows(0, 0) == rows(0, 0)
    assert len({tuple(rows(r, s)) for r in range(3) for s in range(3)}) == 9


def test_labels_are_spread_evenly() -> None:
    given = problem("classification", n=400)
    share = given.y.mean()
    for rows in split(given, 0, 40, seed=0):
        # Each stratum is within two places of where an even spread has it.
        assert abs(given.y[rows].sum() - share * len(rows)) <= 4


def test_real_targets_are_drawn_without_their_help() -> None:
    given = problem(n=400)
    means = [given.y[split(given, r, 100, 0)[2]].mean() for r in range(30)]
    error = given.y.std() / np.sqrt(100) * np.sqrt(300 / 399)
    assert 0.6 * error < np.std(means, ddof=1) < 1.5 * error


@pytest.mark.parametrize("size", [0, 56])
def test_a_size_that_is_not_there(size: int) -> None:
    with pytest.raises(InvalidInputError, match=r"size must be from 1 to 55\. Got"):
        split(problem(n=100), 0, size, 0)

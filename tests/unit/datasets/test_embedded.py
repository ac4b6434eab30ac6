"""Data made by formula has the moments of the formula, within standard errors."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from directgp.datasets.embedded import (
    friedman1,
    friedman1_mean,
    rental_rate,
    rentals,
    ringnorm,
    twonorm,
)

MADE = [friedman1, twonorm, ringnorm, rentals]

SIGMAS = 5.0
"""Standard errors that a mean may be off by; the seeds are fixed."""


def features(table: pa.Table, label: int | None = None) -> Any:
    X = np.column_stack([table[name] for name in table.column_names[:-1]])
    return X if label is None else X[np.asarray(table["class"]) == label]


def close(values: Any, truth: Any) -> bool:
    """Whether the mean over rows is that of the formula."""
    error = np.std(values, axis=0) / np.sqrt(len(values))
    return bool((abs(np.mean(values, axis=0) - truth) < SIGMAS * error).all())


@pytest.mark.parametrize("make", MADE)
def test_the_same_each_time_and_not_for_another_seed(make: Any) -> None:
    assert make().equals(make())
    assert not make().equals(make(seed=99))
    assert make(rows=37).num_rows == 37


def test_friedman1() -> None:
    X, y = features(friedman1()), np.asarray(friedman1()["y"])
    assert close(X, 0.5)
    assert close(X**2, 1 / 3)
    # At these points the formula can be read off.
    middle, corner = np.full((1, 10), 0.5), np.ones((1, 10))
    assert friedman1_mean(middle)[0] == pytest.approx(10 * np.sin(np.pi / 4) + 7.5)
    assert friedman1_mean(corner)[0] == pytest.approx(0 + 5 + 15)
    noise = y - friedman1_mean(X)
    assert close(noise, 0.0)
    assert close(noise**2, 1.0)
    # E y = 10 E sin(π x₁ x₂) + 20/12 + 5 + 2.5, the first by a fine grid.
    grid = (np.arange(1000) + 0.5) / 1000
    assert close(y, 10 * np.sin(np.pi * np.outer(grid, grid)).mean() + 20 / 12 + 7.5)


@pytest.mark.parametrize(
    ("make", "label", "mean", "sd"),
    [
        (twonorm, 0, 2 / np.sqrt(20), 1.0),
        (twonorm, 1, -2 / np.sqrt(20), 1.0),
        (ringnorm, 0, 0.0, 2.0),
        (ringnorm, 1, 2 / np.sqrt(20), 1.0),
    ],
)
def test_norms(make: Any, label: int, mean: float, sd: float) -> None:
    X = features(make(), label)
    assert abs(len(X) - 1000) < SIGMAS * np.sqrt(2000 / 4)
    assert X.shape[1] == 20
    assert close(X, mean)
    assert close((X - mean) ** 2, sd**2)
    others = np.roll(X, 1, axis=1) - mean
    assert close((X - mean) * others, 0.0)


def test_bayes_error_is_as_published() -> None:
    # Breiman's figures: 2.3 % for twonorm and 1.3 % for ringnorm.
    for make, published in ((twonorm, 0.023), (ringnorm, 0.013)):
        table = make(rows=100_000)
        X, a = features(table), 2 / np.sqrt(20)
        if make is twonorm:
            guess = X.sum(axis=1) < 0
        else:
            inner = -0.5 * ((X - a) ** 2).sum(axis=1)
            guess = inner > -0.5 * (X**2).sum(axis=1) / 4 - 20 * np.log(2)
        wrong = np.mean(guess != np.asarray(table["class"]))
        assert abs(wrong - published) < 0.001 + SIGMAS * np.sqrt(published / 1e5)


def test_rentals() -> None:
    table = rentals()
    columns = {name: np.asarray(table[name]) for name in table.column_names}
    y = columns.pop("rentals")
    rate = rental_rate(**columns)
    assert close((y - rate) / np.sqrt(rate), 0.0)
    assert close((y - rate) ** 2 / rate, 1.0)
    assert np.corrcoef(y, rate)[0, 1] > 0.9
    noon = {
        name: np.array([float(value)])
        for name, value in zip(columns, (12, 22, 0, 60, 1), strict=True)
    }
    bump = 1.2 * np.exp(-0.5 * (2.5 / 3.5) ** 2)
    assert rental_rate(**noon)[0] == pytest.approx(
        np.exp(1.6 - 0.8 * np.cos(2 * np.pi * 10 / 24) + bump)
    )

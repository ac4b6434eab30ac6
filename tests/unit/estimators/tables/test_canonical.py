"""The order of training rows, and the merging of equal ones."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from directgp.estimators.preprocessing import (
    ColumnScaling,
    Scalings,
    TrainingTable,
    prepare_rows,
)

Array = NDArray[np.float64]

seeds = st.integers(0, 2**32 - 1)


def rows(seed: int, n: int = 40) -> tuple[Array, Array, Array, Array]:
    """Inputs, targets, weights and exposures, with ties and repetitions."""
    random = np.random.default_rng(seed)
    X = random.integers(-2, 3, size=(n, 2)) / 4
    y = random.integers(0, 2, size=n).astype(np.float64)
    return X, y, random.choice([0.0, 0.1, 0.7, 1.0, 3.0], size=n), random.choice([1.0, 2.0], size=n)


def canonical(
    X: Array,
    y: Array,
    weights: Array | None = None,
    exposure: Array | None = None,
    *,
    turn: bool = False,
    signed_target: bool = False,
) -> TrainingTable:
    """The training table of unscaled rows."""
    return prepare_rows(
        X,
        y,
        weights,
        exposure,
        Scalings(ColumnScaling.identity(X.shape[1]), ColumnScaling.identity(1)),
        turn=turn,
        real_valued=signed_target,
        dtype=torch.float64,
        device=torch.device("cpu"),
    )


def assert_same(a: TrainingTable, b: TrainingTable) -> None:
    """Bit for bit, with 0 and −0 different."""
    for name in ("X", "y", "weights", "exposure"):
        left, right = getattr(a, name), getattr(b, name)
        assert (left is None) == (right is None)
        assert left is None or left.numpy().tobytes() == right.numpy().tobytes()
    assert a.num_merged == b.num_merged


@given(seed=seeds, weighted=st.booleans(), exposed=st.booleans())
def test_the_order_of_the_rows_changes_no_bit(seed: int, weighted: bool, exposed: bool) -> None:
    X, y, w, e = rows(seed)
    order = np.random.default_rng(seed).permutation(len(y))

    def form(index: NDArray[np.int64]) -> TrainingTable:
        return canonical(
            X[index], y[index], w[index] if weighted else None, e[index] if exposed else None
        )

    assert_same(form(np.arange(len(y))), form(order))


@given(seed=seeds)
def test_integer_weights_equal_repetition(seed: int) -> None:
    X, y, _, e = rows(seed)
    times = np.random.default_rng(seed).integers(0, 4, size=len(y))
    times[0] = 1
    weighted = canonical(X, y, times.astype(np.float64), e)
    rows_again = np.repeat(np.arange(len(y)), times)
    repeated = canonical(X[rows_again], y[rows_again], None, e[rows_again])
    for name in ("X", "y", "weights", "exposure"):
        np.testing.assert_array_equal(getattr(weighted, name), getattr(repeated, name))


@given(seed=seeds, flips=st.lists(st.sampled_from([-1.0, 1.0]), min_size=4, max_size=4))
def test_a_change_of_signs_does_not_change_the_order(seed: int, flips: list[float]) -> None:
    random = np.random.default_rng(seed)
    X, y = random.normal(size=(50, 3)), random.normal(size=50)
    # Ties in the first column give the others something to say.
    X[:, 0] = np.round(X[:, 0])
    here = canonical(X, y, turn=True, signed_target=True)
    there = canonical(X * flips[:3], y * flips[3], turn=True, signed_target=True)
    np.testing.assert_array_equal(here.X, there.X)
    np.testing.assert_array_equal(here.y, there.y * flips[3])


@pytest.mark.parametrize("y_of_x", [np.sin, np.square, lambda x: np.where(x > 0, x, 0.0)])
def test_symmetric_inputs_take_their_direction_from_the_target(y_of_x: np.ufunc) -> None:
    X = np.linspace(-1, 1, 9)[:, None]
    y = y_of_x(X[:, 0])
    here, there = canonical(X, y, signed_target=True), canonical(-X, y, signed_target=True)
    np.testing.assert_array_equal(here.y, there.y)


def test_rows_are_sorted_by_inputs_target_and_exposure() -> None:
    X = np.array([[2.0, 1.0], [-1.0, 5.0], [-1.0, -6.0], [-1.0, -6.0], [-1.0, -6.0], [2.0, 6.0]])
    y = np.array([0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    exposure = np.array([1.0, 1.0, 1.0, 3.0, 2.0, 1.0])
    data = canonical(X, y, None, exposure, turn=True)
    assert data.exposure is not None
    keys = torch.column_stack([data.X, data.y, data.exposure]).tolist()
    assert keys == sorted(keys)
    given_rows = np.column_stack([X * data.scalings.inputs.scale, y, exposure]).tolist()
    assert keys == sorted(given_rows)
    assert data.weights is None
    assert data.num_merged == 0


def test_equal_rows_become_one_with_the_sum_of_their_weights() -> None:
    X = np.array([[0.0], [1.0], [-0.0], [0.0]])
    data = canonical(X, np.zeros(4), np.array([0.5, 1.0, 2.0, 0.0]))
    assert data.X.ravel().tolist() == [0.0, 1.0]
    assert not torch.signbit(data.X).any()
    assert data.weights is not None and data.weights.tolist() == [2.5, 1.0]
    assert data.num_merged == 1


def test_targets_and_exposures_keep_rows_apart() -> None:
    X = np.zeros((3, 1))
    assert canonical(X, np.array([0.0, 1.0, 2.0])).num_merged == 0
    assert canonical(X, np.zeros(3), None, np.array([1.0, 2.0, 3.0])).num_merged == 0


def test_weights_of_1_are_no_weights() -> None:
    X = np.arange(3.0)[:, None]
    assert canonical(X, np.zeros(3), np.array([1.0, 0.0, 1.0])).weights is None
    assert canonical(X, np.zeros(3), np.array([0.5, 0.5, 0.5])).weights is not None


def test_what_was_given_is_left_as_it_was() -> None:
    X, y, w, e = rows(0)
    before = [array.copy() for array in (X, y, w, e)]
    canonical(X, y, w, e)
    for array, copy in zip((X, y, w, e), before, strict=True):
        np.testing.assert_array_equal(array, copy)

"""Scaling, the order of training rows, and the merging of equal ones."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from directgp.estimators.preprocessing import (
    CheckedRows,
    ColumnScaling,
    Scalings,
    TrainingTable,
    prepare_rows,
)
from directgp.estimators.validation import RowValues

Array = NDArray[np.float64]
GRID = 2.0**-32

seeds = st.integers(0, 2**32 - 1)
factors = st.builds(
    lambda sign, power: sign * 10.0**power, st.sampled_from([-1, 1]), st.floats(-6, 6)
)


def normal(seed: int, n: int = 500, d: int = 2) -> Array:
    return np.random.default_rng(seed).normal(size=(n, d))


def scaled(values: Array, weights: Array | None = None) -> Array:
    return ColumnScaling.from_data(values, weights).forward(values)


def test_columns_have_weighted_mean_0_and_deviation_1() -> None:
    values, weights = 5 + 3 * normal(0), np.random.default_rng(1).uniform(0.5, 3, size=500)
    z = scaled(values, weights)
    np.testing.assert_allclose(np.average(z, axis=0, weights=weights), 0, atol=1e-9)
    np.testing.assert_allclose(np.average(z**2, axis=0, weights=weights), 1, rtol=1e-9)


@given(seed=seeds, a=factors, b=st.floats(-100, 100))
def test_other_units_give_the_same_numbers(seed: int, a: float, b: float) -> None:
    values = normal(seed)
    here, there = scaled(values), np.sign(a) * scaled(a * values + a * b)
    # a·x + b is itself rounded, by up to 1e-14 deviations; about 1 entry in 10⁴ lies so near the
    # middle of two multiples of the grid, and goes to the other one.
    assert np.mean(here != there) <= 0.005
    assert np.abs(here - there).max() <= GRID


@given(seed=seeds, power=st.integers(-900, 900), sign=st.sampled_from([-1, 1]))
def test_powers_of_two_change_no_bit(seed: int, power: int, sign: int) -> None:
    values = 7 + normal(seed, 20)
    np.testing.assert_array_equal(scaled(values), sign * scaled(sign * np.ldexp(values, power)))


@given(seed=seeds)
def test_neither_order_nor_repetition_changes_a_bit(seed: int) -> None:
    random = np.random.default_rng(seed)
    values, times = 1e3 * random.normal(size=(30, 2)) + 0.1, random.integers(0, 9, size=30)
    order = random.permutation(int(times.sum()))
    repeated = np.repeat(values, times, axis=0)[order]
    whole = ColumnScaling.from_data(repeated)
    weighted = ColumnScaling.from_data(values, times.astype(np.float64))
    np.testing.assert_array_equal(whole.shift, weighted.shift)
    np.testing.assert_array_equal(whole.scale, weighted.scale)


@given(seed=seeds, a=factors, b=st.floats(-1e3, 1e3))
def test_backward_undoes_forward(seed: int, a: float, b: float) -> None:
    values = a * (normal(seed, 50) + b)
    scaling = ColumnScaling.from_data(values)
    back = scaling.backward(scaling.forward(values))
    assert np.abs((back - values) / scaling.scale).max() <= 1e-9


@pytest.mark.parametrize("magnitude", [1e300, 1e-300, 3e-308, 3e307, 1e9, 1e-9])
def test_no_magnitude_is_too_large_or_small(magnitude: float) -> None:
    values = normal(2, 200)
    np.testing.assert_allclose(scaled(magnitude * values), scaled(values), atol=1e-9)


@pytest.mark.parametrize("values", [[-1.7e308, 1.7e308, 1e308], [0, 5e-324], [5e-324, 1e-322, 0]])
def test_the_ends_of_the_floats_give_finite_numbers_of_order_1(values: list[float]) -> None:
    z = scaled(np.array(values)[:, None])
    assert 0.5 <= np.ptp(z) <= 4
    assert np.isfinite(z).all()


def test_an_offset_is_not_mistaken_for_spread() -> None:
    values = np.arange(10.0)[:, None]
    np.testing.assert_allclose(scaled(1e9 + values), scaled(values), atol=1e-9)


@pytest.mark.parametrize("value", [0.0, 1.0, -3.7, 1e300, 5e-324, 0.1])
def test_a_constant_column_is_only_centred(value: float) -> None:
    values = np.full((7, 1), value)
    scaling = ColumnScaling.from_data(values)
    assert scaling.shift.item() == value
    assert scaling.scale.item() == 1
    assert not scaling.forward(values).any()


@pytest.mark.parametrize("unit", [1.0, 1e12, 1e300, 1e-300])
def test_spread_that_is_rounding_is_no_spread(unit: float) -> None:
    values = unit * np.array([[0.3], [0.1 + 0.2], [0.9 / 3], [0.3]])
    assert np.ptp(values) > 0
    assert not scaled(values).any()


def test_small_spread_is_spread() -> None:
    z = scaled(np.array([[1e9], [1e9 + 1e-4]]))
    np.testing.assert_allclose(z.ravel(), [-1, 1], atol=0.01)


def test_rows_of_weight_0_are_not_seen() -> None:
    values, weights = np.array([[1.0], [3.0], [1e300]]), np.array([2.0, 2.0, 0.0])
    scaling = ColumnScaling.from_data(values, weights)
    assert (scaling.shift.item(), scaling.scale.item()) == (2, 1)


@pytest.mark.parametrize("factor", [1e300, 1e-300, 0.3])
def test_a_common_factor_of_the_weights_does_not_matter(factor: float) -> None:
    values, weights = normal(3, 40), np.random.default_rng(3).uniform(size=40)
    np.testing.assert_array_equal(scaled(values, weights), scaled(values, factor * weights))


@pytest.mark.parametrize("far", [1e20, 1e300, 1.7e308])
def test_far_inputs_stay_where_squares_are_finite(far: float) -> None:
    for values in (normal(4), 1e-300 * normal(4), np.ones((5, 2))):
        z = ColumnScaling.from_data(values).forward(np.array([[far, -far]]))
        assert z.tolist() == [[1e12, -1e12]]


def test_what_cannot_be_a_float_becomes_the_largest_one() -> None:
    scaling = ColumnScaling(np.array([0.0]), np.array([1e308]))
    largest = np.finfo(np.float64).max
    assert scaling.backward(np.array([3.0, -3.0])).tolist() == [largest, -largest]
    assert scaling.backward_deviation(np.array([3.0])).tolist() == [largest]
    assert np.isnan(scaling.backward(np.array([math.nan]))).all()


def test_integers_are_numbers() -> None:
    values = np.array([[1], [3]])
    assert ColumnScaling.from_data(values).forward(values).ravel().tolist() == [-1.0, 1.0]


def test_identity_changes_nothing() -> None:
    values = np.array([[0.5, 0.1], [3.0, -2.25]])
    np.testing.assert_array_equal(ColumnScaling.identity(2).forward(values), values)
    assert ColumnScaling.identity(2).log_scale == 0


def test_a_flipped_scaling_gives_the_opposite_numbers() -> None:
    values = 2 + 3 * normal(5)
    scaling = ColumnScaling.from_data(values)
    flipped = replace(scaling, scale=scaling.scale * [-1.0, 1.0])
    z = flipped.forward(values)
    np.testing.assert_array_equal(z, scaling.forward(values) * [-1, 1])
    np.testing.assert_allclose(flipped.backward(z), values, atol=1e-9)
    assert flipped.log_scale == scaling.log_scale
    assert (flipped.backward_deviation(np.ones((1, 2))) > 0).all()


def test_targets_need_no_second_axis() -> None:
    y = np.array([10.0, 30.0])
    scaling = ColumnScaling.from_data(y[:, None])
    assert scaling.forward(y).tolist() == [-1.0, 1.0]
    assert scaling.backward(np.array([-1.0, 1.0])).tolist() == [10.0, 30.0]
    assert scaling.backward_deviation(np.array([0.5])).tolist() == [5.0]
    assert scaling.log_scale == math.log(10)


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
    """The training table of unscaled rows, without those of weight 0."""
    counted = np.full(len(y), True) if weights is None else weights > 0
    return prepare_rows(
        CheckedRows(
            X[counted],
            y[counted],
            None if weights is None else weights[counted],
            None if exposure is None else RowValues("exposure", exposure[counted]),
        ),
        Scalings(ColumnScaling.identity(X.shape[1]), ColumnScaling.identity(1)),
        turn=turn,
        real_valued=signed_target,
        dtype=torch.float64,
        device=torch.device("cpu"),
    )


def assert_same(a: TrainingTable, b: TrainingTable) -> None:
    """Bit for bit, with 0 and −0 different."""
    for name in ("X", "y", "weights", "row_values"):
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
    for name in ("X", "y", "weights", "row_values"):
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
    assert data.row_values is not None
    keys = torch.column_stack([data.X, data.y, data.row_values]).tolist()
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

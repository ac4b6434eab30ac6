"""Trees as arrays give the predictions of scikit-learn, and forged arrays are refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from directgp.errors import UnsupportedError
from directgp.stack.trees import DTYPES, MAX_LEAVES, Trees

Array = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]

ROUNDING = 1e-12
"""Values are of size 1; sums of 100 of them are rounded by less."""


def inputs(n: int = 400, d: int = 3, missing: float = 0.0, seed: int = 0) -> Array:
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(n, d)).round(1)
    X[generator.random(X.shape) < missing] = np.nan
    return X


def score(X: Array) -> Array:
    filled = np.nan_to_num(X, nan=1.5)
    return np.asarray(np.sin(3 * filled[:, 0]) + filled[:, 1] * filled[:, -1])


def regression(missing: float = 0.0, **settings: Any) -> tuple[Any, Array]:
    X = inputs(missing=missing)
    options = {"max_iter": 30, "min_samples_leaf": 5, **settings}
    return HistGradientBoostingRegressor(**options).fit(X, score(X)), X


def classes(number: int, missing: float = 0.0) -> tuple[Any, Array]:
    X = inputs(missing=missing)
    y = np.digitize(score(X), np.quantile(score(X), np.arange(1, number) / number))
    return HistGradientBoostingClassifier(max_iter=20).fit(X, y), X


MODELS: dict[str, Callable[[], tuple[Any, Array]]] = {
    "regression": regression,
    "with gaps": lambda: regression(missing=0.2),
    "64 leaves": lambda: regression(max_leaf_nodes=MAX_LEAVES, min_samples_leaf=1),
    "stumps": lambda: regression(max_depth=1),
    "no splits": lambda: regression(min_samples_leaf=300),
    "poisson": lambda: (
        HistGradientBoostingRegressor(loss="poisson").fit(inputs(), np.exp(score(inputs()))),
        inputs(),
    ),
    "two classes": lambda: classes(2),
    "four classes": lambda: classes(4, missing=0.1),
    "many trees": lambda: regression(max_iter=300, max_leaf_nodes=4),
    "many features": lambda: (
        HistGradientBoostingRegressor(max_iter=20).fit(inputs(d=60), score(inputs(d=60))),
        inputs(d=60),
    ),
}


@pytest.fixture(scope="module")
def fitted() -> dict[str, tuple[Any, Array]]:
    return {name: make() for name, make in MODELS.items()}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rows", [0, 1, 32, 33, 2000])
def test_predictions_are_those_of_scikit_learn(
    name: str, rows: int, fitted: dict[str, tuple[Any, Array]]
) -> None:
    model, X = fitted[name]
    trees = Trees.from_boosting(model, X)
    new = inputs(2000, X.shape[1], missing=0.1, seed=1)
    # Values on a threshold, and beyond all of them.
    new[::7, 0] = trees.threshold[trees.feature == 0][:1] if len(trees.threshold) else 0.0
    new[::11] = np.inf
    new[::13] = -np.inf
    finite = np.where(np.isfinite(new) | np.isnan(new), new, np.sign(new) * 1e300)
    expected = model._raw_predict(finite).reshape(len(new), -1)
    np.testing.assert_allclose(trees.raw(new[:rows]), expected[:rows], rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("name", MODELS)
def test_a_walk_over_the_nodes_ends_at_the_same_leaves(
    name: str, fitted: dict[str, tuple[Any, Array]]
) -> None:
    model, X = fitted[name]
    trees = Trees.from_boosting(model, X)
    new = inputs(50, X.shape[1], missing=0.1, seed=1)
    nodes = trees.nodes()
    place = np.tile(nodes.first, (len(new), 1))
    for _ in range(nodes.depths.max()):
        x = np.take_along_axis(new, nodes.feature[place], axis=1)
        left = np.where(np.isnan(x), nodes.missing_left[place], x <= nodes.threshold[place])
        place = np.where(left, nodes.left[place], nodes.right[place])
    of_output = np.arange(len(trees.baseline)) == trees.output[:, None]
    raw = trees.baseline + nodes.value[place] @ of_output
    np.testing.assert_allclose(raw, trees.raw(new), rtol=0, atol=ROUNDING)


def test_infinity_as_a_threshold_divides_numbers_from_gaps() -> None:
    X = np.where(np.arange(200) % 2 == 0, 1.0, np.nan)[:, None]
    y = (np.arange(200) % 2).astype(float)
    model = HistGradientBoostingRegressor(max_iter=5).fit(X, y)
    trees = Trees.from_boosting(model, X)
    assert np.isinf(trees.threshold).all()
    for new in (X, X[:3]):
        np.testing.assert_allclose(trees.raw(new)[:, 0], model.predict(new), rtol=0, atol=ROUNDING)


def test_a_constant_has_no_trees() -> None:
    trees = Trees.constant(np.array([0.5, -1.0]), num_features=2)
    assert trees.raw(inputs(3, 2)).tolist() == [[0.5, -1.0]] * 3
    assert trees.nodes().depths.tolist() == []


def test_arrays_give_the_same_bits() -> None:
    model, X = regression(missing=0.2)
    trees = Trees.from_boosting(model, X)
    again = Trees.from_arrays(trees.arrays(), trees.num_features)
    np.testing.assert_array_equal(again.raw(X), trees.raw(X))


def test_boosting_without_such_arrays_is_refused() -> None:
    X = inputs()
    many, _ = regression(max_leaf_nodes=MAX_LEAVES + 1, min_samples_leaf=1)
    levels = HistGradientBoostingRegressor(categorical_features=[0])
    levels.fit(np.column_stack([np.arange(400) % 3, X]), (np.arange(400) % 3 == 1).astype(float))
    for model in (many, levels):
        with pytest.raises(UnsupportedError, match="cannot be converted to arrays"):
            Trees.from_boosting(model, np.zeros((1, model.n_features_in_)))


def test_another_version_of_scikit_learn_is_noticed() -> None:
    model, X = regression()
    model._baseline_prediction = model._baseline_prediction + 1e-6
    expected = model._raw_predict(X)
    model._raw_predict = lambda X: expected
    model._baseline_prediction = model._baseline_prediction - 1e-6
    with pytest.raises(UnsupportedError, match="other predictions than their arrays"):
        Trees.from_boosting(model, X)


def arrays() -> Arrays:
    """Two trees of one output: a split with two leaves, and a leaf."""
    return {
        "is_leaf": np.array([False, True, True, True]),
        "feature": np.array([1], np.int32),
        "threshold": np.array([0.5]),
        "missing_left": np.array([True]),
        "value": np.array([1.0, 2.0, 10.0]),
        "output": np.array([0, 0], np.int32),
        "baseline": np.array([100.0]),
    }


def test_two_trees_by_hand() -> None:
    trees = Trees.from_arrays(arrays(), num_features=2)
    X = np.array([[9.0, 0.5], [9.0, 0.6], [9.0, np.nan]])
    assert trees.raw(X)[:, 0].tolist() == [111.0, 112.0, 111.0]
    assert trees.raw(np.tile(X, (20, 1)))[:3, 0].tolist() == [111.0, 112.0, 111.0]


def comb(depth: int) -> NDArray[np.bool_]:
    """A tree that is as deep as it has splits."""
    return np.array([False] * depth + [True] * (depth + 1))


FORGED: dict[str, dict[str, NDArray[Any]]] = {
    "an open tree": {"is_leaf": np.array([False, True, True, False])},
    "no leaf": {"is_leaf": np.array([False, False, False, False])},
    "more leaves": {"is_leaf": np.array([True, True, True, True])},
    "a feature too large": {"feature": np.array([2], np.int32)},
    "a negative feature": {"feature": np.array([-1], np.int32)},
    "two features": {"feature": np.array([0, 1], np.int32)},
    "a NaN threshold": {"threshold": np.array([np.nan])},
    "no threshold": {"threshold": np.zeros(0)},
    "two flags": {"missing_left": np.array([True, True])},
    "an infinite value": {"value": np.array([1.0, np.inf, 10.0])},
    "a NaN value": {"value": np.array([1.0, np.nan, 10.0])},
    "a huge value": {"value": np.array([1.0, 1e200, 10.0])},
    "too few values": {"value": np.array([1.0, 2.0])},
    "an output too large": {"output": np.array([0, 1], np.int32)},
    "a negative output": {"output": np.array([-1, 0], np.int32)},
    "one output": {"output": np.array([0], np.int32)},
    "falling outputs": {"output": np.array([1, 0], np.int32), "baseline": np.zeros(2)},
    "a NaN baseline": {"baseline": np.array([np.nan])},
    "no baseline": {"baseline": np.zeros(0)},
    "a wide feature": {"feature": np.array([1], np.int64)},
    "a narrow threshold": {"threshold": np.array([0.5], np.float32)},
    "a matrix": {"value": np.ones((1, 3))},
    "too many leaves": {
        "is_leaf": comb(MAX_LEAVES),
        "feature": np.zeros(MAX_LEAVES, np.int32),
        "threshold": np.zeros(MAX_LEAVES),
        "missing_left": np.zeros(MAX_LEAVES, bool),
        "value": np.zeros(MAX_LEAVES + 1),
        "output": np.zeros(1, np.int32),
    },
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_arrays_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="tree"):
        Trees.from_arrays({**arrays(), **FORGED[name]}, num_features=2)


@pytest.mark.parametrize("name", DTYPES)
def test_missing_and_foreign_arrays_are_refused(name: str) -> None:
    less = {key: value for key, value in arrays().items() if key != name}
    for wrong in (less, {**arrays(), "more": np.zeros(1)}):
        with pytest.raises(ValueError, match="trees have the arrays"):
            Trees.from_arrays(wrong, num_features=2)


@given(flags=st.lists(st.booleans(), max_size=40), seed=st.integers(0, 1000))
def test_any_flags_are_trees_that_end_or_are_refused(flags: list[bool], seed: int) -> None:
    is_leaf = np.array(flags, bool)
    splits, leaves = int((~is_leaf).sum()), int(is_leaf.sum())
    generator = np.random.default_rng(seed)
    parts = {
        "is_leaf": is_leaf,
        "feature": generator.integers(2, size=splits, dtype=np.int32),
        "threshold": generator.normal(size=splits).round(1),
        "missing_left": generator.random(splits) < 0.5,
        "value": generator.normal(size=leaves),
        "output": np.zeros(max(leaves - splits, 0), np.int32),
        "baseline": np.zeros(1),
    }
    opens = np.cumsum(np.where(is_leaf, -1, 1))
    complete = not flags or bool(opens[-1] < min([0, *opens[:-1]]))
    if not complete:
        with pytest.raises(ValueError, match="not complete"):
            Trees.from_arrays(parts, num_features=2)
        return
    trees = Trees.from_arrays(parts, num_features=2)
    X = inputs(70, 2, missing=0.2, seed=seed)
    few = np.concatenate([trees.raw(X[:30]), trees.raw(X[30:60]), trees.raw(X[60:])])
    np.testing.assert_allclose(few, trees.raw(X), rtol=0, atol=ROUNDING)


def test_thresholds_are_between_values_of_rows() -> None:
    """scikit-learn's are percentiles of a column of many values, and so values of rows."""
    X = np.random.default_rng(0).normal(size=(500, 2)).round(2)
    X[::50, 1] = np.nan
    model = HistGradientBoostingRegressor(max_iter=30).fit(X, score(X))
    trees = Trees.from_boosting(model, X)
    moved = trees.between(X)
    for j in (0, 1):
        own = trees.feature == j
        assert np.isin(trees.threshold[own], X[:, j]).mean() > 0.5
        assert not np.isin(moved.threshold[own], X[:, j]).any()
    assert np.array_equal(moved.raw(X), trees.raw(X))
    rounded = X.astype(np.float32).astype(np.float64)
    assert np.array_equal(moved.raw(rounded), trees.raw(X))
    assert not np.array_equal(trees.raw(rounded), trees.raw(X))


def test_neighbouring_numbers_stay_apart() -> None:
    first = np.nextafter(1.0, 2.0)
    X = np.repeat([[1.0], [first], [np.nextafter(first, 2.0)]], 20, axis=0)
    model = HistGradientBoostingRegressor(max_iter=5, min_samples_leaf=1).fit(
        X, np.arange(60) // 20
    )
    trees = Trees.from_boosting(model, X)
    assert np.array_equal(trees.between(X).raw(X), trees.raw(X))

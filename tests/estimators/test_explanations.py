"""Relevance of features, permutation importance and partial dependence of fitted estimators."""

from functools import cache
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import PeriodicKernel, RBFKernel, ScaleKernel
from matplotlib import pyplot as plt
from numpy.typing import NDArray
from scipy import stats

import directgp
from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor
from directgp.datasets.embedded import friedman1
from directgp.errors import DirectGPWarning, InvalidInputError
from directgp.estimators import partial_dependence

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::directgp.errors.DirectGPWarning"),
]

Array = NDArray[np.float64]

LIGHT: dict[str, Any] = {
    "objective": "elbo",
    "beta": 1.0,
    "kernel": "rbf",
    "ard": True,
    "num_inducing": 10,
    "max_iter": 30,
    "random_state": 0,
}
RANDOM = np.random.default_rng(0)
ROWS = pd.DataFrame(
    {
        "length": RANDOM.normal(50, 20, 150),
        "noise": RANDOM.normal(size=150),
        "switch": RANDOM.integers(0, 2, 150).astype(float),
    }
)
"""y depends on the first and the last column."""

F = np.sin((ROWS["length"] - 50) / 20).to_numpy() + ROWS["switch"].to_numpy()
Y = 100 + 10 * (F + 0.2 * RANDOM.normal(size=150))
LABELS = np.where(F + 0.3 * RANDOM.normal(size=150) > 0.5, "yes", "no")
HOURS = RANDOM.uniform(1, 5, 150)
COUNTS = RANDOM.poisson(HOURS * np.exp(F))

TRAIN, TEST = slice(0, 100), slice(100, 150)


@cache
def fitted(kind: str, **settings: Any) -> Any:
    some = {**LIGHT, **settings}
    if kind == "labels":
        return SparseGPClassifier(**some).fit(ROWS[TRAIN], LABELS[TRAIN])
    if kind == "counts":
        model = SparseGPCountRegressor(**{"likelihood": "poisson", **some})
        return model.fit(ROWS[TRAIN], COUNTS[TRAIN], exposure=HOURS[TRAIN])
    return SparseGPRegressor(**{"likelihood": "gaussian", **some}).fit(ROWS[TRAIN], Y[TRAIN])


TARGETS: dict[str, Any] = {"numbers": Y, "labels": LABELS, "counts": COUNTS}


def given(kind: str) -> dict[str, Array]:
    return {"exposure": HOURS[TEST]} if kind == "counts" else {}


@pytest.fixture(autouse=True)
def no_window() -> None:
    matplotlib.use("Agg")


# Friedman's function: five features matter, five do not.


@cache
def friedman() -> tuple[Any, Array, Array]:
    """A model of 400 rows, and 600 other rows."""
    table = friedman1()
    X = np.column_stack([np.asarray(table[f"x{j + 1}"]) for j in range(10)])
    y = np.asarray(table["y"])
    settings = {**LIGHT, "num_inducing": 40, "max_iter": 50}
    model = SparseGPRegressor(likelihood="gaussian", **settings).fit(X[:400], y[:400])
    return model, X[400:], y[400:]


def test_relevance_finds_the_features_that_matter() -> None:
    model, _, _ = friedman()
    found = model.feature_importances_
    assert found.shape == (10,) and found.sum() == pytest.approx(1.0)
    assert found[:5].min() > 2 * found[5:].max()
    record = model.feature_relevance()
    np.testing.assert_array_equal(record.relevance, found)
    assert record.importance is None and record.importance_error is None
    assert record.features[9] == "column 9"


def test_importance_finds_the_features_that_matter() -> None:
    """Those that do not are within three standard errors of 0, over the rows and the repeats."""
    model, X, y = friedman()
    found = model.feature_relevance(X, y)
    assert (found.importance[:5] > 1.0).all()
    assert (found.importance[:5] > 10 * found.importance_error[:5]).all()
    random, before = np.random.default_rng(1), model.log_density(X, y)
    for j in range(5, 10):
        shuffled = X.copy()
        shuffled[:, j] = random.permutation(X[:, j])
        loss = before - model.log_density(shuffled, y)
        over_rows = loss.std(ddof=1) / np.sqrt(len(X))
        assert abs(found.importance[j]) < 3 * np.hypot(over_rows, found.importance_error[j])
        assert abs(found.importance[j]) < 0.01


def test_the_text_has_the_most_important_first() -> None:
    model, X, y = friedman()
    found = model.feature_relevance(X, y)
    lines = repr(found).splitlines()
    assert lines[0].split() == ["feature", "relevance", "importance"]
    assert [line.split()[1] for line in lines[1:4]] == ["3", "1", "0"]
    share, number = f"{100 * found.relevance[3]:.1f} %", f"{found.importance[3]:.3f} ±"
    assert share in lines[1] and number in lines[1]
    by_scale = repr(model.feature_relevance()).splitlines()
    assert by_scale[0].split() == ["feature", "relevance"]
    assert {line.split()[1] for line in by_scale[1:3]} == {"0", "1"}


# Relevance by lengthscales


def test_relevance_does_not_depend_on_units() -> None:
    """0/1 and 0/1000 are the same column."""
    model = fitted("numbers")
    other = SparseGPRegressor(likelihood="gaussian", **LIGHT)
    other.fit(ROWS[TRAIN] * [0.01, 7.0, 1000.0], Y[TRAIN])
    np.testing.assert_allclose(other.feature_importances_, model.feature_importances_, rtol=1e-9)
    ratio = model.feature_importances_[0] / model.feature_importances_[2]
    scales = model.posterior_.prior.kernel.lengthscale.detach().numpy().ravel()
    assert ratio == pytest.approx(scales[2] / scales[0])


def test_a_constant_column_has_no_relevance() -> None:
    rows = ROWS[TRAIN].assign(one=1.0)
    model = SparseGPRegressor(likelihood="gaussian", **LIGHT).fit(rows, Y[TRAIN])
    assert model.feature_importances_[3] == 0
    assert model.feature_importances_[0] > model.feature_importances_[1] > 0
    table = model.summary()
    assert table.index("\n  noise") < table.index("\n  one")


def test_a_kernel_of_the_user_with_ard() -> None:
    model = fitted("numbers", kernel=ScaleKernel(RBFKernel(ard_num_dims=3)), ard="auto")
    assert model.feature_importances_.argmin() == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"ard": False},
        {"ard": "auto", "kernel": RBFKernel()},
        {"ard": "auto", "kernel": PeriodicKernel(ard_num_dims=3)},
        {"ard": "auto", "kernel": RBFKernel(ard_num_dims=2, active_dims=(0, 2))},
        {"ard": "auto", "kernel": RBFKernel(ard_num_dims=3) + RBFKernel(ard_num_dims=3)},
    ],
    ids=["shared", "own shared", "periodic", "some features", "sum"],
)
@pytest.mark.slow_for("periodic", "sum")
def test_no_relevance_without_a_length_scale_for_each_feature(settings: Any) -> None:
    model = fitted("numbers", **settings)
    assert not hasattr(model, "feature_importances_")
    with pytest.raises(AttributeError, match=r"no feature_importances_\. Fit with ard=True"):
        _ = model.feature_importances_
    found = model.feature_relevance(ROWS[TEST], Y[TEST])
    assert found.relevance is None and found.importance[2] > found.importance[1]
    assert "The kernel has no lengthscale for each feature" in repr(found)
    assert "relevance" not in repr(found).splitlines()[0]


def test_a_single_feature_is_all() -> None:
    model = SparseGPRegressor(likelihood="gaussian", **{**LIGHT, "ard": False})
    assert not hasattr(model, "feature_importances_")
    model.fit(ROWS[["length"]], Y)
    np.testing.assert_array_equal(model.feature_importances_, [1.0])


def test_relevance_of_a_loaded_model(tmp_path: Any) -> None:
    model = fitted("counts")
    model.save(tmp_path / "model")
    again = directgp.load(tmp_path / "model")
    np.testing.assert_array_equal(again.feature_importances_, model.feature_importances_)


# Permutation importance


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("kind", TARGETS)
def test_importance_is_the_increase_of_the_nll(kind: str) -> None:
    """By other shuffles of our own."""
    model, rows, y = fitted(kind), ROWS[TEST], TARGETS[kind][TEST]
    found = model.feature_relevance(rows, y, n_repeats=15, **given(kind))
    assert found.features == ("length", "noise", "switch")
    before, random = model.nll(rows, y, **given(kind)), np.random.default_rng(5)
    for j, name in enumerate(rows.columns):
        shuffled = (rows.assign(**{name: random.permutation(rows[name])}) for _ in range(15))
        mine = np.array([model.nll(each, y, **given(kind)) for each in shuffled]) - before
        error = np.hypot(mine.std(ddof=1) / np.sqrt(15), found.importance_error[j])
        assert abs(mine.mean() - found.importance[j]) < 4 * error
    assert found.importance[[0, 2]].min() > 5 * abs(found.importance[1])


@pytest.mark.usefixtures("without_shape_checks")
def test_the_error_is_that_of_the_mean_over_repeats() -> None:
    model, many = fitted("numbers"), []
    for seed in range(20):
        many.append(model.feature_relevance(ROWS[TEST], Y[TEST], n_repeats=6, random_state=seed))
    spread = np.std([each.importance for each in many], axis=0, ddof=1)
    reported = np.mean([each.importance_error for each in many], axis=0)
    np.testing.assert_allclose(reported, spread, rtol=0.4)


def test_the_same_seed_gives_the_same_importance() -> None:
    model = fitted("labels")
    first, again, other = (
        model.feature_relevance(ROWS[TEST], LABELS[TEST], random_state=seed).importance
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_counts_without_exposure_are_warned_about_once() -> None:
    model = fitted("counts")
    with pytest.warns(DirectGPWarning, match="feature_relevance uses an exposure of 1") as found:
        model.feature_relevance(ROWS[TEST], COUNTS[TEST])
    assert len(found) == 1
    with pytest.raises(InvalidInputError, match=r"exposure of .*feature_relevance.*shape \(50,\)"):
        model.feature_relevance(ROWS[TEST], COUNTS[TEST], exposure=HOURS[:3])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((ROWS[TEST], None), r"X and y of .*feature_relevance must be given together. Got no y"),
        ((None, LABELS[TEST]), r"given together. Got no X"),
        ((ROWS[TEST], COUNTS[TEST]), r"y of SparseGPClassifier.feature_relevance must be one of"),
    ],
)
def test_wrong_rows_are_refused(arguments: Any, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        fitted("labels").feature_relevance(*arguments)


def test_one_repeat_has_no_error_and_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"n_repeats of .* at least 2. Got 1"):
        fitted("labels").feature_relevance(ROWS[TEST], LABELS[TEST], n_repeats=1)


# Partial dependence


def mean_of(model: Any, rows: Any) -> Array:
    if isinstance(model, SparseGPClassifier):
        return np.asarray(model.predict_proba(rows)[:, 1])
    return np.asarray(model.predict(rows))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("kind", TARGETS)
def test_partial_dependence_is_a_mean_over_rows(kind: str) -> None:
    model = fitted(kind)
    found = {each.feature: each for each in partial_dependence(model, ROWS)}
    assert set(found) == set(ROWS)
    for name, each in found.items():
        for value, mean in zip(each.grid, each.mean, strict=True):
            expected = mean_of(model, ROWS.assign(**{name: value})).mean()
            assert mean == pytest.approx(expected, rel=1e-9)
    names = {"numbers": "mean of y", "labels": "P(yes)", "counts": "rate"}
    assert {each.target for each in found.values()} == {names[kind]}


LINKS: dict[str, Any] = {"numbers": lambda f: f, "labels": stats.norm.cdf, "counts": np.exp}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("numbers", {}),
        ("numbers", {"likelihood": "student_t"}),
        ("numbers", {"dtype": "float32"}),
        ("labels", {}),
        ("counts", {}),
    ],
)
def test_the_band_is_the_posterior_of_the_average(kind: str, settings: Any) -> None:
    """By 4000 joint draws of f at one value, from another function."""
    model = fitted(kind, **settings)
    (found,) = partial_dependence(model, ROWS, "length", coverage=0.8)
    scaled = torch.as_tensor(
        model.scalings_.inputs.forward(ROWS.assign(length=found.grid[7]).to_numpy())
    )
    f = model.posterior_.sample(
        scaled.to(model.posterior_.Z), 4000, torch.Generator().manual_seed(3)
    )
    averages = LINKS[kind](f.double().numpy()).mean(1)
    if kind == "numbers":
        averages = Y[TRAIN].mean() + Y[TRAIN].std() * averages
    expected = np.quantile(averages, [0.1, 0.9])
    # Ends of 500 draws err by 0.08 standard deviations.
    ends = found.lower[7], found.upper[7]
    np.testing.assert_allclose(ends, expected, atol=0.3 * averages.std(), rtol=0)
    assert (found.lower < found.mean).all() and (found.mean < found.upper).all()
    assert found.coverage == 0.8


def test_the_grid_lies_between_quantiles_or_at_the_values() -> None:
    (length, switch) = partial_dependence(fitted("numbers"), ROWS, ["length", 2])
    ends = np.quantile(ROWS["length"], [0.05, 0.95])
    np.testing.assert_allclose(length.grid[[0, -1]], ends)
    np.testing.assert_allclose(np.diff(length.grid), np.ptp(ends) / (len(length.grid) - 1))
    assert not length.discrete
    assert switch.grid.tolist() == [0.0, 1.0] and switch.discrete
    spike = np.zeros(300)
    spike[:12] = np.linspace(1, 7, 12)
    rows = pd.concat([ROWS, ROWS]).assign(noise=spike)
    (spiked,) = partial_dependence(fitted("numbers"), rows, "noise")
    assert spiked.grid[0] == 0 and spiked.grid[-1] == 7 and not spiked.discrete


def test_many_rows_are_sampled_with_a_fixed_seed() -> None:
    model, X, _ = friedman()
    (first,), (again,) = (partial_dependence(model, X, [3]) for _ in range(2))
    np.testing.assert_array_equal(first.mean, again.mean)
    at = X.copy()
    at[:, 3] = first.grid[0]
    all_rows = model.predict(at)
    error = all_rows.std() / np.sqrt(200)
    assert 0 < abs(first.mean[0] - all_rows.mean()) < 4 * error


def test_the_most_relevant_features_by_default() -> None:
    model, X, _ = friedman()
    names = [each.feature for each in partial_dependence(model, X[:50])]
    order = np.argsort(-model.feature_importances_)
    assert names == [f"column {j}" for j in order[:6]]
    shared = fitted("numbers", ard=False)
    found = partial_dependence(shared, ROWS)
    assert [each.feature for each in found][-1] == "noise"
    ranges = [np.ptp(each.mean) for each in found]
    assert ranges == sorted(ranges, reverse=True)


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ("lenght", r"features of .*plot_partial_dependence must be names .* Did you mean 'length'"),
        ([0, 3], r"numbers from 0 to 2. Got 3"),
        ([-1], r"numbers from 0 to 2. Got -1"),
        ([], r"must be one or more. Got none"),
    ],
)
def test_wrong_features_are_refused(features: Any, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        fitted("numbers").plot_partial_dependence(ROWS, features)
    assert plt.get_fignums() == []


def test_the_picture_has_the_numbers() -> None:
    model = fitted("labels")
    axes = model.plot_partial_dependence(ROWS, ["switch", "length"])
    records = partial_dependence(model, ROWS, ["switch", "length"])
    assert [ax.get_xlabel() for ax in axes] == ["switch", "length"]
    assert axes[0].get_ylabel() == "P(yes)"
    np.testing.assert_array_equal(axes[1].lines[0].get_ydata(), records[1].mean)
    _, mine = plt.subplots()
    (same,) = model.plot_partial_dependence(ROWS, "length", ax=mine, coverage=0.5)
    assert same is mine and mine.get_ylabel() == "P(yes)"
    assert "50 % posterior interval" in [text.get_text() for text in mine.get_legend().get_texts()]
    with pytest.raises(InvalidInputError, match=r"coverage of .*plot_partial_dependence"):
        model.plot_partial_dependence(ROWS, "length", coverage=1.5)


def test_a_column_without_values_has_no_curve() -> None:
    holes = ROWS.mask(np.arange(150)[:, None] % 7 == [0, 1, 2])
    model = SparseGPRegressor(missing="impute", likelihood="gaussian", **LIGHT).fit(holes, Y)
    empty = ROWS.assign(noise=np.nan)
    names = {each.feature for each in partial_dependence(model, empty)}
    assert names == {"length", "switch"}
    with pytest.raises(InvalidInputError, match=r"must be columns with values in X\. Got 'noise'"):
        partial_dependence(model, empty, "noise")

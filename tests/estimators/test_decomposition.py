"""The terms of a kernel: their parts of f, shares, words."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor, load
from directgp.errors import InvalidInputError, ModelFileError
from directgp.estimators.decomposition import LatentParts
from directgp.io import read_file, write_file
from directgp.persistence.models import MODEL

pytestmark = [
    pytest.mark.usefixtures("without_shape_checks"),
    pytest.mark.filterwarnings("ignore::directgp.errors.DirectGPWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

ONE: dict[str, Any] = {"objective": "elbo", "beta": 1.0, "random_state": 0}
GAUSSIAN = ONE | {"likelihood": "gaussian"}
SERIES = "RBF('date') + Periodic('date', period='1y') * RBF('date') + Group('shop')"
SHOPS = np.array([-2.0, -0.5, 0.0, 1.0, 1.5])
N = 240


def truth() -> dict[str, Any]:
    """Return a trend, a season of a year and effects of shops."""
    days = np.arange(N) * 9.0
    years = days / 365.2425
    return {
        "trend": 0.6 * years + 0.8 * np.sin(years),
        "season": 1.5 * np.sin(2 * np.pi * years),
        "shop": SHOPS[np.arange(N) % 5],
    }


@cache
def table() -> tuple[pd.DataFrame, Any]:
    random = np.random.default_rng(0)
    dates = pd.Timestamp("2015-01-01") + pd.to_timedelta(np.arange(N) * 9, unit="D")
    shops = np.array(["A", "B", "C", "D", "E"])[np.arange(N) % 5]
    y = 10 + sum(truth().values()) + 0.2 * random.normal(size=N)
    return pd.DataFrame({"date": dates, "shop": shops}), y


@cache
def series() -> SparseGPRegressor:
    X, y = table()
    return SparseGPRegressor(kernel=SERIES, columns={"shop": "group"}, **GAUSSIAN).fit(X, y)


def test_parts_of_a_series_are_the_true_ones() -> None:
    X, _ = table()
    parts = series().decompose(X)
    assert [part.name for part in parts] == [
        "trend in date",
        "season of 1 year in date, changing",
        "effect of shop",
    ]
    for part, values in zip(parts, truth().values(), strict=True):
        # A constant may be in any of them.
        error = part.mean - part.mean.mean() - (values - values.mean())
        assert np.sqrt((error**2).mean()) < 0.12, part.name
    # Errors of a season are nearly the same at all rows, so a wide band must hold nearly all.
    season = series().decompose(X, coverage=0.99)[1]
    inside = (season.lower <= truth()["season"]) & (truth()["season"] <= season.upper)
    assert inside.mean() > 0.95
    differences = parts["effect of shop"].mean[:5] - parts["effect of shop"].mean[2]
    np.testing.assert_allclose(differences, SHOPS - SHOPS[2], atol=0.12)


def test_parts_add_up_to_the_prediction() -> None:
    X, _ = table()
    for rows in (X, X.assign(shop="Z").head(3)):
        parts = series().decompose(rows)
        total = parts.constant + sum(part.mean for part in parts)
        np.testing.assert_allclose(total, series().predict(rows), rtol=1e-8)


def test_an_unseen_level_has_the_prior_of_its_term() -> None:
    X, _ = table()
    seen, unseen = (series().decompose(X.head(1).assign(shop=shop))[2] for shop in ("A", "Z"))
    assert unseen.mean[0] == pytest.approx(0, abs=1e-9)
    assert unseen.upper[0] - unseen.lower[0] > 1.5 * (seen.upper[0] - seen.lower[0])


def test_shares_are_of_the_means_over_the_training_rows() -> None:
    X, _ = table()
    parts = series().decompose(X)
    variances = np.array([part.mean.var() for part in parts])
    np.testing.assert_allclose([part.share for part in parts], variances / variances.sum())
    # They do not depend on the rows.
    few = series().decompose(X.head(4))
    assert [part.share for part in few] == [part.share for part in parts]


def test_bands_have_the_width_of_their_probability() -> None:
    X, _ = table()
    narrow, wide = (series().decompose(X, coverage=c)[0] for c in (0.5, 0.9))
    ratio = (wide.upper - wide.lower) / (narrow.upper - narrow.lower)
    np.testing.assert_allclose(ratio, 1.6448536 / 0.6744898, rtol=1e-6)
    with pytest.raises(InvalidInputError, match=r"coverage of SparseGPRegressor\.decompose"):
        series().decompose(X, coverage=1.0)


def test_the_record_is_a_table() -> None:
    X, _ = table()
    parts = series().decompose(X.head(7))
    columns = pd.DataFrame(parts.to_dict())
    assert columns.shape == (7, 10)
    assert [*columns][:4] == [
        "constant",
        "trend in date",
        "trend in date lower",
        "trend in date upper",
    ]
    text = repr(parts)
    assert "effect of shop" in text and "relative to the sum over terms" in text
    assert max(map(len, text.splitlines())) <= 110
    assert len(parts) == 3 and parts[0] is parts["trend in date"]
    assert parts[2].columns == ("shop",) and parts[2].kernel == "Group('shop')"
    with pytest.raises(InvalidInputError, match="among 'trend in date'"):
        parts["trend"]


def test_the_summary_says_the_model_in_words() -> None:
    text = " ".join(str(series().summary()).split())
    assert "kernel of 3 terms, Gaussian likelihood" in text
    assert "season of 1 year in date, changing (0." in text and "of the variance) + " in text
    assert "Terms of the kernel" in text
    facts = series().summary().to_dict()
    assert facts["kernel"] == repr(SERIES).strip('"')
    terms = facts["terms"]
    assert sum(term["share"] for term in terms) == pytest.approx(1)
    deviation = float(terms[2]["parameters"].removeprefix("sd "))
    assert 0.7 < deviation < 3, "the deviation of five effects is 1.4"


@pytest.mark.parametrize("kernel", ["rbf", "matern32"])
def test_a_named_kernel_is_one_term(kernel: str) -> None:
    random = np.random.default_rng(1)
    X = random.normal(size=(60, 2))
    model = SparseGPRegressor(kernel=kernel, ard=True, mean="constant", **GAUSSIAN)
    model.fit(X, 3 + X[:, 0] + 0.1 * random.normal(size=60))
    (part,) = parts = model.decompose(X)
    assert part.name == "effect of column 0 and column 1" and part.share == 1.0
    mean, deviation = model.predict_latent(X)
    np.testing.assert_allclose(parts.constant + part.mean, mean)
    np.testing.assert_allclose((part.upper - part.mean) / deviation, 1.6448536, rtol=1e-5)
    assert f"{kernel} ARD kernel" in model.summary() and "Terms" not in model.summary()


def test_a_named_kernel_of_a_table_with_levels_has_its_name() -> None:
    X, y = table()
    model = SparseGPRegressor(kernel="matern52", ard=True, num_inducing=20, max_iter=5, **GAUSSIAN)
    model.fit(X, y)
    assert "matern52 ARD kernel" in model.summary()
    assert model.decompose(X)[0].name == "effect of date and shop"


# Additive kernels


def interaction() -> tuple[Any, Any]:
    random = np.random.default_rng(2)
    X = random.uniform(-1, 1, (150, 3))
    y = 2 * X[:, 0] + np.sin(3 * X[:, 1]) + 1.5 * X[:, 0] * X[:, 1]
    return X, y + 0.1 * random.normal(size=150)


@cache
def additive() -> SparseGPRegressor:
    X, y = interaction()
    return SparseGPRegressor(kernel="Additive(order=2)", num_inducing=40, **GAUSSIAN).fit(X, y)


def test_effects_of_columns_and_pairs() -> None:
    X, _ = interaction()
    parts = additive().decompose(X)
    names = [part.name for part in parts]
    assert names[:4] == [
        "effect of column 0",
        "effect of column 1",
        "effect of column 2",
        "interaction of column 0 and column 1",
    ]
    assert len(parts) == 6
    pair = 1.5 * X[:, 0] * X[:, 1]
    assert np.sqrt(((parts[3].mean - pair) ** 2).mean()) < 0.15
    total = parts.constant + sum(part.mean for part in parts)
    np.testing.assert_allclose(total, additive().predict(X), atol=1e-5)


def test_sobol_indices_sum_to_one_and_are_those_of_the_function() -> None:
    X, _ = interaction()
    parts = additive().decompose(X)
    indices = np.array([part.sobol for part in parts], dtype=float)
    assert indices.sum() == pytest.approx(1)
    # Of uniform columns: 4/3, Var sin(3x) = ½ − sin(6)/12, 2.25/9.
    variances = np.array([4 / 3, 0.5 - np.sin(6) / 12, 0, 0.25, 0, 0])
    np.testing.assert_allclose(indices, variances / variances.sum(), atol=0.04)


def test_sobol_indices_are_the_decomposition_of_the_variance() -> None:
    """Over all combinations of the values of the columns, the part has the sum of the variances."""
    random = np.random.default_rng(3)
    X = random.integers(0, 3, (80, 2)) * 1.0
    y = X[:, 0] * X[:, 1] + 0.1 * random.normal(size=80)
    model = SparseGPRegressor(kernel="Additive(order=2)", stack=None, **GAUSSIAN).fit(X, y)
    grid = np.array([[a, b] for a in X[:, 0] for b in X[:, 1]])
    parts = model.decompose(grid)
    variance = np.var(model.predict(grid))
    indices = np.array([part.sobol for part in parts], dtype=float)
    np.testing.assert_allclose(indices, [part.mean.var() / variance for part in parts], atol=1e-6)


def test_other_terms_have_no_sobol_index() -> None:
    X, y = interaction()
    text = "Additive(0, 1) + RBF(2)"
    parts = SparseGPRegressor(kernel=text, max_iter=20, **GAUSSIAN).fit(X, y).decompose(X)
    assert [part.sobol is None for part in parts] == [False, False, True]


# Other targets


def test_labels_counts_and_several_latents() -> None:
    X, y = interaction()
    text = "RBF(0) + RBF(1)"
    light = ONE | {"kernel": text, "max_iter": 4, "num_inducing": 10}
    labels = np.where(y > 0, "yes", "no")
    model = SparseGPClassifier(likelihood="logistic", **light).fit(X, labels)
    parts = model.decompose(X)
    total = parts.constant + sum(part.mean for part in parts)
    np.testing.assert_allclose(total, model.predict_latent(X)[0])
    assert parts.scale == "f of Logistic"
    classes = np.where(y > 1, "high", np.where(y > 0, "mid", "low"))
    many = SparseGPClassifier(likelihood="softmax", **light).fit(X, classes)
    f = many.predict_latent(X)[0]
    for k in range(f.shape[1]):
        parts = many.decompose(X, latent=k)
        total = parts.constant + sum(part.mean for part in parts)
        np.testing.assert_allclose(total, f[:, k], atol=1e-9)
    assert "Terms of the kernel" in many.summary()
    with pytest.raises(InvalidInputError, match=r"latent of SparseGPClassifier\.decompose must be"):
        many.decompose(X, latent=7)
    counts = SparseGPCountRegressor(likelihood="poisson", **light)
    counts.fit(X, np.random.default_rng(0).poisson(np.exp(0.3 * y)))
    parts = counts.decompose(X)
    total = parts.constant + sum(part.mean for part in parts)
    np.testing.assert_allclose(total, counts.predict_latent(X)[0])
    noisy = SparseGPRegressor(likelihood="heteroscedastic", **light).fit(X, y)
    parts = noisy.decompose(X, latent=1)
    assert parts.scale == "the log of the noise variance"
    total = parts.constant + sum(part.mean for part in parts)
    np.testing.assert_allclose(total, noisy.predict_latent(X)[0][:, 1])


def test_members_with_the_kernel_of_the_heaviest_are_combined() -> None:
    X, y = interaction()
    options = {"kernel": "RBF(0) + RBF(1)", "max_iter": 3, "stack": None, "random_state": 0}
    model = SparseGPRegressor(effort="fast", num_inducing=10, **options).fit(X[:60], y[:60])
    parts = LatentParts(model)
    inputs = parts.inputs(X)
    moments = parts.moments(inputs, parts.summands)
    np.testing.assert_allclose(parts.means(inputs, parts.summands), moments.mean)
    assert 0 < parts.weight <= 1
    total = model.decompose(X)
    mean = total.constant + sum(part.mean for part in total)
    if parts.weight == 1 and len(model.members_) > 1:
        np.testing.assert_allclose(mean, model.predict(X), atol=1e-6)
    assert ("of the weight of the mixture" in repr(total)) == (parts.weight < 1)


# Files


def test_a_file_keeps_the_decomposition(tmp_path: Path) -> None:
    X, _ = table()
    path = tmp_path / "model"
    series().save(path)
    again = load(path)
    before, after = (model.decompose(X) for model in (series(), again))
    assert repr(after) == repr(before)
    np.testing.assert_array_equal(after[1].upper, before[1].upper)
    contents = read_file(MODEL, path)
    record = contents.manifest["record"]
    assert len(record["term_shares"][0]) == 3
    for shares in ([[1.0]], [[0.5, 0.5, 2.0]], [[0.2, 0.3, 0.5]] * 2, "all"):
        damaged = contents.manifest | {"record": record | {"term_shares": shares}}
        write_file(MODEL, path, contents.tensors, damaged)
        with pytest.raises(ModelFileError):
            load(path)

"""Plots and texts of fitted estimators have the right numbers, or raise an error."""

import itertools
import json
from functools import cache
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.text import Text
from scipy import stats
from sklearn.exceptions import NotFittedError

from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor
from directgp.errors import InvalidInputError
from directgp.estimators import plotting
from directgp.plots import plot_curve, plot_pit
from tests.estimators.fitted_models import (
    COUNTS,
    HOURS,
    LABELS,
    LIGHT,
    THERE,
    Array,
    X,
    Y,
    classifier,
    counter,
    parameter,
    regressor,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::directgp.errors.DirectGPWarning"),
]

QUICK = {**LIGHT, "num_inducing": 5, "max_iter": 4}
OPEN = {
    **QUICK,
    "kernel": "rbf",
    "beta": "auto",
    "hyperparameters": "auto",
    "validation_fraction": 0.3,
}
NAMED = pd.DataFrame({"height": X[:, 0], "weight of it": np.cos(X[:, 0])})
MAKERS: dict[str, tuple[Any, Any, str]] = {
    "numbers": (SparseGPRegressor, Y, "gaussian"),
    "labels": (SparseGPClassifier, LABELS, "probit"),
    "counts": (SparseGPCountRegressor, COUNTS, "poisson"),
}


@pytest.fixture(autouse=True)
def no_window() -> None:
    matplotlib.use("Agg")


@cache
def chosen(kind: str) -> Any:
    """A mixture of models of two named features, which were chosen by a race."""
    make, y, likelihood = MAKERS[kind]
    return make(likelihood=likelihood, **OPEN).fit(NAMED, y)


def words(ax: Axes) -> str:
    return "\n".join(each.get_text() for each in ax.findobj(Text) if isinstance(each, Text))


def drawn(ax: Axes) -> None:
    figure = ax.figure
    assert figure is not None
    figure.canvas.draw()


# The candidates


@pytest.mark.parametrize("kind", MAKERS)
def test_the_picture_of_candidates_marks_the_members(kind: str) -> None:
    model = chosen(kind)
    _, mine = plt.subplots()
    assert model.plot_beta_path(mine) is mine
    assert model.plot_beta_path() is not mine
    drawn(mine)
    assert "validation log loss" in words(mine)
    losses = {point.validation_loss for point in model.beta_path_.members}
    rings = [each for each in mine.collections if isinstance(each, PathCollection)]
    assert len(rings) == len(model.members_)
    # Those of losses far above the others are at the right.
    places = {float(np.ravel(ring.get_offsets())[0]) for ring in rings}
    assert model.beta_path_.members[0].validation_loss in places and places <= {*losses, 0.97}


@pytest.mark.parametrize("model", [regressor, classifier, counter])
def test_plot_beta_path_without_a_search_is_refused(model: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"plot_beta_path of .* Fit with beta='auto'"):
        model().plot_beta_path()


def test_an_unfitted_model_has_no_pictures() -> None:
    for make, y, _ in MAKERS.values():
        for draw in ("plot_beta_path", "feature_relevance", "summary"):
            with pytest.raises(NotFittedError):
                getattr(make(), draw)()
        for draw in ("plot_calibration", "plot_predictions", "feature_relevance"):
            with pytest.raises(NotFittedError):
                getattr(make(), draw)(X, y)
        with pytest.raises(NotFittedError):
            make().plot_partial_dependence(X)


# Calibration


@pytest.fixture
def pit(monkeypatch: pytest.MonkeyPatch) -> list[Array]:
    """What is drawn as a histogram."""
    seen: list[Array] = []

    def watched(values: Array, ax: Axes | None = None) -> Axes:
        seen.append(values)
        return plot_pit(values, ax)

    for module in ("regressor", "count_regressor"):
        monkeypatch.setattr(f"directgp.estimators.{module}.plot_pit", watched)
    return seen


def test_calibration_of_numbers_by_hand(pit: list[Array]) -> None:
    model = regressor()
    _, mine = plt.subplots()
    assert model.plot_calibration(X, Y, mine) is mine
    np.testing.assert_allclose(pit[0], stats.norm.cdf(Y, *model.predict(X, return_std=True)))


def test_calibration_of_counts_by_hand(pit: list[Array]) -> None:
    """Between P(Y < y) and P(Y ≤ y)."""
    model = counter()
    _, mine = plt.subplots()
    assert model.plot_calibration(X, COUNTS, HOURS, mine) is mine
    cdf = model.predict_pmf(X, int(COUNTS.max()), HOURS).cumsum(1)
    rows, at = np.arange(len(X)), COUNTS.astype(int)
    below = np.where(at > 0, cdf[rows, at - 1], 0.0)
    assert ((below - 1e-7 <= pit[0]) & (pit[0] <= cdf[rows, at] + 1e-7)).all()
    assert np.unique(pit[0]).size == len(X), "steps are filled at random"


def sampled(n: int, seed: int) -> tuple[Array, Array, np.random.Generator]:
    random = np.random.default_rng(seed)
    inputs = random.uniform(-3, 3, (n, 1))
    return inputs, np.sin(2 * inputs[:, 0]), random


def test_pit_is_uniform_for_the_right_model_alone(pit: list[Array]) -> None:
    settings = {**LIGHT, "num_inducing": 12, "max_iter": 20}
    inputs, f, random = sampled(400, 0)
    numbers = SparseGPRegressor(likelihood="gaussian", **settings)
    numbers.fit(inputs, f + 0.3 * random.normal(size=400))
    counts = SparseGPCountRegressor(likelihood="poisson", **settings)
    hours = random.uniform(1, 4, 400)
    counts.fit(inputs, random.poisson(hours * np.exp(f)), exposure=hours)
    inputs, f, random = sampled(400, 1)
    numbers.plot_calibration(inputs, f + 0.3 * random.normal(size=400))
    counts.plot_calibration(inputs, random.poisson(hours * np.exp(f)), hours)
    numbers.plot_calibration(inputs, f + 0.9 * random.normal(size=400))
    counts.plot_calibration(inputs, random.poisson(hours * np.exp(f)), 2 * hours)
    p_values = [stats.kstest(values, "uniform").pvalue for values in pit]
    assert min(p_values[:2]) > 1e-3 and max(p_values[2:]) < 1e-6


@pytest.mark.parametrize("swapped", [False, True])
def test_reliability_is_of_the_second_class(swapped: bool) -> None:
    """With the names of the classes swapped, too."""
    names = np.array(["b", "a"] if swapped else ["a", "b"])
    labels = names[(LABELS == "yes").astype(int)]
    model = SparseGPClassifier(**QUICK).fit(X, labels)
    _, mine = plt.subplots()
    assert model.plot_calibration(X, labels, mine) is mine
    p, ones = model.predict_proba(X)[:, 1], labels == "b"
    index = np.minimum((10 * p).astype(int), 9)
    expected = [(p[index == k].mean(), ones[index == k].mean()) for k in np.unique(index)]
    points = mine.containers[-1][0].get_xydata()
    np.testing.assert_allclose(points, expected)
    assert f"Brier score {np.mean((p - ones) ** 2):.3f}" in words(mine)
    with pytest.raises(InvalidInputError, match="one of 'a', 'b'"):
        model.plot_calibration(X, LABELS)


# Predictions


def test_a_curve_of_numbers() -> None:
    model = regressor()
    _, mine = plt.subplots()
    assert model.plot_predictions(X, Y, 0.8, mine) is mine
    drawn(mine)
    line = next(each for each in mine.lines if len(np.asarray(each.get_xdata())) == 200)
    at, height = np.asarray(line.get_xydata()).T
    np.testing.assert_allclose(height, model.predict(at[:, None]), rtol=1e-9)
    assert at.min() < X.min() and at.max() > X.max()
    assert "80 % interval" in words(mine)
    band = mine.collections[-1].get_paths()[0].vertices
    lower, upper = model.predict_interval(at[:, None], 0.8)
    assert np.asarray(band)[:, 1].min() == pytest.approx(lower.min())
    assert np.asarray(band)[:, 1].max() == pytest.approx(upper.max())


def test_a_curve_of_counts() -> None:
    model = counter()
    ax = model.plot_predictions(X)
    drawn(ax)
    line = next(each for each in ax.lines if len(np.asarray(each.get_xdata())) == 200)
    at, height = np.asarray(line.get_xydata()).T
    np.testing.assert_allclose(height, model.predict(at[:, None]), rtol=1e-9)


def test_counts_are_drawn_over_their_exposures(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def draw(*args: Any, **keywords: Any) -> Axes:
        seen.append(keywords["data"])
        return plot_curve(*args, **keywords)

    monkeypatch.setattr(plotting, "plot_curve", draw)
    model = counter()
    ax = model.plot_predictions(X, COUNTS, exposure=HOURS)
    drawn(ax)
    np.testing.assert_array_equal(seen[0][1], COUNTS / HOURS)
    assert "y / exposure" in words(ax)
    with pytest.raises(InvalidInputError, match=r"exposure of SparseGPCountRegressor.*shape \(2,"):
        model.plot_predictions(X, COUNTS, exposure=[1.0, 2.0])


def test_known_noise_has_predictions_against_targets() -> None:
    noise = np.full(len(X), 0.5)
    settings = {**LIGHT, "likelihood": "gaussian_known_noise", "objective": "elbo"}
    model = SparseGPRegressor(**settings).fit(X, Y, noise=noise)
    ax = model.plot_predictions(X, Y, noise=noise)
    drawn(ax)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("actual", "predicted")
    with pytest.raises(InvalidInputError, match="given with a likelihood that needs noise"):
        model.plot_predictions(X, noise=noise)
    with pytest.raises(InvalidInputError, match="noise of GaussianKnownNoise must be given"):
        model.plot_predictions(X, Y)


@pytest.mark.parametrize("picture", ["plot_predictions", "plot_calibration"])
def test_targets_of_pictures_are_checked(picture: str) -> None:
    draw = getattr(classifier(), picture)
    with pytest.raises(InvalidInputError, match=f"y of SparseGPClassifier.{picture} must be one"):
        draw(X, COUNTS)
    with pytest.raises(ValueError, match="y should be a 1d array"):
        draw(X, np.column_stack([LABELS, LABELS]))
    with pytest.raises(ValueError, match="inconsistent numbers"):
        draw(X, LABELS[1:])


def test_a_curve_of_labels() -> None:
    model = classifier()
    for y in (None, LABELS):
        ax = model.plot_predictions(X, y)
        drawn(ax)
        line = next(each for each in ax.lines if len(np.asarray(each.get_xdata())) == 200)
        at, height = np.asarray(line.get_xydata()).T
        np.testing.assert_allclose(height, model.predict_proba(at[:, None])[:, 1])
        assert "P(yes)" in words(ax)


def test_the_name_of_a_single_feature() -> None:
    model = SparseGPRegressor(likelihood="gaussian", **QUICK).fit(NAMED[["height"]], Y)
    ax = model.plot_predictions(NAMED[["height"]], Y)
    assert ax.get_xlabel() == "height"


@pytest.mark.parametrize("kind", ["numbers", "counts"])
def test_more_features_are_drawn_against_the_targets(kind: str) -> None:
    model, y = chosen(kind), MAKERS[kind][1]
    _, mine = plt.subplots()
    assert model.plot_predictions(NAMED, y, ax=mine) is mine
    drawn(mine)
    lower, upper = model.predict_interval(NAMED, 0.9)
    share = 100 * np.mean((lower <= y) & (y <= upper))
    assert f"90 % intervals cover {share:.1f} % of 90" in words(mine)
    with pytest.raises(InvalidInputError, match=r"y of .* given with more than one feature"):
        model.plot_predictions(NAMED)


def test_labels_of_more_features_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"one feature. Got 2 features. plot_calibration"):
        chosen("labels").plot_predictions(NAMED, LABELS)


def test_no_picture_is_left_by_a_refusal() -> None:
    model, before = regressor(), plt.get_fignums()
    with pytest.raises(InvalidInputError):
        model.plot_beta_path()
    with pytest.raises(InvalidInputError):
        model.plot_predictions(X, Y, 1.5)
    with pytest.raises(ValueError, match="2 features"):
        model.plot_predictions(np.hstack([X, X]), Y)
    assert plt.get_fignums() == before


# Words


def summary(model: Any) -> str:
    text = model.summary()
    assert isinstance(text, str) and repr(text) == str(text)
    assert max(map(len, text.splitlines())) <= 100
    return " ".join(text.split())


@pytest.mark.parametrize("kind", MAKERS)
def test_a_summary_of_a_choice(kind: str) -> None:
    model = chosen(kind)
    text = summary(model)
    make, _, likelihood = MAKERS[kind]
    assert text.startswith(f"{make.__name__} data 90 rows, 2 features")
    assert f"of {len(model.beta_path_.points)} candidates" in text
    assert likelihood in text.lower() and "5 inducing inputs" in text
    assert model.training_result_.reason in text
    if len(model.members_) > 1:
        assert f"mixture of {len(model.members_)} Gaussian processes" in text
        places = [text.index(f"{100 * weight:.1f} %") for weight in model.weights_]
        assert places == sorted(places)
    else:
        assert f"β {model.beta_:.3g}" in text


@pytest.mark.parametrize("kind", MAKERS)
def test_a_summary_has_the_members_for_programs(kind: str) -> None:
    model = chosen(kind)
    facts = model.summary().to_dict()
    members = facts["members"]
    assert [member["weight"] for member in members] == model.weights_.tolist()
    assert [member["beta"] for member in members] == [member.beta for member in model.members_]
    by_label = {point.label: point for point in model.beta_path_.points}
    for member in members:
        assert member["loss"] == by_label[member["label"]].validation_loss
    assert facts["path"]["decisions"] == list(model.beta_path_.decisions)
    assert facts["stack"] == []
    json.dumps(facts, allow_nan=False)


def test_a_summary_says_whether_trees_are_inside() -> None:
    """A constant step has no smooth trend that a GP would extrapolate; the stack is asked for."""
    table = np.linspace(-1, 1, 120)[:, None]
    target = np.where(table[:, 0] > 0.3, 2.0, 0.0) + 0.1 * np.sin(40 * table[:, 0])
    settings = {**QUICK, "likelihood": "gaussian", "stack": "trees", "ard": True}
    model = SparseGPRegressor(**settings).fit(pd.DataFrame(table, columns=["height"]), target)
    text = summary(model)
    assert "the out-of-fold predictions of trees are a feature, too" in text
    assert "trees of the stack –" in text
    (member,) = model.summary().to_dict()["members"]
    assert member["stacked"] and model.summary().to_dict()["stack"] == ["trees"]


def test_a_summary_of_length_scales() -> None:
    """In the units of the features, the shortest in deviations first."""
    settings = {**QUICK, "ard": True, "likelihood": "gaussian"}
    model = SparseGPRegressor(**settings).fit(NAMED, Y)
    text = summary(model)
    scales = model.posterior_.prior.kernel.lengthscale.detach().numpy().ravel()
    order = [NAMED.columns[i] for i in np.argsort(scales)]
    places = [text.rindex(name) for name in order]
    assert places == sorted(places)
    for name, own in zip(NAMED.columns, scales * NAMED.std(ddof=0).to_numpy(), strict=True):
        after = text[text.rindex(name) + len(name) :].split()
        assert float(after[0].replace(",", "")) == pytest.approx(own, rel=0.01)


def test_a_summary_is_in_the_users_units() -> None:
    model = regressor()
    text = summary(model)
    noise = parameter(model, "noise") ** 0.5 * Y.std()
    after = text[text.index("noise standard deviation") :].split()
    assert float(after[3].rstrip(",")) == pytest.approx(noise, rel=0.01)
    assert "β 1, as given" in text


def test_a_long_name_does_not_widen_the_summary() -> None:
    names = ["x" * 150, "y" * 40]
    table = pd.DataFrame(NAMED.to_numpy(), columns=names)
    settings = {**QUICK, "ard": True, "likelihood": "gaussian"}
    text = summary(SparseGPRegressor(**settings).fit(table, Y))
    assert all(name[:20] in text for name in names)


def test_pictures_of_a_table_in_any_form() -> None:
    """Lists, tables and arrays of one column."""
    model = regressor()
    forms: list[tuple[Any, Any]] = [(X.tolist(), Y.tolist()), (pd.DataFrame(X), pd.Series(Y))]
    for (inputs, y), draw in itertools.product(forms, ("plot_calibration", "plot_predictions")):
        drawn(getattr(model, draw)(inputs, y))
    assert len(model.predict(THERE)) == 17

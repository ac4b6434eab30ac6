"""`SparseGPClassifier` with more than two classes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris

import directgp
from directgp import SparseGPClassifier
from directgp.errors import InvalidInputError, UnsupportedError
from directgp.estimators import partial_dependence
from directgp.likelihoods import OrderedProbit, Softmax

pytestmark = [
    pytest.mark.usefixtures("without_shape_checks"),
    pytest.mark.filterwarnings("ignore::directgp.errors.DirectGPWarning"),
]

FLOWERS, KINDS = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[KINDS]
QUICK: dict[str, Any] = {
    "beta": 1.0,
    "hyperparameters": "joint",
    "kernel": "rbf",
    "ard": False,
    "num_inducing": 12,
    "random_state": 0,
    "max_iter": 30,
}


def fitted(**settings: Any) -> SparseGPClassifier:
    return SparseGPClassifier(**{**QUICK, **settings}).fit(FLOWERS[::2], NAMES[::2])


@pytest.fixture(scope="module")
def model() -> SparseGPClassifier:
    return fitted()


def test_three_classes_have_probabilities_of_their_own(model: SparseGPClassifier) -> None:
    chances = model.predict_proba(FLOWERS[1::2])
    assert chances.shape == (75, 3)
    np.testing.assert_allclose(chances.sum(1), 1.0, atol=1e-9)
    assert model.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    assert model.score(FLOWERS[1::2], NAMES[1::2]) > 0.9
    own = chances[np.arange(75), KINDS[1::2]]
    assert model.nll(FLOWERS[1::2], NAMES[1::2]) == pytest.approx(-np.log(own).mean(), rel=1e-9)
    assert -np.log(own).mean() < 0.35
    assert isinstance(model.likelihood_, Softmax)


def test_predictions_are_the_most_probable_classes(model: SparseGPClassifier) -> None:
    log_proba = model.predict_log_proba(FLOWERS)
    np.testing.assert_array_equal(model.predict(FLOWERS), model.classes_[log_proba.argmax(1)])
    np.testing.assert_array_equal(model.decision_function(FLOWERS), log_proba)
    mean, deviation = model.predict_latent(FLOWERS[:4])
    assert mean.shape == deviation.shape == (4, 3)


def test_a_saved_model_predicts_the_same_bits(model: SparseGPClassifier, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    again = directgp.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(FLOWERS), model.predict_proba(FLOWERS))
    assert again.classes_.tolist() == model.classes_.tolist()


def test_the_curve_of_calibration_counts_each_row_for_every_class(
    model: SparseGPClassifier,
) -> None:
    axes = model.plot_calibration(FLOWERS, NAMES)
    assert axes.get_xlabel()


def test_rows_that_come_in_parts_may_lack_classes() -> None:
    some = KINDS < 2
    model = SparseGPClassifier(**QUICK)
    model.partial_fit(FLOWERS[some][::4], NAMES[some][::4], classes=np.unique(NAMES))
    model.partial_fit(FLOWERS[~some][::2], NAMES[~some][::2])
    assert model.predict_proba(FLOWERS).shape == (150, 3)
    assert model.score(FLOWERS[~some][1::2], NAMES[~some][1::2]) > 0.7


@pytest.mark.parametrize("likelihood", ["robust_max", "ordinal"])
def test_other_likelihoods_of_classes(likelihood: str) -> None:
    model = fitted(likelihood=likelihood)
    assert model.score(FLOWERS[1::2], NAMES[1::2]) > 0.85
    np.testing.assert_allclose(model.predict_proba(FLOWERS).sum(1), 1.0, atol=1e-8)


def test_ordered_classes_have_one_latent_function() -> None:
    model = fitted(likelihood="ordinal")
    assert isinstance(model.likelihood_, OrderedProbit)
    assert model.predict_latent(FLOWERS)[0].shape == (150,)


@pytest.mark.slow
def test_a_search_compares_candidates_of_three_classes() -> None:
    settings: dict[str, Any] = {"effort": "fast", "num_inducing": 10, "max_iter": 15}
    model = SparseGPClassifier(kernel="rbf", ard=False, random_state=0, **settings)
    model.fit(FLOWERS[::3], NAMES[::3])
    assert model.beta_path_ is not None
    assert model.score(FLOWERS, NAMES) > 0.85


@pytest.mark.slow
def test_classes_that_depend_on_features_of_their_own_have_a_kernel_each(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    X = random.uniform(-1, 1, (600, 5))
    f = 8 * np.sin(4 * X.T)
    y = (f + random.gumbel(size=f.shape)).argmax(0)
    settings = {"kernel": "rbf", "ard": True, "hyperparameters": "joint", "random_state": 0}
    own = SparseGPClassifier(num_inducing=40, max_iter=40, validation_fraction=0.4, **settings)
    own.fit(X, y)
    assert own.posterior_.Z.shape == (5, 40, 5)
    assert "5 rbf ARD kernels" in own.summary()
    assert own.feature_importances_.shape == (5,)
    own.save(tmp_path / "own.model")
    loaded = directgp.load(tmp_path / "own.model")
    assert np.array_equal(loaded.predict_proba(X), own.predict_proba(X))


def test_what_does_not_fit_the_classes_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="one of 3 classes"):
        fitted(likelihood=Softmax(4))
    with pytest.raises(UnsupportedError, match="two labels"):
        fitted(objective="zero_one_cost")


@pytest.mark.parametrize("likelihood", ["softmax", "robust_max", "ordinal"])
@pytest.mark.slow
def test_partial_dependence_has_a_curve_for_each_class(likelihood: str) -> None:
    """The curve by `predict_proba`, the band by 4000 joint draws of f from another function."""
    model, rows = fitted(likelihood=likelihood), FLOWERS[::2]
    (found,) = partial_dependence(model, rows, [2], coverage=0.8)
    assert found.classes == ("setosa", "versicolor", "virginica")
    assert found.mean.shape == found.lower.shape == (3, len(found.grid))
    changed = rows.copy()
    changed[:, 2] = found.grid[9]
    chances = model.predict_proba(changed)
    np.testing.assert_allclose(found.mean[:, 9], chances.mean(0), rtol=1e-9)
    scaled = torch.as_tensor(model.scalings_.inputs.forward(changed)).to(model.posterior_.Z)
    f = model.posterior_.sample(scaled, 4000, torch.Generator().manual_seed(3))
    kind: Any = model.likelihood_
    drawn = kind.class_probabilities(f) if likelihood != "ordinal" else None
    if drawn is None:
        labels = (torch.full_like(f, float(k)) for k in range(3))
        drawn = torch.stack([kind.log_prob(y, f) for y in labels], 1).exp()
    averages = drawn.detach().numpy().mean(-1)
    expected = np.quantile(averages, [0.1, 0.9], axis=0)
    # Ends of 500 draws err by 0.08 standard deviations.
    atol = 0.3 * averages.std(0).max()
    np.testing.assert_allclose(found.lower[:, 9], expected[0], atol=atol, rtol=0)
    np.testing.assert_allclose(found.upper[:, 9], expected[1], atol=atol, rtol=0)


@pytest.mark.parametrize("likelihood", ["softmax", "ordinal"])
@pytest.mark.slow_for("softmax")
def test_two_classes_have_the_curve_of_the_second(likelihood: str) -> None:
    some = FLOWERS[KINDS > 0], NAMES[KINDS > 0]
    model = SparseGPClassifier(**QUICK, likelihood=likelihood).fit(*some)
    (found,) = partial_dependence(model, some[0], [2])
    assert found.target == "P(virginica)" and found.classes == ()
    changed = some[0].copy()
    changed[:, 2] = found.grid[5]
    assert found.mean[5] == pytest.approx(model.predict_proba(changed)[:, 1].mean(), rel=1e-9)
    assert (found.lower < found.mean).all() and (found.mean < found.upper).all()


def test_predictions_along_one_feature_have_a_line_for_each_class() -> None:
    model = SparseGPClassifier(**QUICK).fit(FLOWERS[::2, 2:3], NAMES[::2])
    ax = model.plot_predictions(FLOWERS[::2, 2:3], NAMES[::2])
    drawn = {str(line.get_label()): line for line in ax.lines}
    assert list(drawn) == ["setosa", "versicolor", "virginica"]
    x = np.asarray(drawn["virginica"].get_xdata())
    expected = model.predict_proba(x[:, None])[:, 2]
    np.testing.assert_allclose(np.asarray(drawn["virginica"].get_ydata()), expected, rtol=1e-9)
    marks = [np.asarray(each.get_offsets()) for each in ax.collections]
    assert [len(each) for each in marks] == [25, 25, 25]
    assert all((each[:, 1] > 1).all() for each in marks)


def test_partial_dependence_of_classes_is_drawn(model: SparseGPClassifier) -> None:
    (ax,) = model.plot_partial_dependence(FLOWERS[::2], [2])
    assert ax.get_ylabel() == "probability"
    assert [line.get_label() for line in ax.lines] == ["setosa", "versicolor", "virginica"]

"""Scorers of cross-validation: alone, in a pipeline, in a search."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn import config_context
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor
from directgp.errors import DirectGPWarning, InvalidInputError, UnsupportedError
from directgp.estimators import get_scorer, neg_coverage_error, neg_nll
from directgp.predictive import predictive_cdf

pytestmark = [
    pytest.mark.usefixtures("without_shape_checks"),
    pytest.mark.filterwarnings("ignore::directgp.errors.DirectGPWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

LIGHT: dict[str, Any] = {
    "beta": 1.0,
    "hyperparameters": "joint",
    "likelihood": "gaussian",
    "kernel": "rbf",
    "ard": False,
    "num_inducing": 5,
    "max_iter": 5,
    "random_state": 0,
}
RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(-2, 2, (60, 2))
Y = np.sin(2 * X[:, 0]) + 0.2 * RANDOM.standard_normal(60)


def test_scores_of_folds_are_those_by_hand() -> None:
    folds = KFold(3)
    found = cross_val_score(SparseGPRegressor(**LIGHT), X, Y, scoring=neg_nll, cv=folds)
    for score, (train, test) in zip(found, folds.split(X), strict=True):
        model = SparseGPRegressor(**LIGHT).fit(X[train], Y[train])
        assert score == pytest.approx(model.log_density(X[test], Y[test]).mean(), rel=1e-12)


def test_pipelines_and_searches_are_scored_by_their_last_step() -> None:
    pipeline = make_pipeline(StandardScaler(), SparseGPRegressor(**LIGHT)).fit(X, Y)
    inputs = pipeline[:-1].transform(X)
    assert neg_nll(pipeline, X, Y) == -pipeline[-1].nll(inputs, Y)
    search = GridSearchCV(pipeline, {"sparsegpregressor__max_iter": [3]}, scoring=neg_nll, cv=2)
    search.fit(X, Y)
    assert neg_nll(search, X, Y) == neg_nll(search.best_estimator_, X, Y)


def test_coverage_is_compared_with_nine_tenths() -> None:
    model = SparseGPRegressor(**LIGHT).fit(X, Y)
    lower, upper = model.predict_interval(X, 0.9)
    inside = sum(low <= y <= high for low, y, high in zip(lower, Y, upper, strict=True))
    assert neg_coverage_error(model, X, Y) == pytest.approx(-abs(inside / 60 - 0.9), abs=1e-12)


def test_counts_at_an_end_are_covered_in_part() -> None:
    light = {key: value for key, value in LIGHT.items() if key != "likelihood"}
    counts, hours = np.random.default_rng(1).poisson(1.0, 60), np.full(60, 2.0)
    model = SparseGPCountRegressor(**light, combine="best").fit(X, counts, exposure=hours)
    marginals = model.posterior_.predict(torch.as_tensor(model.scalings_.inputs.forward(X)))
    likelihood = model.likelihood_.with_row_values(torch.as_tensor(hours))
    up_to, below = (
        predictive_cdf(likelihood, torch.as_tensor(y).double(), marginals)
        for y in (counts, counts - 1)
    )
    central = (up_to.clamp(max=0.95) - below.clamp(min=0.05)).clamp(min=0) / (up_to - below)
    found = neg_coverage_error(model, X, counts, exposure=hours)
    assert found == pytest.approx(-abs(float(central.mean()) - 0.9), abs=1e-9)


def test_neg_nll_of_labels_is_the_mean_log_probability() -> None:
    light = {key: value for key, value in LIGHT.items() if key != "likelihood"}
    model = SparseGPClassifier(**light).fit(X, Y > 0)
    proba = model.predict_proba(X)[np.arange(60), (Y > 0).astype(int)]
    assert neg_nll(model, X, Y > 0) == pytest.approx(np.log(proba).mean(), rel=1e-12)


def test_scorers_by_name() -> None:
    assert get_scorer("neg_nll") is neg_nll
    assert get_scorer("neg_coverage_error") is neg_coverage_error
    with pytest.raises(InvalidInputError, match="one of"):
        get_scorer("nll")


def test_an_estimator_without_nll_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"the method nll\. Got Ridge"):
        neg_nll(Ridge().fit(X, Y), X, Y)


def test_exposures_are_routed_to_the_scorer() -> None:
    """Or missed with a warning, where nothing routes them."""
    hours = RANDOM.uniform(1, 20, 60)
    counts = RANDOM.poisson(hours * np.exp(Y))
    model = SparseGPCountRegressor(**{**LIGHT, "likelihood": "poisson"})
    folds = KFold(2)
    with config_context(enable_metadata_routing=True):
        routed = clone(model).set_fit_request(exposure=True)
        scorer = clone(neg_nll).set_score_request(exposure=True)
        params = {"exposure": hours}
        found = cross_val_score(routed, X, counts, scoring=scorer, cv=folds, params=params)
    for score, (train, test) in zip(found, folds.split(X), strict=True):
        fitted = clone(model).fit(X[train], counts[train], exposure=hours[train])
        expected = -fitted.nll(X[test], counts[test], exposure=hours[test])
        assert score == pytest.approx(expected, rel=1e-9)
        with pytest.warns(DirectGPWarning, match="trained with exposures"):
            assert -fitted.nll(X[test], counts[test]) < expected


def test_coverage_refuses_nan_and_other_lengths_and_weighs_rows() -> None:
    model = SparseGPRegressor(**LIGHT).fit(X, Y)
    with pytest.raises(ValueError, match="NaN"):
        neg_coverage_error(model, X, np.full(60, np.nan))
    with pytest.raises(ValueError, match="inconsistent"):
        neg_coverage_error(model, X, Y[:1])
    weights = np.arange(60.0)
    lower, upper = model.predict_interval(X, 0.9)
    inside = weights[(lower <= Y) & (upper >= Y)].sum() / weights.sum()
    found = neg_coverage_error(model, X, Y, sample_weight=weights)
    assert found == pytest.approx(-abs(inside - 0.9), abs=1e-12)

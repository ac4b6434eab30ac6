"""Regression with several outputs: each is the model of a single output, on the rows it has."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.metrics import r2_score
from sklearn.model_selection import cross_val_score

import directgp
from directgp import SparseGPRegressor
from directgp.errors import InvalidInputError, ModelFileError, UnsupportedError
from directgp.estimators import neg_coverage_error, neg_nll
from directgp.io import read_file, write_file
from directgp.persistence.models import MODEL
from tests.estimators.small_data import REGRESSION, X, Y

pytestmark = [
    pytest.mark.filterwarnings("ignore::directgp.errors.DirectGPWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

NAMES = ("sine", "square", "few")
TABLE = np.stack([Y, X[:, 1] ** 2, 3 + X[:, 0]], axis=1)
TABLE[[2, 5], 1] = np.nan
TABLE[8:20, 2] = np.nan
TABLE[11] = np.nan
"""A value of each output is missing somewhere, and all of row 11."""

KNOWN = ~np.isnan(TABLE)
FRAME = pd.DataFrame(X, columns=["a", "b"])
WEIGHTS = np.linspace(0.5, 2, len(X))
THERE = np.array([[0.0, 0.5], [1.0, -2.0], [9.0, 9.0]])


def fitted(**settings: Any) -> Any:
    return SparseGPRegressor(**{**REGRESSION, **settings}).fit(X, TABLE)


def alone(k: int, y: Any = TABLE, settings: Any = REGRESSION, **arguments: Any) -> Any:
    rows = ~np.isnan(y[:, k])
    own = {name: values[rows] for name, values in arguments.items()}
    return SparseGPRegressor(**settings).fit(X[rows], y[rows, k], **own)


@pytest.fixture(scope="module", name="model")
def _model() -> Any:
    return fitted()


@pytest.mark.parametrize(
    "ask",
    [
        lambda m: (m.predict(THERE),),
        lambda m: m.predict(THERE, return_std=True),
        lambda m: m.predict_interval(THERE, 0.8),
        lambda m: m.predict_latent(THERE),
        lambda m: (m.predict_quantiles(THERE, [0.1, 0.5]),),
    ],
    ids=["mean", "deviation", "interval", "latent", "quantiles"],
)
def test_each_output_is_the_model_of_its_rows(model: Any, ask: Any) -> None:
    together, single = ask(model), [ask(alone(k)) for k in range(3)]
    for i, found in enumerate(together):
        np.testing.assert_array_equal(found, np.stack([each[i] for each in single], axis=1))


def test_weights_and_validation_rows_are_those_of_the_output() -> None:
    settings = {**REGRESSION, "beta": "auto", "effort": "fast"}
    given = (X[:10] + 0.1, TABLE[:10])
    model: Any = SparseGPRegressor(**settings).fit(X, TABLE, WEIGHTS, validation_data=given)
    rows, there = KNOWN[:, 1], KNOWN[:10, 1]
    single = SparseGPRegressor(**settings).fit(
        X[rows], TABLE[rows, 1], WEIGHTS[rows], (given[0][there], TABLE[:10][there, 1])
    )
    np.testing.assert_array_equal(model.predict(THERE)[:, 1], single.predict(THERE))
    assert model.outputs_[1].beta_ == single.beta_
    unweighted = SparseGPRegressor(**settings).fit(X, TABLE, validation_data=given)
    assert not np.array_equal(model.predict(THERE), unweighted.predict(THERE))


@pytest.mark.parametrize("columns", [1, 3])
def test_noise_of_rows_may_have_a_column_for_each_output(columns: int) -> None:
    settings = {**REGRESSION, "likelihood": "gaussian_known_noise"}
    noise = np.random.default_rng(0).uniform(0.1, 1, (len(X), 3))
    noise = np.where(KNOWN, noise, np.nan) if columns == 3 else noise[:, 0]
    there = noise[:2]
    model = SparseGPRegressor(**settings).fit(X, TABLE, noise=noise)
    for k in range(3):
        own, at = (each if each.ndim == 1 else each[:, k] for each in (noise, there))
        _, deviation = alone(k, settings=settings, noise=own).predict(THERE[:2], True, noise=at)
        found = model.predict(THERE[:2], return_std=True, noise=there)[1]
        np.testing.assert_array_equal(found[:, k], deviation)


def test_densities_are_nan_where_the_target_is(model: Any) -> None:
    found = model.log_density(X, TABLE)
    np.testing.assert_array_equal(np.isnan(found), ~KNOWN)
    by_output = [alone(k).log_density(X[KNOWN[:, k]], TABLE[KNOWN[:, k], k]) for k in range(3)]
    for k in range(3):
        np.testing.assert_array_equal(found[KNOWN[:, k], k], by_output[k])
    assert model.nll(X, TABLE) == pytest.approx(-np.mean([each.mean() for each in by_output]))


def test_scores_are_means_over_outputs(model: Any) -> None:
    mean, (lower, upper) = model.predict(X), model.predict_interval(X)
    scores, distances = [], []
    for k in range(3):
        rows = KNOWN[:, k]
        y, w = TABLE[rows, k], WEIGHTS[rows]
        scores.append(r2_score(y, mean[rows, k], sample_weight=w))
        inside = (lower[rows, k] <= y) & (y <= upper[rows, k])
        distances.append(abs(np.average(inside, weights=w) - 0.9))
    assert model.score(X, TABLE, WEIGHTS) == pytest.approx(np.mean(scores))
    found = neg_coverage_error(model, X, TABLE, sample_weight=WEIGHTS)
    assert found == pytest.approx(-np.mean(distances))
    assert neg_nll(model, X, TABLE) == -model.nll(X, TABLE)


def test_the_score_is_the_uniform_average_of_scikit_learn() -> None:
    whole = np.stack([Y, X[:, 1]], axis=1)
    model = SparseGPRegressor(**REGRESSION).fit(X, whole)
    assert model.score(X, whole) == pytest.approx(r2_score(whole, model.predict(X)))
    assert len(cross_val_score(clone(model), X, whole, cv=2, scoring=neg_nll)) == 2


def test_draws_of_outputs_are_independent() -> None:
    model = SparseGPRegressor(**REGRESSION).fit(X, np.stack([Y, Y], axis=1))
    drawn = model.sample_y(THERE, 2000, random_state=3)
    assert drawn.shape == (3, 2, 2000)
    np.testing.assert_array_equal(drawn[:, 0], model.outputs_[0].sample_y(THERE, 2000, 3))
    # The standard error of a correlation of 0 is 1/√2000.
    assert abs(np.corrcoef(drawn[0])[0, 1]) < 5 / np.sqrt(2000)


def test_a_table_gives_the_outputs_names() -> None:
    table = pd.DataFrame(TABLE, columns=NAMES).astype({"square": "Float64"})
    model = SparseGPRegressor(**REGRESSION).fit(FRAME, table)
    assert model.output_names_ == NAMES and list(model.feature_names_in_) == ["a", "b"]
    there = pd.DataFrame(THERE, columns=["a", "b"])
    np.testing.assert_array_equal(model.predict(there), fitted().predict(THERE))
    assert list(model.outputs_[1].feature_names_in_) == ["a", "b"]
    text = model.summary()
    blocks = [line for line in text.splitlines() if line.startswith("Output ")]
    assert blocks == [f"Output {name!r}: SparseGPRegressor" for name in NAMES]
    assert all(f"  data          {n} rows" in text for n in KNOWN.sum(axis=0))
    with pytest.raises(InvalidInputError, match=r"columns of y .* as in fit"):
        model.nll(FRAME, table[["square", "sine", "few"]])


@pytest.mark.parametrize("names", [None, NAMES])
def test_a_file_holds_all_outputs(tmp_path: Path, names: Any) -> None:
    y = TABLE if names is None else pd.DataFrame(TABLE, columns=names)
    model = SparseGPRegressor(**REGRESSION).fit(X, y).set_params(verbose=1)
    model.save(tmp_path / "model")
    again = directgp.load(tmp_path / "model", device="cpu")
    assert again.get_params() == {**model.get_params(), "device": "cpu"}
    assert vars(again).keys() == vars(model).keys() and again.findings_ == model.findings_
    assert getattr(again, "output_names_", None) == names
    for one, other in zip(again.predict(THERE, True), model.predict(THERE, True), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(
        again.partial_fit(X[:5], TABLE[:5]).predict(THERE),
        model.partial_fit(X[:5], TABLE[:5]).predict(THERE),
    )


def _output_of_an_output(manifest: Any, tensors: Any) -> None:
    manifest["others"][1]["others"] = [dict(manifest["others"][0])]
    inner = {k: v for k, v in tensors.items() if k.startswith("others.0.")}
    tensors |= {f"others.1.{name}": tensor for name, tensor in inner.items()}


def _more_features(manifest: Any, tensors: Any) -> None:
    for name in ("input_shift", "input_scale"):
        tensors[f"others.0.arrays.{name}"] = torch.ones(3, dtype=torch.float64)
    tensors["others.0.posterior.Z"] = torch.randn(4, 3, dtype=torch.float64)


@pytest.mark.parametrize(
    "change",
    [
        lambda m, t: t.pop("others.0.posterior.u_mean"),
        lambda m, t: m["others"].pop(),
        lambda m, t: m["others"].append(1),
        lambda m, t: m.update(others=3),
        _output_of_an_output,
        _more_features,
    ],
    ids=["no tensor", "fewer", "no manifest", "number", "nested", "other features"],
)
def test_damaged_outputs_are_refused(model: Any, tmp_path: Path, change: Any) -> None:
    model.save(tmp_path / "model")
    tensors, manifest = read_file(MODEL, tmp_path / "model")
    change(manifest, tensors)
    write_file(MODEL, tmp_path / "model", tensors, manifest)
    with pytest.raises(ModelFileError, match="cannot be loaded as a model"):
        directgp.load(tmp_path / "model")


def test_updates_go_to_the_outputs_with_targets() -> None:
    model, part = fitted(), TABLE[12:20]
    single, last = alone(0).partial_fit(X[13:20], Y[13:20]), model.outputs_[2]
    first = model.outputs_[0]
    before = first.predict(THERE)
    model.partial_fit(X[12:20], np.where(np.arange(8)[:, None] > 0, part, np.nan))
    np.testing.assert_array_equal(model.predict(THERE)[:, 0], single.predict(THERE))
    np.testing.assert_array_equal(model.predict(THERE)[:, 2], last.predict(THERE))
    np.testing.assert_array_equal(first.predict(THERE), before)


def test_rows_of_weight_0_leave_an_output_without_others_unchanged() -> None:
    model = fitted()
    y = np.array([[0.1, np.nan, np.nan], [0.2, 0.3, np.nan]])
    weights = np.array([1.0, 0.0])
    single = alone(0).partial_fit(X[:1], y[:1, 0])
    before = model.predict(THERE)
    model.partial_fit(X[:2], y, weights)
    np.testing.assert_array_equal(model.predict(THERE)[:, 0], single.predict(THERE))
    np.testing.assert_array_equal(model.predict(THERE)[:, 1:], before[:, 1:])
    assert model.nll(X[:2], y, weights) == single.nll(X[:1], y[:1, 0])


def test_a_warm_start_goes_on_with_each_output() -> None:
    model = fitted(warm_start=True).fit(X, TABLE)
    single = alone(1, settings={**REGRESSION, "warm_start": True})
    single.fit(X[KNOWN[:, 1]], TABLE[KNOWN[:, 1], 1])
    np.testing.assert_array_equal(model.predict(THERE)[:, 1], single.predict(THERE))
    with pytest.raises(InvalidInputError, match=r"of shape \(n, 3\)"):
        model.fit(X, Y)


def test_the_number_of_outputs_may_change_with_another_fit() -> None:
    model = fitted()
    one = model.fit(X, Y)
    assert one.predict(THERE).shape == (3,) and not hasattr(one, "outputs_")
    two = one.fit(X, np.stack([Y, Y], 1))
    assert two.predict(THERE).shape == (3, 2) and not hasattr(two, "posterior_")


def test_one_column_is_one_output() -> None:
    with pytest.warns(match="column-vector y was passed"):
        model = SparseGPRegressor(**REGRESSION).fit(X, Y[:, None])
    single = SparseGPRegressor(**REGRESSION).fit(X, Y)
    np.testing.assert_array_equal(model.predict(THERE), single.predict(THERE))
    with pytest.raises(InvalidInputError, match="Input y contains NaN"):
        single.fit(X, np.where(Y > 1, np.nan, Y))


def test_warnings_name_the_output() -> None:
    constant = np.concatenate([X, np.ones((len(X), 1))], axis=1)
    with pytest.warns(match="Output 1: The same value in every training row: column 2"):
        model = SparseGPRegressor(**REGRESSION).fit(constant, TABLE)
    assert [text for text in model.findings_ if text.startswith("Output 2: The same value")]


INFINITE = np.where(np.arange(72).reshape(24, 3) == 7, np.inf, TABLE)


@pytest.mark.parametrize(
    ("y", "error"),
    [
        (TABLE * [1, 1, np.nan], "column 2 of y .* at least 2 values. Got 0"),
        (INFINITE, "y contains infinity.* in row 2, column 1"),
        (np.where(TABLE > 2, "much", TABLE.astype(object)), "must be numbers. Got 'much'"),
        (TABLE[:5], "inconsistent numbers of samples"),
    ],
    ids=["too few", "infinite", "text", "short"],
)
def test_bad_targets_change_nothing(y: Any, error: str) -> None:
    model = fitted()
    before = copy.copy(vars(model))
    with pytest.raises(ValueError, match=error):
        model.fit(X, y)
    assert vars(model) == before


def test_the_error_of_an_output_names_it() -> None:
    with pytest.raises(InvalidInputError, match="y of Gamma must be positive") as caught:
        fitted(likelihood="gamma")
    assert "output 0" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    "ask",
    [
        lambda m: m.plot_calibration(X, TABLE),
        lambda m: m.plot_predictions(X),
        lambda m: m.plot_partial_dependence(X),
        lambda m: m.plot_beta_path(),
        lambda m: m.feature_relevance(),
        lambda m: m.posterior_,
        lambda m: m.feature_importances_,
    ],
)
def test_what_is_for_one_output_says_where_they_are(model: Any, ask: Any) -> None:
    with pytest.raises((UnsupportedError, AttributeError), match=r"model.outputs_\[k\]\."):
        ask(model)


def test_targets_of_another_number_are_refused(model: Any) -> None:
    for y in (Y, TABLE[:, :2]):
        with pytest.raises(InvalidInputError, match=r"must be of shape \(n, 3\)"):
            model.nll(X, y)
    with pytest.raises(InvalidInputError, match=r"at least one value\. Got only missing values"):
        model.score(X[:3], TABLE[:3] * np.nan)
    for wrong in (np.ones((24, 2)), np.ones(5), np.ones(())):
        with pytest.raises(InvalidInputError, match=r"noise .* of shape \(24,\) or \(24, 3\)"):
            model.predict(X[:24], noise=wrong)


def test_an_output_without_targets_has_no_score(model: Any) -> None:
    rows = KNOWN[:, [0, 2]].all(1)
    y = TABLE[rows] * [1, np.nan, 1]
    densities = model.log_density(X[rows], y)
    assert np.isnan(densities[:, 1]).all() and np.isfinite(densities[:, [0, 2]]).all()
    others = [model.outputs_[k].nll(X[rows], y[:, k]) for k in (0, 2)]
    assert model.nll(X[rows], y) == pytest.approx(np.mean(others))


def test_validation_targets_and_weights_are_checked_for_each_output() -> None:
    model = SparseGPRegressor(**REGRESSION)
    with pytest.raises(
        InvalidInputError, match=r"y of .*validation_data must be of shape \(m, 3\)"
    ):
        model.fit(X, TABLE, validation_data=(X, TABLE[:, 0]))
    weights = np.where(KNOWN[:, 1], 0.0, 1.0)
    with pytest.raises(InvalidInputError, match=r"column 1 of y .* 2 values\. Got 0"):
        model.fit(X, TABLE, weights)


def test_a_time_budget_is_that_of_all_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    train = SparseGPRegressor._fit

    def noted(self: Any, *given: Any, **more: Any) -> None:
        seen.append(self.time_budget)
        train(self, *given, **more)

    monkeypatch.setattr(SparseGPRegressor, "_fit", noted)
    model = fitted(time_budget=60.0)
    assert seen == [20.0] * 3
    assert [each.time_budget for each in model.outputs_] == [60.0] * 3

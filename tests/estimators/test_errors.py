"""Estimators raise a clear error for invalid input before training."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import torch
from gpytorch.kernels import ProductKernel, RBFKernel, ScaleKernel
from sklearn.exceptions import NotFittedError
from sklearn.utils._param_validation import InvalidParameterError

from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor
from directgp.errors import DirectGPWarning, InvalidInputError, UnsupportedError
from directgp.estimators import fitting
from directgp.likelihoods import Gaussian, Poisson, Probit
from tests.estimators.small_data import COUNTING, COUNTS, LABELS, LIGHT, REGRESSION, X, Y

pytestmark = [
    pytest.mark.filterwarnings("ignore::directgp.errors.DirectGPWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

N = len(X)
FRAME = pd.DataFrame(X, columns=["a", "b"])
DAYS = pd.date_range("2020-01-01", periods=N)
WAITS = DAYS - DAYS[0]
ONES = np.ones(N)


def put(values: np.ndarray, index: Any, value: Any) -> np.ndarray:
    """A copy with one other value."""
    numeric = values.dtype.kind in "iuf" and not isinstance(value, str | None)
    changed = values.astype(float if numeric else object)
    changed[index] = value
    return changed


def regressor(X: Any = X, y: Any = Y, *fit: Any, **settings: Any) -> object:
    return SparseGPRegressor(**settings).fit(X, y, *fit)


def classifier(X: Any = X, y: Any = LABELS, *fit: Any, **settings: Any) -> object:
    return SparseGPClassifier(**settings).fit(X, y, *fit)


def counts(X: Any = X, y: Any = COUNTS, *fit: Any, **settings: Any) -> object:
    return SparseGPCountRegressor(**settings).fit(X, y, *fit)


class Row(NamedTuple):
    name: str
    call: Callable[..., object]
    error: type[Exception]
    words: str


P, V, D, U = InvalidParameterError, ValueError, InvalidInputError, UnsupportedError

INPUTS = [
    Row("NaN", lambda: regressor(put(X, (3, 1), np.nan)), D, "X contains NaN.*row 3, column 1"),
    Row("infinity", lambda: classifier(put(X, (3, 1), np.inf)), D, "infinity.*row 3, column 1"),
    Row(
        "NaN in a frame",
        lambda: regressor(FRAME.assign(b=put(X[:, 1], 3, np.nan))),
        D,
        "row 3, column 'b'.*impute",
    ),
    Row("string", lambda: regressor(put(X, (3, 1), "red")), D, "'red' in column 1. Encode"),
    Row(
        "strings in an array",
        lambda: regressor(FRAME.assign(b="red").to_numpy()),
        D,
        "SparseGPRegressor.fit must be numbers.*'red' in column 1.*OneHotEncoder",
    ),
    Row("waits", lambda: regressor(FRAME.assign(b=WAITS)), D, "times .* in column 'b'"),
    Row("only waits", lambda: regressor(pd.DataFrame({"b": WAITS})), D, "times .* in column 'b'"),
    Row("dates of numpy", lambda: regressor(DAYS.to_numpy()[:, None]), D, "days since a date"),
    Row("waits of polars", lambda: regressor(pl.DataFrame({"b": WAITS})), D, "column 'b'"),
    Row("no rows", lambda: regressor(X[:0], Y[:0]), V, "0 sample.* minimum of 2"),
    Row("one row", lambda: regressor(X[:1], Y[:1]), V, "1 sample.* minimum of 2"),
    Row("one row, repeated", lambda: regressor(np.ones((5, 2)), np.ones(5)), D, "two different"),
    Row("a series", lambda: regressor(FRAME["a"]), V, "Expected a 2-dim.*Pass a DataFrame"),
    Row(
        "one name twice",
        lambda: regressor(FRAME.set_axis(["a", "a"], axis=1)),
        D,
        "different names. Got 2 of name 'a'. Rename",
    ),
    Row("no columns", lambda: regressor(X[:, :0]), V, "0 feature"),
    Row("one axis", lambda: regressor(Y), V, "Expected 2D array.*[Rr]eshape"),
    Row("three axes", lambda: regressor(X[None]), V, "dim 3"),
    Row("sparse", lambda: regressor(scipy.sparse.csr_matrix(X)), TypeError, "dense.*toarray"),
    Row("complex", lambda: regressor(X + 1j), V, "Complex data not supported"),
    Row(
        "other features, warm",
        lambda: SparseGPRegressor(warm_start=True, **REGRESSION).fit(X, Y).fit(X[:, :1], Y),
        V,
        "1 features.*expecting 2",
    ),
]

TARGETS = [
    Row("none", lambda: regressor(y=None), V, "requires y to be passed"),
    Row("short", lambda: regressor(y=Y[:-1]), V, "inconsistent numbers of samples"),
    Row("NA", lambda: regressor(y=put(Y.astype(object), 3, pd.NA)), D, "y contains NaN.*row 3"),
    Row("NA label", lambda: classifier(y=put(LABELS, 3, pd.NA)), D, "y contains NaN.*row 3"),
    Row("two columns", lambda: counts(y=np.ones_like(X)), V, "y should be a 1d array"),
    Row("a cube", lambda: regressor(y=X[:, :, None]), V, "dim 3, while dim <= 2 is required"),
    Row("NaN", lambda: regressor(y=put(Y, 2, np.nan)), D, "y contains NaN.*row 2. Drop"),
    Row("a missing one", lambda: regressor(y=put(Y, 2, None)), D, "y contains NaN.*row 2"),
    Row("infinity", lambda: counts(y=put(COUNTS, 2, np.inf)), D, "y contains infinity.*row 2"),
    Row("strings", lambda: regressor(y=LABELS), D, "must be numbers.*Use SparseGPClassifier"),
    Row("strings of digits", lambda: regressor(y=["1.5", "2"] * 12), D, "must be numbers"),
    Row("dates", lambda: regressor(y=DAYS), D, "must be numbers"),
    Row("complex", lambda: regressor(y=Y + 1j), V, "Complex data not supported"),
    Row(
        "one class",
        lambda: classifier(y=["a"] * N),
        D,
        "of at least two classes. Got one class, 'a'",
    ),
    Row(
        "one class with weight",
        lambda: classifier(X, LABELS, LABELS == "yes"),
        D,
        "Got one class, 'yes'.*weight 0 do not count",
    ),
    Row(
        "probit of three classes",
        lambda: classifier(y=np.arange(N) % 3, likelihood="probit"),
        D,
        "'auto', 'softmax', .* or 'ordinal' for 3 classes. Got 'probit'.*OneVsRestClassifier",
    ),
    Row("real labels", lambda: classifier(y=Y), V, "Unknown label type: continuous"),
    Row("missing label", lambda: classifier(y=put(LABELS, 2, None)), D, "y contains NaN.*row 2"),
    Row("NaN label", lambda: classifier(y=put(COUNTS, 2, np.nan)), D, "y contains NaN.*row 2"),
    Row("labels of two types", lambda: classifier(y=put(LABELS, 2, 7)), D, "one type.*int, str"),
    Row("negative", lambda: counts(y=put(COUNTS, 2, -1)), D, "counts.*Got -1.0 in row 2"),
    Row("fractional", lambda: counts(y=put(COUNTS, 2, 0.5)), D, "0.5 in row 2.*exposure="),
    Row(
        "other labels, warm",
        lambda: SparseGPClassifier(warm_start=True, **LIGHT).fit(X, LABELS).fit(X, Y > 0),
        D,
        "must be one of 'no', 'yes'",
    ),
]

SETTINGS = [
    Row("beta -1", lambda: regressor(beta=-1), P, "'beta' .* range .0.0, inf.. Got -1"),
    Row("beta NaN", lambda: regressor(beta=np.nan), P, "'beta' .*Got nan"),
    Row("beta infinite", lambda: regressor(beta=np.inf), P, "'beta' .*Got inf"),
    Row("objective", lambda: regressor(objective="foo"), P, "'objective' .*Got 'foo'"),
    Row("vfe of labels", lambda: classifier(objective="vfe"), U, "Gaussian likelihood.*'elbo'"),
    Row("crps of labels", lambda: classifier(objective="crps"), U, "closed-form CRPS"),
    Row("cost of numbers", lambda: regressor(objective="zero_one_cost"), U, "two labels"),
    Row("rule", lambda: regressor(rule="foo"), P, "'rule' .*Got 'foo'"),
    Row("rule of elbo", lambda: regressor(objective="elbo", rule="ups"), D, "for 'log_loss'"),
    Row("likelihood", lambda: regressor(likelihood="poisson"), P, "'likelihood' .*Got 'poisson'"),
    Row(
        "probit of numbers",
        lambda: regressor(likelihood=Probit()),
        D,
        "SparseGPClassifier for labels",
    ),
    Row("density of labels", lambda: classifier(likelihood=Gaussian()), D, "classification"),
    Row("density of counts", lambda: counts(likelihood=Gaussian()), D, "count"),
    Row("counts of labels", lambda: classifier(likelihood=Poisson()), D, "classification"),
    Row("kernel", lambda: regressor(kernel="linear"), P, "'kernel' .*Got 'linear'"),
    Row(
        "kernel of a batch",
        lambda: regressor(kernel=ScaleKernel(RBFKernel(batch_shape=torch.Size([2])))),
        D,
        r"batch_shape \(2,\).*Leave batch_shape out",
    ),
    Row(
        "kernel of three features",
        lambda: regressor(kernel=RBFKernel(ard_num_dims=3)),
        D,
        "ard_num_dims None or 2.*Got 3",
    ),
    Row(
        "kernel of a third feature of two",
        lambda: regressor(
            np.column_stack([X, Y]),
            kernel=ScaleKernel(ProductKernel(RBFKernel(active_dims=[2])), active_dims=[0, 1]),
        ),
        D,
        "active_dims below 2",
    ),
    Row(
        "kernel of a sixth feature",
        lambda: regressor(kernel=RBFKernel(active_dims=[5])),
        D,
        "active_dims below 2",
    ),
    Row("ard of own kernel", lambda: regressor(kernel=RBFKernel(), ard=True), D, "ard_num_dims"),
    Row("device", lambda: regressor(device="nonsense"), D, "'cpu' or 'cuda'. Got 'nonsense'"),
    Row(
        "device without values",
        lambda: regressor(device="meta"),
        D,
        "Got 'meta', which has no float64",
    ),
    Row("dtype", lambda: regressor(dtype="float16"), P, "'dtype' .*Got 'float16'"),
    Row("num_inducing 0", lambda: regressor(num_inducing=0), P, "'num_inducing' .*Got 0"),
    Row("half an input", lambda: regressor(num_inducing=2.5), P, "'num_inducing' .*Got 2.5"),
    Row("inducing", lambda: regressor(inducing="foo"), P, "'inducing' .*Got 'foo'"),
    Row("inducing too narrow", lambda: regressor(inducing=X[:, :1]), D, r"\(m, 2\).*\(24, 1\)"),
    Row("inducing NaN", lambda: regressor(inducing=put(X, 0, np.nan)), D, "must be finite"),
    Row("inducing of one axis", lambda: regressor(inducing=Y), D, "inducing of .* 1D array"),
    Row("no inducing", lambda: regressor(inducing=X[:0]), D, "inducing of .* 0 sample"),
    Row("max_iter 0", lambda: regressor(max_iter=0), P, "'max_iter' .*Got 0"),
    Row("tol 0", lambda: regressor(tol=0.0), P, "'tol' .*Got 0.0"),
    Row("num_samples 0", lambda: regressor(num_samples=0), P, "'num_samples' .*Got 0"),
    Row("optimizer", lambda: regressor(optimizer="sgd"), P, "'optimizer' .*Got 'sgd'"),
    Row("batch_size 0", lambda: regressor(batch_size=0), P, "'batch_size' .*Got 0"),
    Row("batches", lambda: regressor(batch_size=4, optimizer="lbfgs"), D, "Use optimizer='adam'"),
    Row("all set aside", lambda: regressor(validation_fraction=1.0), P, "'validation_fraction'"),
    Row("standardize", lambda: regressor(standardize="yes"), P, "'standardize' .*Got 'yes'"),
    Row("random_state", lambda: regressor(random_state="a"), P, "'random_state' .*Got 'a'"),
    Row("mean", lambda: regressor(mean="linear"), P, "'mean' .*Got 'linear'"),
    Row("hyperparameters", lambda: regressor(hyperparameters="x"), P, "'hyperparameters'"),
    Row("verbose", lambda: regressor(verbose="loud"), P, "'verbose'"),
    Row("warm_start", lambda: regressor(warm_start="yes"), P, "'warm_start'"),
]

WEIGHTS = [
    Row("negative", lambda: regressor(X, Y, put(ONES, 2, -1)), D, "at least 0. Got -1.0 in row 2"),
    Row("all zero", lambda: regressor(X, Y, 0 * ONES), V, "non-zero"),
    Row("short", lambda: regressor(X, Y, ONES[1:]), V, r"sample_weight.*\(23,\).*\(24,\)"),
    Row("NaN", lambda: regressor(X, Y, put(ONES, 2, np.nan)), V, "sample_weight contains NaN"),
    Row("one row left", lambda: regressor(X, Y, np.eye(N)[0]), D, "in at least 2 rows. Got 1"),
    Row(
        "missing target",
        lambda: regressor(X, put(Y, 2, np.nan), put(ONES, 0, 0)),
        D,
        "y contains NaN.*row 2",
    ),
    Row(
        "missing label of weight 0",
        lambda: classifier(X, put(LABELS, 2, None), put(ONES, 2, 0)),
        D,
        "y contains NaN.*row 2",
    ),
    Row("too heavy", lambda: regressor(X, Y, 1e308 * ONES), D, "of a sum up to 1e"),
]

EXPOSURES = [
    Row(
        "zero",
        lambda: counts(X, COUNTS, None, None, 0 * ONES),
        D,
        "0.0 in row 0.*Drop rows without",
    ),
    Row("short", lambda: counts(X, COUNTS, None, None, ONES[1:]), D, r"\(24,\). Got shape \(23,\)"),
    Row("NaN", lambda: counts(X, COUNTS, None, None, put(ONES, 2, np.nan)), D, "nan in row 2"),
    Row("strings", lambda: counts(X, COUNTS, None, None, LABELS), D, "must be numbers"),
    Row(
        "of no counts",
        lambda: SparseGPRegressor().fit(X, Y, exposure=ONES),  # type: ignore[call-arg]
        TypeError,
        "exposure",
    ),
]

VALIDATION = [
    Row("three parts", lambda: regressor(X, Y, None, (X, Y, Y)), D, r"\(X, y\). Got 3 parts"),
    Row("no parts", lambda: regressor(X, Y, None, 3), D, r"a tuple \(X, y\). Got int"),
    Row("narrow", lambda: regressor(X, Y, None, (X[:, :1], Y)), D, "validation_data.*1 features"),
    Row("short", lambda: regressor(X, Y, None, (X, Y[1:])), D, "validation_data.*inconsistent"),
    Row("NaN", lambda: regressor(X, Y, None, (X * np.nan, Y)), D, "validation_data got 48"),
    Row("a class", lambda: classifier(X, LABELS, None, (X, COUNTS)), D, "validation_data.*row 0"),
    Row("no counts", lambda: counts(X, COUNTS, None, (X, Y)), D, "validation_data must be counts"),
    Row(
        "without exposure",
        lambda: counts(X, COUNTS, None, (X, COUNTS), ONES),
        D,
        r"\(X, y, exposure\). Got 2 parts",
    ),
]

FITS = {
    "inputs": INPUTS,
    "targets": TARGETS,
    "settings": SETTINGS,
    "weights": WEIGHTS,
    "exposures": EXPOSURES,
    "validation": VALIDATION,
}


class Fitted(NamedTuple):
    regressor: SparseGPRegressor
    classifier: SparseGPClassifier
    counts: SparseGPCountRegressor


QUESTIONS = [
    Row("too narrow", lambda m: m.regressor.predict(X[:, :1]), V, "1 features.*expecting 2"),
    Row("too wide", lambda m: m.counts.predict(np.ones((3, 5))), V, "5 features.*expecting 2"),
    Row("NaN", lambda m: m.classifier.predict(X * np.nan), D, "X contains NaN.*column 0"),
    Row("no rows", lambda m: m.regressor.predict(X[:0]), V, "0 sample"),
    Row("one axis", lambda m: m.regressor.predict(X[0]), V, "Expected 2D array"),
    Row("level 0", lambda m: m.regressor.predict_quantiles(X, [0.0]), D, "ends excluded. Got 0.0"),
    Row("level 1", lambda m: m.counts.predict_quantiles(X, [0.5, 1.0]), D, "excluded. Got 1.0"),
    Row("level 2", lambda m: m.counts.predict_quantiles(X, 2.0), D, "ends excluded. Got 2.0"),
    Row("level NaN", lambda m: m.counts.predict_quantiles(X, np.nan), D, "Got nan"),
    Row("level of letters", lambda m: m.counts.predict_quantiles(X, "a"), D, "numbers. Got 'a'"),
    Row("table of levels", lambda m: m.counts.predict_quantiles(X, X), D, r"list.*\(24, 2\)"),
    Row("coverage 1", lambda m: m.regressor.predict_interval(X, 1.0), D, "excluded. Got 1.0"),
    Row("coverage 0", lambda m: m.counts.predict_interval(X, 0.0), D, "ends excluded. Got 0.0"),
    Row(
        "coverage near 1",
        lambda m: m.counts.predict_interval(X, 1 - 1e-16),
        D,
        "coverage of SparseGPCountRegressor.predict_interval must be further from 1",
    ),
    Row(
        "no samples",
        lambda m: m.regressor.sample_y(X, 0),
        D,
        "n_samples of SparseGPRegressor.sample_y must be an integer of at least 1. Got 0",
    ),
    Row("max_count -1", lambda m: m.counts.predict_pmf(X, -1), D, "at least 0. Got -1"),
    Row("exposure", lambda m: m.counts.predict(X, ONES[1:]), D, r"\(24,\). Got shape \(23,\)"),
    Row("short y", lambda m: m.regressor.log_density(X, Y[1:]), V, "inconsistent numbers"),
    Row("NaN in y", lambda m: m.regressor.nll(X, Y * np.nan), D, "y contains NaN.*row 0"),
    Row("unknown class", lambda m: m.classifier.nll(X, COUNTS), D, "one of 'no', 'yes'"),
    Row("no counts", lambda m: m.counts.log_density(X, Y), D, "must be counts"),
    Row(
        "score of no counts",
        lambda m: m.counts.score(X, -COUNTS),
        D,
        "y of SparseGPCountRegressor.score must be counts",
    ),
    Row(
        "weights of a score",
        lambda m: m.counts.score(X, COUNTS, -ONES),
        D,
        "sample_weight of SparseGPCountRegressor.score must be at least 0",
    ),
    Row("weights", lambda m: m.regressor.nll(X, Y, -ONES), D, "at least 0. Got -1.0 in row 0"),
]

UNFITTED: list[Callable[[], object]] = [
    lambda: SparseGPRegressor().predict(X),
    lambda: SparseGPRegressor().predict_quantiles(X, 0.5),
    lambda: SparseGPRegressor().nll(X, Y),
    lambda: SparseGPClassifier().predict(X),
    lambda: SparseGPClassifier().predict_proba(X),
    lambda: SparseGPClassifier().decision_function(X),
    lambda: SparseGPClassifier().log_density(X, LABELS),
    lambda: SparseGPCountRegressor().predict_pmf(X, 3),
    lambda: SparseGPCountRegressor().predict_latent(X),
    lambda: SparseGPCountRegressor().score(X, COUNTS),
]


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    return Fitted(
        SparseGPRegressor(**REGRESSION).fit(X, Y),
        SparseGPClassifier(**LIGHT).fit(X, LABELS),
        SparseGPCountRegressor(**COUNTING).fit(X, COUNTS),
    )


def _refuse_to_train(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*args: object, **kwargs: object) -> None:
        raise AssertionError("It was trained.")

    monkeypatch.setattr(fitting, "train", train)
    monkeypatch.setattr(fitting, "Race", train)


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=f"{kind}-{row.name}") for kind in FITS for row in FITS[kind]]
)
def test_fit_refuses_before_training(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    if "warm" not in row.name:
        _refuse_to_train(monkeypatch)
    with pytest.raises(row.error, match=f"(?s){row.words}"):
        row.call()


@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in QUESTIONS])
def test_questions_are_refused(row: Row, fitted: Fitted) -> None:
    with pytest.raises(row.error, match=f"(?s){row.words}"):
        row.call(fitted)


@pytest.mark.parametrize("ask", UNFITTED)
def test_a_model_is_fitted_first(ask: Callable[[], object]) -> None:
    with pytest.raises(NotFittedError, match="not fitted yet"):
        ask()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_device_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"'cuda', and no CUDA device.*Use device='auto'"):
        regressor(device="cuda")


def test_a_first_fit_that_is_refused_leaves_an_unfitted_model() -> None:
    model = SparseGPClassifier()
    with pytest.raises(InvalidInputError):
        model.fit(X, ["a"] * N)
    assert not [name for name in vars(model) if name.endswith("_")]
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_numbers_among_objects_are_numbers(fitted: Fitted) -> None:
    model = SparseGPRegressor(**REGRESSION).fit(X.astype(object), Y.astype(object))
    np.testing.assert_array_equal(model.predict(X.astype(object)), fitted.regressor.predict(X))


def test_a_constant_feature_is_accepted_with_a_warning() -> None:
    constant = np.column_stack([X, np.full(N, 7.0)])
    with pytest.warns(DirectGPWarning, match="The same value in every training row: column 2"):
        model = SparseGPRegressor(**REGRESSION).fit(constant, Y)
    assert np.isfinite(model.predict(constant)).all()

"""Tables of any shape, type, memory order and magnitude give a prediction or a clear error."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning

from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor
from directgp.errors import DirectGPError, DirectGPWarning

_FEW = settings(
    max_examples=15,
    derandomize=True,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)
_MANY = settings(_FEW, max_examples=1500)


def _strided(table: np.ndarray) -> np.ndarray:
    wide = np.zeros((2 * len(table), 3 * table.shape[1]), dtype=table.dtype)
    wide[::2, ::3] = table
    return wide[::2, ::3]


def _read_only(table: np.ndarray) -> np.ndarray:
    copied = table.copy()
    copied.setflags(write=False)
    return copied


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "C": np.ascontiguousarray,
    "Fortran": np.asfortranarray,
    "strides": _strided,
    "backwards": lambda table: table[::-1, ::-1].copy()[::-1, ::-1],
    "read-only": _read_only,
    "bytes swapped": lambda table: table.astype(table.dtype.newbyteorder()),
}

TARGETS: dict[Any, tuple[str, ...]] = {
    SparseGPRegressor: ("log_loss", "elbo", "square_loss", "vfe", "fitc", "crps", "absolute_loss"),
    SparseGPClassifier: ("log_loss", "elbo", "square_loss", "zero_one_cost"),
    SparseGPCountRegressor: ("log_loss", "elbo", "square_loss"),
}


class Trial(NamedTuple):
    maker: Any
    settings: dict[str, Any]
    X: np.ndarray
    y: np.ndarray
    weights: np.ndarray | None


@st.composite
def tables(draw: st.DrawFn) -> np.ndarray:
    """Features, a constant one or repeated rows among them."""
    n, d = draw(st.integers(2, 40)), draw(st.integers(1, 4))
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    kind = draw(st.sampled_from(["float64", "float64", "float32", "int64", "int8", "bool"]))
    table = random.normal(size=(n, d))
    if kind == "float64":
        scale, offset = (draw(st.sampled_from([0, 1e-12, 1e-3, 1, 1e5, 1e12])) for _ in range(2))
        table = (scale or 1.0) * table + offset
    table = (3 * table if kind.startswith("int") else table).astype(kind)
    if draw(st.booleans()):
        table[:, draw(st.integers(0, d - 1))] = table[0, 0]
    if draw(st.booleans()):
        table[n // 2 :] = table[: n - n // 2]
    return LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))](table)


@st.composite
def targets(draw: st.DrawFn, maker: Any, n: int) -> np.ndarray:
    """Targets of the estimator's kind; sometimes all the same."""
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    if maker is SparseGPClassifier:
        pair = draw(st.sampled_from([(0, 1), ("no", "yes"), (False, True), (-1.0, 1.0)]))
        return np.asarray(pair)[random.integers(0, 2, n)]
    if maker is SparseGPCountRegressor:
        mean = draw(st.sampled_from([0.0, 0.1, 3.0, 1e3, 1e6]))
        return random.poisson(mean, n).astype(draw(st.sampled_from(["int64", "float64"])))
    scale, offset = (draw(st.sampled_from([0, 1e-12, 1e-3, 1, 1e5, 1e12])) for _ in range(2))
    return scale * random.standard_t(3, n) + offset


@st.composite
def trials(draw: st.DrawFn) -> Trial:
    maker = draw(st.sampled_from(list(TARGETS)))
    X = draw(tables())
    y = draw(targets(maker, len(X)))
    objective = draw(st.sampled_from(TARGETS[maker]))
    chosen = {
        "objective": objective,
        "beta": draw(st.sampled_from([0.0, 0.1, 1.0, 50.0])),
        "hyperparameters": draw(st.sampled_from(["joint", "fixed"])),
        "kernel": draw(st.sampled_from(["rbf", "matern12", "matern52"])),
        "ard": draw(st.booleans()),
        "num_inducing": draw(st.integers(1, 5)),
        "dtype": draw(st.sampled_from(["float64", "float64", "float32"])),
        "standardize": draw(st.sampled_from([True, True, True, False])),
        "max_iter": 3,
        "random_state": 0,
    }
    if objective in ("vfe", "fitc"):
        chosen["beta"] = 1.0
    few = np.random.default_rng(len(X)).integers(0, 3, len(X)).astype(float)
    return Trial(maker, chosen, X, y, draw(st.sampled_from([None, few])))


def _predicted(trial: Trial) -> list[np.ndarray]:
    """Everything that can be asked, or nothing where the trial is refused."""
    try:
        model = trial.maker(**trial.settings).fit(trial.X, trial.y, trial.weights)
    except DirectGPError:
        return []
    found = [*model.predict_latent(trial.X), model.log_density(trial.X, trial.y)]
    if trial.maker is SparseGPClassifier:
        probability = model.predict_proba(trial.X)
        assert ((probability >= 0) & (probability <= 1)).all()
        np.testing.assert_allclose(probability.sum(axis=1), 1.0, rtol=1e-6)
        assert np.isin(model.predict(trial.X), trial.y).all()
        return [*found, probability]
    low, high = model.predict_interval(trial.X)
    assert (low <= high).all()
    quantiles = model.predict_quantiles(trial.X, [0.1, 0.5, 0.9])
    assert (np.diff(quantiles, axis=1) >= 0).all()
    return [*found, model.predict(trial.X), low, high, quantiles]


def _holds(trial: Trial) -> None:
    kept = trial.X.tobytes(), trial.y.tobytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DirectGPWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = _predicted(trial)
    assert (trial.X.tobytes(), trial.y.tobytes()) == kept
    for values in found:
        assert np.isfinite(values).all()


@pytest.mark.usefixtures("without_shape_checks")
@_FEW
@given(trials())
def test_every_table_is_predicted_or_refused(trial: Trial) -> None:
    _holds(trial)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@_MANY
@given(trials())
def test_many_tables_are_predicted_or_refused(trial: Trial) -> None:
    _holds(trial)

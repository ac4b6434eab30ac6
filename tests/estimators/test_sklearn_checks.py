"""scikit-learn's own checks of an estimator."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor

pytestmark = [
    pytest.mark.usefixtures("without_shape_checks"),
    pytest.mark.filterwarnings("ignore::directgp.errors.DirectGPWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

Check = Callable[[BaseEstimator], None]

_HUNDREDTHS = 0.01

_REAL_TARGETS = (
    "check_fit_check_is_fitted",
    "check_fit_idempotent",
    "check_n_features_in",
    "check_n_features_in_after_fitting",
    "check_regressor_data_not_an_array",
    "check_regressors_no_decision_function",
    "check_regressors_train",
)


class CountsOfHundredths(SparseGPCountRegressor):  # type: ignore[misc]
    """Counts the hundredths of real targets, which the checks have."""

    def fit(self, X: Any, y: Any, *args: Any, **kwargs: Any) -> "CountsOfHundredths":
        super().fit(X, _hundredths(y), *args, **kwargs)
        return self

    def partial_fit(self, X: Any, y: Any, *args: Any, **kwargs: Any) -> "CountsOfHundredths":
        super().partial_fit(X, _hundredths(y), *args, **kwargs)
        return self

    def score(self, X: Any, y: Any, *args: Any, **kwargs: Any) -> float:
        return float(super().score(X, _hundredths(y), *args, **kwargs))


def _hundredths(y: Any) -> Any:
    values = np.asarray(y)
    return np.round(values / _HUNDREDTHS) if values.dtype.kind in "iuf" else y


def _light(estimator: Callable[..., BaseEstimator], **settings: Any) -> BaseEstimator:
    """One short run with nothing to choose: the checks fit a hundred times."""
    few = {"kernel": "matern52", "num_inducing": 3, "max_iter": 2}
    return estimator(objective="elbo", beta=1.0, ard=False, **{**few, **settings})


_REGRESSOR, _IMPUTING, _CLASSIFIER, _COUNTS, _HUNDREDTHS_COUNTED = (
    _light(SparseGPRegressor, likelihood="gaussian"),
    _light(SparseGPRegressor, likelihood="gaussian", missing="impute"),
    _light(SparseGPClassifier),
    _light(SparseGPCountRegressor, likelihood="poisson"),
    _light(CountsOfHundredths, likelihood="poisson"),
)


def _short_runs() -> Iterator[Any]:
    """Every check of every estimator; real targets are turned into counts where counts are due."""
    for estimator in (_REGRESSOR, _IMPUTING, _CLASSIFIER, _COUNTS):
        for _, check in estimator_checks_generator(estimator):
            name = check.func.__name__
            counted = estimator is _COUNTS and name in _REAL_TARGETS
            fitted = clone(_HUNDREDTHS_COUNTED if counted else estimator)
            if name == "check_regressors_train":  # The only check that asks for a good fit.
                fitted.set_params(num_inducing=5, max_iter=20 if counted else 5)
            options = "".join(f"-{key}={value}" for key, value in check.keywords.items())
            options += "-imputing" if estimator is _IMPUTING else ""
            # The same code serves them: their checks repeat those of the regressor.
            repeated = estimator is _IMPUTING or estimator is _COUNTS
            yield pytest.param(
                fitted,
                check,
                id=f"{type(estimator).__name__}-{name}{options}",
                marks=[pytest.mark.slow] if repeated else [],
            )


@pytest.mark.parametrize(("estimator", "check"), list(_short_runs()))
def test_short_runs_pass(estimator: BaseEstimator, check: Check) -> None:
    check(estimator)


def _expected_to_fail(estimator: BaseEstimator) -> dict[str, str]:
    if type(estimator) is not SparseGPCountRegressor:
        return {}
    return dict.fromkeys(_REAL_TARGETS, "its targets are no counts, which is refused")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [
        SparseGPRegressor(),
        SparseGPClassifier(),
        SparseGPCountRegressor(),
        CountsOfHundredths(),
    ],
    expected_failed_checks=_expected_to_fail,
)
def test_defaults_pass(estimator: BaseEstimator, check: Check) -> None:
    check(estimator)

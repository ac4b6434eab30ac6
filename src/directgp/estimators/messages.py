"""Write the warnings of `fit` and `partial_fit`, which `issue` gives to the user."""

import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from gpytorch.kernels import Kernel, ScaleKernel
from jaxtyping import Bool, Float64, Num, Shaped
from sklearn.exceptions import ConvergenceWarning

from directgp.errors import DirectGPWarning
from directgp.estimators.fitting import Fit, Fitted
from directgp.estimators.preprocessing import TrainingTable
from directgp.estimators.validation import FeatureNames
from directgp.likelihoods.base import ParameterText
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.result import BetaPath, Status, TrainingResult

_MIN_REPEATED_SHARE = 0.01
_MIN_REPEATED = 5
_MAX_COUNT = 1000
_MIN_COUNTS = 20
_MIN_SKEWNESS = 0.4
"""Skewness from which integers look like counts: that of a Poisson variable of mean 6."""

_FLAT = 100.0
"""Lengthscale, in deviations of the feature, from which f hardly depends on the feature."""

_SMALL_WEIGHT = 0.5
"""Mean weight of a row below which the weights look relative to each other."""

_FAR, _WIDE = 5.0, 10.0
"""Mean and deviation of scaled new rows from which they are unlike those of the first fit."""

_FALLING = 5e-3
"""Relative fall of the loss over the last tenth of the steps of a run that stopped too early."""

_STACK_LEVEL = 4
"""Frames from `warnings.warn` to the caller of `fit`."""

_OUTPUT_SCALE = ParameterText(
    "raw_output_scale",
    "The output scale of the kernel",
    "Predictions are nearly constant: the target does not vary with the inputs.",
)


def row_findings(
    table: TrainingTable, names: FeatureNames | None, num_inducing: int | None, warm: bool
) -> Iterator[str]:
    """Warn about constant columns, repeated rows, small weights, new units and too few rows."""
    X, n, num_rows = table.X.double().cpu().numpy(), len(table.X), table.num_rows
    if named := _named(X.min(axis=0) == X.max(axis=0), names):
        yield (
            f"The same value in every training row: {named}. The model cannot learn from it, and "
            "predictions for other values are near the prior. Drop it if you do not need it."
        )
    if table.num_merged >= _MIN_REPEATED and table.num_merged > _MIN_REPEATED_SHARE * num_rows:
        yield (
            f"{table.num_merged} of {num_rows} rows repeat another row exactly, inputs and target, "
            "and were merged with it into one of larger weight. If they are copies and not "
            "measurements, they make predictions too certain: drop them."
        )
    if table.count < _SMALL_WEIGHT * num_rows:
        yield (
            f"A weight is a number of rows; these sum to {table.count:.3g} for {num_rows} rows, so "
            f"predictions are as uncertain as with {table.count:.3g} rows. If the weights are "
            f"relative to each other, multiply them by n/Σw = {num_rows / table.count:.3g}."
        )
    if warm:
        yield from outside_scaling(table, names)
    if num_inducing is not None and n < num_inducing:
        yield (
            f"There are {n} distinct training rows for num_inducing={num_inducing}. More than one "
            f"inducing input per row adds nothing; their number is reduced to {n}."
        )


def outside_scaling(table: TrainingTable, names: FeatureNames | None) -> Iterator[str]:
    """Warn about new rows far from those of the first fit; narrow ones may come from sorting."""
    if not table.scalings.inputs.rounded:
        return
    scaled = table.X.double().cpu().numpy()
    far = np.abs(scaled.mean(axis=0)) > _FAR
    if named := _named(far | (scaled.std(axis=0) > _WIDE), names):
        yield (
            f"The new rows lie far outside those of the first fit: {named}. The scaling is that of "
            "the first fit, so predictions there may be near the prior. Check the units; if they "
            "are right, fit again with warm_start=False."
        )


def regression_target(y: Num[np.ndarray, " n"]) -> Iterator[str]:
    """Warn about targets for which another estimator is better."""
    distinct = np.unique(y)
    if len(distinct) == 2:
        low, high = distinct.tolist()
        yield (
            f"The target has only two values, {low:g} and {high:g}. SparseGPRegressor treats them "
            "as real numbers with Gaussian noise; for probabilities of two classes use "
            "SparseGPClassifier."
        )
    elif _looks_like_counts(y, len(distinct)):
        yield (
            f"The target looks like counts: integers from 0 to {y.max():g}, skewed. "
            "SparseGPRegressor treats them as real numbers with Gaussian noise, so intervals can "
            "reach below 0; use SparseGPCountRegressor for counts."
        )


def _looks_like_counts(y: Num[np.ndarray, " n"], num_distinct: int) -> bool:
    """Return whether y are repeated integers from 0, skewed and spread as counts, unlike years."""
    if len(y) < _MIN_COUNTS or num_distinct < 3 or 2 * num_distinct > len(y):
        return False
    if y.min() != 0 or y.max() > _MAX_COUNT or (y != np.floor(y)).any():
        return False
    mean, variance = float(y.mean()), float(y.var())
    skewness = float(((y - mean) ** 3).mean()) / variance**1.5
    return variance > 0.5 * mean and skewness > _MIN_SKEWNESS


def one_class(y: Num[np.ndarray, " n"], classes: Shaped[np.ndarray, " c"]) -> Iterator[str]:
    """Warn about labels, 0 or 1, of which only one occurs."""
    if y.min() == y.max():
        yield (
            f"Every label is {classes.tolist()[int(y[0])]!r}, so kernel and mean cannot be "
            "learned: they keep their starting values, in later calls of partial_fit too. Call fit "
            "once there are rows of both classes."
        )


def training_findings(
    result: TrainingResult, path: BetaPath | None, names: FeatureNames | None
) -> Iterator[str]:
    """Warn about parameters at a bound, an early end, flat features, extreme β and failures."""
    texts = {f"likelihood.{text.parameter}": text for text in result.likelihood.parameter_texts}
    texts["prior.raw_output_scale"] = _OUTPUT_SCALE
    # A model that was compared with the ELBO may let the variance of f stand for all noise.
    compared = path is not None and any(p.hyperparameters == "elbo" for p in path.points)
    for name in result.at_floor:
        text = texts.get(name, ParameterText(name, name, "It may not suit these data."))
        if not (compared and text.is_noise):
            yield f"{text.subject} ended at the smallest value that training allows. {text.advice}"
    yield from ended_early(result.status, result.reason)
    scales = length_scales(result.posterior)
    if scales is not None and len(scales) > 1 and (named := _named(scales > _FLAT, names)):
        yield (
            f"The lengthscale is more than {_FLAT:g} times the spread of the feature: {named}. "
            "Predictions hardly depend on it. Drop it, or check its values for outliers."
        )
    if path is None:
        return
    if path.points and len(path.grid) > 1 and result.hyperparameters != "elbo":
        beta = path.points[path.chosen].beta
        ends = {
            min(path.grid): ("smallest", "hardly any regularisation", "below"),
            max(path.grid): ("largest", "predictions near the prior", "above"),
        }
        if beta in ends:
            which, means, where = ends[beta]
            yield (
                f"Validation chose β = {beta:g}, the {which} of its grid, which means {means}. The "
                f"best β may lie {where} it: try one with beta=..., or use more rows for "
                "validation."
            )
    yield from (f"A candidate could not be trained: {failure}" for failure in path.failed)


def ended_early(status: Status, reason: str) -> Iterator[str]:
    """Warn about training that the user or a callback ended."""
    if status in (Status.CANCELLED, Status.INTERRUPTED):
        yield f"Training was ended before it converged. {reason} Fit again for a finished model."


def not_converged(result: TrainingResult, compared: bool = False) -> Iterator[str]:
    """Warn if the budget ended training while the loss fell fast; `compared` if β was chosen."""
    losses, tail = result.history, max(2, len(result.history) // 10)
    if result.status is not Status.BUDGET:
        return
    if len(losses) > tail:
        fall = losses[-tail - 1] - losses[-1]
        if fall <= _FALLING * max(1.0, abs(losses[-1])):
            return
    share = " A run of a candidate gets at most max_iter steps." if compared else ""
    yield (
        f"Training has not converged. {result.reason}{share} Predictions may still improve with "
        "more steps or time."
    )


def length_scales(posterior: SparsePosterior) -> Float64[np.ndarray, " k"] | None:
    """Return the lengthscales, one or one per feature; None if the kernel has none of its own."""
    kernel: Kernel = posterior.prior.kernel
    while isinstance(kernel, ScaleKernel) and kernel.active_dims is None:
        kernel = kernel.base_kernel
    if not kernel.has_lengthscale or kernel.active_dims is not None:
        return None
    scales: Float64[np.ndarray, " k"] = kernel.lengthscale.detach().double().cpu().numpy().ravel()
    return scales


def findings_of_fit(model: Any, fit: Fit, fitted: Fitted) -> Iterator[str]:
    """Yield the warnings about the training rows and the result of `fit`."""
    names, result = getattr(model, "feature_names_in_", None), fitted.result
    given = isinstance(model.num_inducing, int | np.integer) and isinstance(model.inducing, str)
    yield from row_findings(fit.table, names, model.num_inducing if given else None, fit.warm)
    yield from training_findings(result, fitted.path, names)
    if fitted.end is not None and not result.ended:
        yield from ended_early(fitted.end.status, fitted.end.reason)
    if fitted.end is not None and fitted.end.status is Status.BUDGET:
        untried = f" Not tried: {'; '.join(fitted.untried)}." if fitted.untried else ""
        yield (
            f"The time budget ended the search, and the best model so far is taken.{untried} Give "
            "it more time with time_budget=..., or a choice less with beta=... or kernel=..."
        )


def findings_of_update(model: Any, result: TrainingResult, table: TrainingTable) -> Iterator[str]:
    """Yield the warnings about the new rows and the result of `partial_fit`."""
    yield from outside_scaling(table, getattr(model, "feature_names_in_", None))
    yield from ended_early(result.status, result.reason)


def issue(
    findings: Iterable[str], result: TrainingResult, compared: bool = False
) -> tuple[str, ...]:
    """Issue a `DirectGPWarning` for each finding, a `ConvergenceWarning` if due; return all."""
    found, unfinished = tuple(findings), tuple(not_converged(result, compared))
    for texts, category in ((found, DirectGPWarning), (unfinished, ConvergenceWarning)):
        for text in texts:
            warnings.warn(text, category, stacklevel=_STACK_LEVEL)
    return found + unfinished


def _named(chosen: Bool[np.ndarray, " d"], feature_names: FeatureNames | None) -> str:
    """Return the chosen columns by name or number."""
    return ", ".join(
        f"column {j}" if feature_names is None else repr(str(feature_names[j]))
        for j in np.flatnonzero(chosen).tolist()
    )

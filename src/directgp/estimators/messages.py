"""Write the warnings and advice of a fit."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from gpytorch.kernels import Kernel, ScaleKernel
from jaxtyping import Bool, Float64, Num, Shaped
from sklearn.exceptions import ConvergenceWarning

from directgp.errors import DirectGPWarning
from directgp.estimators.fitting import Fitted
from directgp.estimators.preprocessing import TrainingTable
from directgp.estimators.validation import FeatureNames
from directgp.likelihoods.base import Likelihood, ParameterText
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.result import BetaPath, Status, TrainingResult

# Each function returns what there is to say, most often nothing. The sentences are issued as
# `DirectGPWarning`, those of `not_converged` as scikit-learn's `ConvergenceWarning`.


_MANY_REPEATS = 0.01
_FEW_REPEATS = 5
_LARGEST_COUNT = 1000
_FEWEST_COUNTS = 20
_SKEWED = 0.4
"""Skewness from which counts look like counts: that of a Poisson variable of mean 6."""

_FLAT = 100.0
"""Length scale, in deviations of the feature, from which on f hardly depends on the feature."""

_FEW_WEIGHTS = 0.5
"""Mean weight of a row below which weights look as if meant relative to each other."""

_FAR, _WIDE = 5.0, 10.0
"""Mean and deviation of scaled rows from which on they are not like those that set the scaling."""

_OUTPUT_SCALE = ParameterText(
    "raw_output_scale",
    "The output scale of the kernel",
    "Predictions are nearly constant: the target does not vary with the inputs.",
)


def constant_columns(
    scaled: Float64[np.ndarray, "n d"], feature_names: FeatureNames | None
) -> list[str]:
    """Of inputs as `ColumnScaling.forward` gives them."""
    named = _named(scaled.min(axis=0) == scaled.max(axis=0), feature_names)
    if not named:
        return []
    return [
        f"The same value in every training row: {named}. Nothing can be learned from that; "
        "predictions for other values fall back towards the prior. Drop what you do not need."
    ]


def merged_rows(num_merged: int, num_rows: int) -> list[str]:
    """Of rows that repeat another one in inputs and target."""
    if num_merged < _FEW_REPEATS or num_merged <= _MANY_REPEATS * num_rows:
        return []
    return [
        f"{num_merged} of {num_rows} rows repeat another row exactly, inputs and target, and were "
        "merged with it into one of larger weight. If they are copies and not measurements, they "
        "make predictions too certain: drop them."
    ]


def small_weights(total: float, num_rows: int) -> list[str]:
    """Of the sum of the weights, and the number of rows that have one."""
    if total >= _FEW_WEIGHTS * num_rows:
        return []
    return [
        f"Weights say how often a row counts; these sum to {total:.3g} for {num_rows} rows, so "
        "predictions are as uncertain as with so few rows. If they were meant relative to each "
        f"other, multiply them by n/Σw = {num_rows / total:.3g}."
    ]


def outside_scaling(
    scaled: Float64[np.ndarray, "n d"], feature_names: FeatureNames | None
) -> list[str]:
    """Of new rows, scaled as earlier ones were. Narrow columns are no sign: parts may be sorted."""
    far = np.abs(scaled.mean(axis=0)) > _FAR
    named = _named(far | (scaled.std(axis=0) > _WIDE), feature_names)
    if not named:
        return []
    return [
        f"The new rows lie far outside those that the model was first fitted to: {named}. Scaling "
        "is held as it was then, so predictions there may be near the prior. Look at the units; if "
        "they are right, fit anew with warm_start=False."
    ]


def too_few_rows(num_rows: int, num_inducing: int) -> list[str]:
    """Of distinct rows."""
    if num_rows >= num_inducing:
        return []
    return [
        f"There are {num_rows} distinct training rows and {num_inducing} inducing inputs were "
        f"asked for. More than one a row add nothing, so their number is reduced to {num_rows}."
    ]


def regression_target(y: Num[np.ndarray, " n"]) -> list[str]:
    """Of targets that another estimator would suit better."""
    distinct = np.unique(y)
    if len(distinct) == 2:
        low, high = distinct.tolist()
        return [
            f"The target has only two values, {low:g} and {high:g}. SparseGPRegressor treats them "
            "as real numbers with Gaussian noise; for probabilities of two classes take "
            "SparseGPClassifier."
        ]
    if _looks_like_counts(y, len(distinct)):
        return [
            f"The target looks like counts: whole numbers from 0 to {y.max():g}, skewed. "
            "SparseGPRegressor treats them as real numbers with Gaussian noise, which can make "
            "intervals reach below 0; SparseGPCountRegressor is made for counts."
        ]
    return []


def one_class(y: Num[np.ndarray, " n"], classes: Shaped[np.ndarray, " c"]) -> list[str]:
    """Of labels, 0 or 1, of which only one occurs."""
    if y.min() < y.max():
        return []
    only = classes.tolist()[int(y[0])]
    return [
        f"Every label is {only!r}, which says nothing of kernel and mean: they are held where they "
        "start, by later calls of partial_fit too. Call fit once there are rows of both classes."
    ]


def at_floor(names: Sequence[str], likelihood: Likelihood, compared: bool) -> list[str]:
    """Return a warning for each parameter that `TrainingResult.at_floor` names.

    A model that was compared with the ELBO may let the variance of f stand for all noise.
    """
    texts = {f"likelihood.{text.parameter}": text for text in likelihood.parameter_texts}
    texts["prior.raw_output_scale"] = _OUTPUT_SCALE
    unknown = "It may not suit these data."
    found = [texts.get(name, ParameterText(name, name, unknown)) for name in names]
    return [
        f"{text.subject} ended at the smallest value that training allows. {text.advice}"
        for text in found
        if not (compared and text.is_noise)
    ]


def flat_features(
    length_scales: Float64[np.ndarray, " d"], feature_names: FeatureNames | None
) -> list[str]:
    """Of length scales, one for each scaled feature."""
    named = _named(length_scales > _FLAT, feature_names)
    if not named:
        return []
    return [
        f"The length scale is more than {_FLAT:g} times the spread of the feature: {named}. "
        "Predictions hardly depend on it; drop it if that is what you expect, else look at its "
        "values for outliers."
    ]


def beta_at_end(beta: float, grid: Sequence[float]) -> list[str]:
    """Of a β that validation chose."""
    if len(grid) < 2 or min(grid) < beta < max(grid):
        return []
    which, where, means = (
        ("smallest", "below", "hardly any regularisation")
        if beta == min(grid)
        else ("largest", "above", "predictions near the prior")
    )
    return [
        f"Validation chose β = {beta:g}, the {which} of its grid, which means {means}. The best β "
        f"may lie {where} it: try one with beta=..., or give validation more rows."
    ]


def not_converged(status: Status, reason: str, compared: bool = False) -> list[str]:
    """Return a warning if the budget ended training; each compared model had a part of it."""
    if status is not Status.BUDGET:
        return []
    share = " Each β that starts near another's model gets a tenth of max_iter." if compared else ""
    return [
        f"Training has not converged. {reason}{share} Predictions may still improve with "
        "more steps or time."
    ]


def cut_short(status: Status, reason: str) -> list[str]:
    """Of someone who ended training."""
    if status not in (Status.CANCELLED, Status.INTERRUPTED):
        return []
    return [f"Training did not end by itself. {reason} Fit again for a finished model."]


def _named(chosen: Bool[np.ndarray, " d"], feature_names: FeatureNames | None) -> str:
    """The columns that are chosen, by name or number."""
    return ", ".join(
        f"column {j}" if feature_names is None else repr(str(feature_names[j]))
        for j in np.flatnonzero(chosen).tolist()
    )


def _looks_like_counts(y: Num[np.ndarray, " n"], num_distinct: int) -> bool:
    """Whole numbers from 0 on that repeat, with a long upper tail and at least Poisson's spread.

    So years, prices, ages and marks on a scale do not.
    """
    if len(y) < _FEWEST_COUNTS or num_distinct < 3 or 2 * num_distinct > len(y):
        return False
    if y.min() != 0 or y.max() > _LARGEST_COUNT or (y != np.floor(y)).any():
        return False
    mean, variance = float(y.mean()), float(y.var())
    skewness = float(((y - mean) ** 3).mean()) / variance**1.5
    return variance > 0.5 * mean and skewness > _SKEWED


_STILL_FALLING = 5e-3
"""Relative fall of the loss over the last tenth of the steps from which a run is called cut off."""


def length_scales(posterior: SparsePosterior) -> Float64[np.ndarray, " k"] | None:
    """Length scales of the kernel, one or one a feature; None where it has none of its own."""
    kernel: Kernel = posterior.prior.kernel
    while isinstance(kernel, ScaleKernel) and kernel.active_dims is None:
        kernel = kernel.base_kernel
    if not kernel.has_lengthscale or kernel.active_dims is not None:
        return None
    scales: Float64[np.ndarray, " k"] = kernel.lengthscale.detach().double().cpu().numpy().ravel()
    return scales


def findings_of_training(
    result: TrainingResult, path: BetaPath | None, feature_names: FeatureNames | None
) -> list[str]:
    """What the result of a fit gives to think about."""
    compared = path is not None and any(p.hyperparameters == "elbo" for p in path.points)
    found = at_floor(result.at_floor, result.likelihood, compared)
    found += cut_short(result.status, result.reason)
    scales = length_scales(result.posterior)
    if scales is not None and len(scales) > 1:
        found += flat_features(scales, feature_names)
    if path is not None:
        if path.points and result.hyperparameters != "elbo":
            found += beta_at_end(path.points[path.chosen].beta, path.grid)
        found += [f"A candidate could not be trained: {failure}" for failure in path.failed]
    return found


def still_falling(result: TrainingResult) -> bool:
    """Whether the last run was cut off by its steps while the loss fell fast."""
    losses = result.history
    tail = max(2, len(losses) // 10)
    if result.status != "budget":
        return False
    if len(losses) <= tail:
        return True
    fall = losses[-tail - 1] - losses[-1]
    return fall > _STILL_FALLING * max(1.0, abs(losses[-1]))


def findings_of_fit(model: Any, fitted: Fitted, table: TrainingTable) -> list[str]:
    """Return the warnings about the training rows and the result of `fit`."""
    names, result = getattr(model, "feature_names_in_", None), fitted.result
    inputs = table.X.double().cpu().numpy()
    found = constant_columns(inputs, names)
    found += merged_rows(table.num_merged, table.num_rows)
    found += small_weights(table.count, table.num_rows)
    if model.warm_start:
        found += outside_scaling(inputs, names)
    if isinstance(model.num_inducing, int | np.integer) and isinstance(model.inducing, str):
        found += too_few_rows(len(table.X), int(model.num_inducing))
    found += findings_of_training(result, fitted.path, names)
    if fitted.end is not None and not result.ended:
        found += cut_short(fitted.end.status, fitted.end.reason)
    return found


def findings_of_update(model: Any, result: TrainingResult, table: TrainingTable) -> list[str]:
    """Return the warnings about new rows and the result of `partial_fit`."""
    found = []
    if table.scalings.inputs.rounded:
        names = getattr(model, "feature_names_in_", None)
        found = outside_scaling(table.X.double().cpu().numpy(), names)
    return found + cut_short(result.status, result.reason)


def unfinished(result: TrainingResult, compared: bool = False) -> list[str]:
    """Return a warning if the budget ended training while the loss fell fast."""
    return not_converged(result.status, result.reason, compared) if still_falling(result) else []


def issue(findings: Sequence[str], not_finished: Sequence[str] = ()) -> None:
    """Issue the findings as `DirectGPWarning` and the others as `ConvergenceWarning`."""
    for texts, category in ((findings, DirectGPWarning), (not_finished, ConvergenceWarning)):
        for text in texts:
            warnings.warn(text, category, stacklevel=_OUTSIDE)


_OUTSIDE = 4
"""Frames from `warnings.warn` to the caller of `fit`."""

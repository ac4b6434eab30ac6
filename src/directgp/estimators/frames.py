"""Return predictions as tables of pandas or polars, the library of the user's table."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from directgp.errors import require
from directgp.estimators.predictions import PredictingEstimator
from directgp.estimators.validation import ArrayLike, RowValues, check_shares, is_frame
from directgp.likelihoods.base import Likelihood
from directgp.predictive.mixture import PredictiveMixture
from directgp.shapes import Marginals

LABEL = "predicted"
"""Column of the most probable class."""


def deviation(likelihood: Likelihood, q: Marginals) -> Tensor:
    """Return the deviation of y; where it may be infinite, half the width of the 68 % interval."""
    return PredictiveMixture.of([1.0], [likelihood], [q]).deviation()


def means(mixture: PredictiveMixture, _: slice) -> list[Tensor]:
    """Return the mean of y, or its median where the mean does not exist."""
    return [mixture.point_prediction()]


def moments(mixture: PredictiveMixture, _: slice) -> list[Tensor]:
    """Return mean and deviation of y."""
    return [mixture.point_prediction(), mixture.deviation()]


def names_of_numbers(intervals: Sequence[float], quantiles: Sequence[float]) -> list[str]:
    """Return the names of the columns of `predicted_numbers`."""
    ends = ["" if len(intervals) == 1 else f"_{100 * share:g}" for share in intervals]
    names = ["mean", "sd", *(f"{end}{which}" for which in ends for end in ("lower", "upper"))]
    return [*names, *(f"q{level:g}" for level in quantiles)]


def predicted_numbers(
    model: PredictingEstimator,
    X: ArrayLike,
    intervals: Sequence[float],
    quantiles: Sequence[float],
    row_values: RowValues | None,
) -> list[NDArray[np.float64]]:
    """Return mean and deviation of y, the ends of intervals, and quantiles, one column each."""
    mean, std = model._over_blocks(X, "predict_frame", moments, row_values)
    scalings = model.scalings_
    columns = [scalings.targets_in_units(mean), scalings.deviations_in_units(std)]
    levels = [e for share in intervals for e in ((1 - share) / 2, (1 + share) / 2)] + [*quantiles]
    if levels:
        columns += [*model._quantiles(X, levels, "predict_frame", row_values).T]
    return columns


def table_like(X: Any, columns: dict[str, Any], who: str) -> Any:
    """Return a table of these columns, of the library of X and with its index."""
    library = type(X).__module__.partition(".")[0]
    supported = is_frame(X) and library in ("pandas", "polars")
    got = type(X).__name__
    remedy = "For arrays there are predict and predict_quantiles."
    require(supported, f"X of {who}", "a DataFrame of pandas or polars", got, remedy)
    make = sys.modules[library].DataFrame
    return make(columns, index=X.index) if library == "pandas" else make(columns)


def number_frame(
    model: PredictingEstimator,
    X: ArrayLike,
    intervals: ArrayLike,
    quantiles: ArrayLike,
    row_values: RowValues | None,
) -> Any:
    """Return mean, deviation, ends of intervals, and quantiles of y as a table like X."""
    check_is_fitted(model)
    who = model._who("predict_frame")
    shares = check_shares(intervals, f"intervals of {who}")
    levels = check_shares(quantiles, f"quantiles of {who}")
    names = names_of_numbers(shares, levels)
    require(len({*names}) == len(names), f"intervals and quantiles of {who}", "different", names)
    # Raise for an array before predicting.
    table_like(X, {}, who)
    values = predicted_numbers(model, X, shares, levels, row_values)
    return table_like(X, dict(zip(names, values, strict=True)), who)

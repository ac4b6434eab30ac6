"""Predictions of several repeats as one."""

from collections.abc import Sequence
from dataclasses import astuple

import numpy as np

from directgp.experiments.results import Predictions, Run


def pooled(runs: Sequence[Run]) -> Predictions:
    """The test rows of all runs whose predictions are finite."""
    columns = zip(*(astuple(run.predictions) for run in runs), strict=True)
    actual, mean, lower, upper, below, up_to = (np.concatenate(each) for each in columns)
    kept = np.isfinite(actual) & np.isfinite(mean) & np.isfinite(below) & np.isfinite(up_to)
    kept &= ~(np.isnan(lower) | np.isnan(upper))
    return Predictions(*(each[kept] for each in (actual, mean, lower, upper, below, up_to)))

"""The command that trains a method on the whole table."""

import shlex

from directgp.experiments.comparison import DataFacts
from directgp.experiments.methods import Method


def fit_command(data: DataFacts, method: Method) -> str:
    """What to type for a model trained by this method."""
    words = ["directgp", "fit", data.source, "--target", data.target, "--task", data.task]
    return shlex.join([*words, *_options(method), "--out", "model"])


def _options(method: Method) -> list[str]:
    given = ["--objective", method.objective]
    if method.objective == "fitc":
        return given
    beta = [] if method.chooses_beta else ["--beta", "1"]
    return [*given, "--hyperparameters", method.hyperparameters, *beta]

"""The command that trains a method on the whole table."""

import shlex

from directgp.experiments.cells import Settings
from directgp.experiments.comparison import DataFacts
from directgp.experiments.methods import Method


def fit_command(data: DataFacts, method: Method, settings: Settings) -> str:
    """What to type for a model trained by this method, as it was in the comparison."""
    given = data.arguments or (data.source.removeprefix("embedded: "), "--target", data.target)
    words = ["directgp", "fit", *given, "--task", data.task]
    model = _model(settings, several=len(data.feature_names) > 1)
    return shlex.join([*words, *_options(method), *model, "--out", "model"])


def _options(method: Method) -> list[str]:
    given = ["--objective", method.objective]
    if method.objective == "fitc":
        return given
    beta = [] if method.chooses_beta else ["--beta", "1"]
    return [*given, "--hyperparameters", method.hyperparameters, *beta]


def _model(settings: Settings, several: bool) -> list[str]:
    """What would be chosen otherwise, and what differs from the usual."""
    words = ["--likelihood", settings.likelihood]
    if several:
        words += ["--ard" if settings.ard else "--no-ard"]
    if settings.kernel != "rbf":
        words += ["--kernel", settings.kernel]
    if settings.num_inducing is not None:
        words += ["--inducing", str(settings.num_inducing)]
    return words

"""Train and save a model for `directgp fit`."""

import shlex
import warnings
from pathlib import Path
from typing import Any

from sklearn.exceptions import ConvergenceWarning

from directgp.cli.load_data import Opened, named_columns
from directgp.cli.model_folder import CARD_FILE, MODEL_FILE, card_of, write_folder
from directgp.cli.terminal import Terminal
from directgp.errors import DirectGPWarning
from directgp.estimators.base import TellingEstimator
from directgp.estimators.classifier import SparseGPClassifier
from directgp.estimators.count_regressor import SparseGPCountRegressor
from directgp.estimators.progress import duration
from directgp.estimators.regressor import SparseGPRegressor
from directgp.estimators.summary import count, entry, figure, with_errors
from directgp.io import replace_file
from directgp.training.result import Status

_ESTIMATORS: dict[str, type[TellingEstimator]] = {
    "regression": SparseGPRegressor,
    "classification": SparseGPClassifier,
    "count": SparseGPCountRegressor,
}


def train_and_keep(
    opened: Opened, settings: dict[str, Any], out: Path, force: bool, terminal: Terminal
) -> None:
    """Train a model of the data and write its folder."""
    for note in opened.problem.notes:
        terminal.say(note)
    model = _trained(opened, {**settings, "verbose": int(terminal.live)})
    if model.training_result_.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    for finding in model.findings_:
        terminal.warn(finding)
    write_folder(out, force, lambda folder: _fill(folder, model, opened))
    facts = _facts(model, opened)
    terminal.answer({**facts, "model": str(out), "notes": opened.problem.notes})
    terminal.show(_words(facts, opened, out))


def _trained(opened: Opened, settings: dict[str, Any]) -> Any:
    """The fitted estimator of the task; what it warns of is in its findings."""
    problem = opened.problem
    model: Any = _ESTIMATORS[problem.task](**settings)
    given = {"sample_weight": opened.weights}
    if problem.task == "count":
        given["exposure"] = opened.exposure
    X = named_columns(problem.X, problem.feature_names)
    with warnings.catch_warnings():
        for known in (DirectGPWarning, ConvergenceWarning):
            warnings.simplefilter("ignore", known)
        return model.fit(X, problem.y, **given)


def _fill(folder: Path, model: Any, opened: Opened) -> None:
    """Write the files of the model."""
    file = folder / MODEL_FILE
    model.save(file)
    card = card_of(opened, file)
    replace_file(folder / CARD_FILE, card.model_dump_json(indent=2).encode())


def _facts(model: Any, opened: Opened) -> dict[str, Any]:
    problem, path = opened.problem, model.beta_path_
    chosen = path.points[path.chosen] if path is not None and path.points else None
    return {
        "source": problem.source,
        "rows": len(problem.y),
        "features": list(problem.feature_names),
        "task": problem.task,
        "target": problem.target,
        "classes": problem.classes,
        "objective": model.objective,
        "beta": model.beta_,
        "hyperparameters": model.hyperparameters_,
        "status": model.training_result_.status.value,
        "validation": None if chosen is None else _validation(path.loss, chosen),
        "warnings": list(model.findings_),
        "seconds": model.fit_seconds_,
    }


def _validation(loss: str, chosen: Any) -> dict[str, Any]:
    """The loss by which the model was chosen: its mean, and the standard error of that."""
    return {"loss": loss, "mean": chosen.validation_loss, "error": chosen.validation_error}


def _words(facts: dict[str, Any], opened: Opened, out: Path) -> str:
    """The summary of a fit, and what to do next."""
    problem = opened.problem
    lines = [
        f"Trained a model of {problem.target!r} in {duration(facts['seconds'])}.",
        entry("data", f"{count(len(problem.y), 'row')}, {count(problem.X.shape[1], 'feature')}"),
        entry("task", problem.task),
        entry("objective", f"{facts['objective']}, {facts['hyperparameters']}"),
        entry("β", figure(facts["beta"])),
    ]
    if facts["validation"] is not None:
        found = facts["validation"]
        (mean,) = with_errors([found["mean"]], [found["error"]])
        lines.append(entry("validation", f"{found['loss']} {mean}"))
    lines.append(entry("model", str(out)))
    lines.append(f"Next: directgp predict {_typed(out)} DATA --out predictions.csv")
    return "\n".join(lines)


def _typed(out: Path) -> str:
    """The path as it can be typed."""
    return shlex.quote(str(out))

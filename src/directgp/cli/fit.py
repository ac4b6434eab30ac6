"""The command `directgp fit`: train a model on a table and save it."""

import shlex
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

from directgp.cli import options
from directgp.cli.terminal import Terminal
from directgp.registry import LIKELIHOODS, LOSSES, chosen_likelihood
from directgp.text import duration, entry, joined, number, plural, with_error

ModeName = Literal["auto", "joint", "fixed"]


def fit(
    data: options.DataArgument,
    *,
    target: options.Target = None,
    task: options.Task = None,
    drop: options.Drop = None,
    drop_missing: options.DropMissing = False,
    positive: options.Positive = None,
    exposure: Annotated[
        str | None,
        options.data_option(
            "--exposure", metavar="COLUMN", help="Exposure of counts: time, area, people."
        ),
    ] = None,
    weights: Annotated[
        str | None,
        options.data_option("--weights", metavar="COLUMN", help="How often each row counts."),
    ] = None,
    data_dir: options.DataDir = None,
    objective: Annotated[
        str,
        options.model_option(
            "--objective",
            metavar="NAME",
            help=f"What to train for: {joined(tuple(LOSSES), 'or')}.",
        ),
    ] = "log_loss",
    beta: Annotated[
        str,
        options.model_option(
            "--beta",
            metavar="auto|NUMBER",
            help="Weight of the KL term; auto chooses it by validation.",
        ),
    ] = "auto",
    hyperparameters: Annotated[
        ModeName,
        options.model_option(
            "--hyperparameters",
            metavar="NAME",
            help="joint (trained with the rest), fixed (kept from the ELBO), or auto.",
        ),
    ] = "auto",
    likelihood: Annotated[
        str | None,
        options.model_option(
            "--likelihood",
            metavar="NAME",
            help=f"{options.LIKELIHOOD_NAMES}; by default the one with the larger evidence.",
        ),
    ] = None,
    kernel: options.Kernel = "rbf",
    ard: Annotated[
        bool | None,
        options.model_option(
            "--ard/--no-ard",
            metavar="",
            help="A length scale for each feature, or one for all; by evidence by default.",
        ),
    ] = None,
    inducing: options.Inducing = "auto",
    max_iter: options.MaxIter = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    out: Annotated[
        Path, options.output_option("--out", metavar="FOLDER", help="The folder to write.")
    ],
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Train a model on a table and save it in a folder."""
    num_inducing = inducing if inducing == "auto" else options.whole_number("--inducing", inducing)
    settings = {
        "objective": objective,
        "beta": beta if beta == "auto" else options.weight("--beta", beta),
        "hyperparameters": hyperparameters,
        "likelihood": likelihood or "auto",
        "kernel": kernel,
        "ard": "auto" if ard is None else ard,
        "num_inducing": num_inducing,
        "max_iter": None if max_iter is None else options.at_least_one("--max-iter", max_iter),
        "random_state": seed,
        "device": device,
    }
    options.check_name("--objective", objective, tuple(LOSSES))
    options.check_name("--likelihood", likelihood, tuple(LIKELIHOODS))
    options.check_task(task, positive, exposure)
    if task is not None:
        _check_likelihood(task, likelihood)
    options.check_columns(
        {"--target": [target], "--exposure": [exposure], "--weights": [weights], "--drop": drop}
    )

    from directgp.cli.data import Request, open_request
    from directgp.cli.model_folder import check_model_folder

    check_model_folder(out, force)
    request = Request(
        data=data,
        target=target,
        # Only counts have an exposure.
        task=task if exposure is None else "count",
        drop=tuple(drop or ()),
        drop_missing=drop_missing,
        positive=positive,
        exposure=exposure,
        weights=weights,
        data_dir=data_dir,
    )
    opened = open_request(request)
    _check_likelihood(opened.problem.task, likelihood)
    _train_and_save(opened, settings, out, force, Terminal(quiet, json))


def _check_likelihood(task: Any, likelihood: str | None) -> None:
    """Raise `WrongUsageError` if the likelihood belongs to another task."""
    with options.usage_errors():
        chosen_likelihood(task, likelihood)


def _train_and_save(
    opened: Any, settings: dict[str, Any], out: Path, force: bool, terminal: Terminal
) -> None:
    # Imported after the data are opened, so that errors come without waiting for torch.
    from directgp.cli.model_folder import write_folder
    from directgp.training.result import Status

    problem = opened.problem
    for note in problem.notes:
        terminal.note(note)
    model = _train(opened, {**settings, "verbose": int(terminal.live)})
    if model.training_result_.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    for finding in model.findings_:
        terminal.warn(finding)
    write_folder(out, force, model, opened)
    facts = _facts(model, problem)
    terminal.answer({**facts, "model": str(out), "notes": problem.notes})
    terminal.show(_summary(facts, problem, out))


def _train(opened: Any, settings: dict[str, Any]) -> Any:
    """Return the fitted estimator of the task; its warnings are in `findings_`."""
    from sklearn.exceptions import ConvergenceWarning

    from directgp.cli.data import named_columns
    from directgp.errors import DirectGPWarning
    from directgp.estimators import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor

    problem, given = opened.problem, {"sample_weight": opened.weights}
    model: Any
    if problem.task == "regression":
        model = SparseGPRegressor(**settings)
    elif problem.task == "classification":
        model = SparseGPClassifier(**settings)
    else:
        model = SparseGPCountRegressor(**settings)
        given["exposure"] = opened.exposure
    with warnings.catch_warnings():
        for category in (DirectGPWarning, ConvergenceWarning):
            warnings.simplefilter("ignore", category)
        return model.fit(named_columns(problem.X, problem.feature_names), problem.y, **given)


def _facts(model: Any, problem: Any) -> dict[str, Any]:
    """Return the facts of a fit, for JSON."""
    path, validation = model.beta_path_, None
    if path is not None and path.points:
        chosen = path.points[path.chosen]
        validation = {
            "loss": path.loss,
            "mean": chosen.validation_loss,
            "error": chosen.validation_error,
        }
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
        "validation": validation,
        "warnings": list(model.findings_),
        "seconds": model.fit_seconds_,
    }


def _summary(facts: dict[str, Any], problem: Any, out: Path) -> str:
    """Return the summary of a fit, and the next command."""
    lines = [
        f"Trained a model of {problem.target!r} in {duration(facts['seconds'])}.",
        entry("data", f"{plural(len(problem.y), 'row')}, {plural(problem.X.shape[1], 'feature')}"),
        entry("task", problem.task),
        entry("objective", f"{facts['objective']}, {facts['hyperparameters']}"),
        entry("β", number(facts["beta"])),
    ]
    found = facts["validation"]
    if found is not None:
        mean = with_error(found["mean"], found["error"])
        lines.append(entry("validation", f"{found['loss']} {mean}"))
    lines.append(entry("model", str(out)))
    lines.append(f"Next: directgp predict {shlex.quote(str(out))} DATA --out predictions.csv")
    return "\n".join(lines)

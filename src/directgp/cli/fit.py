"""The command `directgp fit`: train a model on a table and save it."""

import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, final

from directgp.cli import options
from directgp.cli.terminal import HELP, INTERRUPTED, Terminal, WrongUsageError, output_option
from directgp.errors import DirectGPError, require
from directgp.registry import LIKELIHOODS, LOSSES, ROW_CONSTANTS, chosen_likelihood
from directgp.text import duration, entry, joined, number, plural, shell_word, with_error

if TYPE_CHECKING:
    from directgp.cli.data import Opened
    from directgp.datasets.problem import Problem

_HELP = HELP["fit"]


@final
class NothingTrainedError(DirectGPError):
    """Ctrl-C ended the training before there was a model."""

    exit_code = INTERRUPTED

    def __init__(self) -> None:
        super().__init__("Interrupted before a model was trained; nothing is written.")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without arguments: the constructor takes none."""
        return type(self), (), self.__dict__


def fit(
    data: options.DataOptions,
    *,
    rows: options.RowOptions,
    weights: Annotated[str | None, options.data_option("COLUMN", _HELP["weights"])] = None,
    objective: Annotated[
        str,
        options.model_option("NAME", f"What to train for: {joined(tuple(LOSSES), 'or')}."),
    ] = "log_loss",
    beta: Annotated[str, options.model_option("auto|NUMBER", _HELP["beta"])] = "auto",
    hyperparameters: Annotated[
        Literal["auto", "joint", "fixed"], options.model_option("NAME", _HELP["hyperparameters"])
    ] = "auto",
    likelihood: Annotated[
        str | None,
        options.model_option(
            "NAME", f"{options.LIKELIHOOD_NAMES}; by default chosen by validation."
        ),
    ] = None,
    kernel: options.Kernel = "auto",
    ard: Annotated[bool | None, options.model_option("", _HELP["ard"], "--ard/--no-ard")] = None,
    inducing: options.Inducing = "auto",
    combine: Annotated[
        Literal["mixture", "best"], options.model_option("NAME", _HELP["combine"])
    ] = "mixture",
    stack: Annotated[
        Literal["auto", "trees", "none"], options.model_option("NAME", _HELP["stack"])
    ] = "auto",
    max_iter: options.MaxIter = None,
    effort: Annotated[
        Literal["fast", "default", "thorough"], options.model_option("NAME", _HELP["effort"])
    ] = "default",
    time_budget: Annotated[
        float | None, options.time_budget_option(options.model_option, _HELP["time_budget"])
    ] = None,
    jobs: Annotated[int, options.jobs_option(options.model_option, _HELP["jobs"])] = 1,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    out: Annotated[Path, output_option("FOLDER", "The folder to write.")],
    force: options.Force = False,
    terminal: Terminal,
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
        "combine": combine,
        "stack": None if stack == "none" else stack,
        "max_iter": max_iter,
        "effort": effort,
        "time_budget": time_budget,
        "n_jobs": jobs,
        "random_state": seed,
        "device": device,
    }
    options.check_name("--objective", objective, tuple(LOSSES))
    options.check_name("--likelihood", likelihood, tuple(LIKELIHOODS))
    row_column = rows.column
    options.check_task(data, row_column)
    from directgp.cli.column_options import check_kernel
    from directgp.cli.data import open_data
    from directgp.cli.model_folder import check_model_folder

    check_model_folder(out, force)
    check_kernel(kernel, ard)
    data_options = data
    columns = {"weights": weights}
    if row_column is not None:
        # Only counts have an exposure, for example.
        data_options = replace(data, task=ROW_CONSTANTS[row_column[0]].task)
        columns = {row_column[0]: row_column[1], **columns}
    opened = open_data(data_options, "fit", kernel, **columns)
    with options.usage_errors():
        chosen_likelihood(opened.problem.task, likelihood, opened.problem.num_classes)
    if likelihood is not None:
        _check_row_column(likelihood, row_column)
    _train_and_save(opened, settings, out, force, terminal)


def _check_row_column(likelihood: str, row_column: tuple[str, str] | None) -> None:
    """Raise `WrongUsageError` unless the likelihood has the constant of each row that it needs."""
    rows = LIKELIHOODS[likelihood].load().rows
    option = None if row_column is None else row_column[0]
    if rows.required and option != rows.argument:
        got = "none" if option is None else f"--{option}"
        raise WrongUsageError(
            f"--{rows.argument} must be given with --likelihood {likelihood}. Got {got}. Give"
            f" --{rows.argument} COLUMN."
        )


def _train_and_save(
    opened: "Opened", settings: dict[str, Any], out: Path, force: bool, terminal: Terminal
) -> None:
    # Imported after the data are opened, so that errors come without waiting for torch.
    from directgp.cli.model_folder import card_of, write_folder
    from directgp.training.result import Status

    problem = opened.problem
    card = card_of(opened)
    for note in problem.notes:
        terminal.note(note)
    try:
        model = _train(opened, {**settings, "verbose": int(terminal.live)})
    except KeyboardInterrupt as error:
        raise NothingTrainedError() from error
    interrupted = model.training_result_.status is Status.INTERRUPTED
    if interrupted and model.n_iter_ == 0:
        raise NothingTrainedError()
    for finding in model.findings_:
        terminal.warn(finding)
    write_folder(out, force, model, card)
    facts = _facts(model, problem)
    terminal.answer({**facts, "model": str(out), "notes": problem.notes})
    terminal.show(_summary(facts, problem, out))
    command = f"directgp predict {shell_word(str(out))} DATA --out predictions.csv"
    terminal.show(f"Next: {command}", wrap=False)
    if interrupted:
        sys.exit(INTERRUPTED)


def _train(opened: "Opened", settings: dict[str, Any]) -> Any:
    """Return the fitted estimator of the task; its warnings are in `findings_`."""
    from sklearn.exceptions import ConvergenceWarning

    from directgp import estimators
    from directgp.cli.column_options import kinds_for_estimator
    from directgp.errors import DirectGPWarning

    problem = opened.problem
    weights = opened.values("weights")
    if weights is not None and problem.classes is not None:
        for label, name in enumerate(problem.classes):
            got = f"0 in every row of {name!r}"
            weighted = bool((weights[problem.y == label] != 0).any())
            require(weighted, "--weights", "positive in some row of each class", got)
    arguments = {"sample_weight": weights}
    arguments |= {name: opened.values(name) for name in opened.columns if name in ROW_CONSTANTS}
    makers: dict[str, Any] = {
        "regression": estimators.SparseGPRegressor,
        "classification": estimators.SparseGPClassifier,
        "count": estimators.SparseGPCountRegressor,
    }
    settings = {
        **settings,
        "columns": kinds_for_estimator(problem.kinds, problem.feature_names),
        "missing": "impute" if gaps_kept(opened) else "error",
    }
    X = opened.encoding.table(problem.X)
    with warnings.catch_warnings():
        for category in (DirectGPWarning, ConvergenceWarning):
            warnings.simplefilter("ignore", category)
        return makers[problem.task](**settings).fit(X, problem.y, **arguments)


def gaps_kept(opened: "Opened") -> bool:
    """Return whether the features may have gaps, numbers or levels, in training or later."""
    from directgp.datasets.encoding import LevelColumn

    columns = opened.encoding.columns
    gaps = any(isinstance(column, LevelColumn) and column.gaps for column in columns)
    return gaps or opened.options.policy == "impute"


def _facts(model: Any, problem: "Problem") -> dict[str, Any]:
    """Return the facts of a fit, for JSON."""
    path = model.beta_path_
    validation = None
    if path is not None and path.points:
        mean, error = path.validated
        validation = {"loss": path.loss, "mean": mean, "error": error}
    same = ("source", "task", "target", "classes")
    return {
        **{name: getattr(problem, name) for name in same},
        "rows": len(problem.y),
        "features": list(problem.feature_names),
        "objective": model.objective,
        "beta": model.beta_,
        "hyperparameters": model.hyperparameters_,
        "members": [
            {"weight": weight, "label": member.label, "stacked": member.stacked}
            for member, weight in zip(model.members_, model.weights_.tolist(), strict=True)
        ],
        "status": model.training_result_.status.value,
        "validation": validation,
        "warnings": list(model.findings_),
        "seconds": model.fit_seconds_,
    }


def _summary(facts: dict[str, Any], problem: "Problem", out: Path) -> str:
    """Return the summary of a fit."""
    validation = facts["validation"]
    size = f"{plural(len(problem.y), 'row')}, {plural(problem.X.shape[1], 'feature')}"
    members = facts["members"]
    if len(members) > 1:
        trees = sum(member["stacked"] for member in members)
        inside = f", {trees} with predictions of trees as features" if trees else ""
        choice = {"objective": facts["objective"], "members": f"{len(members)}{inside}"}
    else:
        choice = {
            "objective": f"{facts['objective']}, {facts['hyperparameters']}",
            "β": number(facts["beta"]),
            "features": members[0]["stacked"] and "with predictions of trees",
        }
    lines = {
        "data": size,
        "task": problem.task,
        **choice,
        "validation": validation
        and f"{validation['loss']} {with_error(validation['mean'], validation['error'])}",
        "model": str(out),
    }
    return "\n".join(
        [
            f"Trained a model of {problem.target!r} in {duration(facts['seconds'])}.",
            *(entry(name, text) for name, text in lines.items() if text),
        ]
    )

"""Compare methods on one data set: run the cells of a plan, each trained and scored."""

import copy
import math
import os
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from directgp.datasets.problem import Problem
from directgp.errors import NumericalError, require
from directgp.estimators.explanations import Explained, increases
from directgp.estimators.preprocessing import ColumnScaling
from directgp.experiments.baselines import predict_baseline
from directgp.experiments.cell import (
    BASIC,
    DEFAULT,
    ELBO,
    Circumstances,
    Method,
    Record,
    method_named,
    seed_of,
)
from directgp.experiments.engine import RunCallback, Runner
from directgp.experiments.fit import (
    Array,
    CellData,
    ScaledRows,
    Trained,
    chosen_model,
    clock,
    facts_in,
    load_bytes,
    race_method,
)
from directgp.experiments.plan import (
    BetaLoss,
    CompareCell,
    ComparedFit,
    CompareOutcome,
    Comparison,
    Explanation,
    ModelFacts,
    Plan,
    Predictions,
    parts_of,
    split,
)
from directgp.experiments.store import Store
from directgp.experiments.workers import InProcess, LocalWorkers
from directgp.io import machine, versions
from directgp.likelihoods.base import Likelihood
from directgp.metrics import COVERAGE, Judged, judge
from directgp.registry import LIKELIHOODS, OwnLikelihoodRow, Task, likelihoods_of
from directgp.shapes import Marginals
from directgp.training.beta_path import beta_grid
from directgp.training.data import Model
from directgp.training.result import BetaPath, Status
from directgp.training.run import Monitor


def compare(
    problem: Problem,
    plan: Plan,
    store: str | os.PathLike[str],
    *,
    workers: int = 0,
    callback: RunCallback | None = None,
    command: str = "",
    time_budget: float | None = None,
) -> Comparison:
    """Run the cells of a plan that the store does not have, and return all results.

    Parameters
    ----------
    problem : Problem
        The data of the plan.
    plan : Plan
        The cells.
    store : path
        The file of finished fits, created if missing. Several programs may share it.
    workers : int
        Number of processes, each on one core; 0 runs everything in this process.
    callback : RunCallback
        Receives the progress.
    command : str
        The command that repeats the comparison, for the report.
    time_budget : float
        Seconds after which no fit goes on; the repeats that are complete by then are returned. The
        next call with this store continues.
    """
    allowed = time_budget is None or time_budget > 0
    require(allowed, "time_budget", "positive", time_budget)
    noise = plan.settings.likelihood
    own = workers > 0 and isinstance(LIKELIHOODS.get(noise), OwnLikelihoodRow)
    got = f"{workers} with the likelihood {noise!r}, registered in this process only"
    require(not own, "workers", "0", got, "Run the comparison in this process.")
    since, began = time.perf_counter(), datetime.now(UTC)
    cells = plan.cells()
    with Store(Path(store)) as opened:
        runner = Runner(
            opened, lambda cell: problem, compare_rows, run_compare_cell, callback or RunCallback()
        )
        pool = LocalWorkers(workers) if workers else InProcess()
        complete = runner.run(cells, pool, time_budget)
        asked = plan.repeats
        if not complete:
            ended = {found.cell for found in opened.records(cells)}
            ended |= {failure.cell for failure in opened.failures(cells)}
            # Fits that had failed before may be the only ones that were not tried again.
            left = min((cell.repeat for cell in cells if cell not in ended), default=asked)
            # Of a single repeat, what was finished is better than nothing.
            plan = replace(plan, repeats=max(left, 1))
            cells = plan.cells()
        records, failed = opened.records(cells), opened.failures(cells)
    return Comparison(
        plan=plan,
        runs=tuple(map(ComparedFit.of, records)),
        failed=tuple(failed),
        versions=versions(),
        machine=_machine(plan.settings.device, workers),
        command=command,
        began=began.isoformat(timespec="seconds"),
        seconds=time.perf_counter() - since,
        repeats_asked=None if complete else asked,
        damaged=len(opened.damaged),
    )


def _machine(device: str, workers: int) -> str:
    """Describe the machine and the number of workers."""
    fits = "one fit at a time" if workers <= 1 else f"{workers} fits at once"
    where = f"{machine()}, {fits}"
    if device == "cpu":
        return f"{where}, one core each" if workers > 1 else where
    return f"{where} on {torch.cuda.get_device_name()}"


def compare_rows(cell: CompareCell, problem: Problem) -> CellData:
    """Return the rows of a cell of a comparison."""
    rows = split(problem, cell.repeat, cell.size, cell.seed)
    return CellData.of(problem, *rows, parts_of(len(problem.y)).training)


_ROWS_KEPT = 2000
"""Test rows whose predictions are stored, for figures."""

_ROWS_SHUFFLED, _CURVES = 500, 6
"""Test rows by which the importance of features is measured, and features with a curve."""


def run_compare_cell(
    cell: CompareCell, data: CellData, start: bytes = b"", monitors: Sequence[Monitor] = ()
) -> Record[CompareCell, CompareOutcome]:
    """Train from the model of `cell.start`, choose β by validation, and score the test rows."""
    settings, method = cell.settings, method_named(cell.method)
    since = clock(settings.device)
    kept, explained = b"", None
    if method is DEFAULT:
        predicted, facts, explained = _default_fit(cell, data)
    elif method.kind == "baseline":
        predicted, facts = _baseline(cell, data)
    else:
        rows = ScaledRows.of(data, cell.task, settings.dtype, settings.device)
        trained, model = _train(cell, method, rows, start, monitors)
        q = trained.best.posterior.predict(rows.test[0])
        likelihood = trained.best.likelihood
        predicted = PredictedTargets(likelihood, rows.test[1], q, rows.offset, rows.scale)
        explained = Explained(trained.best.posterior, likelihood, rows.scalings)
        facts = {
            **trained.facts(),
            "path": _losses(trained.path, rows.scale),
            "curve": trained.curve(),
            "model": model,
        }
        if method in (ELBO, BASIC):
            kept = trained.to_bytes(facts=model.model_dump_json())
    seconds = clock(settings.device) - since
    judged = predicted.judged(cell.task)
    outcome = CompareOutcome(
        **facts,
        scores=judged.means(),
        num_test=len(judged.actual),
        validation_loss=_LOSS_NAMES.get(method.objective, method.objective.replace("_", " ")),
        seconds=seconds,
    )
    columns = {f.name: getattr(judged, f.name) for f in fields(Predictions)}
    kept_rows = {name: each[:_ROWS_KEPT] for name, each in columns.items() if each is not None}
    arrays = {name: each.numpy() for name, each in kept_rows.items()}
    if explained is not None:
        # A fit is not lost because it cannot be explained.
        with suppress(NumericalError):
            arrays |= asdict(_explanation(cell, explained, data))
    return Record(cell, outcome, Circumstances.here(settings.device), arrays, kept)


def _explanation(cell: CompareCell, explained: Explained, data: CellData) -> Explanation:
    """Explain a model by some test rows; curves are drawn in the first repeat only."""
    (X, y), random = data.test, np.random.default_rng([cell.seed, cell.repeat])
    some = X[:_ROWS_SHUFFLED], y[:_ROWS_SHUFFLED]
    importance = increases(lambda inputs: explained.nll(inputs, some[1]), some[0], random)
    relevance = explained.relevance()
    order = [j for j in np.argsort(-importance, kind="stable") if not np.isnan(X[:, j]).all()]
    chosen = np.array(order[:_CURVES] if cell.repeat == 0 else [], dtype=np.int64)
    curves = explained.curves(X, chosen.tolist(), COVERAGE)
    longest = max((curve.shape[1] for curve in curves), default=0)
    padded = np.full((len(curves), len(curves[0]) if curves else 4, longest), np.nan)
    for place, curve in zip(padded, curves, strict=True):
        place[:, : curve.shape[1]] = curve
    own = np.zeros(0) if relevance is None else relevance
    return Explanation(importance, own, chosen, padded)


def _train(
    cell: CompareCell,
    method: Method,
    rows: ScaledRows,
    start: bytes,
    monitors: Sequence[Monitor],
) -> tuple[Trained, ModelFacts]:
    """Train a Gaussian process on the model of the split; return it and its model."""
    settings = cell.settings
    # Early stores have models without facts; all of them were given.
    stored = facts_in(start).get("facts") if start else None
    known = None if stored is None else ModelFacts.model_validate_json(stored)
    given = {name: getattr(known or settings, name) for name in ("likelihood", "kernel", "ard")}
    if method is BASIC:
        given["likelihood"] = likelihoods_of(cell.task)[0]
    seeds = cell.seed, cell.repeat
    choices = (cell.task, *rows.train, seeds, settings.num_inducing, monitors, rows.scalings)
    model = chosen_model(*choices, rows.num_classes, **given)
    facts = _facts(model)
    same = bool(start) and (known is None or facts.likelihood == known.likelihood)
    if same and method.objective != "fitc":
        load_bytes(model, start)
    if same and method is BASIC:
        # The chosen model is the basic one, and has been trained.
        return Trained.before(model), facts
    betas, max_steps = settings.betas or coarse_grid(cell.size), settings.max_steps
    return race_method(method, model, rows, betas, cell.seed, max_steps, monitors), facts


def _facts(model: Model) -> ModelFacts:
    """Return the facts in the name of a model, such as "rbf ARD, gaussian"."""
    kernel, likelihood = model.name.split(", ")
    name = kernel.removesuffix(" ARD")
    return ModelFacts(likelihood=likelihood, kernel=name, ard=kernel != name)


class PredictedTargets(NamedTuple):
    """Predictions of the scaled targets of test rows, whose units are ``offset + scale·y``."""

    likelihood: Likelihood
    y: Tensor
    marginals: Marginals
    offset: float
    scale: float

    def judged(self, task: Task) -> Judged:
        """Return the scores, computed in float64 on the CPU."""
        mean, variance = self.marginals.mean, self.marginals.variance
        q = Marginals(mean.double().cpu(), variance.double().cpu())
        # A copy: the model stays where it is.
        likelihood = copy.deepcopy(self.likelihood).to("cpu", torch.float64)
        return judge(task, likelihood, self.y.double().cpu(), q, self.offset, self.scale)


def _default_fit(
    cell: CompareCell, data: CellData
) -> tuple[PredictedTargets, dict[str, Any], Explained]:
    """Train the estimator of the task by default on the rows for training and validation."""
    from directgp import estimators

    settings = cell.settings
    makers: dict[Task, Any] = {
        "regression": estimators.SparseGPRegressor,
        "classification": estimators.SparseGPClassifier,
        "count": estimators.SparseGPCountRegressor,
    }
    # It trains on validation rows, too; with a share of the training rows, on the same share.
    share = len(data.train[1]) / (data.num_training or len(data.train[1]))
    some = (column[: round(share * len(column))] for column in data.validation)
    X, y = (np.concatenate(columns) for columns in zip(data.train, some, strict=True))
    estimator = makers[cell.task](
        **{name: getattr(settings, name) for name in ("likelihood", "kernel", "ard")},
        num_inducing=settings.num_inducing or "auto",
        max_iter=settings.max_steps,
        dtype=settings.dtype,
        device=settings.device,
        missing="impute" if any(np.isnan(part[0]).any() for part in data[:3]) else "error",
        random_state=seed_of(cell.seed, cell.repeat),
    )
    with warnings.catch_warnings():
        # Its findings are those of one fit, and the report counts limits that were reached.
        warnings.simplefilter("ignore")
        if data.num_classes > 2:
            # The rows may lack a class of the table.
            estimator.partial_fit(X, y, classes=np.arange(float(data.num_classes)))
        else:
            estimator.fit(X, y)
    result, targets = estimator.training_result_, estimator.scalings_.targets
    mean, sd = estimator.predict_latent(data.test[0])
    scale, explained = abs(float(targets.scale[0])), Explained.of(estimator)
    if estimator.likelihood_.num_latent > 1:
        q = explained.marginals(data.test[0])
    elif estimator.likelihood_.latent_scale:
        # f has no units of y.
        centre = torch.as_tensor(mean - estimator.likelihood_.units.latent_offset)
        q = Marginals(centre, torch.as_tensor(sd**2))
    else:
        q = Marginals(_scaled(targets, mean), torch.as_tensor((sd / scale) ** 2).double())
    facts = {
        "beta": estimator.beta_,
        "status": result.status.value,
        "reason": result.reason,
        "evaluations": sum(stage.evaluations for stage in result.stages),
        "path": (),
        "curve": (),
    }
    test = _scaled(targets, data.test[1])
    predicted = PredictedTargets(estimator.likelihood_, test, q, float(targets.shift[0]), scale)
    return predicted, facts, explained


def _scaled(targets: ColumnScaling, values: Array) -> Tensor:
    return torch.as_tensor(targets.exact(values[:, None])[:, 0]).double()


def _baseline(cell: CompareCell, data: CellData) -> tuple[PredictedTargets, dict[str, Any]]:
    rows = ScaledRows.of(data, cell.task)
    likelihood, q = predict_baseline(cell.method, cell.task, rows, cell.seed)
    facts = {
        "beta": math.nan,
        "status": Status.CONVERGED.value,
        "reason": "",
        "evaluations": 0,
        "path": (),
        "curve": (),
    }
    return PredictedTargets(likelihood, rows.test[1], q, rows.offset, rows.scale), facts


def coarse_grid(num_data: int) -> list[float]:
    """Return every second β of the paper's grid, its last, and 1."""
    grid = beta_grid(num_data)
    return sorted({*grid[::2], grid[-1], 1.0}, reverse=True)


_LOSS_NAMES = {"elbo": "NLL", "fitc": "NLL", "log_loss": "NLL", "square_loss": "MSE"}


def _losses(path: BetaPath | None, scale: float) -> tuple[BetaLoss, ...]:
    """Return the losses of a path in the units of y, the squared error without its ½."""
    if path is None:
        return ()
    factor = 2.0 if path.loss == "square_loss" else 1.0
    return tuple(
        BetaLoss(
            beta=point.beta,
            loss=factor * point.validation_loss,
            error=factor * point.validation_error,
        )
        for point in path.in_units(scale).points
    )

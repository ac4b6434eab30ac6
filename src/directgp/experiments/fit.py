"""Train one method on one split by the fit of the estimators, and score its predictions."""

import copy
import math
import tempfile
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from typing_extensions import override

from directgp import estimators
from directgp.datasets.problem import Problem
from directgp.errors import ModelFileError, NumericalError
from directgp.estimators.base import SparseGPEstimator
from directgp.estimators.explanations import Explained, increases
from directgp.estimators.kernel_expressions import is_text
from directgp.estimators.preprocessing import Scalings
from directgp.estimators.settings import auto_inducing
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
from directgp.experiments.compare_cell import (
    BetaLoss,
    CompareCell,
    CompareOutcome,
    Explanation,
    ModelFacts,
    Predictions,
    Settings,
    StoredMember,
)
from directgp.experiments.splits import Array, CellData, ScaledParts, parts_of, split
from directgp.metrics import COVERAGE, Judged, judge_mixture
from directgp.predictive.component import Component
from directgp.predictive.mixture import PredictiveMixture
from directgp.registry import LIKELIHOODS, Task, likelihoods_of
from directgp.shapes import Marginals
from directgp.training.beta_path import beta_grid
from directgp.training.result import BetaPath, Progress, Status
from directgp.training.run import Monitor

_ESTIMATORS: dict[Task, type[SparseGPEstimator]] = {
    "regression": estimators.SparseGPRegressor,
    "classification": estimators.SparseGPClassifier,
    "count": estimators.SparseGPCountRegressor,
}
"""The estimator of each task."""

_SINGLE: dict[str, Any] = {"combine": "best", "stack": None}
"""Parameters of one Gaussian process on the features alone, by which objectives are compared."""

_ROWS_KEPT = 2000
"""Test rows whose predictions are stored, for figures."""

_ROWS_SHUFFLED = 500
"""Test rows by which the importance of features is measured."""

_ROWS_AT_ONCE = 2000
"""Test rows of one block: the covariance with thousands of inducing inputs fits in memory."""

_CURVES = 6
"""Features with a curve of partial dependence."""

_CURVE_POINTS = 200
"""Points of a thinned training curve."""

_LOSS_NAMES = {"elbo": "NLL", "fitc": "NLL", "log_loss": "NLL", "square_loss": "MSE"}
"""Names of validation losses, by the name of the objective."""


def compare_rows(cell: CompareCell, problem: Problem) -> CellData:
    """Return the rows of a cell of a comparison."""
    X = problem.X
    y = problem.y
    training, validation, test = split(problem, cell.repeat, cell.size, cell.seed)
    return CellData(
        train=(X[training], y[training]),
        validation=(X[validation], y[validation]),
        test=(X[test], y[test]),
        num_training=parts_of(len(y)).training,
        num_classes=problem.num_classes,
        encoding=problem.encoding,
    )


def run_compare_cell(
    cell: CompareCell, data: CellData, start: bytes = b"", monitors: Sequence[Monitor] = ()
) -> Record[CompareCell, CompareOutcome]:
    """Train from the model of `cell.start`, choose β by validation, and score the test rows."""
    device = cell.settings.device
    method = method_named(cell.method)
    since = clock(device)
    saved = b""
    explained = None
    if method.kind == "baseline":
        predicted = _baseline(cell, data)
        facts = TrainingFacts()
    else:
        counter = EvaluationCounter()
        model = _fitted(cell, method, data, start, (*monitors, counter))
        predicted = PredictedTargets.of(model, data)
        explained = Explained.of(model)
        facts_of = TrainingFacts.of_mixture if method is DEFAULT else TrainingFacts.of
        facts = facts_of(model, counter.total)
        if method in (ELBO, BASIC):
            saved = _saved(model)
    seconds = clock(device) - since
    judged = predicted.judged()
    outcome = CompareOutcome(
        **vars(facts),
        scores=judged.means(),
        num_test=len(judged.actual),
        validation_loss=_LOSS_NAMES.get(method.objective, method.objective.replace("_", " ")),
        seconds=seconds,
    )
    columns = {f.name: getattr(judged, f.name) for f in fields(Predictions)}
    arrays = {
        name: values[:_ROWS_KEPT].numpy() for name, values in columns.items() if values is not None
    }
    if explained is not None:
        # A fit is not lost because it cannot be explained.
        with suppress(NumericalError):
            arrays |= asdict(_explanation(cell, explained, data))
    return Record(cell, outcome, Circumstances.here(device), arrays, saved)


def clock(device: str) -> float:
    """Return processor time, which other programs disturb least; wall time on a GPU."""
    return time.process_time() if device == "cpu" else time.perf_counter()


# Training


def _fitted(
    cell: CompareCell,
    method: Method,
    data: CellData,
    start: bytes,
    monitors: tuple[Monitor, ...],
) -> Any:
    """Return the fitted estimator of a method.

    Methods that choose β continue the training of the stored ELBO model. Other methods train a new
    model, with likelihood and kernel of the stored model if there is one.
    """
    if method is DEFAULT:
        model = _estimator(cell, data, cell.settings)
        return _fit(model, data, _rows_for_default(data), monitors=monitors)
    basic = likelihoods_of(cell.task)[0]
    if start:
        stored = _loaded(start, cell.settings.device)
        facts = model_facts(stored)
        if method is BASIC and facts.likelihood == basic:
            # The chosen model is the basic one, and has been trained.
            return stored
        if method.chooses_beta:
            return _continued(stored, cell, method, data, monitors)
    else:
        facts = _chosen_model(cell, data, monitors)
    if method is BASIC:
        facts = facts.model_copy(update={"likelihood": basic})
    model = _estimator(cell, data, facts, **_SINGLE, objective=method.objective, beta=1.0)
    return _fit(model, data, data.train, monitors=monitors)


def _chosen_model(cell: CompareCell, data: CellData, monitors: tuple[Monitor, ...]) -> ModelFacts:
    """Return likelihood, kernel and ARD: those given, or those best on the validation rows.

    Models are compared by the NLL of short ELBO runs, with the same number of inducing inputs.
    """
    settings = cell.settings
    likelihood, kernel, ard = settings.likelihood, settings.kernel, settings.ard
    if likelihood != "auto" and kernel != "auto" and (ard != "auto" or is_text(kernel)):
        return ModelFacts(likelihood=likelihood, kernel=kernel, ard=ard)
    model = _estimator(cell, data, settings, **_SINGLE, objective=ELBO.objective, beta=1.0)
    model.set_params(num_inducing=settings.num_inducing or auto_inducing(len(data.train[1])))
    _fit(model, data, data.train, validation_data=data.validation, monitors=monitors)
    return model_facts(model)


def _continued(
    model: Any,
    cell: CompareCell,
    method: Method,
    data: CellData,
    monitors: tuple[Monitor, ...],
) -> Any:
    """Train a fitted estimator for the objective of a method, and choose β by validation."""
    model.set_params(
        objective=method.objective,
        beta="auto",
        hyperparameters=method.hyperparameters,
        warm_start=True,
    )
    betas = sorted({*(cell.settings.betas or coarse_grid(cell.size))}, reverse=True)
    return _fit(
        model,
        data,
        data.train,
        validation_data=data.validation,
        betas=tuple(betas),
        monitors=monitors,
    )


def _estimator(
    cell: CompareCell, data: CellData, model: Settings | ModelFacts, **parameters: Any
) -> Any:
    """Return the estimator of a cell, not fitted; `model` has likelihood, kernel and ARD."""
    settings = cell.settings
    return _ESTIMATORS[cell.task](
        likelihood=model.likelihood,
        kernel=model.kernel,
        ard=model.ard,
        num_inducing=settings.num_inducing or "auto",
        max_iter=settings.max_steps,
        dtype=settings.dtype,
        device=settings.device,
        missing="impute" if data.has_gaps else "error",
        columns="auto" if data.encoding is None else data.encoding.kinds,
        random_state=seed_of(cell.seed, cell.repeat),
        **parameters,
    )


def _fit(
    model: Any,
    data: CellData,
    rows: tuple[Array, Array],
    *,
    validation_data: tuple[Array, Array] | None = None,
    betas: tuple[float, ...] = (),
    monitors: tuple[Monitor, ...],
) -> Any:
    """Fit an estimator and return it; ignore its warnings, which no report shows."""
    labels = isinstance(model, estimators.SparseGPClassifier)
    if labels:
        # The rows may lack a class of the table.
        model.classes_ = np.arange(float(data.num_classes))
        model.threshold_ = 0.5
    X, y = rows
    if validation_data is not None:
        validation_data = data.inputs(validation_data[0]), validation_data[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model._fit(
            data.inputs(X),
            y,
            None,
            validation_data,
            classes_known=labels,
            betas=betas,
            monitors=monitors,
        )
    return model


def _rows_for_default(data: CellData) -> tuple[Array, Array]:
    """Return the rows of the default estimator, which splits off validation rows itself.

    It trains on the validation rows, too; with a share of the training rows, on the same share.
    """
    X, y = data.train
    share = len(y) / (data.num_training or len(y))
    number = round(share * len(data.validation[1]))
    more_X, more_y = data.validation
    return np.concatenate([X, more_X[:number]]), np.concatenate([y, more_y[:number]])


def coarse_grid(num_data: int) -> list[float]:
    """Return every second β of the paper's grid, its last, and 1."""
    grid = beta_grid(num_data)
    return sorted({*grid[::2], grid[-1], 1.0}, reverse=True)


def _saved(model: SparseGPEstimator) -> bytes:
    """Return the file of a fitted estimator, from which other cells start."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        model.save(path)
        return path.read_bytes()


def _loaded(file: bytes, device: str) -> Any:
    """Return the fitted estimator of a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        path.write_bytes(file)
        try:
            return estimators.load(path, device)
        except ModelFileError as error:
            raise ModelFileError(
                "The store has a model of an earlier version of directgp to start from, which "
                "cannot be continued. Compare with another store."
            ) from error


# Facts about a fit


@final
@dataclass
class EvaluationCounter(Monitor):
    """Counts the evaluations of all runs of a fit."""

    finished: int = 0
    """Evaluations of the runs before the current one."""

    current: int = 0
    """Evaluations of the current run."""

    @property
    def total(self) -> int:
        """Evaluations of all runs."""
        return self.finished + self.current

    @override
    def __call__(self, progress: Progress) -> None:
        self.current = progress.evaluations

    @override
    def reset(self) -> None:
        self.finished += self.current
        self.current = 0


@final
@dataclass(frozen=True, kw_only=True)
class TrainingFacts:
    """The fields of `CompareOutcome` that training decides; the defaults are of no training."""

    beta: float = math.nan
    """Weight of the KL term; NaN without one, and of a mixture."""

    status: str = Status.CONVERGED.value
    """How the chosen run stopped."""

    reason: str = ""
    """Why the chosen run stopped."""

    evaluations: int = 0
    """Evaluations of all runs."""

    failed: tuple[str, ...] = ()
    """Values of β that could not be trained, each with the reason."""

    path: tuple[BetaLoss, ...] = ()
    """Losses by falling β."""

    curve: tuple[tuple[int, float], ...] = ()
    """(step, objective) of the chosen run, thinned."""

    model: ModelFacts | None = None
    """Likelihood and kernel of one model."""

    members: tuple[StoredMember, ...] = ()
    """Members of a mixture."""

    @classmethod
    def of(cls, model: Any, evaluations: int) -> "TrainingFacts":
        """Return the facts of an estimator with one model."""
        result = model.training_result_
        path = model.beta_path_
        failures = () if path is None else path.failed
        return cls(
            beta=model.beta_,
            status=result.status.value,
            reason=result.reason,
            evaluations=evaluations,
            failed=tuple(f"β = {failure.beta:.3g}: {failure.reason}" for failure in failures),
            path=beta_losses(path),
            curve=thinned(result.history),
            model=model_facts(model),
        )

    @classmethod
    def of_mixture(cls, model: Any, evaluations: int) -> "TrainingFacts":
        """Return the facts of an estimator with several models; the status is of the heaviest."""
        pairs = zip(model.members_, model.weights_.tolist(), strict=True)
        return cls(
            status=model.training_result_.status.value,
            reason=model.training_result_.reason,
            evaluations=evaluations,
            members=tuple(
                StoredMember(label=member.label, weight=weight, stacked=member.stacked)
                for member, weight in pairs
            ),
        )


def model_facts(model: SparseGPEstimator) -> ModelFacts:
    """Return the names by which an estimator makes the trained likelihood and kernel."""
    kind = type(model.likelihood_).__name__
    likelihood = next(row.name for row in LIKELIHOODS.values() if row.kind == kind)
    prior = model.posterior_.prior
    structure = prior.structure
    if structure is not None:
        expression = structure.expression
        names = getattr(model, "feature_names_in_", None)
        if names is not None:
            imputation = model.scalings_.imputation
            names = [*names] if imputation is None else imputation.names([*names])
            expression = expression.named(names)
        text = repr(expression)
        return ModelFacts(likelihood=likelihood, kernel=text, ard="auto")
    scales = prior.length_scales()
    ard = scales is not None and len(scales) > 1
    return ModelFacts(likelihood=likelihood, kernel=prior.kernel_name, ard=ard)


def beta_losses(path: BetaPath | None) -> tuple[BetaLoss, ...]:
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
        for point in path.points
    )


def thinned(losses: Sequence[float]) -> tuple[tuple[int, float], ...]:
    """Return (step, objective) of a run, thinned; the last step is always there."""
    every = max(1, math.ceil(len(losses) / _CURVE_POINTS))
    steps = {*range(0, len(losses), every), len(losses) - 1} if losses else set()
    return tuple((step + 1, losses[step]) for step in sorted(steps))


# Predictions


class PredictedTargets(NamedTuple):
    """Predictions of the scaled targets of test rows."""

    mixture: PredictiveMixture
    """p(y) of the scaled targets, of one model or several."""

    y: Array
    """Scaled targets."""

    scalings: Scalings
    """Scaling of the targets."""

    @classmethod
    def of(cls, model: SparseGPEstimator, data: CellData) -> "PredictedTargets":
        """Return the predictions of the test rows by a fitted estimator."""
        X, y = data.test
        scalings = model.scalings_
        return cls(_mixture_at(model, X, data), scalings.exact_targets(y), scalings)

    def judged(self) -> Judged:
        """Return the scores, computed in float64 on the CPU."""
        y = torch.as_tensor(self.y)
        return judge_mixture(_on_cpu(self.mixture), y, self.scalings.offset, self.scalings.unit)


def _mixture_at(model: SparseGPEstimator, X: Array, data: CellData) -> PredictiveMixture:
    """Return the predictive distribution of a fitted estimator, computed in blocks of rows."""
    X = _encoded(model, X, data)
    starts = range(0, len(X), _ROWS_AT_ONCE)
    blocks = [model._mixture(X[i : i + _ROWS_AT_ONCE], None).components for i in starts]

    def whole(parts: Sequence[Component]) -> Component:
        mean = torch.cat([part.marginals.mean for part in parts], -1)
        variance = torch.cat([part.marginals.variance for part in parts], -1)
        return replace(parts[0], marginals=Marginals(mean, variance))

    return PredictiveMixture(tuple(map(whole, zip(*blocks, strict=True))))


def _encoded(model: Any, X: Array, data: CellData) -> Array:
    """Return features as a fitted estimator encodes them: with the codes of its own levels."""
    if data.encoding is None:
        return X
    inputs: Array = model._inputs(data.inputs(X), "compare")
    return inputs


def _on_cpu(mixture: PredictiveMixture) -> PredictiveMixture:
    """Return a copy in float64 on the CPU; the models stay where they are."""

    def copied(component: Component) -> Component:
        q = component.marginals
        likelihood = copy.deepcopy(component.likelihood).to("cpu", torch.float64)
        marginals = Marginals(q.mean.cpu(), q.variance.cpu())
        return replace(component, likelihood=likelihood, marginals=marginals)

    return PredictiveMixture(tuple(map(copied, mixture.components)))


def _baseline(cell: CompareCell, data: CellData) -> PredictedTargets:
    """Return the predictions of a method without a Gaussian process."""
    rows = ScaledParts.of(data, cell.task)
    likelihood, q = predict_baseline(cell.method, cell.task, rows, cell.seed)
    mixture = PredictiveMixture.of([1.0], [likelihood], [q])
    return PredictedTargets(mixture, rows.test[1], rows.scalings)


def _explanation(cell: CompareCell, explained: Explained, data: CellData) -> Explanation:
    """Explain a model by some test rows; curves are drawn in the first repeat only."""
    X, y = data.test
    random = np.random.default_rng([cell.seed, cell.repeat])
    targets = y[:_ROWS_SHUFFLED]
    X = _encoded(explained.model, X, data)
    coded = explained.model._coded
    importance = increases(lambda rows: explained.nll(rows, targets), X[:_ROWS_SHUFFLED], random)
    relevance = explained.relevance()
    # The report has no curve of levels.
    gaps = np.asarray(np.isnan(X).all(axis=0))
    order = [j for j in np.argsort(-importance, kind="stable") if not gaps[j] and j not in coded]
    chosen = np.array(order[:_CURVES] if cell.repeat == 0 else [], dtype=np.int64)
    curves = explained.curves(X, chosen.tolist(), COVERAGE)
    longest = max((curve.shape[1] for curve in curves), default=0)
    padded = np.full((len(curves), len(curves[0]) if curves else 4, longest), np.nan)
    for place, curve in zip(padded, curves, strict=True):
        place[:, : curve.shape[1]] = curve
    return Explanation(
        importance=importance,
        relevance=np.zeros(0) if relevance is None else relevance,
        features=chosen,
        curves=padded,
    )

"""Train and score one cell; run a plan, interrupt it, and resume it."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch

import directgp
from directgp.errors import InvalidInputError, ModelFileError, NumericalError
from directgp.estimators import SparseGPRegressor
from directgp.estimators.preprocessing import ColumnScaling, Scalings
from directgp.experiments.cell import DEFAULT, METHODS, Cell, Record, seed_of
from directgp.experiments.compare_cell import CompareCell, CompareOutcome, ModelFacts, Settings
from directgp.experiments.comparison import compare as run_comparison
from directgp.experiments.engine import Runner
from directgp.experiments.fit import (
    PredictedTargets,
    _fit,
    coarse_grid,
    compare_rows,
    model_facts,
    run_compare_cell,
)
from directgp.experiments.plan import Comparison, Plan
from directgp.experiments.splits import CellData
from directgp.experiments.stats import ranking
from directgp.experiments.workers import FailedJob
from directgp.kernels import RBF, Linear
from directgp.likelihoods import Gaussian
from directgp.metrics import Judged, judge_mixture
from directgp.predictive.mixture import PredictiveMixture
from directgp.registry import Task
from directgp.shapes import Marginals
from directgp.training.beta_path import path_of
from directgp.training.result import BetaPath
from directgp.training.run import Monitor
from tests.unit.experiments.small import Recorder, plan, problem

pytestmark = pytest.mark.usefixtures("without_shape_checks")

GIVEN = problem()


def test_facts_have_a_kernel_that_an_estimator_takes() -> None:
    X = np.linspace(-1, 1, 30).reshape(-1, 1)
    expected = [
        ModelFacts(likelihood="gaussian", kernel="matern32", ard=False),
        ModelFacts(likelihood="gaussian", kernel="RBF(0) + Linear(0)", ard="auto"),
    ]
    settings: dict[str, Any] = {"objective": "elbo", "beta": 1.0, "combine": "best", "stack": None}
    settings |= {"likelihood": "gaussian", "num_inducing": 5, "max_iter": 2}
    for kernel, facts in zip(("matern32", RBF() + Linear(0)), expected, strict=True):
        model = SparseGPRegressor(kernel=kernel, **settings)
        with warnings.catch_warnings():
            # A few steps are enough.
            warnings.simplefilter("ignore")
            assert model_facts(model.fit(X, np.sin(3 * X[:, 0]))) == facts
            model.set_params(kernel=facts.kernel, ard=facts.ard).fit(X, X[:, 0])
        assert model_facts(model) == facts


def compare(whole: Plan, path: Path, record: Recorder | None = None) -> Comparison:
    return run_comparison(GIVEN, whole, path, callback=record)


def results(comparison: Comparison) -> dict[str, str]:
    """By key, without times."""
    return {
        run.cell.key: run.outcome.model_copy(update={"seconds": 0.0}).model_dump_json()
        for run in comparison.runs
    }


def test_every_cell_is_run_once(tmp_path: Path) -> None:
    whole = plan(GIVEN, ["elbo", "log-fixed"], repeats=2, sizes=(20, 30))
    record = Recorder()
    comparison = compare(whole, tmp_path / "store", record)
    assert [run.cell for run in comparison.runs] == list(whole.cells())
    assert len(record.begun) == len(record.results) == 8 and not comparison.failed
    again = Recorder()
    assert results(compare(whole, tmp_path / "store", again)) == results(comparison)
    assert again.begun == [] and again.known == 8


def test_a_comparison_runs_the_elbo_that_others_start_from(tmp_path: Path) -> None:
    record = Recorder()
    comparison = compare(plan(GIVEN, ["log-fixed"]), tmp_path / "store", record)
    assert [cell.model_dump()["method"] for cell in record.begun] == ["elbo", "log-fixed"]
    assert [run.cell.method for run in comparison.runs] == ["log-fixed"]


class Broken(Recorder):
    """Breaks off when so many fits are done."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def finished(self, cell: Cell, result: Record[Any, Any] | FailedJob) -> None:
        super().finished(cell, result)
        if len(self.results) == self.after:
            raise KeyboardInterrupt


def test_an_interrupted_comparison_ends_as_an_uninterrupted_one(tmp_path: Path) -> None:
    whole = plan(GIVEN, ["elbo", "fitc", "log-fixed", "square-fixed"], repeats=2)
    unbroken = results(compare(whole, tmp_path / "unbroken"))
    begun = []
    for after in (1, 2, 3):
        record = Broken(after)
        with pytest.raises(KeyboardInterrupt):
            compare(whole, tmp_path / "broken", record)
        begun.append(len(record.begun))
    assert begun == [8, 7, 5]
    assert results(compare(whole, tmp_path / "broken")) == unbroken


def test_a_failure_is_told_and_takes_along_what_starts_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(
        cell: CompareCell, data: CellData, elbo: bytes = b"", monitors: Sequence[Monitor] = ()
    ) -> Record[CompareCell, CompareOutcome]:
        if cell.method == "elbo" and cell.repeat == 1:
            raise NumericalError("No way down.")
        return run_compare_cell(cell, data, elbo, monitors)

    monkeypatch.setattr("directgp.experiments.comparison.run_compare_cell", failing)
    whole = plan(GIVEN, ["elbo", "fitc", "log-fixed"], repeats=2)
    comparison = compare(whole, tmp_path / "store")
    told = [(f.cell.method, f.cell.repeat, f.reason) for f in comparison.failed]
    assert told == [
        ("elbo", 1, "No way down."),
        ("log-fixed", 1, "The run that it starts from failed: No way down."),
    ]
    # The repeat that not all have finished does not count.
    assert [len(s.betas) for s in ranking(comparison, 30)] == [1, 1, 1]
    monkeypatch.undo()
    record = Recorder()
    assert not compare(whole, tmp_path / "store", record).failed
    assert len(record.begun) == 2


def test_an_unexpected_error_fails_its_fit_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(
        cell: CompareCell, data: CellData, elbo: bytes = b"", monitors: Sequence[Monitor] = ()
    ) -> Record[CompareCell, CompareOutcome]:
        if cell.method == "fitc":
            raise MemoryError("no room")
        return run_compare_cell(cell, data, elbo, monitors)

    monkeypatch.setattr("directgp.experiments.comparison.run_compare_cell", failing)
    comparison = compare(plan(GIVEN, ["elbo", "fitc"]), tmp_path / "store")
    assert [f.reason for f in comparison.failed] == ["MemoryError: no room"]
    assert len(comparison.runs) == 1


def test_a_start_that_nobody_asked_for_is_not_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(cell: Cell, *_: object, **__: object) -> None:
        raise NumericalError("No way down.")

    monkeypatch.setattr("directgp.experiments.comparison.run_compare_cell", failing)
    comparison = compare(plan(GIVEN, ["log-fixed"]), tmp_path / "store")
    assert [f.cell.method for f in comparison.failed] == ["log-fixed"]


def test_a_method_that_mostly_fails_is_left_out(tmp_path: Path) -> None:
    whole = plan(GIVEN, ["elbo", "fitc"], repeats=3)
    comparison = compare(whole, tmp_path / "store")
    runs = [r for r in comparison.runs if r.cell.method == "elbo" or r.cell.repeat == 1]
    found = ranking(replace(comparison, runs=tuple(runs)), 30)
    assert [(s.method.name, len(s.betas)) for s in found] == [("elbo", 3)]


def run(
    method: str, task: Task = "regression", max_steps: int = 3
) -> tuple[CompareCell, CellData, Record[CompareCell, CompareOutcome]]:
    given = problem(task)
    whole = plan(given, max_steps=max_steps)
    elbo = whole.cell(METHODS["elbo"], 0, 30)
    data = compare_rows(elbo, given)
    base = run_compare_cell(elbo, data)
    if method == "elbo":
        return elbo, data, base
    cell = whole.cell(METHODS[method], 0, 30)
    return cell, data, run_compare_cell(cell, data, base.model)


def test_the_elbo_cell_is_the_fit_of_the_estimator() -> None:
    cell, data, record = run("elbo", max_steps=20)
    settings = cell.settings
    model = SparseGPRegressor(
        objective="elbo",
        beta=1.0,
        likelihood=settings.likelihood,
        kernel=settings.kernel,
        ard=settings.ard,
        num_inducing=settings.num_inducing,
        max_iter=20,
        combine="best",
        stack=None,
        random_state=seed_of(cell.seed, cell.repeat),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(*data.train)
    assert record.outcome.scores["nll"] == pytest.approx(model.nll(*data.test), rel=1e-10)
    assert record.arrays["mean"] == pytest.approx(model.predict(data.test[0]), rel=1e-10)
    assert record.outcome.path == () and record.outcome.beta == 1.0
    assert record.outcome.model == ModelFacts(likelihood="gaussian", kernel="rbf", ard=True)
    result = model.training_result_
    assert record.outcome.curve[-1] == (result.steps, result.history[-1])
    assert 0 < record.outcome.evaluations <= result.evaluations


def saved(record: Record[CompareCell, CompareOutcome]) -> Any:
    """The fitted estimator of a record."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        path.write_bytes(record.model)
        return directgp.load(path)


def test_a_method_goes_on_from_the_model_of_the_elbo() -> None:
    cell, data, elbo = run("elbo", max_steps=30)
    model = saved(elbo)
    assert model.nll(*data.test) == pytest.approx(elbo.outcome.scores["nll"], rel=1e-10)
    only_one = cell.settings.model_copy(update={"betas": (1.0,)})
    joint = run_compare_cell(cell.replace(method="log-joint", settings=only_one), data, elbo.model)
    model.set_params(
        objective="log_loss",
        beta="auto",
        hyperparameters="joint",
        warm_start=True,
        max_iter=30,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model._fit(*data.train, None, data.validation, betas=(1.0,))
    assert joint.outcome.scores["nll"] == pytest.approx(model.nll(*data.test), rel=1e-10)
    assert [point.beta for point in joint.outcome.path] == [1.0]


def test_a_model_of_an_earlier_version_is_named_in_the_error() -> None:
    cell, data, _ = run("elbo")
    with pytest.raises(ModelFileError, match=r"earlier version .* Compare with another store"):
        run_compare_cell(cell.replace(method="log-joint"), data, b"posterior and likelihood")


def test_the_same_cell_has_the_same_result() -> None:
    first, second = (run("log-joint")[2] for _ in range(2))
    assert replace_seconds(first) == replace_seconds(second)
    assert first.arrays["mean"].tobytes() == second.arrays["mean"].tobytes()


def replace_seconds(finished: Record[CompareCell, CompareOutcome]) -> str:
    return finished.outcome.model_copy(update={"seconds": 0.0}).model_dump_json()


@pytest.mark.parametrize(("method", "held"), [("log-fixed", True), ("log-joint", False)])
def test_fixed_holds_what_the_elbo_found(
    method: str, held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[BetaPath] = []

    def spied(*arguments: Any, **settings: Any) -> BetaPath:
        trained.append(path_of(*arguments, **settings))
        return trained[-1]

    monkeypatch.setattr("directgp.estimators.fitting.path_along", spied)
    _, _, record = run(method)
    elbo = saved(run("elbo")[2])
    path = record.outcome.path
    tried = [point.beta for point in path]
    assert 1.0 in tried and len(tried) > 1 and {*tried} <= {4.0, 1.0, 0.25}
    assert tried == sorted(tried, reverse=True)
    assert record.outcome.beta == min(path, key=lambda point: point.loss).beta
    (found,) = trained
    for point in found.points:
        assert torch.equal(point.trained.posterior.Z, elbo.posterior_.Z) == held


@pytest.mark.parametrize(("fits", "repeats", "runs"), [(1, 1, 1), (5, 2, 4), (6, 3, 6)])
def test_a_time_budget_keeps_what_is_complete(
    fits: int, repeats: int, runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is spent after so many of six fits; a second call runs the others only."""
    given = problem()
    whole = plan(given, methods=("mean", "linear"), repeats=3)
    recorder, store = Recorder(), tmp_path / "store"
    monkeypatch.setattr(Runner, "_is_late", lambda _: len(recorder.results) >= fits)
    found = run_comparison(given, whole, store, callback=recorder, time_budget=60.0)
    assert (found.plan.repeats, len(found.runs)) == (repeats, runs)
    assert found.repeats_asked == (None if fits == 6 else 3)
    monkeypatch.undo()
    again = Recorder()
    complete = run_comparison(given, whole, store, callback=again)
    assert (len(again.results), again.known, complete.repeats_asked) == (6 - fits, fits, None)
    assert len(complete.runs) == 6


def test_failures_of_an_earlier_run_count_as_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, store = problem(), tmp_path / "store"
    whole = plan(given, methods=("mean",), repeats=2)

    def broken(*_: Any) -> None:
        raise NumericalError("Broken.")

    with monkeypatch.context() as patched:
        patched.setattr("directgp.experiments.fit.predict_baseline", broken)
        run_comparison(given, whole, store)
    monkeypatch.setattr(Runner, "_is_late", lambda _: True)
    found = run_comparison(given, whole, store, time_budget=60.0)
    assert (len(found.failed), found.plan.repeats, found.repeats_asked) == (2, 2, 2)


def test_scores_leave_the_model_where_it_is() -> None:
    """Its type and device are needed for the explanation."""
    noise = Gaussian(0.1).float()
    one = torch.ones(1, dtype=torch.float64)
    scalings = Scalings(ColumnScaling.identity(1), ColumnScaling.identity(1))
    mixture = PredictiveMixture.of([1.0], [noise], [Marginals(one, one)])
    PredictedTargets(mixture, np.ones(1), scalings).judged()
    assert {parameter.dtype for parameter in noise.parameters()} == {torch.float32}


def test_gaps_in_test_rows_alone_are_imputed() -> None:
    given = problem()
    cell = plan(given, methods=("auto",)).cell(DEFAULT, 0, 30)
    data = compare_rows(cell, given)
    X, y = data.test
    holes = np.column_stack([X[:, 0], np.full(len(X), np.nan)])
    found = run_compare_cell(cell, data._replace(test=(holes, y)))
    assert math.isfinite(found.outcome.scores["nll"])
    assert found.arrays["features"].tolist() == [0]


def of_classes(likelihood: str | None = None) -> tuple[CompareCell, CellData]:
    """Four classes, of which the last has two rows, both in the test rows."""
    given = problem("classification", n=120)
    f = np.digitize(given.X[:, 0], [-0.5, 0.5]).astype(np.float64)
    given = replace(given, y=f, classes=("low", "mid", "high", "rare"))
    whole = plan(given, methods=("elbo", "auto", "linear"), likelihood=likelihood)
    cell = whole.cell(METHODS["elbo"], 0, 60)
    data = compare_rows(cell, given)
    y = data.test[1].copy()
    y[:2] = 3.0
    return cell, data._replace(test=(data.test[0], y))


@pytest.mark.parametrize("method", ["elbo", "log-joint", "auto", "mean", "linear", "boosting"])
@pytest.mark.slow_for("auto", "log-joint", "boosting")
def test_classes_that_training_rows_lack_are_scored(method: str) -> None:
    cell, data = of_classes()
    cell = cell.replace(method=method)
    start = b"" if cell.start is None else run_compare_cell(cell.start, data).model
    found = run_compare_cell(cell, data, start)
    chances, y = found.arrays["chances"], data.test[1].astype(int)
    assert chances.shape == (len(y), 4)
    np.testing.assert_allclose(chances.sum(1), 1.0, atol=1e-6)
    own = chances[np.arange(len(y)), y]
    scores = found.outcome.scores
    assert scores["nll"] == pytest.approx(-np.log(own).mean(), rel=1e-6)
    assert scores["error"] == pytest.approx((chances.argmax(1) != y).mean())
    assert (own[:2] < 0.3).all() and scores["ece"] < 0.5
    if method == "elbo":
        assert found.outcome.model is not None and found.outcome.model.likelihood == "softmax"
        assert found.arrays["curves"].shape[1] == 1 + 3 * 4


@pytest.mark.parametrize("likelihood", ["ordinal", "robust_max"])
@pytest.mark.slow_for("robust_max")
def test_other_likelihoods_of_classes_are_compared(likelihood: str) -> None:
    cell, data = of_classes(likelihood)
    # Three steps are too few for an error that says something.
    settings = cell.settings.model_copy(update={"max_steps": 20})
    found = run_compare_cell(cell.replace(settings=settings), data)
    assert found.outcome.model is not None and found.outcome.model.likelihood == likelihood
    assert found.outcome.scores["error"] < 0.4


def test_noise_with_a_latent_function_is_compared() -> None:
    cell = plan(GIVEN, methods=("elbo",), likelihood="heteroscedastic").cell(METHODS["elbo"], 0, 30)
    found = run_compare_cell(cell, compare_rows(cell, GIVEN))
    assert math.isfinite(found.outcome.scores["crps"])
    assert found.arrays["curves"].shape[1] == 4


def test_a_time_budget_ends_worker_processes(tmp_path: Path) -> None:
    given, store = problem(), tmp_path / "store"
    whole = plan(given, methods=("mean", "linear"), repeats=3)
    found = run_comparison(given, whole, store, workers=1, time_budget=1e-6)
    assert found.runs == () and found.repeats_asked == 3


@pytest.mark.slow
def test_models_are_explained(tmp_path: Path) -> None:
    """The target depends on the first of two features."""
    given = problem()
    whole = plan(given, methods=("elbo", "auto", "mean"), repeats=2, max_steps=30)
    for run in run_comparison(given, whole, tmp_path / "store").runs:
        found = run.explanation
        if run.cell.method == "mean":
            assert found is None
            continue
        assert found is not None
        assert found.importance[0] > 0.3 > abs(found.importance[1])
        assert found.relevance[0] > found.relevance[1]
        shown = 2 if run.cell.repeat == 0 else 0
        assert len(found.features) == len(found.curves) == shown
        if shown:
            _, mean, lower, upper = found.curves[0]
            assert found.features[0] == 0 and np.ptp(mean) > 5
            assert (lower < mean).all() and (mean < upper).all()


@pytest.mark.parametrize(("method", "name"), [("log-fixed", "NLL"), ("square-fixed", "MSE")])
def test_losses_of_the_path_are_in_the_units_of_the_target(method: str, name: str) -> None:
    """A tenfold target adds log 10 to the NLL, and multiplies the squared error by 100."""
    given = problem()
    losses = []
    for factor in (1.0, 10.0):
        scaled = replace(given, y=factor * given.y)
        whole = plan(scaled)
        elbo = whole.cell(METHODS["elbo"], 0, 30)
        data = compare_rows(elbo, scaled)
        base = run_compare_cell(elbo, data)
        outcome = run_compare_cell(whole.cell(METHODS[method], 0, 30), data, base.model).outcome
        assert outcome.validation_loss == name
        losses.append([point.loss for point in outcome.path])
    small, large = np.array(losses)
    expected = small + math.log(10) if name == "NLL" else 100 * small
    assert large == pytest.approx(expected, rel=1e-6)


def test_objectives_are_compared_without_mixture_and_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice of the model and every training have one Gaussian process on the features."""
    fitted = []

    def spied(model: Any, *arguments: Any, **settings: Any) -> Any:
        fitted.append(_fit(model, *arguments, **settings))
        return fitted[-1]

    monkeypatch.setattr("directgp.experiments.fit._fit", spied)
    whole = plan(GIVEN, ["elbo", "fitc", "log-joint"])
    chosen = whole.settings.model_copy(update={"likelihood": "auto", "kernel": "auto"})
    whole = replace(whole, settings=chosen)
    elbo = whole.cell(METHODS["elbo"], 0, 30)
    data = compare_rows(elbo, GIVEN)
    basic = elbo.replace(method="elbo-basic")
    base = run_compare_cell(elbo, data)
    first = run_compare_cell(basic, data, base.model)
    run_compare_cell(elbo.replace(method="fitc"), data, first.model)
    found = run_compare_cell(elbo.replace(method="log-joint"), data, base.model)
    assert len(fitted) >= 4
    assert all(len(model.members_) == 1 and model.stack_ is None for model in fitted)
    # The others have the model that was chosen for the ELBO.
    assert found.outcome.model == base.outcome.model
    assert first.outcome.model is not None and base.outcome.model is not None
    assert first.outcome.model.likelihood == "gaussian"
    assert first.outcome.model.kernel == base.outcome.model.kernel
    assert base.outcome.path == () and found.outcome.members == ()


@cache
def mixture() -> tuple[Any, CompareCell, CellData, Record[CompareCell, CompareOutcome]]:
    """`directgp fit` on 112 rows, with few steps."""
    given = problem(n=160)
    cell = plan(given, methods=("auto",), sizes=(80,), max_steps=10).cell(DEFAULT, 0, 80)
    data = compare_rows(cell, given)
    fitted = []
    with pytest.MonkeyPatch.context() as patched:

        def spied(*arguments: Any, **settings: Any) -> Any:
            fitted.append(_fit(*arguments, **settings))
            return fitted[-1]

        patched.setattr("directgp.experiments.fit._fit", spied)
        record = run_compare_cell(cell, data)
    (model,) = fitted
    return model, cell, data, record


def test_directgp_fit_is_scored_as_a_mixture() -> None:
    model, _, data, record = mixture()
    X, y = data.test
    scores = record.outcome.scores
    assert scores["nll"] == pytest.approx(model.nll(X, y), rel=1e-10)
    assert record.arrays["mean"] == pytest.approx(model.predict(X), rel=1e-10)
    low, high = model.predict_interval(X, 0.9)
    assert record.arrays["lower"] == pytest.approx(low, rel=1e-9)
    assert scores["coverage"] == np.mean((low <= y) & (y <= high))
    members = record.outcome.members
    assert len(members) == len(model.members_) > 1
    assert math.fsum(member.weight for member in members) == pytest.approx(1.0)
    assert [member.stacked for member in members] == [each.stacked for each in model.members_]
    assert math.isnan(record.outcome.beta) and record.outcome.model is None


@pytest.mark.slow
def test_targets_of_test_rows_change_no_prediction() -> None:
    _, cell, data, record = mixture()
    X, y = data.test
    again = run_compare_cell(cell, data._replace(test=(X, y[::-1].copy())))
    assert np.array_equal(again.arrays["mean"], record.arrays["mean"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_noise_is_not_predicted_and_the_validation_loss_is_honest(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Targets that do not depend on the features: a feature of trees must not know its row."""
    random = np.random.default_rng(seed)
    given = replace(problem(n=400), X=random.normal(size=(400, 2)), y=random.normal(size=400))
    whole = plan(given, methods=("auto", "mean"), sizes=(220,), max_steps=None)
    free = Settings(likelihood="auto", kernel="auto", ard="auto")
    judged, fitted = [], []

    def spied(*arguments: Any) -> Judged:
        judged.append(judge_mixture(*arguments))
        return judged[-1]

    def fit(*arguments: Any, **settings: Any) -> Any:
        fitted.append(_fit(*arguments, **settings))
        return fitted[-1]

    monkeypatch.setattr("directgp.experiments.fit.judge_mixture", spied)
    monkeypatch.setattr("directgp.experiments.fit._fit", fit)
    for method in whole.methods:
        cell = whole.cell(method, 0, 220).replace(settings=free)
        run_compare_cell(cell, compare_rows(cell, given))
    losses = [rows.scores["nll"].numpy() for rows in judged]
    gap = losses[0] - losses[1]
    error = gap.std(ddof=1) / math.sqrt(len(gap))
    assert gap.mean() > -2 * error
    # Nor is it much worse: noise is no reason to leave the prior.
    assert gap.mean() < 0.02 + 2 * error
    (model,) = fitted
    path = model.beta_path_
    tested = losses[0].std(ddof=1) / math.sqrt(len(gap))
    honest = math.hypot(path.mixture_error, tested)
    assert abs(losses[0].mean() - path.mixture_loss) < 2 * honest


@pytest.mark.parametrize("task", ["classification", "count"])
def test_labels_and_counts_are_scored_too(task: Task) -> None:
    outcome = run("log-joint", task)[2].outcome
    second = {"classification": "error", "count": "mre"}[task]
    assert outcome.num_test == 15 and second in outcome.scores
    assert all(math.isfinite(value) for value in outcome.scores.values())


def test_the_curve_is_thinned_and_keeps_its_end() -> None:
    outcome = run("elbo", max_steps=300)[2].outcome
    steps = [step for step, _ in outcome.curve]
    assert steps == sorted(set(steps)) and len(steps) <= 201


def test_the_usual_grid_has_one() -> None:
    grid = coarse_grid(1000)
    assert 1.0 in grid and grid[0] == 1000.0 and grid == sorted(grid, reverse=True)
    assert grid[-1] == 0.01 and len(grid) == 11


def test_targets_whose_squares_overflow_are_refused() -> None:
    given = replace(problem(), y=1e300 * problem().y)
    elbo = plan(given).cell(METHODS["elbo"], 0, 30)
    with pytest.raises(InvalidInputError, match=r"beyond ±1e\+150.* Give y in another unit"):
        run_compare_cell(elbo, compare_rows(elbo, given))


def test_float32_is_near_float64() -> None:
    cell, data, found = run("elbo", max_steps=20)
    single = cell.settings.model_copy(update={"dtype": "float32"})
    other = run_compare_cell(cell.model_copy(update={"settings": single}), data)
    assert other.arrays["mean"] == pytest.approx(found.arrays["mean"], rel=1e-2)
    assert other.model != found.model

"""One cell: training, choice of β and scores."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import directgp
from directgp.datasets.problem import Task
from directgp.estimators.preprocessing import ColumnScaling
from directgp.experiments import fit
from directgp.experiments.cell import METHODS, Record
from directgp.experiments.fit import (
    CellData,
    ScaledRows,
    coarse_grid,
    compare_rows,
    run_compare_cell,
    untrained_model,
)
from directgp.experiments.plan import CompareCell, CompareOutcome
from directgp.likelihoods import Gaussian
from directgp.training import BetaPath, beta_path
from tests.unit.experiments.small import plan, problem

pytestmark = pytest.mark.usefixtures("without_shape_checks")


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


def test_the_elbo_cell_is_directgp_train() -> None:
    cell, data, found = run("elbo", max_steps=20)
    (X_train, y_train), (X_test, y_test) = data.train, data.test
    inputs, targets = ColumnScaling.from_data(X_train), ColumnScaling.from_data(y_train[:, None])
    X, X_new = (torch.as_tensor(inputs.forward(each)) for each in (X_train, X_test))
    y = torch.as_tensor(targets.exact(y_train[:, None])[:, 0])
    model = untrained_model(cell, X, y)
    result = directgp.train(model.posterior, model.likelihood, X, y, objective="elbo", max_steps=20)
    q = result.posterior.predict(X_new)
    assert isinstance(result.likelihood, Gaussian)
    noise = float(result.likelihood.noise.detach())
    mean = float(targets.shift[0]) + float(targets.scale[0]) * q.mean.numpy()
    deviation = float(targets.scale[0]) * np.sqrt(q.variance.numpy() + noise)
    expected = -stats.norm.logpdf(y_test, mean, deviation).mean()
    assert found.outcome.scores["nll"] == pytest.approx(expected, rel=1e-10)
    assert found.outcome.scores["mse"] == pytest.approx(np.mean((mean - y_test) ** 2))
    assert found.arrays["mean"] == pytest.approx(mean)
    assert found.outcome.path == () and found.outcome.beta == 1.0


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
    paths = []

    def spied(*given: Any, **settings: Any) -> BetaPath:
        paths.append(beta_path(*given, **settings))
        return paths[-1]

    monkeypatch.setattr(fit, "beta_path", spied)
    cell, data, found = run(method)
    elbo = untrained_model(cell, *ScaledRows.of(data, cell.task).train)
    elbo.load(run("elbo")[2].model)
    assert [point.beta for point in found.outcome.path] == [4.0, 1.0, 0.25]
    for point in paths[0].points:
        assert torch.equal(point.trained.posterior.Z, elbo.posterior.Z) == held


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


@pytest.mark.parametrize("task", ["classification", "count"])
def test_other_tasks(task: Task) -> None:
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


def test_targets_whose_squares_overflow() -> None:
    given = replace(problem(), y=1e300 * problem().y)
    elbo = plan(given).cell(METHODS["elbo"], 0, 30)
    outcome = run_compare_cell(elbo, compare_rows(elbo, given)).outcome
    assert outcome.scores["mse"] == math.inf and math.isfinite(outcome.scores["nll"])


def test_float32_is_near_float64() -> None:
    cell, data, found = run("elbo", max_steps=20)
    single = cell.settings.model_copy(update={"dtype": "float32"})
    other = run_compare_cell(cell.model_copy(update={"settings": single}), data)
    assert other.arrays["mean"] == pytest.approx(found.arrays["mean"], rel=1e-2)
    assert other.model != found.model

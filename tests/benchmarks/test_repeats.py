"""Benchmarks over repeated splits: scores of known predictions, tiny fits, and the tables."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gpytorch.mlls import VariationalELBO
from sklearn.datasets import load_iris
from sklearn.metrics import log_loss

from benchmarks import heteroscedastic, multiclass, repeats, softmax_step, softmax_svgp
from benchmarks.defaults.scores import normal_scores
from benchmarks.defaults.store import Cell, Store
from benchmarks.problems import Table


def test_scores_of_several_classes() -> None:
    probability = np.array([[0.7, 0.2, 0.1], [0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.3, 0.4, 0.3]])
    y = np.array([0, 1, 2, 0])
    found = multiclass.scores(probability, y)
    assert found["NLL"] == pytest.approx(log_loss(y, probability))
    assert found["error"] == 0.5
    rows = [0.3**2 + 0.2**2 + 0.1**2, 0.7**2 + 0.8**2 + 0.1**2, 0.2**2 + 2 * 0.1**2]
    assert found["Brier"] == pytest.approx((sum(rows) + 0.7**2 + 0.4**2 + 0.3**2) / 4)
    # One of the two rows of confidence 0.7 is right.
    assert found["ECE"] == pytest.approx((2 * 0.2 + 0.2 + 0.4) / 4)


def test_a_probability_of_zero_has_an_infinite_loss() -> None:
    found = multiclass.scores(np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([1, 1]))
    assert found["NLL"] == math.inf


def test_splits_keep_the_shares_of_the_classes(tmp_path: Path) -> None:
    X, X_test, y, y_test = multiclass.split(tmp_path, "iris", 0)
    assert len(X) == len(y) == 112 and len(X_test) == 38
    assert set(np.bincount(y)) <= {37, 38} and set(np.bincount(y_test)) <= {12, 13}
    assert not np.array_equal(multiclass.split(tmp_path, "iris", 1)[0], X)


@pytest.mark.slow
def test_softmax_svgp_learns() -> None:
    torch.manual_seed(0)
    X, y = (torch.as_tensor(each) for each in load_iris(return_X_y=True))
    X = (X - X.mean(0)) / X.std(0)
    model, likelihood = softmax_svgp.starting_model(X, 3, 10, seed=0)
    assert model.variational_strategy.base_variational_strategy.inducing_points.shape == (3, 10, 4)
    objective = VariationalELBO(likelihood, model, num_data=len(y))
    losses = softmax_svgp.train(model, objective, X, y, steps=60, batch=50)
    assert len(losses) == 60 and np.mean(losses[-10:]) < 0.8 * np.mean(losses[:10])
    found = softmax_svgp.predict_proba(model, X, 200)
    torch.testing.assert_close(found.sum(1), torch.ones(150, dtype=torch.float64))
    assert (found.argmax(1) == y).double().mean() > 0.85


@pytest.mark.parametrize("objective", softmax_step.OBJECTIVES)
def test_a_step_is_timed_and_has_a_gradient(objective: str) -> None:
    size = softmax_step.Size(n=40, classes=3, inducing=5, features=2)
    step = softmax_step.gpytorch_step(size, objective, "cpu", torch.float64)
    assert 0.3 < float(step()) < 3
    assert softmax_step.timed(step, "cpu")(2) > 0
    text = softmax_step.table({f"GPyTorch; {objective}": [0.002, 0.004, 0.006]})
    assert f"| {objective} | – | 4 (3 to 5) | – |" in text
    both = {f"GPyTorch; {objective}": [0.002, 0.004], f"directgp; {objective}": [0.001, 0.002]}
    assert "2 (2 to 2)" in softmax_step.table(both)


def test_a_loss_that_is_not_finite_is_not_timed() -> None:
    with pytest.raises(ArithmeticError, match="must be finite"):
        softmax_step.timed(lambda: torch.tensor(math.nan), "cpu")(1)


def test_the_made_up_crash_has_the_noise_that_it_says() -> None:
    data = heteroscedastic.crash_helmet(4000, 0)
    x, y = data.X[:, 0], data.y
    early, late = y[x < 12], y[(x > 29) & (x < 31)]
    assert early.std() < 4 and 20 < late.std() < 35
    assert y[(x > 20) & (x < 22)].mean() < -90


@pytest.mark.slow
def test_two_boostings_find_the_noise() -> None:
    data = heteroscedastic.crash_helmet(600, 0)
    found = heteroscedastic.two_boostings(data)()
    blind = normal_scores(data, np.full(1000, data.y.mean()), np.full(1000, data.y.std()))
    assert found["nll"] < blind["nll"] - 0.5
    assert 0.8 < found["coverage"] < 0.97


def test_our_estimator_is_scored_in_units_of_the_target() -> None:
    def nll(data: Table) -> float:
        settings = {"likelihood": "gaussian", "objective": "elbo", "beta": 1.0, "num_inducing": 10}
        return heteroscedastic.ours(data, kernel="rbf", max_iter=20, **settings)()["nll"]

    small = heteroscedastic.crash_helmet(60, 0)
    large = small._replace(y=100 * small.y, y_test=100 * small.y_test)
    assert nll(small) == pytest.approx(nll(large), abs=1e-3)


def test_what_is_missing_is_run_and_failures_are_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, wanted = Store(tmp_path / "out.jsonl"), repeats.cells(["t"], [0, 1, 2], ["a", "b"])
    assert [cell.split for cell in wanted] == [0, 0, 1, 1, 2, 2]
    assert repeats.cells(["t"], [0], ["a", "b"], {"b": 7})[1].settings == 7

    def fit(cell: Cell) -> Callable[[], repeats.Scores]:
        if cell.method == "b":
            raise ImportError("No module named 'b'")
        return lambda: {"NLL": float(cell.split)}

    repeats.run_missing(wanted, store, fit)
    assert "t, split 0, b: not run: ImportError: No module named 'b'" in capsys.readouterr().out
    assert {(cell.method, record["NLL"]) for cell, record in store.read().items()} == {
        ("a", 0.0),
        ("a", 1.0),
        ("a", 2.0),
    }
    repeats.run_missing(wanted, store, fit)
    assert capsys.readouterr().out.count("not run") == 3
    repeats.report(store, wanted, {"NLL": 3}, {"device": "none"}, store.path)
    assert "| t; a | 1.000 ± 0.577 |" in (tmp_path / "out.md").read_text("utf-8")
    written = json.loads((tmp_path / "out.json").read_text("utf-8"))
    mean, error = written["mean and standard error"]["t"]["a"]["NLL"]
    assert (mean, error) == (1.0, pytest.approx(1 / math.sqrt(3)))


def test_one_split_has_no_standard_error() -> None:
    cell = Cell("t", 0, None, "a", 1)
    found = repeats.summary({cell: {"NLL": 0.5}}, [cell])
    assert "| t; a | 0.50 | – |" in repeats.summary_table(found, {"NLL": 2, "ECE": 2})

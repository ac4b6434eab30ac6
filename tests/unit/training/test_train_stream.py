"""Training on rows from disk: the objective of all rows, and resuming."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow.parquet import write_table

import directgp
from directgp.datasets.streams import ParquetRows
from directgp.errors import InvalidInputError, UnsupportedError
from directgp.likelihoods import Gaussian, Likelihood, Poisson, Probit
from directgp.posteriors import SparsePosterior
from directgp.training import Cancel, Checkpoints, Monitor, Observer, Progress, Stop, TrainingResult
from tests.unit.training.models import labels, normal, regression, seeded, start, tensors

ROWS, BATCH = 300, 40


def folder(path: Path, labelled: bool = False, weights: bool = False) -> Path:
    X, y = labels(ROWS) if labelled else regression(ROWS)
    columns = {"a": X[:, 0].numpy(), "b": X[:, 1].numpy(), "y": y.numpy()}
    if weights:
        columns["w"] = np.linspace(0.5, 2, ROWS)
    table = pa.table(columns)
    for part in range(3):
        rows = table.slice(part * ROWS // 3, ROWS // 3)
        write_table(rows, path / f"{part}.parquet", row_group_size=30)
    return path


def train(
    rows: ParquetRows, likelihood: Likelihood | None = None, **options: Any
) -> TrainingResult:
    X, y = map(torch.as_tensor, rows.sample(100)[:2])
    settings: dict[str, Any] = {
        "batch_size": BATCH,
        "learning_rate": 0.02,
        "start": "scratch",
        "epochs": 1.0,
    }
    return directgp.train_stream(
        start(X, y),
        likelihood or Gaussian(0.1),
        rows,
        generator=seeded(),
        **{**settings, **options},
    )


@pytest.mark.usefixtures("without_shape_checks")
def test_a_run_learns_and_goes_through_its_epochs(tmp_path: Path) -> None:
    rows = ParquetRows(folder(tmp_path), target="y")
    result = train(rows, epochs=12.0)
    assert result.steps == math.ceil(12 * ROWS / BATCH)
    first, last = result.history[0], float(np.mean(result.history[-7:]))
    X, y = regression(200, seed=9)
    found = result.posterior.predict(X)
    error = float((found.mean - y).square().mean())
    assert last < first - 0.3
    assert error < 0.5 * float(y.var())


def test_a_step_is_the_objective_of_all_rows(tmp_path: Path) -> None:
    """With batches of all rows the first value is that of `train`, whatever their order."""
    path = folder(tmp_path, weights=True)
    rows = ParquetRows(path, target="y", weights="w")
    sample = rows.sample(ROWS)
    X, y, weights = map(torch.as_tensor, sample)
    posterior = start(X, y)
    posterior.set_q(normal(6), 0.5 * torch.eye(6, dtype=torch.float64))
    options: dict[str, Any] = {
        "start": "scratch",
        "learning_rate": 0.02,
        "beta": 2.0,
        "generator": seeded(),
    }
    whole = directgp.train(
        posterior, Gaussian(0.1), X, y, weights=weights, optimizer="adam", max_steps=3, **options
    )
    stream = directgp.train_stream(
        posterior, Gaussian(0.1), rows, batch_size=ROWS, epochs=3.0, **options
    )
    assert stream.history == pytest.approx(whole.history, rel=1e-10)


class StopAt(Monitor):
    """Ends the run from outside, as a user does."""

    def __init__(self, step: int) -> None:
        self._step, self._cancel = step, Cancel()

    def __call__(self, progress: Progress) -> Stop | None:
        if progress.step == self._step:
            self._cancel.cancel()
        return self._cancel(progress)

    def reset(self) -> None:
        """Nothing is remembered."""


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("hyperparameters", ["joint", "fixed"])
def test_a_run_that_was_cut_off_ends_as_one_that_was_not(
    tmp_path: Path, hyperparameters: str
) -> None:
    rows = ParquetRows(folder(tmp_path, labelled=True), target="y", buffer_rows=50)
    options: dict[str, Any] = {"hyperparameters": hyperparameters, "epochs": 3.0, "start": "elbo"}
    whole = train(rows, Probit(), checkpoints=Checkpoints(tmp_path / "w", every=5), **options)
    kept = Checkpoints(tmp_path / "c", every=5)
    cut = train(rows, Probit(), checkpoints=kept, monitors=[StopAt(13)], **options)
    assert cut.steps < whole.steps
    resumed = train(rows, Probit(), checkpoints=kept, **options)
    assert resumed.history == whole.history
    ours, theirs = tensors(resumed), tensors(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_an_observer_sees_the_model_on_the_way(tmp_path: Path) -> None:
    seen: list[int] = []

    def see(step: int, posterior: SparsePosterior, likelihood: Likelihood) -> None:
        seen.append(step)

    train(ParquetRows(folder(tmp_path), target="y"), observer=Observer(4, see))
    assert seen == [4, 8]


def test_a_target_that_cannot_be_is_named_when_it_is_met(tmp_path: Path) -> None:
    folder(tmp_path, labelled=True)
    bad = pa.table({"a": [0.0], "b": [0.0], "y": [2.0]})
    write_table(bad, tmp_path / "bad.parquet")
    rows = ParquetRows(tmp_path, target="y")
    with pytest.raises(InvalidInputError, match=r"a label, 0 or 1.*2\.0"):
        train(rows, Probit(), epochs=2.0)


def test_what_needs_all_rows_is_refused(tmp_path: Path) -> None:
    rows = ParquetRows(folder(tmp_path), target="y")
    with pytest.raises(UnsupportedError, match="depends on the variance of f"):
        train(rows, objective="square_loss")
    with pytest.raises(InvalidInputError, match="vfe"):
        train(rows, objective="vfe")
    exposed = Poisson().with_exposure(torch.ones(ROWS, dtype=torch.float64))
    with pytest.raises(UnsupportedError, match="exposure"):
        train(rows, exposed)


def test_rows_of_another_dtype_are_refused(tmp_path: Path) -> None:
    rows = ParquetRows(folder(tmp_path), target="y", dtype="float32")
    posterior = start(*regression())
    with pytest.raises(InvalidInputError, match=r"dtype float64.*Got float32.*dtype='float64'"):
        directgp.train_stream(posterior, Gaussian(0.1), rows)


@pytest.mark.parametrize("epochs", [0.0, -1.0, math.inf, math.nan])
def test_epochs_that_cannot_be_are_refused(tmp_path: Path, epochs: float) -> None:
    with pytest.raises(InvalidInputError, match="epochs of train_stream must be positive"):
        train(ParquetRows(folder(tmp_path), target="y"), epochs=epochs)

"""Finished cells in a file."""

import math
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from directgp.errors import StoreError
from directgp.experiments.cell import BetaPoint, Cell, Finished, Outcome, Predictions
from directgp.experiments.plan import METHODS
from directgp.experiments.store import Store
from tests.unit.experiments.small import plan, problem

CELL = plan(problem()).cell(METHODS["elbo"], 0, 30)


def finished(nll: float = 0.1) -> Finished:
    outcome = Outcome(
        scores={"nll": nll, "mse": 1 / 3},
        num_test=7,
        beta=0.1,
        path=(BetaPoint(beta=0.1, loss=math.inf, error=math.nan),),
        validation_loss="NLL",
        curve=((1, 0.5), (2, 1e-300)),
        status="converged",
        reason="It did.",
        evaluations=3,
        seconds=0.2,
    )
    values = np.random.default_rng(0).normal(size=(6, 5))
    return Finished(outcome, Predictions(*values), b"model \x00\xff")


def test_what_is_put_comes_back_bit_for_bit(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        assert CELL not in store
        store.put(CELL, finished())
    with Store(tmp_path / "store") as store:
        assert CELL in store
        run = store.run(CELL)
        assert store.model(CELL) == b"model \x00\xff"
    assert run.cell == CELL
    assert run.outcome.model_dump_json() == finished().outcome.model_dump_json()
    for name, values in vars(finished().predictions).items():
        assert getattr(run.predictions, name).tobytes() == values.tobytes()
    point = run.outcome.path[0]
    assert math.isinf(point.loss) and math.isnan(point.error)


@pytest.mark.parametrize(
    "change",
    [
        {"repeat": 1},
        {"size": 31},
        {"method": "fitc"},
        {"seed": 1},
        {"data": "other"},
        {"settings": CELL.settings.model_copy(update={"kernel": "matern32"})},
        {"settings": CELL.settings.model_copy(update={"betas": None})},
    ],
)
def test_cells_that_differ_have_other_keys(tmp_path: Path, change: dict[str, object]) -> None:
    other: Cell = CELL.model_copy(update=change)
    with Store(tmp_path / "store") as store:
        store.put(CELL, finished())
        assert other not in store
        with pytest.raises(KeyError):
            store.run(other)


def test_cleared(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        store.put(CELL, finished())
        store.clear()
        assert CELL not in store


def test_one_program_at_a_time(tmp_path: Path) -> None:
    with Store(tmp_path / "store"), pytest.raises(StoreError, match="in use by another run"):
        Store(tmp_path / "store")
    with Store(tmp_path / "store") as store:
        assert CELL not in store


def test_a_transaction_that_is_cut_off_leaves_no_trace(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        store.put(CELL, finished())
    journal = tmp_path / "store-journal"
    with sqlite3.connect(tmp_path / "store", isolation_level=None) as file:
        file.execute("pragma cache_size = 1")
        file.execute("begin")
        file.execute("update cells set model = zeroblob(200000)")
        cut_off = (tmp_path / "store").read_bytes(), journal.read_bytes()
        file.execute("rollback")
    copy = tmp_path / "copy"
    copy.write_bytes(cut_off[0])
    (tmp_path / "copy-journal").write_bytes(cut_off[1])
    with Store(copy) as store:
        assert store.model(CELL) == b"model \x00\xff"


def test_damaged_and_foreign_files(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"no database, but as long as the header of one has to be" * 100)
    with pytest.raises(StoreError, match=r"is damaged or not a store of directgp \(file is not a"):
        Store(text)
    newer = tmp_path / "newer"
    with sqlite3.connect(newer) as file:
        file.execute("pragma user_version = 7")
    with pytest.raises(StoreError, match="is a store of schema 7, and this version"):
        Store(newer)
    with pytest.raises(StoreError, match=r"could not be opened or written: .*\. Give a folder"):
        Store(tmp_path / "no" / "folder")


def test_a_damaged_row_is_said_to_be(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        store.put(CELL, finished())
    with sqlite3.connect(tmp_path / "store") as file:
        file.execute("update cells set outcome = '{}'")
    with Store(tmp_path / "store") as store, pytest.raises(StoreError, match="is damaged"):
        store.run(CELL)

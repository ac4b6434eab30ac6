"""Evaluations of tiny problems, and floor and ratios from known times."""

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.evaluations import (
    BATCHED,
    CELLS,
    COLLAPSED,
    LIKELIHOODS,
    MODELS,
    Evaluation,
    Server,
    all_tables,
    measure_size,
    parsed,
    problem_of,
    size_row,
)
from benchmarks.peers.spread import Spread
from directgp.errors import NumericalError

SIZE = (40, 5)
BATCH = f"{BATCHED}; {MODELS} models"


def zero() -> float:
    return 0.0


@pytest.mark.parametrize("cell", CELLS)
def test_every_problem_has_a_finite_value_and_trains_everything(cell: str) -> None:
    problem = problem_of(SIZE, cell, "cpu")
    names = {name.split(".")[0] for name in problem.parameters}
    assert {"Z", "prior"} <= names
    assert ({"u_mean", "u_chol"} <= names) == (cell != COLLAPSED)
    learned = sum(1 for _ in LIKELIHOODS[cell.split("; ")[0]]().parameters())
    assert sum(name.startswith("likelihood.") for name in problem.parameters) == learned
    evaluation = Evaluation(problem, zero)
    assert math.isfinite(evaluation.value())
    assert evaluation.value() == pytest.approx(problem.value(0).item(), rel=1e-8)
    assert not evaluation.recorded


def test_the_collapsed_value_is_at_most_that_of_any_q() -> None:
    free, collapsed = (problem_of(SIZE, cell, "cpu") for cell in ("Gaussian; ELBO", COLLAPSED))
    assert Evaluation(collapsed, zero).value() < Evaluation(free, zero).value()


def test_targets_are_those_of_the_likelihood() -> None:
    y = {cell: problem_of(SIZE, cell, "cpu").data.y for cell in CELLS[:5]}
    assert set(y["probit; log loss"].tolist()) == {0.0, 1.0}
    for name in ("Poisson", "negative binomial"):
        counts = y[f"{name}; log loss"]
        assert torch.equal(counts, counts.round()) and counts.max() > 1
    assert not torch.equal(y["Gaussian; log loss"], y["Student-t; log loss"])


def test_a_value_that_changes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, values = problem_of(SIZE, CELLS[0], "cpu"), iter([1.0, 1.1])
    gradient = torch.cat([p.detach().reshape(-1) for p in problem.parameters.values()])

    def changing(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor(next(values), dtype=torch.float64), gradient

    monkeypatch.setattr(problem, "value_and_gradient", changing)
    with pytest.raises(NumericalError, match=r"must be 1.0 each time. Got 1.1"):
        Evaluation(problem, zero)


def test_floor_and_ratios_are_those_of_the_times() -> None:
    times = {cell: [2e-3, 4e-3, 3e-3] for cell in CELLS}
    times["Poisson; ELBO"] = [4e-3, 8e-3, 6e-3]
    times[BATCH] = [5e-3, 5e-3, 5e-3]
    row = size_row((1000, 100), times, [4e10, 6e10])
    # 5·100²·1000 multiply-adds at 5e10 a second.
    assert row["floor_ms"] == pytest.approx(1.0)
    assert row["ms"]["Gaussian; ELBO"]["median"] == pytest.approx(3.0)
    assert row["over_floor"]["Gaussian; ELBO"] == pytest.approx(3.0)
    assert row["over_floor"]["Poisson; ELBO"] == pytest.approx(6.0)
    assert row["over_gaussian"]["Poisson"]["median"] == pytest.approx(2.0)
    assert row["over_gaussian"]["Student-t"]["median"] == pytest.approx(1.0)
    assert row["batch"]["median"] == pytest.approx(MODELS * 3 / 5)


def test_a_batch_is_the_sum_of_its_models() -> None:
    batch = problem_of(SIZE, BATCHED, "cpu", MODELS)
    one = problem_of(SIZE, BATCHED, "cpu")
    betas, expected = batch.objective.beta, 0.0
    assert isinstance(betas, torch.Tensor)
    for beta in betas.tolist():
        one.objective = replace(one.objective, beta=beta)
        expected += Evaluation(one, zero).value()
    assert Evaluation(batch, zero).value() == pytest.approx(expected, rel=1e-10)


@pytest.fixture(scope="module")
def row() -> dict[str, Any]:
    return measure_size(SIZE, "cpu", 2, 1e-4)


@pytest.mark.slow
def test_a_size_has_every_cell_and_its_own_rates(row: dict[str, Any]) -> None:
    assert set(row["ms"]) == set(row["over_floor"]) == {*CELLS, BATCH}
    assert len(row["matmul_rates"]) == 2
    rate = sum(row["matmul_rates"]) / 2
    assert row["floor_ms"] == pytest.approx(1e3 * 5 * 5**2 * 40 / rate)
    for cell in CELLS:
        assert row["ms"][cell]["median"] > 0
        assert row["over_floor"][cell] == pytest.approx(row["ms"][cell]["median"] / row["floor_ms"])
    assert row["eager"] == []


def test_a_server_times_evaluations() -> None:
    server = Server()
    threads = server({"do": "set_up", "size": list(SIZE), "cell": CELLS[0]})["threads"]
    assert threads == torch.get_num_threads()
    assert server({"do": "steps", "number": 2})["seconds"] > 0


def test_tables_have_times_ratios_and_marks() -> None:
    times = {cell: [3e-3] for cell in CELLS} | {BATCH: [6e-3]}
    row = {**size_row((1000, 100), times, [5e10, 5e10]), "eager": ["Student-t; ELBO"]}
    both = {"one": {"median": 2.0}, "unset": {"median": 1.0}}
    spread = asdict(Spread.of([0.5]))
    thread = {"n": 200, "m": 50, "cell": "Poisson; log loss", "ms": both, "ratio": spread}
    skipped = [{"n": 20000, "m": 500}]
    tables = all_tables({"evaluations": [row], "skipped": skipped, "threads": [thread]})
    lines = tables[""].splitlines()
    same = "3 (×3)"
    assert lines[2] == f"| n 1000, M 100; log loss | 1 | {' | '.join([same] * 5)} | – |"
    assert lines[3].startswith(f"| n 1000, M 100; ELBO | 1 | {same} | 3 (×3, eager) | {same} |")
    assert lines[3].endswith(f"| {same} |")
    assert lines[-1].endswith("takes seconds: n 20000, M 500.")
    assert "| n 1000, M 100 | 1 (1 to 1) | 1 (1 to 1) | 1 (1 to 1) |" in tables["likelihoods"]
    assert "| n 1000, M 100 | 3 | 6 | 2.5 (2.5 to 2.5) |" in tables["batches"]
    assert "| n 200, M 50; Poisson; log loss | 2 | 1 | 0.5 (0.5 to 0.5) |" in tables["threads"]
    assert set(all_tables({"evaluations": [row], "skipped": [], "threads": []})) == {
        "",
        "likelihoods",
        "batches",
    }


def test_a_cpu_skips_the_largest_size_unless_asked() -> None:
    cpu, gpu = parsed([]), parsed(["--device", "cuda", "--out", "evaluations_h200.json"])
    assert cpu.skipped == [(20000, 500)]
    assert (200, 500) not in gpu.sizes
    assert gpu.skipped == [] and set(gpu.sizes) == {*cpu.sizes, *cpu.skipped}
    assert cpu.out.name == "evaluations.json"
    assert gpu.out == Path("evaluations_h200.json")
    asked = parsed(["--sizes", "20000x500", "40x5"])
    assert asked.sizes == [(20000, 500), (40, 5)] and asked.skipped == []

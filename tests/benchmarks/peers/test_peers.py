"""The protocol between coordinator and libraries, ratios, exponents and tables."""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import linregress

from benchmarks.peers.__main__ import parsed
from benchmarks.peers.process import LibraryError, Process, check_interpreters, interpreters
from benchmarks.peers.rounds import (
    interleaved,
    prediction_times,
    step_times,
    steps_a_round,
    steps_of,
)
from benchmarks.peers.spread import Spread, exponent, ratios
from benchmarks.peers.tables import all_tables, write_tables
from directgp.errors import InvalidInputError

FAKE = "tests.benchmarks.peers.fake"


@pytest.fixture
def process() -> Iterator[Process]:
    with Process("directgp", sys.executable, FAKE) as running:
        yield running


def test_answers_come_back_whatever_libraries_print(process: Process) -> None:
    assert process.ask("chat", words="µ ≥ 0") == {"heard": "µ ≥ 0"}
    assert process.ask("chat", words="again") == {"heard": "again"}


def test_an_error_says_who_could_not_do_what_and_the_process_goes_on(process: Process) -> None:
    with pytest.raises(LibraryError, match=r"directgp could not do 'dance'[\s\S]*is unknown"):
        process.ask("dance")
    assert process.ask("steps", number=1) == {"seconds": 0.01}


def test_a_library_that_ends_is_told_with_its_last_words(process: Process) -> None:
    with pytest.raises(LibraryError, match=r"could not do 'die': It ended.\s+no more"):
        process.ask("die")


@pytest.mark.parametrize(("one_thread", "expected"), [(True, "1"), (False, None)])
def test_the_number_of_threads_is_one_or_unset(
    one_thread: bool, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with Process("directgp", sys.executable, FAKE, one_thread=one_thread) as process:
        assert process.ask("threads") == {"threads": expected}


def test_steps_fill_a_round(process: Process) -> None:
    take = steps_of(process)
    assert steps_a_round(take, 0.3) == 30
    assert steps_a_round(take, 1e-4) == 1
    assert steps_a_round(take, 1e6) == 2000


def test_times_are_per_step_and_per_row(process: Process) -> None:
    assert step_times({"a": process}, 3, 0.2)["a"] == pytest.approx([0.01] * 3)
    assert prediction_times({"a": process}, 2, 50)["a"] == pytest.approx([1e-5] * 2)


def test_missing_interpreters_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"must be for one of .* Got 'gpy'"):
        interpreters({"gpy": "python3"})
    pythons = {"GPyTorch": "/nowhere/python", "floor": sys.executable}
    check_interpreters(pythons, ["floor"])
    with pytest.raises(InvalidInputError, match=r"interpreter of GPyTorch .*--python gpytorch="):
        check_interpreters(pythons, ["floor", "GPyTorch"])


def test_interpreters_may_be_named_in_any_case() -> None:
    named = interpreters({"gpytorch": "python3"})
    assert named["GPyTorch"] == "python3"
    assert named["directgp"] == sys.executable
    assert named["GPflow"].endswith(".venv-peers/bin/python")


def test_quartiles_are_those_of_numpy() -> None:
    values = [3.0, 1.0, 2.0, 8.0, 5.0, 1.5]
    found = Spread.of(values)
    expected = np.quantile(values, [0.25, 0.5, 0.75])
    assert [found.low, found.median, found.high] == pytest.approx(expected)
    assert Spread.of([4.0]) == Spread(4.0, 4.0, 4.0)


def test_ratios_are_taken_within_rounds() -> None:
    # A machine that becomes three times slower leaves the ratio as it is.
    assert ratios([2.0, 6.0], [1.0, 3.0]) == Spread(2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="shorter"):
        ratios([1.0, 2.0], [1.0])


def test_exponents_and_their_errors_are_those_of_scipy() -> None:
    sizes, times = [1.0, 2.0, 4.0, 8.0], [1.1, 1.9, 4.4, 7.7]
    fit = linregress(np.log(sizes), np.log(times))
    found = exponent(sizes, times)
    assert (found.value, found.error) == pytest.approx((fit.slope, fit.stderr))
    assert exponent(sizes, [3 * s**1.5 for s in sizes]).value == pytest.approx(1.5)


def test_every_round_has_everyone_and_orders_differ() -> None:
    calls: list[str] = []

    def task(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    times = interleaved({name: partial(task, name) for name in "abc"}, 20)
    rounds = ["".join(calls[i : i + 3]) for i in range(0, 60, 3)]
    assert {"".join(sorted(r)) for r in rounds} == {"abc"}
    assert len(set(rounds)) > 3
    assert [len(t) for t in times.values()] == [20, 20, 20]


def spread(median: float) -> dict[str, float]:
    return {"median": median, "low": 0.9 * median, "high": 1.2 * median}


def results() -> dict[str, Any]:
    size = {"likelihood": "probit", "n": 2000, "d": 20, "m": 74}
    found = {"loss": 1.0, "difference": 2e-9, "departure": 0.0, "allowed": 1e-6}
    agreement = {"float64": found, "float32": {**found, "departure": -3e-5}}
    row = {
        "case": "S1",
        "objective": "log_loss",
        "size": size,
        "agreement": {"GPyTorch": agreement},
        "ms": {"directgp": spread(4.0), "GPyTorch": spread(20.0)},
        "ratio": {"floor": spread(0.5), "GPyTorch": spread(5.0)},
        "multiply_adds": {"products": 4e8, "least": 2e8},
        "memory": {"directgp": 12_000_000, "GPyTorch": 34_000_000, "floor": 1},
        "rows_per_second": {"directgp": spread(1234567.0)},
        "prediction_ratio": {"GPyTorch": spread(2.0)},
    }
    elbo = {key: row[key] for key in list(row)[:7]} | {"objective": "elbo"}
    fit = {"directgp": {"value": 1.0, "error": 0.04}}
    growth = [{"axis": "n", "sizes": [10, 20], "ms": {}, "exponent": fit}]
    return {"steps": [row, elbo], "growth": growth, "matmul_rate": 2e11}


def test_tables_say_ratios_with_their_spread() -> None:
    tables = all_tables(results())
    lines = tables[""].splitlines()
    assert lines[0] == "|  | directgp, ms | GPyTorch / directgp |"
    assert lines[1] == "|---|---:|---:|"
    label = "S1: probit, n 2000, d 20, M 74"
    assert lines[2] == f"| {label}; log loss | 4 (3.6 to 4.8) | 5 (4.5 to 6) |"
    assert lines[3].startswith(f"| {label}; ELBO |")
    # 4e8 multiply-adds in 4 ms are half of 2e11 a second; the floor takes half of our time.
    assert "| 2 (1.67 to 2.22) | 50 % | 25 % |" in tables["floor"]
    assert tables["memory"].splitlines()[2:] == [f"| {label} | 12 | 34 |"]
    assert "| 1,234,567 | 2 (1.8 to 2.4) |" in tables["prediction"]
    assert "| n = 10, 20 | 1.00 ± 0.04 |" in tables["growth"]
    assert "; log loss | GPyTorch | 2e-09 | 2e-09 | -3e-05 |" in tables["agreement"]


def test_tables_are_files_named_after_the_results(tmp_path: Path) -> None:
    write_tables(tmp_path / "tables", "steps_h200", {"": "a", "floor": "b"})
    written = {path.name: path.read_text() for path in (tmp_path / "tables").iterdir()}
    assert written == {"steps_h200.md": "a", "steps_h200_floor.md": "b"}


def test_a_gpu_has_larger_cases_and_fewer_libraries() -> None:
    cpu, gpu = parsed([]), parsed(["--device", "cuda"])
    assert cpu.cases == ["S1", "S2", "S3", "S4", "S5"]
    assert gpu.cases[-1] == "S8"
    assert gpu.names == ["directgp", "floor", "GPyTorch"]
    assert (cpu.rows, gpu.rows) == (10**5, 10**6)
    assert cpu.out.name == "steps.json"
    assert parsed(["--names", "GPflow"]).names == ["directgp", "floor", "GPflow"]

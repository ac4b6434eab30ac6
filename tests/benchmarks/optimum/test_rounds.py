"""Rounds of the time to the optimum, and their files."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.optimum import rounds as rounds_module
from benchmarks.optimum.descent import Descent, check_claim
from benchmarks.optimum.jobs import NAMES, Given, Kind, Parameters, Run, Settings
from benchmarks.optimum.problems import PROBLEMS, Problem, settings_of
from benchmarks.optimum.recorder import Recorder, batches, start
from benchmarks.optimum.reference import claim_at, objective_at
from benchmarks.optimum.rounds import Limits, ProblemRounds, Round, ratio, time_text
from benchmarks.optimum.selection import Choice
from benchmarks.optimum.tables import markdown, optimum_rows, selection_rows
from tests.benchmarks.optimum.problem import moved, small


def descent(library: str, seconds: Sequence[float], objectives: Sequence[float]) -> Descent:
    values = np.array(seconds), np.array(objectives)
    return Descent(library, Settings(9.0), *values, steps=7, total=float(seconds[-1]), end={})


def meeting(*descents: Descent) -> Round:
    return Round(Problem("pol", "log_loss"), 0, 100, list(descents))


OURS = descent("directgp", [1.0, 2.0, 3.0], [5.0, 1.0004, 1.0])


def test_the_target_is_a_thousandth_above_the_best_of_anyone() -> None:
    found = meeting(OURS, descent("gpytorch", [10.0, 40.0], [1.2, 0.9996]))
    assert found.target == pytest.approx(1.0006)
    assert found.seconds("directgp") == (2.0, True)
    assert found.seconds("gpytorch") == (40.0, True)
    assert ratio([found], "gpytorch") == "20"
    again = meeting(OURS, descent("gpytorch", [10.0, 60.0], [1.2, 0.9996]))
    assert ratio([found, again], "gpytorch") == "25 (20 to 30)"


def test_a_ratio_is_a_bound_where_one_did_not_get_there() -> None:
    late = meeting(OURS, descent("gpytorch", [10.0, 40.0], [1.2, 1.1]))
    assert ratio([late], "gpytorch") == "≥ 20"
    assert time_text([late], "gpytorch") == "not within 40 s; gap 0.1"
    lost = meeting(OURS, descent("gpytorch", [10.0, 40.0], [1.2, 0.5]))
    assert ratio([lost], "gpytorch").startswith("≤ 13")
    assert ratio([late, lost], "gpytorch").startswith("? ")
    assert ratio([late], "gpjax") == "–"


def test_a_table_has_a_row_a_problem() -> None:
    found = meeting(OURS, descent("gpytorch", [10.0, 40.0], [1.2, 0.9996]))
    rows = optimum_rows([[found]], ["directgp", "gpytorch"])
    assert markdown(rows).splitlines()[-1] == (
        "| pol, n = 100 | log loss, β = 1 | 2 s | 40 s | 20 |"
    )


def test_a_table_of_choices_compares_within_each_round() -> None:
    mine = Choice("directgp", 2.0, 15, [1.0], [0.5], 0, 0.1)
    other = replace(mine, library="gpytorch", seconds=50.0, finished=3)
    again = replace(other, seconds=90.0)
    rows = selection_rows({("pol", 0): [mine, other], ("pol", 1): [mine, again]})
    assert [row["time / ours"] for row in rows] == ["1", "25 to 45"]
    assert rows[1]["seconds"] == "50; 90 (3 fits, the rest in proportion)"


def recorded(claimed: float, trace: float | None = None) -> Run:
    given = small("regression", "log_loss")
    recorder = Recorder(Settings(1.0), lambda: moved(given))
    return recorder.run(claimed, None if trace is None else np.array([[1.0, trace]]))


def test_a_library_with_another_objective_is_refused() -> None:
    given = small("regression", "log_loss")
    extra = float(moved(given)["jitter"])
    right = claim_at(given, moved(given), 0.0, extra)
    check_claim("gpytorch", given, Settings(1.0), recorded(right))
    check_claim("directgp", given, Settings(1.0), recorded(objective_at(given, moved(given)), 1.0))
    with pytest.raises(ValueError, match="gpytorch must be"):
        check_claim("gpytorch", given, Settings(1.0), recorded(right + 1e-5))


def test_ways_to_train() -> None:
    elbo = [problem for problem in PROBLEMS if problem.objective == "elbo"]
    assert len(elbo) == 3 and len(PROBLEMS) == 9
    assert len(settings_of("gpytorch", PROBLEMS[0], 1.0, 0)) == 8
    assert settings_of("gpjax", PROBLEMS[0], 1.0, 0) == []
    assert any(way.natural for way in settings_of("gpflow", elbo[0], 1.0, 0))


def test_limits_are_bounded() -> None:
    limits = Limits(screening=1.0, patience=10.0, least=3.0, most=20.0)
    assert limits.screening_seconds(1.0) == 3.0
    assert limits.patient_seconds(1.0) == 10.0 and limits.patient_seconds(9.0) == 20.0


def test_only_the_best_way_is_given_longer() -> None:
    limits = Limits(screening=0.4, patience=6.0, most=20.0, longer=200.0)
    assert limits.patient_seconds(1.0) == limits.patient_seconds(9.0) == 200.0
    assert limits.screening_seconds(10.0) == 4.0 and limits.screening_seconds(99.0) == 20.0
    assert limits.patient_seconds(1.0) < replace(limits, longer=300.0).patient_seconds(1.0)


def test_the_best_way_of_the_screening_is_carried_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, list[Settings]]] = []

    def fake(
        library: str, python: Path, given: Given, ways: Sequence[Settings], folder: Path
    ) -> list[Descent]:
        ran.append((library, list(ways)))
        best = [1.0 if way.rate == 0.1 and way.batch_size == 1024 else 2.0 for way in ways]
        return [
            replace(descent(library, [1.0, 5.0], [9.0, value]), settings=way)
            for way, value in zip(ways, best, strict=True)
        ]

    given = small("regression", "log_loss")
    monkeypatch.setattr(rounds_module, "run", fake)
    monkeypatch.setattr(rounds_module, "parts_of", lambda *_: SimpleNamespace(training=None))
    monkeypatch.setattr(rounds_module, "given_of", lambda *_: given)
    pythons = {"directgp": Path("a"), "gpytorch": Path("b")}
    problem = ProblemRounds(PROBLEMS[0], pythons, Limits(0.8, 6.0, most=20.0, longer=200.0))
    for seed in (3, 4):
        problem.round(Path("data"), seed)
    assert [name for name, _ in ran] == ["directgp", "gpytorch", "gpytorch", "directgp", "gpytorch"]
    screened, *carried_on = [ways for name, ways in ran if name == "gpytorch"]
    assert len(screened) == 8 and {way.seconds for way in screened} == {4.0}
    for seed, ways in zip((3, 4), carried_on, strict=True):
        (way,) = ways
        assert (way.rate, way.batch_size, way.seconds, way.seed) == (0.1, 1024, 200.0, seed)


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_what_is_given_is_read_as_it_was_written(kind: Kind, tmp_path: Path) -> None:
    given = small(kind, "elbo")
    given.save(tmp_path / "given.npz")
    found = Given.load(tmp_path / "given.npz")
    assert (found.kind, found.objective, found.mean) == (kind, "elbo", given.mean)
    np.testing.assert_array_equal(found.X, given.X)


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    given = small("counts", "log_loss")
    recorder = Recorder(Settings(1.0), lambda: start(given))
    recorder.keep()
    recorder.look = lambda: moved(given)
    recorder.run(1.5).save(tmp_path / "run.npz")
    run = Run.load(tmp_path / "run.npz")
    assert run.claimed == 1.5 and len(run.trace) == 0 and len(run.seconds) == 2
    for name in NAMES:
        np.testing.assert_array_equal(run.at(1)[name], moved(given)[name])


def test_looking_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "process_time", lambda: now[0])

    def look() -> Parameters:
        now[0] += 10.0
        return start(small("counts", "elbo"))

    recorder = Recorder(Settings(100.0), look)
    now[0] += 1.0
    recorder.keep()
    now[0] += 2.0
    assert recorder.seconds == 3.0
    run = recorder.run(0.0)
    assert run.seconds.tolist() == [1.0, 3.0] and run.total == 3.0


def test_looks_are_further_apart_as_time_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "process_time", lambda: now[0])
    recorder = Recorder(Settings(100.0), lambda: start(small("counts", "elbo")))
    while not recorder.step():
        now[0] += 0.01
    looks = recorder.run(0.0).seconds
    assert 50 < len(looks) < 70
    assert (looks[1:-1] / looks[:-2]).max() < 1.4


def test_a_run_ends_by_steps_or_once_settled() -> None:
    three = Recorder(Settings(100.0, steps=3))
    assert [three.step() for _ in range(3)] == [False, False, True]
    settled = Recorder(Settings(100.0, window=2))
    assert [settled.step(loss) for loss in (3.0, 2.0, 1.99995)] == [False, False, True]


def test_an_epoch_has_every_row_once() -> None:
    rows = batches(10, 4, seed=0)
    epoch = [np.arange(10)[next(rows)] for _ in range(3)]
    assert sorted(np.concatenate(epoch)) == list(range(10))
    assert next(batches(10, None, 0)) == slice(None)

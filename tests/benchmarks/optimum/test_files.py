import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.optimum.jobs import NAMES, Given, Kind, Parameters, Run, Settings
from benchmarks.optimum.recorder import Recorder, batches, start
from tests.benchmarks.optimum.problem import moved, small


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

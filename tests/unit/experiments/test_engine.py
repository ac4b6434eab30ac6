"""The engine, with a client that only takes notes and workers that are killed."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from directgp.errors import InvalidInputError, StoreError
from directgp.experiments.engine import Engine
from directgp.experiments.workers import (
    Activity,
    Call,
    InProcess,
    OpenPool,
    Pool,
    Processes,
    Refused,
    Shared,
    deaf_to_ctrl_c,
    hearing_ctrl_c,
    local,
)
from directgp.training.result import Progress


@dataclass(frozen=True)
class Number:
    """A job: a number to be doubled."""

    value: int

    @property
    def key(self) -> str:
        return str(self.value)


JOBS = [Number(value) for value in range(4)]


def doubled(value: int, factor: int, monitors: Sequence[Any]) -> int:
    assert len(monitors) == 1
    return factor * value


@dataclass
class Notes:
    """A client whose jobs are all ready."""

    results: list[tuple[Number, Any]] = field(default_factory=list)
    looks: int = 0

    def known(self, job: Number) -> bool:
        return False

    def ready(self, job: Number) -> bool:
        return True

    def obstacle(self, job: Number) -> str | None:
        return None

    def call(self, job: Number) -> Call:
        return doubled, (job.value, Shared(2))

    def finished(self, job: Number, result: Any) -> None:
        self.results.append((job, result))

    def looking(self, active: Sequence[Activity]) -> None:
        self.looks += 1


@pytest.mark.parametrize("pool", [InProcess(), Processes(1)])
def test_every_job_is_run_once(pool: Pool) -> None:
    notes = Notes()
    Engine(notes, pool).run(JOBS)
    assert sorted(notes.results, key=lambda each: each[0].value) == [
        (job, 2 * job.value) for job in JOBS
    ]


def test_pools_by_number() -> None:
    assert local(0) == InProcess() and local(3) == Processes(3)
    with pytest.raises(InvalidInputError, match=r"workers must be at least 1\. Got 0\."):
        Processes(0)


class Elsewhere(Notes):
    """Some jobs are finished by somebody else, and one waits for that."""

    def known(self, job: Number) -> bool:
        return self.looks > 1 and job == JOBS[0]

    def ready(self, job: Number) -> bool:
        return job != JOBS[0] and (job != JOBS[1] or self.looks > 2)


def test_what_is_not_ready_is_waited_for_without_spinning(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    notes = Elsewhere()
    Engine(notes, InProcess()).run(JOBS)
    assert [job for job, _ in notes.results] == [JOBS[2], JOBS[3], JOBS[1]]
    assert len(slept) == notes.looks - len(notes.results) > 0


class Missing(Notes):
    """The arguments of one job cannot be had."""

    error: Exception

    def call(self, job: Number) -> Call:
        if job == JOBS[1]:
            raise self.error
        return super().call(job)


def test_a_job_whose_arguments_cannot_be_had_is_refused_alone() -> None:
    notes = Missing()
    notes.error = InvalidInputError("No such data.")
    Engine(notes, InProcess()).run(JOBS)
    assert [result for _, result in notes.results] == [0, Refused("No such data."), 4, 6]


def test_a_broken_store_ends_it_all() -> None:
    notes = Missing()
    notes.error = StoreError("Damaged.")
    with pytest.raises(StoreError):
        Engine(notes, InProcess()).run(JOBS)


@dataclass
class Breaking(Pool, OpenPool):
    """Workers that are lost with one of the jobs, as it begins or as it is submitted."""

    bad: int
    at_submit: bool
    opened: list[int]
    size: int = 2
    broken: bool = False

    @contextmanager
    def open(self) -> Iterator[OpenPool]:
        self.opened.append(self.size)
        yield self

    def after_a_loss(self) -> Pool:
        return Breaking(self.bad, self.at_submit, self.opened, 1)

    def places(self) -> int:
        return self.size

    def activities(self) -> list[Activity]:
        return []

    def submit(self, number: int, call: Call) -> Future[Any]:
        future: Future[Any] = Future()
        self.broken = self.broken or number == self.bad
        if number == self.bad and self.at_submit:
            raise BrokenProcessPool
        if self.broken:
            future.set_exception(BrokenProcessPool())
        else:
            future.set_result("ran")
        return future


@pytest.mark.parametrize("at_submit", [False, True])
def test_a_job_that_kills_its_worker_is_tried_twice(at_submit: bool) -> None:
    opened: list[int] = []
    notes = Notes()
    Engine(notes, Breaking(1, at_submit, opened)).run(JOBS)
    told = {job.key: result for job, result in notes.results}
    assert len(notes.results) == len(JOBS) == len(told)
    killed = Refused("Its process was ended by the system twice, perhaps for lack of memory.")
    assert told.pop("1") == killed
    assert set(told.values()) == {"ran"}
    # After the first loss one at a time.
    assert opened[0] == 2 and set(opened[1:]) == {1}


def test_after_a_loss_processes_go_on_one_at_a_time() -> None:
    assert Processes(7).after_a_loss() == Processes(1)


def test_workers_do_not_hear_ctrl_c_from_their_first_moment() -> None:
    code = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    command = [sys.executable, "-c", code]
    with deaf_to_ctrl_c():
        within = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    after = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert (within, after) == ("True\n", "False\n")


def on_how_many_threads(monitors: Sequence[Any]) -> int:
    return torch.get_num_threads()


def test_this_process_works_on_one_thread_as_others_do_and_only_then() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with InProcess().open() as pool:
            assert pool.submit(0, (on_how_many_threads, ())).result() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def swallowing(steps: list[int], monitors: Sequence[Any]) -> str:
    """A training that takes Ctrl-C for a wish to end early, as ours do."""
    try:
        for step in range(1, 10):
            steps.append(step)
            if step == 2:
                signal.raise_signal(signal.SIGINT)
            monitors[0](Progress("elbo", step, 10, step, 0.0, 0.0, 0.0))
            time.sleep(0.3)
    except KeyboardInterrupt:
        pass
    return "cut short"


def test_ctrl_c_in_this_process_leaves_no_result_of_a_training_that_was_cut_short() -> None:
    steps: list[int] = []
    with InProcess().open() as pool, pytest.raises(KeyboardInterrupt):
        pool.submit(0, (swallowing, (steps,)))
    assert steps == [1, 2]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_who_presses_ctrl_c_twice_does_not_wait() -> None:
    with pytest.raises(KeyboardInterrupt), hearing_ctrl_c() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("not reached")


def test_ctrl_c_during_work_that_never_looks_up_is_raised_at_its_end() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), hearing_ctrl_c():
        signal.raise_signal(signal.SIGINT)
        reached.append("end")
    assert reached == ["end"]

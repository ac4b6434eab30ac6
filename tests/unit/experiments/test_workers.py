"""Workers: statuses, threads and interrupts."""

import multiprocessing
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch

from directgp.errors import InvalidInputError
from directgp.experiments.workers import (
    Call,
    InProcess,
    LocalWorkers,
    StatusMonitor,
    StoppedError,
    WorkerStatus,
    defer_interrupt,
    read_statuses,
    status_slots,
    write_status,
)
from directgp.processes import block_interrupt
from directgp.training.result import Progress


def test_there_is_at_least_one_process() -> None:
    with pytest.raises(InvalidInputError, match=r"workers must be at least 1\. Got 0\."):
        LocalWorkers(0)


def test_after_a_loss_there_is_one_worker() -> None:
    assert LocalWorkers(7).after_loss() == LocalWorkers(1)


def doubled(value: int, factor: int, model: bytes, monitors: Sequence[Any]) -> int:
    assert len(monitors) == 1 and model == b""
    return factor * value


def increased(cell: int, problem: int) -> int:
    return problem + 1


def test_a_job_receives_its_rows() -> None:
    """In this process; `directgp compare --jobs 2` tests those of others."""
    with InProcess().open() as workers:
        calls = [Call(doubled, n, increased, 1) for n in range(3)]
        futures = [workers.submit(n, call) for n, call in enumerate(calls)]
        assert [future.result() for future in futures] == [0, 2, 4]


def test_the_status_table_has_steps_and_runs() -> None:
    slots = status_slots(2)
    publish = partial(write_status, slots, 1)
    monitor = StatusMonitor(5, publish, lambda: False)
    for run in (1, 2):
        monitor.reset()
        monitor(Progress("elbo", 3, 10, 4, 0.25, 0.1, 1.0))
        assert read_statuses(slots) == [WorkerStatus(5, run, 3, 10, 0.25)]
    publish(None)
    assert read_statuses(slots) == []


def test_ctrl_c_is_blocked_in_workers_from_their_start() -> None:
    code = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    command = [sys.executable, "-c", code]
    with block_interrupt():
        within = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    after = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert (within, after) == ("True\n", "False\n")


def on_how_many_threads(*_: Any, **__: Any) -> int:
    return torch.get_num_threads()


def test_this_process_works_on_one_thread_as_others_do_and_only_then(two_threads: None) -> None:
    with InProcess().open() as pool:
        assert pool.submit(0, Call(on_how_many_threads, 0, increased, 0)).result() == 1
    assert torch.get_num_threads() == 2


def swallowing(steps: list[int], _: int, __: bytes, monitors: Sequence[Any]) -> str:
    """A training that ends early on Ctrl-C, as ours do."""
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
        pool.submit(0, Call(swallowing, steps, increased, 0))
    assert steps == [1, 2]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def training(cell: int, _: int, __: bytes, monitors: Sequence[Any]) -> None:
    """Train for a minute, and check at every step whether to stop."""
    for step in range(1, 601):
        monitors[0](Progress("elbo", step, 600, step, 0.0, 0.0, 0.0))
        time.sleep(0.1)


def test_a_job_in_this_process_stops_at_the_deadline() -> None:
    began = time.monotonic()
    with InProcess().open(began + 0.3) as pool:
        future = pool.submit(0, Call(training, 0, increased, 0))
    assert isinstance(future.exception(), StoppedError)
    assert time.monotonic() - began < 30


def asleep(*_: Any, **__: Any) -> None:
    time.sleep(60)


def test_ctrl_c_while_workers_are_awaited_ends_them() -> None:
    before = set(multiprocessing.active_children())
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(1.0, signal.pthread_kill, (main, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), LocalWorkers(1).open() as pool:
        pool.submit(0, Call(asleep, 0, increased, 0))
        (worker,) = set(multiprocessing.active_children()) - before
        # The start of the worker takes long on a busy machine.
        began = time.monotonic()
        timer.start()
    worker.join(10)
    # A worker that ends by itself has 1. Python gives 255 when the thread of the executor reads
    # the exit code at the same time: the fork server sends it once.
    assert worker.exitcode in (-signal.SIGKILL, 255)
    assert time.monotonic() - began < 30


def test_who_presses_ctrl_c_twice_does_not_wait() -> None:
    with pytest.raises(KeyboardInterrupt), defer_interrupt() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("not reached")


def test_ctrl_c_during_work_that_never_looks_up_is_raised_at_its_end() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), defer_interrupt():
        signal.raise_signal(signal.SIGINT)
        reached.append("end")
    assert reached == ["end"]

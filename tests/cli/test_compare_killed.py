"""`directgp compare` killed at random times and resumed gives the results of an unbroken run."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow.parquet
import pytest

from tests.cli.running import regression_table, write_csv

QUICK = (
    *("--target", "y", "--drop", "code", "--repeats", "2", "--jobs", "2", "--betas", "4,1,0.25"),
    *("--inducing", "8", "--max-iter", "40", "--methods", "elbo,log-joint,log-fixed,square-fixed"),
)


def start(table: Path, out: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "directgp", "compare", str(table), *QUICK, "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*words, "--resume", "--quiet"], env=environment)


def results(out: Path) -> list[dict[str, object]]:
    table = pyarrow.parquet.read_table(out / "results.parquet")
    return [{**row, "seconds": None} for row in table.to_pylist()]


def processes_of(program: subprocess.Popen[bytes] | subprocess.Popen[str]) -> list[int]:
    """All processes that a running program has started, and those that they have started."""
    return [process.pid for process in psutil.Process(program.pid).children(recursive=True)]


@pytest.mark.slow
def test_killed_ten_times(tmp_path: Path) -> None:
    table = write_csv(regression_table(), tmp_path / "table.csv")
    assert start(table, tmp_path / "unbroken").wait() == 0
    chance = random.Random(0)
    kills = 0
    while kills < 10:
        process = start(table, tmp_path / "broken")
        try:
            process.wait(chance.uniform(0.5, 12))
        except subprocess.TimeoutExpired:
            started = processes_of(process)
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            gone(started)
        else:
            # Finished before its time: begin anew, so that every kill meets a run at work.
            assert results(tmp_path / "broken") == results(tmp_path / "unbroken")
            shutil.rmtree(tmp_path / "broken")
    assert start(table, tmp_path / "broken").wait() == 0
    assert results(tmp_path / "broken") == results(tmp_path / "unbroken")


def gone(processes: list[int]) -> None:
    """Nobody works on for a run that was killed."""
    until = time.monotonic() + 60
    while any(map(psutil.pid_exists, processes)):
        assert time.monotonic() < until, "a worker outlived the run it worked for"
        time.sleep(0.2)


@pytest.mark.slow
def test_a_worker_with_nothing_to_do_ends_too(tmp_path: Path) -> None:
    words = ["compare", "friedman1", "--methods", "mean,elbo", "--repeats", "1", "--jobs", "2"]
    command = [sys.executable, "-m", "directgp", *words, "--out", str(tmp_path / "out")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        # The first of two fits is done: its worker waits, the other is at work.
        assert any(line.startswith("[1/2]") for line in process.stderr)
        started = processes_of(process)
        process.send_signal(signal.SIGKILL)
    assert len(started) == 4, "two workers, their server and the tracker of their resources"
    gone(started)

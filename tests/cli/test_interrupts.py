"""Ctrl-C at any time: no traceback, the exit code of an interrupt, and no wait."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from directgp import processes
from tests.cli.running import regression_table, write_csv


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "directgp", *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("module", "code"), [("directgp.registry", -signal.SIGINT), ("torch", 130)]
)
def test_an_interrupt_while_modules_are_imported(tmp_path: Path, module: str, code: int) -> None:
    """Before the program itself runs, it dies by the signal, which a shell calls 130, too."""
    write_csv(regression_table(), tmp_path / "table.csv")
    words = ("compare", "table.csv", "--target", "y", "--drop", "code", "--out", "out")
    with started(tmp_path, *words) as process:
        assert process.stderr is not None
        # Python prints the name of a module as soon as it has been imported.
        assert any(line.rstrip().endswith(f" {module}") for line in process.stderr)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        text = process.stderr.read()
        assert process.wait() == code
    assert "Traceback" not in text and text.endswith("Interrupted.\n") == (code == 130)
    assert time.monotonic() - began < 5
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


def test_an_interrupt_outside_of_imports_is_an_exception() -> None:
    with pytest.raises(KeyboardInterrupt):
        processes.interrupt(signal.SIGINT, None)


def test_an_interrupt_at_the_very_end_prints_nothing() -> None:
    code = (
        "import atexit, os, signal, sys\n"
        # Programs in the background of a shell are started with SIGINT ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "from directgp.cli.main import main\n"
        "sys.argv = ['directgp', '--version']\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")

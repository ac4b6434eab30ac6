"""Files of earlier versions load and give the answers that they gave: the tests of tests/frozen."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from campaign.trials import HELD, Trial

ROOT = Path(__file__).parent.parent
TESTS = "tests/frozen/test_files.py"


@cache
def _names() -> list[str]:
    """The tests, one for each file and question."""
    listed = _pytest("--collect-only", TESTS).stdout.splitlines()
    return sorted(line for line in listed if "::" in line)


def attack(number: int) -> Trial:
    names = _names()
    if number >= len(names):
        return Trial("no file", HELD)
    done = _pytest(names[number])
    kind = names[number].split("::")[1].split("[")[0]
    last = (done.stdout.strip().splitlines() or [""])[-1]
    return Trial(
        kind, HELD if done.returncode == 0 else "difference", "" if not done.returncode else last
    )


def _pytest(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )

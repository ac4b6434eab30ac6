"""Files of earlier versions load and give the answers that they gave: the tests of tests/frozen."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from campaign.trials import HELD, Trial

ROOT = Path(__file__).parent.parent
TESTS = ("tests/frozen/test_files.py", "tests/frozen/test_reports.py")


@cache
def _names() -> list[str]:
    """The tests, one for each file and question."""
    listed = _pytest("--collect-only", *TESTS).stdout.splitlines()
    return sorted(line for line in listed if "::" in line)


def count() -> int:
    """Return the number of trials."""
    return len(_names())


def attack(number: int) -> Trial:
    name = _names()[number]
    done = _pytest(name)
    kind = name.split("::")[1].split("[")[0]
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

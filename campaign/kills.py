"""Programs killed at random moments, and run again: the results are those of an unbroken run.

Of each kill: the phase that it hit, and the seconds of work that were lost. Afterwards no process
and no draft of a file may be left. Needs Linux, for `/proc`.
"""

import hashlib
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from campaign.trials import HELD, Trial

PHASES = ("before", "running", "report", "after")
"""Before anything is written, while results are, while the report is, and after the end."""

SUMS = ("lost", *PHASES)

ROOT = Path(__file__).parents[1]
LEFT = re.compile(r".*\.(tmp|old)|.*-journal|\.directgp\..*")
"""Names of files that a finished program does not leave behind."""

_HANG = 130.0
"""Seconds in which a program has to end."""


@dataclass(frozen=True)
class Program:
    """A command that writes to the folder `out`, and what is compared of it."""

    words: tuple[str, ...]
    """Words of the command line, without `out`."""

    results: Callable[[Path], Any]
    """Returns what is compared of a folder."""

    again: tuple[str, ...] = ()
    """Words that are added when it is run again."""

    store: str = ""
    """The file in `out` that has the results while it runs."""

    last: str = ""
    """The file in `out` that is written last."""

    signals: tuple[str, ...] = ("KILL", "TERM", "INT")
    """Signals that end the program."""

    ending: float = 30.0
    """Seconds in which its other processes have to end after it."""


def _compared(out: Path) -> Any:
    import pyarrow.parquet

    rows = pyarrow.parquet.read_table(out / "results.parquet").to_pylist()
    document = json.loads((out / "report.json").read_bytes())
    compared = [{**row, "seconds": 0} for row in rows], document["failed"], document["damaged"]
    # As text, since NaN is not equal to itself.
    return repr(compared)


def _reproduced(out: Path) -> Any:
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(out / "results.parquet")
    rows = table.drop_columns(["seconds", "finished", "outcome"]).to_pylist()
    cells = json.loads((out / "verdicts.json").read_bytes())["cells"]
    return repr((sorted(rows, key=lambda row: str(row["key"])), cells))


def _fitted(out: Path) -> Any:
    data = (out / "model.safetensors").read_bytes()
    # The header has the seconds that the training took.
    numbers = data[8 + int.from_bytes(data[:8], "little") :]
    return sorted(os.listdir(out)), hashlib.sha256(numbers).hexdigest()


def _trained(out: Path) -> Any:
    return json.loads((out / "result.json").read_bytes())


_POOL = ("KILL", "TERM", "INT", "worker", "group")
_COMPARE = (
    *("-m", "directgp", "compare", "table.csv", "--target", "y", "--repeats", "2", "--jobs", "2"),
    *("--betas", "4,1", "--inducing", "8", "--max-iter", "60", "--likelihood", "gaussian"),
    *("--methods", "elbo,log-fixed,log-joint,mean", "--kernel", "rbf", "--ard", "--out", "out"),
    *("--resume", "--quiet"),
)
_REPRODUCE = (
    *("-m", "directgp", "reproduce", "--claim", "C5", "--dataset", "banana", "--data-dir", "."),
    *("--no-download", "--max-steps", "20", "--repeats", "2", "--largest-only", "--out", "out"),
    *("--jobs", "2", "--resume", "--quiet"),
)
_FIT = (
    *("-m", "directgp", "fit", "table.csv", "--target", "y", "--max-iter", "60", "--inducing", "8"),
    *("--likelihood", "gaussian", "--kernel", "rbf", "--out", "out", "--quiet"),
)

PROGRAMS = {
    "compare": Program(_COMPARE, _compared, (), "fits.sqlite", "index.html", _POOL),
    "reproduce": Program(_REPRODUCE, _reproduced, (), "cells.sqlite", "index.html", _POOL),
    "ray": Program(
        *((*_REPRODUCE, "--engine", "ray"), _reproduced, (), "cells.sqlite", "index.html", _POOL),
        # Ray's agents look after their parent once a minute.
        ending=120.0,
    ),
    "fit": Program(_FIT, _fitted, ("--force",)),
    "fit --force": Program((*_FIT, "--force"), _fitted),
    "train": Program(
        ("-m", "campaign.training", "train"), _trained, (), "run.checkpoint", "result.json"
    ),
    "stream": Program(
        ("-m", "campaign.training", "stream"), _trained, (), "run.checkpoint", "result.json"
    ),
}


def prepare(folder: Path) -> None:
    """Write the tables that the programs read."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    random = np.random.default_rng(0)
    X = random.normal(size=(200, 2))
    y = np.sin(2 * X[:, 0]) + 0.1 * random.normal(size=200)
    table = pa.table({"a": X[:, 0], "b": X[:, 1], "y": y})
    pyarrow.csv.write_csv(table.slice(0, 60), folder / "table.csv")
    classes = pa.table({"a": X[:, 0], "b": X[:, 1], "y": (y > 0).astype(float)})
    pyarrow.parquet.write_table(classes, folder / "banana.parquet")
    (folder / "rows").mkdir()
    pyarrow.parquet.write_table(table, folder / "rows" / "part.parquet")


def enable_interrupt() -> None:
    """Restore Ctrl-C, which a shell turns off in what it runs in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(
    program: Program, folder: Path, more: Sequence[str] = (), **settings: Any
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, so that its processes can be found."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    environment.pop("DIRECTGP_DATA", None)
    words = [sys.executable, *program.words, *more]
    options: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    options |= {"start_new_session": True, "preexec_fn": enable_interrupt, **settings}
    process: subprocess.Popen[bytes] = subprocess.Popen(
        words, cwd=folder, env=environment, **options
    )
    return process


def processes(session: int) -> dict[int, tuple[int, str]]:
    """Return parent and command of the living processes of a session."""
    living = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] != "Z":
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    living[int(entry.name)] = int(fields[1]), command
    return living


def all_ended(session: int, seconds: float) -> bool:
    """Wait until a session has no processes; end those that stay, and return False."""
    until = time.monotonic() + seconds
    while left := processes(session):
        if time.monotonic() > until:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return False
        time.sleep(0.05)
    return True


def finished(process: subprocess.Popen[bytes]) -> tuple[int | None, str, int]:
    """Return exit code, standard error and session of a program; None if it does not end."""
    try:
        _, said = process.communicate(timeout=_HANG)
    except subprocess.TimeoutExpired:
        for pid in processes(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        return None, "", process.pid
    return process.returncode, said.decode(errors="replace"), process.pid


@cache
def reference(name: str) -> tuple[Any, float]:
    """Return the results of an unbroken run, and the seconds that it took."""
    folder = Path(tempfile.mkdtemp(prefix="directgp-kills-"))
    try:
        prepare(folder)
        began = time.monotonic()
        code, text, _ = finished(start(PROGRAMS[name], folder))
        if code != 0:
            raise RuntimeError(f"{name} alone ends with {code}: {text[-500:]}")
        took = time.monotonic() - began
        return PROGRAMS[name].results(folder / "out"), took
    finally:
        shutil.rmtree(folder)


def wait_for_moment(
    chance: random.Random, program: Program, folder: Path, took: float, ended: Callable[[], bool]
) -> None:
    """Wait for a random moment: of the whole time, or soon after the program has written."""
    out = folder / "out"
    name = chance.choice(["", "", program.store, "figures" if "worker" in program.signals else ""])
    until = time.monotonic() + (3 * took if name else chance.uniform(0, took))
    while time.monotonic() < until and not ended():
        if name and (out / name).exists():
            time.sleep(chance.uniform(0, 0.2 if name == "figures" else 0.1 * took))
            return
        time.sleep(0.002)


def phase_of(program: Program, folder: Path, ended: bool) -> str:
    out = folder / "out"
    if ended:
        return "after"
    if not program.store:
        return "running"
    if (out / "figures").exists() or (out / program.last).exists():
        return "report"
    return "running" if (out / program.store).is_file() else "before"


def workers(session: int) -> list[int]:
    """Return the workers of a program: forked from its server, or at work in Ray."""
    family = processes(session)
    servers = {pid for pid, (_, command) in family.items() if "forkserver" in command}
    return [
        pid
        for pid, (parent, command) in family.items()
        if parent in servers or command.startswith("ray::run_ray_job")
    ]


def hit(process: subprocess.Popen[bytes], how: str, chance: random.Random) -> str:
    """Kill the program, one of its workers, or all its processes; return what was killed."""
    if how == "group":
        os.killpg(process.pid, signal.SIGKILL)
    elif how == "worker":
        pids = workers(process.pid)
        if not pids:
            process.send_signal(signal.SIGKILL)
            return "KILL"
        with suppress(ProcessLookupError):
            os.kill(chance.choice(pids), signal.SIGKILL)
    else:
        process.send_signal(signal.Signals[f"SIG{how}"])
    return how


_CODES = {"KILL": {-9}, "group": {-9}, "TERM": {-15}, "INT": {130, -2}, "worker": {0}}
"""Exit codes of a program that was hit; 0 is allowed, too, if it had begun to write."""


def left_behind(folder: Path) -> list[str]:
    return [
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if LEFT.fullmatch(path.name)
    ]


def age_drafts(folder: Path) -> None:
    """Make the drafts two minutes old: younger ones are not removed."""
    for path in folder.rglob(".*.tmp"):
        before = time.time() - 120
        os.utime(path, (before, before))


def attack(number: int) -> Trial:
    """Kill one program once, run it again, and compare."""
    chance = random.Random(number)
    names = [name for name in PROGRAMS if name != "ray"]
    if importlib.util.find_spec("ray") is not None and number % 20 == 19:
        names = ["ray"]
    name = chance.choice(names)
    program, how = PROGRAMS[name], chance.choice(PROGRAMS[name].signals)
    expected, took = reference(name)
    folder = Path(tempfile.mkdtemp(prefix="directgp-kills-"))
    try:
        prepare(folder)
        if name == "fit --force":
            finished(start(PROGRAMS["fit"], folder, ("--seed", "1")))
        process = start(program, folder)
        began = time.time()
        wait_for_moment(chance, program, folder, took, lambda: process.poll() is not None)
        while how == "worker" and process.poll() is None and not workers(process.pid):
            time.sleep(0.05)
        phase = phase_of(program, folder, process.poll() is not None)
        lost = time.time() - _last_kept(program, folder, began)
        if phase != "after":
            how = hit(process, how, chance)
        kind = f"{name}, {how}"
        facts = {"lost": 0.0 if phase == "after" or how == "worker" else lost, phase: 1}
        code, text, _ = finished(process)
        if code is None:
            return Trial(kind, "hang", f"{phase}: still there after {_HANG:.0f} s", facts)
        if "Traceback" in text or "unexpectedly" in text:
            return Trial(kind, "traceback", f"{phase}: {text[-300:]!r}", facts)
        if code not in (_CODES[how] if phase == "before" else _CODES[how] | {0}):
            return Trial(kind, "difference", f"{phase}: exit {code} {text[-300:]}", facts)
        if not all_ended(process.pid, program.ending):
            return Trial(kind, "left behind", f"{phase}: processes", facts)
        age_drafts(folder)
        code, text, again = finished(start(program, folder, program.again))
        if code != 0:
            return Trial(kind, "difference", f"{phase}: again: exit {code} {text[-300:]}", facts)
        if program.results(folder / "out") != expected:
            return Trial(kind, "difference", f"{phase}: other results", facts)
        left = left_behind(folder)
        if left or not all_ended(again, program.ending):
            return Trial(kind, "left behind", f"{phase}: {left or 'processes'}", facts)
        return Trial(kind, HELD, facts=facts)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _last_kept(program: Program, folder: Path, began: float) -> float:
    """Return the time at which the program last kept results."""
    try:
        return max(began, (folder / "out" / program.store).stat().st_mtime)
    except OSError:
        return began

"""Run the trials of an attack in processes, keep each result, and print one table.

An attack is a function of the number of a trial, which seeds everything in it. Results are lines of
JSON in a file: a later call runs only the numbers that are missing.
"""

import json
import os
import signal
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

FOLDER = Path("build/campaign")
"""Where results are kept between calls."""

HELD = "held"
"""Outcome of a trial in which directgp did what it promises."""

FAILURES = ("crash", "traceback", "hang", "difference", "not finite", "left behind")
"""Outcomes that break a promise; other words may be used, and get a column of their own."""


@dataclass(frozen=True)
class Trial:
    """The result of one trial: what was attacked, what came of it, and what was seen."""

    kind: str
    """What was attacked."""

    outcome: str
    """`HELD`, or what went wrong."""

    seen: str = ""
    """One line about a failure, enough to look for its cause."""

    facts: dict[str, Any] = field(default_factory=dict)
    """Numbers to sum up, such as the seconds that were lost."""


Attack = Callable[[int], Trial]


def run(
    name: str, attack: Attack, numbers: Iterable[int], jobs: int, limit: float, seconds: float
) -> None:
    """Run the trials that have no result yet; start none after so many seconds.

    Each process runs one trial after the other. A process that dies counts as a crash, and one that
    takes longer than the limit, in seconds, as a hang; both are replaced.
    """
    path = FOLDER / f"{name}.jsonl"
    finished = {number for number, _ in read(name)}
    todo = iter([number for number in numbers if number not in finished])
    until = time.monotonic() + seconds
    path.parent.mkdir(parents=True, exist_ok=True)
    workers: list[_Worker] = []
    with open(path, "a") as file:

        def keep(number: int, trial: Trial) -> None:
            file.write(json.dumps({"number": number, **asdict(trial)}) + "\n")
            file.flush()

        try:
            workers = [_Worker(attack) for _ in range(jobs)]
            while True:
                for worker in workers:
                    if worker.number is None and time.monotonic() < until:
                        worker.start(next(todo, None))
                running = [worker for worker in workers if worker.number is not None]
                if not running:
                    return
                wait([worker.pipe for worker in running], 0.2)
                for index, worker in enumerate(workers):
                    number, trial = worker.number, worker.result(limit)
                    if number is not None and trial is not None:
                        keep(number, trial)
                        if not worker.process.is_alive():
                            workers[index] = _Worker(attack)
        finally:
            for worker in workers:
                worker.kill()


class _Worker:
    """A process that runs trials, and the number of the one that it runs."""

    def __init__(self, attack: Attack) -> None:
        context = get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(attack, theirs), daemon=False)
        self.process.start()
        theirs.close()
        self.number: int | None = None
        self._began = 0.0

    def start(self, number: int | None) -> None:
        if number is not None:
            self.number, self._began = number, time.monotonic()
            self.pipe.send(number)

    def result(self, limit: float) -> Trial | None:
        """Return the result of the trial, if there is one, and be ready for the next."""
        if self.number is None:
            return None
        trial = None
        try:
            if self.pipe.poll():
                trial = Trial(**self.pipe.recv())
        except (EOFError, OSError):
            self.process.join()
            trial = Trial("process", "crash", f"exit {self.process.exitcode}")
        if trial is None and time.monotonic() - self._began > limit:
            self.kill()
            trial = Trial("process", "hang", f"more than {limit:.0f} s")
        if trial is not None:
            self.number = None
        return trial

    def kill(self) -> None:
        if self.process.is_alive():
            # The group: a trial may have started programs.
            try:
                os.killpg(self.process.pid or 0, signal.SIGKILL)
            except ProcessLookupError:
                self.process.kill()
            self.process.join()


def _serve(attack: Attack, pipe: Connection) -> None:
    os.setpgid(0, 0)
    while True:
        try:
            number = pipe.recv()
        except EOFError:
            return
        try:
            trial = attack(number)
        except Exception:
            last = traceback.format_exc().strip().splitlines()
            trial = Trial("trial", "traceback", " | ".join(last[-5:]))
        pipe.send(asdict(trial))


def read(name: str) -> list[tuple[int, Trial]]:
    """Return the results of the attack so far, with their numbers."""
    path = FOLDER / f"{name}.jsonl"
    if not path.exists():
        return []
    trials = []
    for line in path.read_text().splitlines():
        fields = json.loads(line)
        trials.append((fields.pop("number"), Trial(**fields)))
    return trials


def table(name: str, sums: Sequence[str] = ()) -> str:
    """Return a table of the results: trials and failures of each kind, and sums of facts.

    With 0 failures in n trials the rate of failures is below 3/n at 95 %.
    """
    by_kind: dict[str, list[Trial]] = defaultdict(list)
    for _, trial in read(name):
        by_kind[trial.kind].append(trial)
    by_kind = dict(sorted(by_kind.items()))
    outcomes = Counter(trial.outcome for trials in by_kind.values() for trial in trials)
    heads = [outcome for outcome in FAILURES if outcome in outcomes]
    heads += sorted(set(outcomes) - {HELD, *heads})
    lines = [
        "| " + " | ".join([name, "trials", "failed", "rate below", *heads, *sums]) + " |",
        "|---" * (4 + len(heads) + len(sums)) + "|",
    ]
    every = [trial for trials in by_kind.values() for trial in trials]
    for kind, trials in [*by_kind.items(), ("all", every)]:
        counts = Counter(trial.outcome for trial in trials)
        failed = len(trials) - counts[HELD]
        bound = f"{3 / len(trials):.1e}" if trials and not failed else ""
        row = [kind, f"{len(trials):,}", str(failed), bound, *(str(counts[h]) for h in heads)]
        row += [f"{sum(trial.facts.get(fact, 0) for trial in trials):,.10g}" for fact in sums]
        lines.append("| " + " | ".join(row) + " |")
    seen = [f"{number}: {t.kind}: {t.outcome}: {t.seen}" for number, t in read(name) if t.seen]
    return "\n".join([*lines, *([""] if seen else []), *seen[:20]])

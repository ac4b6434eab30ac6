"""Random programs on shared stores, against a model of what the stores hold.

Each trial runs a thousand steps of a few programs on two files: leases, results, failures, kills,
resumes, merges, damaged rows, and clocks that jump. After each step what the store answers is
compared with the model.
"""

import os
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from campaign.trials import HELD, Trial
from directgp.experiments import store as module
from directgp.experiments.cell import Circumstances, Record
from directgp.experiments.store import LEASE, RENEWAL, MergeCounts, Store
from directgp_paper.experiments.cells import FitCell, FitOutcome

SUMS = ("steps", "kills", "damages", "merges", "takeovers")

STEPS = 1000
_MEMORY = Path("/dev/shm")

_CELLS = [
    FitCell(
        dataset="small",
        data="fingerprint",
        task="regression",
        size=30,
        num_inducing=5,
        repeat=repeat,
        seed=0,
        method="elbo",
        betas=(1.0,),
        protocol="best",
        max_steps=20,
    )
    for repeat in range(6)
]
_BY_KEY = {cell.key: cell for cell in _CELLS}
_WHERE = Circumstances(versions={}, machine="made", device="CPU", finished="2026-01-01")


def _record(key: str, value: float) -> Record[Any, Any]:
    outcome = FitOutcome(
        scores={"nll": value},
        num_test=15,
        num_training=40,
        beta=1.0,
        path=(),
        history=(),
        status="converged",
        reason="",
        evaluations=3,
        seconds=value,
    )
    losses = np.full(3, value)
    return Record(_BY_KEY[key], outcome, _WHERE, {"losses": losses}, str(value).encode())


@dataclass
class File:
    """What a store should hold."""

    path: Path
    """Path of the store."""

    results: dict[str, float] = field(default_factory=dict)
    """Values by key."""

    failures: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Attempts and reason of the last one, by key."""

    bad_results: set[str] = field(default_factory=set)
    """Keys of damaged results."""

    bad_failures: set[str] = field(default_factory=set)
    """Keys of damaged failures."""

    leases: dict[str, tuple["Program", int]] = field(default_factory=dict)
    """By key: the owner, and the number of its last renewal."""

    def intact(self) -> dict[str, float]:
        return {key: value for key, value in self.results.items() if key not in self.bad_results}

    def failed(self) -> dict[str, tuple[int, str]]:
        return {key: v for key, v in self.failures.items() if key not in self.bad_failures}


@dataclass(eq=False)
class Program:
    """A program with its machine, process and clock."""

    file: File
    """The store that it uses."""

    machine: str
    """Name of its machine."""

    pid: int
    """Number of its process."""

    offset: float = 0.0
    """Seconds by which its clock is ahead."""

    alive: bool = True
    """Whether it has not been killed."""

    busy: bool = False
    """Whether its next renewal is left out."""

    renewed: float = 0.0
    """Time of its last renewal."""

    seen: dict[str, tuple["Program", int, float]] = field(default_factory=dict)
    """By key: owner and number of the renewal that it saw, and since when."""

    store: Any = None


class _World:
    """Machines with clocks and processes, in place of `time` and `os` of the store's module."""

    def __init__(self) -> None:
        self.now, self.dead = 1000.0, set[int]()
        self.current: Program | None = None

    def time(self) -> float:
        return self.now + (self.current.offset if self.current else 0.0)

    def monotonic(self) -> float:
        return self.now

    def getpid(self) -> int:
        return self.current.pid if self.current else 0

    def kill(self, pid: int, number: int) -> None:
        if pid in self.dead:
            raise ProcessLookupError

    def host(self) -> str:
        return self.current.machine if self.current else ""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


class Difference(Exception):
    """A store answered otherwise than the model."""


def _same(what: str, got: object, expected: object) -> None:
    if got != expected:
        raise Difference(f"{what}: {got!r} in place of {expected!r}")


class _Machine:
    def __init__(self, number: int, folder: Path) -> None:
        self.random, self.world = random.Random(number), _World()
        self.files = [File(folder / "a.sqlite"), File(folder / "b.sqlite")]
        self.programs: list[Program] = []
        self.counts = dict.fromkeys(SUMS, 0)
        self.value = 0.0
        self.beats = 0

    def act_as(self, program: Program) -> Store:
        self.world.current = program
        opened: Store = program.store
        return opened

    def start(self) -> None:
        """A program begins, or one that was killed is run again."""
        file, random = self.random.choice(self.files), self.random
        program = Program(file, random.choice("AB"), 100_000 + len(self.programs))
        program.offset = random.choice([0.0, -3600.0, 1e8])
        program.renewed = self.world.now
        self.world.current = program
        program.store = Store(file.path)
        program.store._file._connection.execute("pragma synchronous = off")
        self.programs.append(program)

    def living(self) -> Program:
        programs = [program for program in self.programs if program.alive]
        if not programs:
            self.start()
            return self.programs[-1]
        return self.random.choice(programs)

    def lease(self) -> None:
        program, key = self.living(), self.random.choice(_CELLS).key
        file = program.file
        expected = key not in file.intact()
        if expected and key in file.leases:
            expected = not self._is_foreign(program, key)
            self.counts["takeovers"] += expected and file.leases[key][0] is not program
        _same("lease", self.act_as(program).lease(_BY_KEY[key]), expected)
        if expected:
            file.leases[key] = program, self._beat()

    def _beat(self) -> int:
        self.beats += 1
        return self.beats

    def _is_foreign(self, program: Program, key: str) -> bool:
        owner, beat = program.file.leases[key]
        if owner is program or (not owner.alive and owner.machine == program.machine):
            return False
        if program.seen.get(key, (None, 0))[:2] != (owner, beat):
            program.seen[key] = owner, beat, self.world.now
        foreign = self.world.now - program.seen[key][2] < LEASE
        if owner.alive and not foreign:
            raise Difference("a living program lost its lease in the model")
        return foreign

    def put(self) -> None:
        program, key = self.living(), self.random.choice(_CELLS).key
        self.value += 1.0
        self.act_as(program).put(_record(key, self.value))
        file = program.file
        file.results[key] = self.value
        file.failures.pop(key, None)
        file.leases.pop(key, None)
        file.bad_results.discard(key)
        file.bad_failures.discard(key)

    def fail(self) -> None:
        program, key = self.living(), self.random.choice(_CELLS).key
        file, self.value = program.file, self.value + 1.0
        reason = f"Reason {self.value}."
        self.act_as(program).fail(_BY_KEY[key], reason)
        if key not in file.intact():
            attempts, _ = file.failed().get(key, (0, ""))
            file.failures[key] = attempts + 1, reason
            file.bad_failures.discard(key)
        if file.leases.get(key, (None, 0))[0] is program:
            del file.leases[key]

    def view(self) -> None:
        program = self.living()
        file = program.file
        seen = self.act_as(program).view()
        leased = {key for key in file.leases if self._is_foreign(program, key)}
        _same("leased", seen.leased, leased)
        _same("failed", seen.failed, file.failed())
        finished = file.results.keys() - (file.bad_results & program.store.damaged)
        _same("finished", seen.finished, finished)

    def read(self) -> None:
        program = self.living()
        store, file = self.act_as(program), program.file
        records = {record.cell.key: record for record in store.records(_CELLS)}
        _same(
            "records", {k: record.outcome.seconds for k, record in records.items()}, file.intact()
        )
        for key, record in records.items():
            value = file.results[key]
            _same("array", record.arrays["losses"].tolist(), [value] * 3)
            _same("model", store.model(_BY_KEY[key]), str(value).encode())
        failed = {
            record.cell.key: (record.attempts, record.reason) for record in store.failures(_CELLS)
        }
        _same("failures", failed, file.failed())
        if not file.bad_results | file.bad_failures <= store.damaged:
            raise Difference("damaged rows were read without a word")

    def check(self) -> None:
        """A run begins, which discards what is damaged."""
        program = self.living()
        store, file = self.act_as(program), program.file
        store.damaged.clear()
        store.find_damaged(discard=True)
        _same("damaged", store.damaged, file.bad_results | file.bad_failures)
        for key in file.bad_results:
            del file.results[key]
        for key in file.bad_failures:
            del file.failures[key]
        file.bad_results, file.bad_failures = set(), set()

    def damage(self) -> None:
        """A byte of a row changes."""
        file, random = self.random.choice(self.files), self.random
        table = random.choice(["results", "failures"])
        rows = file.results if table == "results" else file.failures
        damaged = file.bad_results if table == "results" else file.bad_failures
        # A second change of the same bit would restore the row.
        if not rows.keys() - damaged:
            return
        key = random.choice(sorted(rows.keys() - damaged))
        columns = ["cell", "outcome", "circumstances", "model", "arrays", "sha256"]
        if table == "failures":
            columns = ["cell", "reason", "failed", "sha256"]
        column = random.choice(columns)
        with closing(sqlite3.connect(file.path, isolation_level=None)) as opened:
            opened.execute("pragma synchronous = off")
            read = f"select cast({column} as blob), typeof({column}) from {table} where key = ?"
            data, kind = opened.execute(read, (key,)).fetchone()
            at = random.randrange(len(data))
            byte = bytes([data[at] ^ 1 << random.randrange(7)])
            changed = data[:at] + byte + data[at + 1 :]
            change = f"update {table} set {column} = cast(? as {kind}) where key = ?"
            opened.execute(change, (changed, key))
        damaged.add(key)
        self.counts["damages"] += 1

    def merge(self) -> None:
        program = self.living()
        ours = program.file
        (theirs,) = [file for file in self.files if file is not ours]
        if not theirs.path.exists():
            return
        before = theirs.path.read_bytes()
        counts = self.act_as(program).merge(theirs.path)
        shared = theirs.intact().keys() & ours.intact().keys()
        added = theirs.intact().keys() - shared
        differing = sum(theirs.results[key] != ours.results[key] for key in shared)
        damaged = len(theirs.bad_results | theirs.bad_failures)
        _same("merge", counts, MergeCounts(len(added), len(shared), differing, damaged))
        _same("merged file", theirs.path.read_bytes() == before, True)
        for key in added:
            ours.results[key] = theirs.results[key]
            ours.bad_results.discard(key)
        for key, failure in theirs.failed().items():
            if key not in ours.failed():
                ours.failures[key] = failure
                ours.bad_failures.discard(key)
        for key in ours.results.keys() & ours.failures.keys():
            del ours.failures[key]
            ours.bad_failures.discard(key)
        self.counts["merges"] += 1

    def kill(self) -> None:
        """A program ends without a word, perhaps in the middle of a transaction."""
        program = self.living()
        store = self.act_as(program)
        if self.random.random() < 0.5:
            store._file._connection.execute("begin immediate")
            store._file._connection.execute("delete from results")
            store._file._connection.execute("delete from claims")
        store._closing.set()
        store._file.close()
        program.alive = False
        self.world.dead.add(program.pid)
        self.counts["kills"] += 1

    def close(self) -> None:
        program = self.living()
        self.act_as(program).close()
        program.alive = False
        self.world.dead.add(program.pid)
        leases = program.file.leases
        for key in [key for key, (owner, _) in leases.items() if owner is program]:
            del leases[key]

    def wait(self) -> None:
        """Time passes, and living programs renew their leases, some of them late by one."""
        until = self.world.now + self.random.choice([1.0, 10.0, 20.0, 60.0, 120.0])
        while self.world.now < until:
            self.world.now = min(until, self.world.now + RENEWAL / 4)
            for program in self.programs:
                late = self.world.now - program.renewed >= RENEWAL * (1.75 if program.busy else 1)
                if program.alive and late:
                    self._renew(program)

    def _renew(self, program: Program) -> None:
        self.act_as(program)._renew()
        program.renewed, program.busy = self.world.now, self.random.random() < 0.3
        for key, (owner, _) in program.file.leases.items():
            if owner is program:
                program.file.leases[key] = program, self._beat()

    def jump(self) -> None:
        """The clock of a machine is set."""
        self.living().offset += self.random.choice([-1e6, -30.0, 30.0, 1e6])

    def run(self) -> None:
        rules: list[tuple[Callable[[], None], int]] = [
            *((self.start, 4), (self.lease, 30), (self.put, 14), (self.fail, 8), (self.view, 14)),
            *((self.read, 10), (self.check, 3), (self.damage, 5), (self.merge, 3), (self.kill, 3)),
            *((self.close, 2), (self.wait, 8), (self.jump, 2)),
        ]
        steps = [step for step, _ in rules]
        weights = [weight for _, weight in rules]
        self.start()
        for step in self.random.choices(steps, weights, k=STEPS):
            if step == self.start and sum(program.alive for program in self.programs) > 4:
                continue
            step()
            # No two leases are of the same time.
            self.world.now += 1e-3
            self.counts["steps"] += 1


def attack(number: int) -> Trial:
    """Run the steps of one seed."""
    folder = Path(tempfile.mkdtemp(dir=_MEMORY if _MEMORY.is_dir() else None))
    machine = _Machine(number, folder)
    patched: Any = module
    before = {name: getattr(patched, name) for name in ("time", "os", "host", "RENEWAL")}
    # Renewals are steps: the thread of a store is never due.
    patched.time = patched.os = machine.world
    patched.host, patched.RENEWAL = machine.world.host, 1e6
    try:
        machine.run()
        return Trial("store", HELD, facts=machine.counts)
    except Difference as error:
        return Trial("store", "difference", f"step {machine.counts['steps']}: {error}"[:300])
    finally:
        for program in machine.programs:
            if program.alive:
                program.store._closing.set()
                program.store._file.close()
        for name, value in before.items():
            setattr(patched, name, value)
        shutil.rmtree(folder)

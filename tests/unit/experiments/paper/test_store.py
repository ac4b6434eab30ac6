"""Results, failures and claims in one file, by several programs, some of them killed."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from directgp.errors import StoreError
from directgp.experiments.paper.cells import Circumstances, FailedRecord, Finished
from directgp.experiments.paper.store import LEASE, Failing, Heart, Merged, Owner, SharedStore, host
from directgp.experiments.store import Store
from tests.unit.experiments.paper.sweeps import CIRCUMSTANCES, contents, finished, fit, outcome

CELL, OTHER, THIRD = fit(), fit("fitc"), fit(repeat=1)


def test_what_is_put_comes_back_bit_for_bit(tmp_path: Path) -> None:
    with SharedStore(tmp_path / "store") as store:
        assert CELL not in store and store.records() == []
        store.put(CELL, finished(0.1, model=b"model \x00\xff"))
        store.put(OTHER, Finished(outcome(), CIRCUMSTANCES))
    with SharedStore(tmp_path / "store") as store:
        assert CELL in store and THIRD not in store
        (record,) = store.records([THIRD.key, CELL.key])
        assert store.model(CELL) == b"model \x00\xff" and store.model(OTHER) == b""
        assert {each.cell for each in store.records()} == {CELL, OTHER}
        with pytest.raises(KeyError):
            store.model(THIRD)
    assert record.cell == CELL and record.circumstances == CIRCUMSTANCES
    assert record.outcome.model_dump_json() == outcome(0.1).model_dump_json()
    expected = finished().arrays["losses"]
    assert record.arrays["losses"].dtype == np.float32
    assert np.array_equal(record.arrays["losses"], expected)


def test_failures_are_counted_until_there_is_a_result(tmp_path: Path) -> None:
    with SharedStore(tmp_path / "store") as store:
        store.fail(CELL, "No way down.")
        store.fail(CELL, "No memory.")
        store.fail(OTHER, "No data.")
        assert {FailedRecord(CELL, "No memory.", 2), FailedRecord(OTHER, "No data.", 1)} == set(
            store.failures()
        )
        store.put(CELL, finished())
        assert store.failures() == [FailedRecord(OTHER, "No data.", 1)]
        # A program that was given up for dead comes late, and has nothing.
        store.fail(CELL, "Too late.")
        assert [each.cell for each in store.failures()] == [OTHER] and CELL in store


def test_a_cell_is_claimed_by_one_program(tmp_path: Path) -> None:
    with SharedStore(tmp_path / "store") as first, SharedStore(tmp_path / "store") as second:
        assert first.claim(CELL) and first.claim(CELL) and second.claim(OTHER)
        assert not second.claim(CELL) and not first.claim(OTHER)
        assert (first.view().taken, second.view().taken) == ({OTHER.key}, {CELL.key})
        second.release(CELL)
        assert not second.claim(CELL), "only the owner can release it"
        first.release(CELL)
        assert second.claim(CELL)
        second.put(CELL, finished())
        second.fail(OTHER, "No.")
        assert not first.claim(CELL), "it is finished"
        assert first.claim(OTHER), "what has failed may be tried again"
        view = second.view()
        assert view.finished == {CELL.key} and view.failing == {OTHER.key: Failing(1, "No.")}


def test_what_a_program_has_under_way_is_left_when_it_closes(tmp_path: Path) -> None:
    with SharedStore(tmp_path / "store") as other:
        with SharedStore(tmp_path / "store") as store:
            assert store.claim(CELL) and not other.claim(CELL)
        assert other.claim(CELL)


def of_a_dead_process() -> tuple[str, int, float]:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return host(), process.pid, time.time()


@pytest.mark.parametrize(
    ("owner", "living"),
    [
        (("elsewhere", 1, time.time() + 3600), True),
        (("elsewhere", 1, time.time() - LEASE - 1), False),
        ((host(), os.getpid(), time.time() + 3600), True),
        ((host(), os.getpid(), time.time() - LEASE - 1), False),
        (of_a_dead_process(), False),
    ],
)
def test_claims_of_the_dead_are_taken_over(
    tmp_path: Path, owner: tuple[str, int, float], living: bool
) -> None:
    with SharedStore(tmp_path / "store") as store:
        with sqlite3.connect(tmp_path / "store") as file:
            file.execute("insert into claims values (?, 'other', ?, ?, ?)", (CELL.key, *owner))
        file.close()
        assert (CELL.key in store.view().taken) == living
        assert store.claim(CELL) != living


def test_a_heart_beats_for_its_owner_alone(tmp_path: Path) -> None:
    ours, theirs = Owner.here(), Owner.here()
    SharedStore(tmp_path / "store").close()
    with sqlite3.connect(tmp_path / "store", isolation_level=None) as file:
        for owner in (ours, theirs):
            claim = (owner.token, owner.token, owner.host, owner.pid, 0.0)
            file.execute("insert into claims values (?, ?, ?, ?, ?)", claim)
        heart = Heart(tmp_path / "store", ours, seconds=0.02)
        until = time.monotonic() + 30
        while beat_of(file, ours) == 0:
            assert time.monotonic() < until, "it does not beat"
        heart.stop()
        assert beat_of(file, theirs) == 0
    file.close()


def beat_of(file: sqlite3.Connection, owner: Owner) -> float:
    (beat,) = file.execute("select beat from claims where key = ?", (owner.token,)).fetchone()
    return float(beat)


def test_many_programs_claim_and_put_at_once(tmp_path: Path) -> None:
    cells = [fit(repeat=repeat) for repeat in range(12)]
    done: list[str] = []

    def program() -> None:
        with SharedStore(tmp_path / "store") as store:
            for cell in cells:
                if store.claim(cell):
                    done.append(cell.key)
                    store.put(cell, finished())

    programs = [threading.Thread(target=program) for _ in range(4)]
    for each in programs:
        each.start()
    for each in programs:
        each.join()
    assert sorted(done) == sorted(cell.key for cell in cells)


KILLED = """
import sqlite3, sys, time
file = sqlite3.connect(sys.argv[1], isolation_level=None)
file.execute("pragma cache_size = 1")
file.execute("begin immediate")
file.execute("update results set model = zeroblob(300000)")
print("under way", flush=True)
time.sleep(60)
"""


def test_a_store_whose_writer_was_killed_opens_at_once(tmp_path: Path) -> None:
    with SharedStore(tmp_path / "store") as store:
        store.put(CELL, finished(model=b"whole"))
    command = [sys.executable, "-c", KILLED, str(tmp_path / "store")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"under way\n"
        process.send_signal(signal.SIGKILL)
    assert (tmp_path / "store-journal").stat().st_size > 0, "it was killed half-way"
    with SharedStore(tmp_path / "store") as store:
        assert store.model(CELL) == b"whole"


def test_merged(tmp_path: Path) -> None:
    with SharedStore(tmp_path / "theirs") as theirs:
        theirs.put(CELL, finished(0.1, seconds=7.0))
        theirs.put(OTHER, finished(0.2, model=b"theirs"))
        theirs.put(THIRD, finished(0.3))
        theirs.fail(fit(repeat=2), "Theirs.")
        theirs.fail(fit(repeat=3), "Theirs.")
        theirs.fail(fit(repeat=4), "Theirs.")
    with SharedStore(tmp_path / "ours") as ours:
        ours.put(CELL, finished(0.1, seconds=1.0))
        ours.put(THIRD, finished(0.4))
        ours.fail(OTHER, "Ours.")
        ours.put(fit(repeat=2), finished())
        ours.fail(fit(repeat=3), "Ours.")
        before = contents(ours)
        assert ours.merge(tmp_path / "theirs") == Merged(added=1, known=2, differing=1)
        assert ours.model(OTHER) == b"theirs"
        assert {key: each for key, each in contents(ours).items() if key != OTHER.key} == before
        assert {(each.cell.repeat, each.reason) for each in ours.failures()} == {
            (3, "Ours."),
            (4, "Theirs."),
        }
        again = ours.merge(tmp_path / "theirs")
        assert again == Merged(added=0, known=3, differing=1)


def test_arrays_that_differ_are_told(tmp_path: Path) -> None:
    changed = finished()
    changed.arrays["losses"][0, 0] += 1
    with SharedStore(tmp_path / "theirs") as theirs:
        theirs.put(CELL, changed)
    with SharedStore(tmp_path / "ours") as ours:
        ours.put(CELL, finished())
        assert ours.merge(tmp_path / "theirs").differing == 1


def test_a_store_that_cannot_be_merged(tmp_path: Path) -> None:
    with SharedStore(tmp_path / "store") as store:
        with pytest.raises(StoreError, match=r"There is no store .*nowhere"):
            store.merge(tmp_path / "nowhere")
        with pytest.raises(StoreError, match="is the store itself"):
            store.merge(tmp_path / "store")
    assert not (tmp_path / "nowhere").exists()


def test_files_that_are_something_else(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"no database, but as long as the header of one" * 100)
    with pytest.raises(StoreError, match=r"is damaged or not a store of directgp \(file is not a"):
        SharedStore(tmp_path / "text")
    Store(tmp_path / "comparison").__exit__(None, None, None)
    with pytest.raises(StoreError, match="is a store of schema 1, and this version of directgp"):
        SharedStore(tmp_path / "comparison")
    SharedStore(tmp_path / "shared").close()
    with pytest.raises(StoreError, match="is a store of schema 1001"):
        Store(tmp_path / "shared")
    with pytest.raises(StoreError, match=r"could not be opened or written: .*\. Give a folder"):
        SharedStore(tmp_path / "no" / "folder")


@pytest.mark.parametrize(
    ("column", "damage"),
    [("cell", "'{}'"), ("outcome", "'{}'"), ("circumstances", "'{}'"), ("arrays", "x'00'")],
)
def test_a_damaged_row_is_said_to_be(tmp_path: Path, column: str, damage: str) -> None:
    with SharedStore(tmp_path / "store") as store:
        store.put(CELL, finished())
        with sqlite3.connect(tmp_path / "store") as file:
            file.execute(f"update results set {column} = {damage}")
        file.close()
        with pytest.raises(StoreError, match="is damaged"):
            store.records()


def test_circumstances_do_not_make_another_cell(tmp_path: Path) -> None:
    elsewhere = Circumstances(versions={}, machine="large", device="GPU", finished="later")
    with SharedStore(tmp_path / "store") as store:
        store.put(CELL, finished())
        store.put(CELL, Finished(outcome(0.7), elsewhere))
        (record,) = store.records()
    assert record.circumstances == elsewhere

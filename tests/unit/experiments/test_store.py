"""Results, failures and leases in one file, by several programs, some of them killed."""

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
from directgp.experiments.cell import METHODS, Cell, Circumstances, FailedRecord, Record
from directgp.experiments.store import LEASE, MergeCounts, Store, host
from tests.unit.experiments.paper.sweeps import CIRCUMSTANCES, contents, finished, fit, outcome
from tests.unit.experiments.small import plan, problem

CELL, OTHER, THIRD = fit(), fit("fitc"), fit(repeat=1)


def test_what_is_put_comes_back_bit_for_bit(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        assert CELL not in store and store.records([CELL]) == [] and store.is_empty()
        store.put(finished(CELL, 0.1, model=b"model \x00\xff"))
        store.put(Record(OTHER, outcome(), CIRCUMSTANCES))
    with Store(tmp_path / "store") as store:
        assert CELL in store and THIRD not in store
        (record,) = store.records([THIRD, CELL])
        assert store.model(CELL) == b"model \x00\xff" and store.model(OTHER) == b""
        assert not store.is_empty()
        with pytest.raises(KeyError):
            store.model(THIRD)
    assert record.cell == CELL and record.circumstances == CIRCUMSTANCES
    assert record.outcome.model_dump_json() == outcome(0.1).model_dump_json()
    expected = finished(CELL).arrays["losses"]
    assert record.arrays["losses"].dtype == np.float32
    assert np.array_equal(record.arrays["losses"], expected)


def test_failures_are_counted_until_there_is_a_result(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        store.fail(CELL, "No way down.")
        store.fail(CELL, "No memory.")
        store.fail(OTHER, "No data.")
        assert {FailedRecord(CELL, "No memory.", 2), FailedRecord(OTHER, "No data.", 1)} == set(
            store.failures([CELL, OTHER, THIRD])
        )
        store.put(finished(CELL))
        assert store.failures([CELL, OTHER]) == [FailedRecord(OTHER, "No data.", 1)]
        # A program that was given up for dead comes late, and has nothing.
        store.fail(CELL, "Too late.")
        assert [each.cell for each in store.failures([CELL, OTHER])] == [OTHER] and CELL in store


def test_a_cell_is_claimed_by_one_program(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as first, Store(tmp_path / "store") as second:
        assert first.lease(CELL) and first.lease(CELL) and second.lease(OTHER)
        assert not second.lease(CELL) and not first.lease(OTHER)
        assert (first.view().leased, second.view().leased) == ({OTHER.key}, {CELL.key})
        first.release_all()
        assert second.lease(CELL)
        second.put(finished(CELL))
        second.fail(OTHER, "No.")
        assert not first.lease(CELL), "it is finished"
        assert first.lease(OTHER), "what has failed may be tried again"
        view = second.view()
        assert view.finished == {CELL.key} and view.failed == {OTHER.key: (1, "No.")}


def test_what_a_program_has_under_way_is_left_when_it_closes(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as other:
        with Store(tmp_path / "store") as store:
            assert store.lease(CELL) and not other.lease(CELL)
        assert other.lease(CELL)


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
    with Store(tmp_path / "store") as store:
        with sqlite3.connect(tmp_path / "store") as file:
            file.execute("insert into claims values (?, 'other', ?, ?, ?)", (CELL.key, *owner))
        file.close()
        assert (CELL.key in store.view().leased) == living
        assert store.lease(CELL) != living


def test_a_thread_renews_the_leases_of_its_program_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(tmp_path / "store") as store, Store(tmp_path / "store") as other:
        assert other.lease(OTHER)
        monkeypatch.setattr("directgp.experiments.store.RENEWAL", 0.02)
        assert store.lease(CELL)
        with sqlite3.connect(tmp_path / "store", isolation_level=None) as file:
            file.execute("update claims set beat = 0")
            until = time.monotonic() + 30
            while renewed(file, CELL) == 0:
                assert time.monotonic() < until, "the lease is not renewed"
            assert renewed(file, OTHER) == 0
        file.close()


def renewed(file: sqlite3.Connection, cell: Cell) -> float:
    (beat,) = file.execute("select beat from claims where key = ?", (cell.key,)).fetchone()
    return float(beat)


def test_many_programs_claim_and_put_at_once(tmp_path: Path) -> None:
    cells = [fit(repeat=repeat) for repeat in range(12)]
    done: list[str] = []

    def program() -> None:
        with Store(tmp_path / "store") as store:
            for cell in cells:
                if store.lease(cell):
                    done.append(cell.key)
                    store.put(finished(cell))

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
    with Store(tmp_path / "store") as store:
        store.put(finished(CELL, model=b"whole"))
    command = [sys.executable, "-c", KILLED, str(tmp_path / "store")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"under way\n"
        process.send_signal(signal.SIGKILL)
    assert (tmp_path / "store-journal").stat().st_size > 0, "it was killed half-way"
    with Store(tmp_path / "store") as store:
        assert store.model(CELL) == b"whole"


def test_merging_keeps_own_results_and_adds_new_ones(tmp_path: Path) -> None:
    with Store(tmp_path / "theirs") as theirs:
        theirs.put(finished(CELL, 0.1, seconds=7.0))
        theirs.put(finished(OTHER, 0.2, model=b"theirs"))
        theirs.put(finished(THIRD, 0.3))
        theirs.fail(fit(repeat=2), "Theirs.")
        theirs.fail(fit(repeat=3), "Theirs.")
        theirs.fail(fit(repeat=4), "Theirs.")
    with Store(tmp_path / "ours") as ours:
        ours.put(finished(CELL, 0.1, seconds=1.0))
        ours.put(finished(THIRD, 0.4))
        ours.fail(OTHER, "Ours.")
        ours.put(finished(fit(repeat=2)))
        ours.fail(fit(repeat=3), "Ours.")
        every = [CELL, OTHER, THIRD, *(fit(repeat=n) for n in (2, 3, 4))]
        before = contents(ours, every)
        assert ours.merge(tmp_path / "theirs") == MergeCounts(added=1, known=2, differing=1)
        assert ours.model(OTHER) == b"theirs"
        assert {
            key: each for key, each in contents(ours, every).items() if key != OTHER.key
        } == before
        assert {(each.cell.repeat, each.reason) for each in ours.failures(every)} == {
            (3, "Ours."),
            (4, "Theirs."),
        }
        again = ours.merge(tmp_path / "theirs")
        assert again == MergeCounts(added=0, known=3, differing=1)


def test_arrays_that_differ_are_told(tmp_path: Path) -> None:
    changed = finished(CELL)
    changed.arrays["losses"][0, 0] += 1
    with Store(tmp_path / "theirs") as theirs:
        theirs.put(changed)
    with Store(tmp_path / "ours") as ours:
        ours.put(finished(CELL))
        assert ours.merge(tmp_path / "theirs").differing == 1


def test_a_store_that_cannot_be_merged(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        with pytest.raises(StoreError, match=r"There is no store .*nowhere"):
            store.merge(tmp_path / "nowhere")
        with pytest.raises(StoreError, match="is the store itself"):
            store.merge(tmp_path / "store")
    assert not (tmp_path / "nowhere").exists()


def test_files_that_are_something_else(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"no database, but as long as the header of one" * 100)
    with pytest.raises(StoreError, match=r"is damaged or not a store of directgp \(file is not a"):
        Store(tmp_path / "text")
    with sqlite3.connect(tmp_path / "newer") as file:
        file.execute("pragma user_version = 7")
    file.close()
    with pytest.raises(StoreError, match="is a store of schema 7, and this version of directgp"):
        Store(tmp_path / "newer")
    with pytest.raises(StoreError, match=r"could not be opened or written: .*\. Give a folder"):
        Store(tmp_path / "no" / "folder")


@pytest.mark.parametrize(
    ("column", "damage"),
    [("outcome", "'{}'"), ("circumstances", "'{}'"), ("arrays", "x'00'")],
)
def test_a_damaged_row_is_said_to_be(tmp_path: Path, column: str, damage: str) -> None:
    with Store(tmp_path / "store") as store:
        store.put(finished(CELL))
        with sqlite3.connect(tmp_path / "store") as file:
            file.execute(f"update results set {column} = {damage}")
        file.close()
        with pytest.raises(StoreError, match="is damaged"):
            store.records([CELL])


def test_circumstances_do_not_make_another_cell(tmp_path: Path) -> None:
    elsewhere = Circumstances(versions={}, machine="large", device="GPU", finished="later")
    with Store(tmp_path / "store") as store:
        store.put(finished(CELL))
        store.put(Record(CELL, outcome(0.7), elsewhere))
        (record,) = store.records([CELL])
    assert record.circumstances == elsewhere


COMPARED = plan(problem()).cell(METHODS["elbo"], 0, 30)


@pytest.mark.parametrize(
    "change",
    [
        {"repeat": 1},
        {"size": 31},
        {"method": "fitc"},
        {"seed": 1},
        {"data": "other"},
        {"settings": COMPARED.settings.model_copy(update={"kernel": "matern32"})},
        {"settings": COMPARED.settings.model_copy(update={"betas": None})},
    ],
)
def test_cells_that_differ_have_other_keys(change: dict[str, object]) -> None:
    assert COMPARED.replace(**change).key != COMPARED.key

"""Results, failures and leases in one file, by several programs, some of them killed."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from directgp.errors import StoreError
from directgp.experiments.cell import METHODS, Cell, Circumstances, FailedRecord, Record
from directgp.experiments.store import RENEWAL, MergeCounts, Store, host, is_store
from tests.unit.experiments.cells import CIRCUMSTANCES, contents, finished, outcome, small_cell
from tests.unit.experiments.small import plan, problem

CELL, OTHER, THIRD = small_cell(), small_cell("fitc"), small_cell(repeat=1)


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


class Clock:
    """The clock of this process, set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("directgp.experiments.store.time.monotonic", lambda: self.now)


@pytest.mark.parametrize("where", ["elsewhere", host()])
@pytest.mark.parametrize("ahead", [-1e8, 0.0, 1e8])
def test_a_lease_expires_when_two_renewals_are_missed_whatever_the_clock_of_its_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, ahead: float
) -> None:
    clock, beat = Clock(monkeypatch), time.time() + ahead
    with Store(tmp_path / "store") as store, closing(sqlite3.connect(tmp_path / "store")) as file:
        file.isolation_level = None
        values = (CELL.key, where, os.getpid(), beat)
        file.execute("insert into claims values (?, 'other', ?, ?, ?)", values)
        for _ in range(3):
            assert store.view().leased == {CELL.key} and not store.lease(CELL)
            clock.now += 2 * RENEWAL
            assert store.view().leased == {CELL.key} and not store.lease(CELL)
            file.execute("update claims set beat = beat + 1")
        assert store.view().leased == {CELL.key}
        clock.now += 2.6 * RENEWAL
        assert store.view().leased == set() and store.lease(CELL)


def test_the_lease_of_a_dead_process_is_taken_over_at_once(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store, closing(sqlite3.connect(tmp_path / "store")) as file:
        file.isolation_level = None
        values = (CELL.key, *of_a_dead_process())
        file.execute("insert into claims values (?, 'other', ?, ?, ?)", values)
        assert store.view().leased == set() and not store.is_in_use()
        # A damaged row is not taken for a process either.
        file.execute("update claims set pid = 1 << 40")
        assert store.lease(CELL)


def test_force_watches_a_lease_with_a_wrong_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr("directgp.experiments.store._RETRY", 0.0)
    with Store(tmp_path / "store") as store, closing(sqlite3.connect(tmp_path / "store")) as file:
        file.isolation_level = None
        values = (CELL.key, time.time())
        file.execute("insert into claims values (?, 'other', 'elsewhere', 1, ?)", values)
        assert store.is_in_use()
        file.execute("update claims set beat = beat + 1e6")

        def sleep(seconds: float) -> None:
            clock.now += RENEWAL

        monkeypatch.setattr("directgp.experiments.store.time.sleep", sleep)
        assert not store.is_in_use()


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


def test_a_journal_that_vanishes_belongs_to_a_transaction_that_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(tmp_path / "store").close()
    found = Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda path: path.suffix == "" or found(path))
    assert Path(tmp_path / "store-journal").is_file()
    Store(tmp_path / "store").close()


def test_many_programs_claim_and_put_at_once(tmp_path: Path) -> None:
    cells = [small_cell(repeat=repeat) for repeat in range(12)]
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
        theirs.fail(small_cell(repeat=2), "Theirs.")
        theirs.fail(small_cell(repeat=3), "Theirs.")
        theirs.fail(small_cell(repeat=4), "Theirs.")
    with Store(tmp_path / "ours") as ours:
        ours.put(finished(CELL, 0.1, seconds=1.0))
        ours.put(finished(THIRD, 0.4))
        ours.fail(OTHER, "Ours.")
        ours.put(finished(small_cell(repeat=2)))
        ours.fail(small_cell(repeat=3), "Ours.")
        every = [CELL, OTHER, THIRD, *(small_cell(repeat=n) for n in (2, 3, 4))]
        before = contents(ours, every)
        assert ours.merge(tmp_path / "theirs") == MergeCounts(added=1, shared=2, differing=1)
        assert ours.model(OTHER) == b"theirs"
        assert {
            key: each for key, each in contents(ours, every).items() if key != OTHER.key
        } == before
        assert {(each.cell.repeat, each.reason) for each in ours.failures(every)} == {
            (3, "Ours."),
            (4, "Theirs."),
        }
        again = ours.merge(tmp_path / "theirs")
        assert again == MergeCounts(added=0, shared=3, differing=1)


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
    Store(tmp_path / "newer").close()
    with closing(sqlite3.connect(tmp_path / "newer")) as file:
        file.execute("pragma user_version = 7")
    with pytest.raises(StoreError, match="is a store of schema 7, and this version of directgp"):
        Store(tmp_path / "newer")
    with pytest.raises(StoreError, match=r"could not be opened or written: .*\. Give a folder"):
        Store(tmp_path / "no" / "folder")
    with pytest.raises(StoreError, match="is not a regular file"):
        Store(tmp_path)


@pytest.mark.parametrize(
    "script",
    [
        "create table mine (x)",
        "create table results (key text primary key, cell text not null)",
        "pragma user_version = 1; create table cells (key text, mine text)",
        "pragma user_version = 1001; create table mine (x)",
        f"pragma application_id = {0x64677073}; pragma user_version = 1002; create table t (x)",
        "pragma journal_mode = wal; create table mine (x)",
        "pragma application_id = 7",
    ],
)
def test_databases_of_other_programs_are_not_touched(tmp_path: Path, script: str) -> None:
    theirs = tmp_path / "theirs"
    with closing(sqlite3.connect(theirs)) as file:
        file.executescript(script)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert not is_store(theirs)
    for open_it in (Store, lambda path: Store(path, read_only=True)):
        with pytest.raises(StoreError, match="is damaged or not a store of directgp"):
            open_it(theirs)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with Store(tmp_path / "ours") as ours, pytest.raises(StoreError, match="not a store"):
        ours.merge(theirs)
    assert theirs.read_bytes() == before["theirs"]


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert is_store(tmp_path / "empty") and (tmp_path / "empty").stat().st_size == 0
    with Store(tmp_path / "empty") as store:
        assert store.is_empty()


def without_checksums(path: Path) -> None:
    """Turn a store into one of the version before."""
    with closing(sqlite3.connect(path)) as file:
        file.executescript(
            "alter table results drop column sha256; alter table failures drop column sha256;"
            "pragma application_id = 0; pragma user_version = 1001"
        )


def test_a_store_without_checksums_gets_them_and_is_merged_without(tmp_path: Path) -> None:
    with Store(tmp_path / "old") as store:
        store.put(finished(CELL, model=b"model"))
        store.fail(OTHER, "No.")
        expected = contents(store, [CELL])
    without_checksums(tmp_path / "old")
    before = (tmp_path / "old").read_bytes()
    with Store(tmp_path / "new") as store:
        assert store.merge(tmp_path / "old") == MergeCounts(1, 0, 0)
        assert contents(store, [CELL]) == expected
        assert store.failures([OTHER]) == [FailedRecord(OTHER, "No.")]
    assert is_store(tmp_path / "old") and (tmp_path / "old").read_bytes() == before
    with Store(tmp_path / "old") as store:
        store.find_damaged()
        assert store.damaged == set() and contents(store, [CELL]) == expected
        assert store.failures([OTHER]) == [FailedRecord(OTHER, "No.")]
    change(tmp_path / "old", "update results set model = x'00'")
    with Store(tmp_path / "old") as store:
        assert CELL not in store and store.damaged == {CELL.key}


def change(path: Path, query: str) -> None:
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(query)


@pytest.mark.parametrize(
    "damage",
    [
        *("outcome = replace(outcome, '0.5', '0.4')", "circumstances = '{}'", "arrays = x'00'"),
        *("model = x'00'", "cell = '{}'", "sha256 = ''", "outcome = x'ff'", "model = 'text'"),
        "outcome = cast(x'ff' as text)",
    ],
)
def test_a_damaged_result_is_not_believed_and_run_again(tmp_path: Path, damage: str) -> None:
    with Store(tmp_path / "store") as store:
        store.put(finished(CELL, model=b"model"))
        store.put(finished(OTHER))
    with closing(sqlite3.connect(tmp_path / "store")) as file, file:
        file.execute("pragma writable_schema = on")
        file.execute("update sqlite_master set sql = replace(sql, ') strict', ')')")
    change(tmp_path / "store", f"update results set {damage} where key = '{CELL.key}'")
    with closing(sqlite3.connect(tmp_path / "store")) as file, file:
        file.execute("pragma writable_schema = on")
        file.execute("update sqlite_master set sql = sql || ' strict' where sql != ''")
    with Store(tmp_path / "store") as store:
        assert [each.cell for each in store.records([CELL, OTHER])] == [OTHER]
        assert store.damaged == {CELL.key} and CELL not in store
        assert store.view().finished == {OTHER.key}
        with pytest.raises(StoreError, match=r"has been damaged during the run"):
            store.model(CELL)
        assert store.lease(CELL)
        store.put(finished(CELL, 0.7))
        assert store.view().finished == {CELL.key, OTHER.key}
        assert len(store.records([CELL, OTHER])) == 2


def test_damaged_rows_are_discarded_for_a_run_and_never_merged(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        for cell in (CELL, OTHER, THIRD):
            store.put(finished(cell))
        store.fail(small_cell(repeat=2), "No.")
        store.fail(small_cell(repeat=3), "No.")
    change(tmp_path / "store", f"update results set key = 'x' where key = '{CELL.key}'")
    change(
        tmp_path / "store",
        f"update failures set attempts = 7 where key = '{small_cell(repeat=2).key}'",
    )
    bad = {"x", small_cell(repeat=2).key}
    with Store(tmp_path / "merged") as merged:
        assert merged.merge(tmp_path / "store") == MergeCounts(2, 0, 0, damaged=2)
        assert merged.view().failed.keys() == {small_cell(repeat=3).key}
    with Store(tmp_path / "store") as store:
        store.find_damaged()
        assert store.damaged == bad
        store.fail(small_cell(repeat=2), "Again.")
        assert store.failures([small_cell(repeat=2)]) == [
            FailedRecord(small_cell(repeat=2), "Again.", 1)
        ]
        store.find_damaged(discard=True)
        assert store.damaged == bad
        assert store.view().finished == {OTHER.key, THIRD.key}
    with Store(tmp_path / "store") as store:
        store.find_damaged()
        assert store.damaged == set()


def test_random_damage_is_found(tmp_path: Path) -> None:
    """What is read is as it was, or said to be damaged; rows do not vanish without a word."""
    cells = [small_cell(repeat=n) for n in range(8)]
    with Store(tmp_path / "store") as store:
        for n, cell in enumerate(cells):
            store.put(finished(cell, 0.1 * n, model=bytes(range(256)) * 2 * n))
        expected = contents(store, cells)
    whole = (tmp_path / "store").read_bytes()
    counts = Counter[str]()
    for number in range(300):
        random = np.random.default_rng(number)
        data, at = bytearray(whole), int(random.integers(len(whole)))
        length = int(random.choice([1, 1, 1, 8, 4096]))
        data[at : at + length] = random.bytes(len(data[at : at + length]))
        (tmp_path / "damaged").write_bytes(data)
        try:
            with Store(tmp_path / "damaged", read_only=number % 2 == 0) as store:
                store.find_damaged(discard=number % 2 == 1)
                found = contents(store, cells)
                damaged = store.damaged
        except StoreError:
            counts["refused"] += 1
            continue
        assert all(found[key] == expected[key] for key in found), number
        assert len(found) == len(cells) or damaged, number
        counts["reported" if damaged else "same"] += 1
    assert counts.keys() == {"refused", "reported", "same"}


def test_a_store_that_was_deleted_is_missed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with Store(tmp_path / "folder" / "store") as store:
        store.put(finished(CELL))
        shutil.rmtree(tmp_path / "folder")
        for ask in (store.view, lambda: store.records([CELL]), lambda: store.put(finished(OTHER))):
            with pytest.raises(StoreError, match="was deleted or replaced while directgp used it"):
                ask()


def test_a_reason_with_half_a_character_is_stored(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        store.fail(CELL, "No file \udcff.")
        assert store.failures([CELL]) == [FailedRecord(CELL, "No file ?.", 1)]


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

"""Stores of an earlier version give the same reports, and no fit is run again."""

from pathlib import Path

import pytest

from directgp.experiments.store import Store
from tests.frozen.golden import (
    assert_same_document,
    assert_same_text,
    read_json,
    read_text,
    unpack,
)
from tests.frozen.program import run
from tests.frozen.reports import (
    COMPARE,
    OLD_REPRODUCE,
    REPRODUCE,
    Case,
    make_report,
    masked_document,
    masked_page,
    prepare,
    result_rows,
    set_versions,
    store_rows,
)
from tests.frozen.stores import CHECKSUMS

pytestmark = pytest.mark.usefixtures("without_shape_checks", "without_drawing")

REMEDY = "If this is meant: python -m tests.frozen.write reports"
TOLERANCE = 1e-9


@pytest.mark.parametrize("task", COMPARE)
def test_compare_reports_the_same(task: str, here: Path) -> None:
    case = COMPARE[task]
    store = unpack(case.packed_store, here / "report" / case.store)
    set_versions(store, read_json(case.folder / "versions.json"))
    check_report(case, here)


def test_reproduce_gives_the_same_verdicts(here: Path) -> None:
    unpack(REPRODUCE.packed_store, here / "report" / REPRODUCE.store)
    check_report(REPRODUCE, here)


def test_cells_of_an_older_sweep_are_reported_where_they_have_not_changed(here: Path) -> None:
    prepare(REPRODUCE, here)
    store = unpack(OLD_REPRODUCE, here / "report" / REPRODUCE.store)
    before = store_rows(store)
    answer = run(*REPRODUCE.words, "--report-only")
    assert answer.code == 0 and "9 cells ran." in answer.out
    assert "75 cells of this scale not run yet." in answer.err
    assert before and store_rows(store) == before


def test_a_store_with_checksums_is_read_and_all_its_rows_are_whole(here: Path) -> None:
    path = unpack(CHECKSUMS, here / "cells.sqlite")
    before = path.read_bytes()
    with Store(path, read_only=True) as store:
        store.find_damaged()
        found = store.view()
        assert (len(found.finished), list(found.failed.values())) == (2, [(1, "It failed.")])
        assert not store.damaged
    assert path.read_bytes() == before


def check_report(case: Case, here: Path) -> None:
    """Make the report of a store, and compare all that it says with the golden files."""
    prepare(case, here)
    store = here / "report" / case.store
    before = store_rows(store)
    answer = make_report(case, "--resume")
    # A fit that is run again is written again, with other seconds.
    assert before and store_rows(store) == before
    golden = read_json(case.folder / "results.json")
    assert_same_document(result_rows(here), golden, TOLERANCE, REMEDY)
    golden = read_json(case.folder / case.document)
    assert_same_document(masked_document(case, here), golden, TOLERANCE, REMEDY)
    assert_same_text(masked_page(case, here), read_text(case.folder / "page.txt"), REMEDY)
    assert_same_text(answer.out, read_text(case.folder / "printed.txt"), REMEDY)

"""Stores of an earlier version give the same reports, and no cell is run again."""

from pathlib import Path

import pytest

from paper.tests.frozen.reports import OLD_REPRODUCE, REPRODUCE
from tests.frozen.golden import unpack
from tests.frozen.program import run
from tests.frozen.reports import check_report, prepare, store_rows

pytestmark = pytest.mark.usefixtures("without_shape_checks", "without_drawing")

REMEDY = "If this is meant: python -m paper.tests.frozen.write report"


def test_reproduce_gives_the_same_verdicts(here: Path) -> None:
    unpack(REPRODUCE.packed_store, here / "report" / REPRODUCE.store)
    check_report(REPRODUCE, here, REMEDY)


def test_cells_of_an_older_sweep_are_reported_where_they_have_not_changed(here: Path) -> None:
    prepare(REPRODUCE, here)
    store = unpack(OLD_REPRODUCE, here / "report" / REPRODUCE.store)
    before = store_rows(store)
    answer = run(*REPRODUCE.words, "--report-only")
    assert answer.code == 0 and "9 cells ran." in answer.out
    assert "75 cells of this scale not run yet." in answer.err
    assert before and store_rows(store) == before

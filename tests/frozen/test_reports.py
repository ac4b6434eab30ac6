"""Stores of an earlier version give the same reports, and no fit is run again."""

from pathlib import Path

import pytest

from directgp.experiments.store import Store
from tests.frozen.golden import read_json, unpack
from tests.frozen.reports import COMPARE, check_report, set_versions
from tests.frozen.stores import CHECKSUMS

pytestmark = pytest.mark.usefixtures("without_shape_checks", "without_drawing")

REMEDY = "If this is meant: python -m tests.frozen.write reports"


@pytest.mark.parametrize("task", COMPARE)
def test_compare_reports_the_same(task: str, here: Path) -> None:
    case = COMPARE[task]
    store = unpack(case.packed_store, here / "report" / case.store)
    set_versions(store, read_json(case.folder / "versions.json"))
    check_report(case, here, REMEDY)


def test_a_store_with_checksums_is_read_and_all_its_rows_are_whole(here: Path) -> None:
    path = unpack(CHECKSUMS, here / "cells.sqlite")
    before = path.read_bytes()
    with Store(path, read_only=True) as store:
        store.find_damaged()
        found = store.view()
        assert (len(found.finished), list(found.failed.values())) == (2, [(1, "It failed.")])
        assert not store.damaged
    assert path.read_bytes() == before

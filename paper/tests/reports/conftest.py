"""One small report, written once."""

from pathlib import Path

import pytest

from directgp.experiments.cell import FailedRecord
from directgp_paper.experiments.cells import Results
from directgp_paper.reports.page import write_reproduction
from paper.tests.reports.made import SMALL, reproduction, results


def with_failures(found: Results) -> Results:
    """The same, but that its first cell has failed and its second was not run."""
    first, second, *others = found.records
    reason = "The covariance matrix is not positive definite."
    return Results(tuple(others), (FailedRecord(first.cell, reason, 3),), (second.cell,))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the report."""
    written = tmp_path_factory.mktemp("reproduction") / "new" / "report"
    write_reproduction(reproduction(with_failures(results(SMALL))), written)
    return written

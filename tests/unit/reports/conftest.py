"""One small report for each task, written once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from directgp.reports.compare import write_report
from tests.unit.reports.made import Recipe, comparison

SMALL: dict[str, Recipe] = {
    "regression": Recipe(methods=("elbo", "log-joint"), repeats=3, sizes=(500, 5000), num_test=60),
    "classification": Recipe(
        task="classification", methods=("elbo", "log-joint"), repeats=2, num_test=60
    ),
    "count": Recipe(task="count", methods=("elbo", "log-fixed"), repeats=1, num_test=60),
    "classes": Recipe(
        task="classification",
        classes=("a", "$b", "<c>", "d " * 30, "é"),
        methods=("elbo", "log-joint"),
        repeats=2,
        num_test=60,
    ),
}


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of the report of a task."""
    written: dict[str, Path] = {}

    def folder(task: str) -> Path:
        if task not in written:
            written[task] = tmp_path_factory.mktemp(task) / "new" / "report"
            write_report(comparison(SMALL[task]), written[task])
        return written[task]

    return folder

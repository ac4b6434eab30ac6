"""A browser, and the report of a reproduction that it opens."""

from collections.abc import Callable

import pytest

from directgp_paper.reports.page import write_reproduction
from paper.tests.reports.conftest import with_failures
from paper.tests.reports.made import SMALL, reproduction, results
from tests.browser.conftest import browser, visit

__all__ = ["browser", "visit"]


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Where the page of the reproduction is."""
    folder = tmp_path_factory.mktemp("reproduction")
    page = write_reproduction(reproduction(with_failures(results(SMALL))), folder)
    return lambda task: page.as_uri()

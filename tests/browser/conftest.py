"""A browser and the reports that it opens."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from directgp.reports.compare import write_report
from tests.unit.reports.made import Recipe, comparison

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

RECIPES = {
    "regression": Recipe(
        sizes=(500, 5000),
        failed=[("fitc", 1, 500, "The covariance matrix is not positive definite.")],
        features=[f"feature_{'x' * 30}_{k}" for k in range(20)],
        name="a_data_set_with_a_name_that_does_not_end_for_a_very_long_time_indeed",
        num_test=400,
    ),
    "classification": Recipe(
        task="classification", methods=("elbo", "log-joint"), classes=("<b>", "&")
    ),
    "count": Recipe(task="count", methods=("elbo", "log-joint"), repeats=1),
    "classes": Recipe(
        task="classification",
        methods=("elbo", "log-joint"),
        classes=tuple(f"<{'x' * k}>" for k in range(0, 60, 3)),
    ),
}


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium of the system, or the one that playwright brings.

    Without one the tests fail, unless DIRECTGP_NO_BROWSER=1 says that none can be had.
    """
    if os.environ.get("DIRECTGP_NO_BROWSER") == "1":
        pytest.skip("DIRECTGP_NO_BROWSER=1: no browser is here and none can be installed.")
    from playwright.sync_api import sync_playwright

    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    with sync_playwright() as playwright:
        # Within a container there is no sandbox; the page is our own.
        opened = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Where the page of a task is."""
    written: dict[str, Path] = {}

    def of(task: str) -> str:
        if task not in written:
            written[task] = write_report(comparison(RECIPES[task]), tmp_path_factory.mktemp(task))
        return written[task].as_uri()

    return of


@pytest.fixture
def visit(browser: Any, address: Callable[[str], str]) -> Iterator[Callable[..., Any]]:
    """Open the page of a task; what it complains of and asks for is noted."""
    contexts: list[Any] = []

    def open_page(task: str, width: int = 1200, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.complaints, page.requests = [], []
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(address(task))
        return page

    yield open_page
    for context in contexts:
        context.close()

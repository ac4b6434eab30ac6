"""Fixtures of the tests of the paper's package; fixtures and hooks of all tests of the library."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import (
    _no_figure_stays_open,
    _registered_names,
    _same_random_numbers_of_numpy,
    _same_state_of_torch,
    annotations_of_another_file,
    drop_shape_checks,
    empty_picture,
    pytest_collection_modifyitems,
    without_shape_checks,
)

__all__ = [
    "_no_figure_stays_open",
    "_registered_names",
    "_same_random_numbers_of_numpy",
    "_same_state_of_torch",
    "annotations_of_another_file",
    "pytest_collection_modifyitems",
    "without_shape_checks",
]

AS_USERS_RUN_IT = ("cli", "docs", "frozen")
"""Folders of tests of the whole program, which the checks of annotations make twice as slow."""


@pytest.fixture(scope="module", autouse=True)
def _as_users_run_it(request: pytest.FixtureRequest) -> Iterator[None]:
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    yield from drop_shape_checks() if folder in AS_USERS_RUN_IT else (None,)


@pytest.fixture
def without_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports with empty pictures: drawing takes seconds and has its own tests."""
    monkeypatch.setattr("directgp_paper.reports.page.render", empty_picture)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, so that relative paths are the same on every machine."""
    monkeypatch.chdir(tmp_path)
    for name in ("DIRECTGP_DATA", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path

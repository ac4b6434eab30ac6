"""Fixtures of all tests."""

from collections.abc import Iterator

import pytest
from jaxtyping import config

from tests import annotations

annotations.check_each_combination_once()


@pytest.fixture(autouse=True, scope="module")
def annotations_of_another_file() -> None:
    """What one file of tests has checked is checked again in the next."""
    annotations.forget()


@pytest.fixture
def without_shape_checks() -> Iterator[None]:
    """As a user runs the library: the checks of the annotations are on in tests only."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture
def without_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports with empty pictures: drawing takes seconds and has its own tests."""
    # Imported here: the checks above have to be in place before the package is imported.
    from directgp.plots.rendering import Picture, RenderedPicture

    empty = '<svg viewBox="0 0 1 1"></svg>'

    def render(picture: Picture) -> RenderedPicture:
        return RenderedPicture(picture, b"", empty, empty, empty, empty)

    monkeypatch.setattr("directgp.reports.compare.render", render)
    monkeypatch.setattr("directgp.reports.paper.render", render)

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

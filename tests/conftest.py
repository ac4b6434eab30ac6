"""What the tests share."""

from collections.abc import Iterator

import pytest
from jaxtyping import config


@pytest.fixture
def without_shape_checks() -> Iterator[None]:
    """As a user runs the library: the checks of the annotations are on in tests only."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)

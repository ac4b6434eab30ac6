"""The markers of the library's tests have their meaning here, too."""

import pytest


@pytest.mark.slow_for("long")
@pytest.mark.parametrize("length", ["short", "long"])
def test_parameters_named_by_slow_for_are_slow(length: str, request: pytest.FixtureRequest) -> None:
    assert (request.node.get_closest_marker("slow") is not None) == (length == "long")

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


_MANY = {"beta", "com_poisson", "gaussian_known_noise", "log_normal", "ordinal", "tobit"}
_MANY |= {"com_poisson_wide", "zero_inflated_negative_binomial"}
"""Likelihoods whose tests of every rule and regime are slow ones; others like them are not."""

_ALWAYS = (
    "test_value_and_gradients",
    "test_parameter_gradients",
    "test_gradients_are_unbiased",
    "test_values_are_those_of_the_definition",
    "test_targets_outside_the_support",
    "test_draws_have_the_right_distribution",
    "test_probabilities_sum_to",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of tables of likelihoods as slow where another likelihood stands for one."""
    for item in items:
        values = getattr(item, "callspec", None)
        if values is None or item.name.startswith(_ALWAYS):
            continue
        names = {getattr(value, "name", value) for value in values.params.values() if _named(value)}
        if names & _MANY and "tests/estimators" not in item.nodeid:
            item.add_marker(pytest.mark.slow)


def _named(value: object) -> bool:
    return isinstance(value, str) or isinstance(getattr(value, "name", None), str)

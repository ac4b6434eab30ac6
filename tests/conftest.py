"""Fixtures of all tests."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from jaxtyping import config

from tests import annotations

annotations.check_each_combination_once()

# Shells start programs in the background with Ctrl-C ignored, and their programs inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is slow now and then, and new examples in each run would make a failure of one run
# a success of the next: the fuzzers of the campaign look for new ones.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the parameters named by `slow_for` as slow, before pytest deselects by marker."""
    for item in items:
        for mark in item.iter_markers("slow_for"):
            parameters = item.name.partition("[")[2]
            if any(word in parameters for word in mark.args):
                item.add_marker("slow")


@pytest.fixture(autouse=True)
def _same_random_numbers_of_numpy() -> Iterator[None]:
    """An estimator without a `random_state` draws the same numbers in each run of the tests."""
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    yield
    np.random.set_state(before)  # noqa: NPY002


@pytest.fixture(autouse=True)
def _same_state_of_torch() -> Iterator[None]:
    """Global random numbers and the number of threads do not depend on earlier tests."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    threads = torch.get_num_threads()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
    # Threads that a test leaves behind slow down all later tests of its worker.
    assert torch.get_num_threads() == threads


@pytest.fixture(autouse=True)
def _no_figure_stays_open() -> Iterator[None]:
    """Matplotlib warns of many open figures, and of an open one whose backend changes."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums of more than one thread are added in another order."""
    yield from _threads(1)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """With one thread, small matrices are always computed by numpy."""
    yield from _threads(2)


def _threads(number: int) -> Iterator[None]:
    # Imported here, since some tests need no torch.
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def annotations_of_another_file() -> None:
    """What one file of tests has checked is checked again in the next."""
    annotations.forget()


AS_USERS_RUN_IT = (
    "benchmarks",
    "cli",
    "docs",
    "estimators",
    "examples",
    "frozen",
    "properties",
)
"""Folders of tests that the checks of annotations make up to twice as slow."""


@pytest.fixture
def without_shape_checks() -> Iterator[None]:
    """As a user runs the library: the checks of the annotations are on in tests only."""
    yield from drop_shape_checks()


@pytest.fixture(scope="module", autouse=True)
def _registered_names() -> Iterator[None]:
    """Likelihoods that a file of tests, or a page, registers are unknown to the next."""
    # Imported here: the checks above have to be in place before the package is imported.
    from directgp.registry import LIKELIHOODS

    before = dict(LIKELIHOODS)
    yield
    LIKELIHOODS.clear()
    LIKELIHOODS.update(before)


@pytest.fixture(scope="module", autouse=True)
def _as_users_run_it(request: pytest.FixtureRequest) -> Iterator[None]:
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    yield from drop_shape_checks() if folder in AS_USERS_RUN_IT else (None,)


def drop_shape_checks() -> Iterator[None]:
    """Switch the checks of the annotations off while the generator waits."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", before)


@pytest.fixture
def without_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports with empty pictures: drawing takes seconds and has its own tests."""
    monkeypatch.setattr("directgp.reports.compare.render", empty_picture)


def empty_picture(picture: Any) -> Any:
    """Take the place of `directgp.plots.render`."""
    # Imported here: the checks above have to be in place before the package is imported.
    from directgp.plots import RenderedPicture

    empty = '<svg viewBox="0 0 1 1"></svg>'
    return RenderedPicture(picture, b"", empty, empty, empty, empty)

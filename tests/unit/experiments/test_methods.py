"""The choice of methods."""

import pytest

from directgp.datasets.problem import Task
from directgp.errors import InvalidInputError
from directgp.experiments.cell import METHODS, select_methods


def test_regression_has_all() -> None:
    assert [method.name for method in select_methods("regression")] == list(METHODS)


@pytest.mark.parametrize("task", ["classification", "count"])
def test_others_have_what_needs_no_gaussian(task: Task) -> None:
    names = [method.name for method in select_methods(task)]
    assert names == ["elbo", "beta-elbo", "log-joint", "log-fixed"]


def test_other_noise_has_what_needs_no_gaussian() -> None:
    assert len(select_methods("regression", likelihood="student_t")) == 4


def test_the_order_is_always_the_same() -> None:
    found = select_methods("regression", ["log-joint", "elbo"])
    assert [method.name for method in found] == ["elbo", "log-joint"]


def test_refusals() -> None:
    words = r"methods must be of elbo, .* here\. Got 'fitc'\. FITC needs a real-valued target"
    with pytest.raises(InvalidInputError, match=words):
        select_methods("count", ["fitc"])
    with pytest.raises(InvalidInputError, match=r"methods must be at least one of"):
        select_methods("count", [])

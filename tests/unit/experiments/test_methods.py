"""The line-up."""

import pytest

from directgp.datasets.problem import Task
from directgp.errors import InvalidInputError
from directgp.experiments.cell import METHODS, line_up


def test_regression_has_all() -> None:
    assert [method.name for method in line_up("regression")] == list(METHODS)


@pytest.mark.parametrize("task", ["classification", "count"])
def test_others_have_what_needs_no_gaussian(task: Task) -> None:
    names = [method.name for method in line_up(task)]
    assert names == ["elbo", "beta-elbo", "log-joint", "log-fixed"]


def test_other_noise_has_what_needs_no_gaussian() -> None:
    assert len(line_up("regression", likelihood="student_t")) == 4


def test_the_order_is_always_the_same() -> None:
    found = line_up("regression", ["log-joint", "elbo"])
    assert [method.name for method in found] == ["elbo", "log-joint"]


def test_refusals() -> None:
    words = r"methods must be of elbo, .* here\. Got 'fitc'\. FITC needs a real-valued target"
    with pytest.raises(InvalidInputError, match=words):
        line_up("count", ["fitc"])
    with pytest.raises(InvalidInputError, match=r"methods must be at least one of"):
        line_up("count", [])

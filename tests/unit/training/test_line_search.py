"""Line searches on functions of one variable, and directions at bounds."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from directgp.training.lbfgs import LowerBounds, Point, line_search

Function = Callable[[float], tuple[float, float]]


def searched(
    function: Function, length: float, longest: float = math.inf, most: float = math.inf
) -> tuple[Point | None, list[float]]:
    """The point found from 0 upwards, and the lengths that were tried; not finite beyond `most`."""
    tried = []

    def at(length: float) -> Point | None:
        tried.append(length)
        value, slope = function(length)
        return Point(np.array([length]), value, np.array([slope])) if length <= most else None

    start = at(0.0)
    assert start is not None
    return line_search(at, start, np.ones(1), length, longest), tried[1:]


def bowl(x: float) -> tuple[float, float]:
    return (x - 1) ** 2, 2 * (x - 1)


def wavy(x: float) -> tuple[float, float]:
    return -x + 0.5 * math.sin(8 * x), -1 + 4 * math.cos(8 * x)


@pytest.mark.parametrize("function", [bowl, lambda x: (math.cosh(x - 3), math.sinh(x - 3)), wavy])
@pytest.mark.parametrize("length", [1e-3, 0.1, 1.0, 30.0])
def test_the_conditions_of_wolfe(function: Function, length: float) -> None:
    if function is wavy:
        # Down at first: sin starts upwards.
        function = lambda x: wavy(x + 0.3)  # noqa: E731
    found, tried = searched(function, length)
    value, slope = function(0.0)
    assert found is not None and found.x[0] == tried[-1]
    assert found.value <= value + 1e-4 * found.x[0] * slope
    assert found.gradient[0] >= 0.9 * slope
    assert len(tried) <= 15


def test_a_good_length_is_taken_at_once() -> None:
    assert searched(bowl, 0.9)[1] == [0.9]


def test_beyond_the_end_of_finite_values() -> None:
    found, tried = searched(lambda x: (-x, -1.0), 100.0, most=3.0)
    assert found is not None and 0 < found.x[0] <= 3.0 < max(tried)


def test_no_way_down() -> None:
    assert searched(lambda x: (x, -1.0), 1.0)[0] is None
    found, tried = searched(bowl, 1.0, most=0.0)
    assert found is None and 0 < len(tried) <= 30


def test_rounding_is_known_by_equal_values() -> None:
    found, tried = searched(lambda x: (1.0, -1e-9), 1.0)
    assert found is None and len(tried) == 2


def test_the_longest_is_far_enough() -> None:
    found, tried = searched(lambda x: (-x, -1.0), 1.0, longest=5.0)
    assert found is not None and found.x[0] == 5.0 and max(tried) == 5.0


BOUNDS = LowerBounds(np.array([-np.inf, 0.0, 1.0]))


def test_a_direction_is_projected_to_the_bounds() -> None:
    x, gradient = np.array([0.0, 2.0, 1.0]), np.array([1.0, 1.0, 1.0])
    down = np.array([-9.0, -8.0, -1.0])
    np.testing.assert_array_equal(BOUNDS.project(x, down, gradient), [-9.0, -2.0, 0.0])
    np.testing.assert_array_equal(BOUNDS.project(x, -down, gradient), [9.0, 8.0, 0.0])
    np.testing.assert_array_equal(BOUNDS.project(x, -down, -gradient), [9.0, 8.0, 1.0])
    np.testing.assert_array_equal(BOUNDS.free(x, gradient), [1.0, 1.0, 0.0])
    np.testing.assert_array_equal(BOUNDS.free(x, -gradient), [-1.0, -1.0, -1.0])
    assert BOUNDS.max_length(x, np.array([-9.0, -0.5, 0.0])) == 4.0
    assert BOUNDS.max_length(x, np.array([-9.0, 0.5, 2.0])) == math.inf
    np.testing.assert_array_equal(BOUNDS.clip(np.array([-3.0, -3.0, 3.0])), [-3.0, 0.0, 3.0])


def test_without_bounds_nothing_changes() -> None:
    none, x = LowerBounds(np.full(2, -np.inf)), np.array([1.0, -2.0])
    np.testing.assert_array_equal(none.project(x, -x, x), -x)
    np.testing.assert_array_equal(none.free(x, x), x)
    np.testing.assert_array_equal(none.clip(x), x)
    assert none.max_length(x, -x) == math.inf

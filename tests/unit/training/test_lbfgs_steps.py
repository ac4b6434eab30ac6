"""The parts of L-BFGS: parameters as one vector, line search, inverse curvature."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from directgp.training.curvature import (
    Coordinates,
    FlatParameters,
    InverseCurvature,
    LowerBounds,
    Vector,
)
from directgp.training.lbfgs import Point, line_search

M = 4
CHOL = M * (M + 1) // 2
FLAT_SIZE = M + 6 + CHOL
GENERATOR = torch.Generator().manual_seed(0)
FRAME = torch.randn(M, M, generator=GENERATOR, dtype=torch.float64).tril() + 3 * torch.eye(M)
UNITS = {"other": torch.tensor([[0.5, 2.0, 3.0], [1.0, 0.1, 7.0]], dtype=torch.float64)}
each_view = pytest.mark.parametrize(
    ("frame", "units"), [(None, None), (FRAME, None), (None, UNITS), (FRAME, UNITS)]
)


def q_of_u(dtype: torch.dtype = torch.float64) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    values = {
        "u_mean": torch.randn(M, generator=generator, dtype=torch.float64),
        "other": torch.randn(2, 3, generator=generator, dtype=torch.float64),
        "u_chol": torch.randn(M, M, generator=generator, dtype=torch.float64).tril(),
    }
    return {name: nn.Parameter(value.to(dtype)) for name, value in values.items()}


def some(seed: int) -> Vector:
    return np.random.default_rng(seed).normal(size=FLAT_SIZE)


def test_parameters_are_read_and_written_unchanged() -> None:
    parameters = q_of_u()
    flat = FlatParameters(parameters)
    before = {name: p.detach().clone() for name, p in parameters.items()}
    vector = flat.read()
    assert vector.shape == (FLAT_SIZE,) and vector.dtype == np.float64
    with torch.no_grad():
        for p in parameters.values():
            p.fill_(7.0)
    flat.write(vector)
    for name, p in parameters.items():
        assert torch.equal(p.detach(), before[name])
    np.testing.assert_array_equal(flat.read(), vector)


def test_the_vector_is_a_copy() -> None:
    parameters = q_of_u()
    vector = FlatParameters(parameters).read()
    before = vector.copy()
    with torch.no_grad():
        for p in parameters.values():
            p.zero_()
    np.testing.assert_array_equal(vector, before)


def test_where_each_parameter_is() -> None:
    parameters = q_of_u()
    flat = FlatParameters(parameters)
    vector = flat.read()
    np.testing.assert_array_equal(vector[flat.slice_of("u_mean")], parameters["u_mean"].detach())
    chol = parameters["u_chol"].detach().numpy()
    np.testing.assert_array_equal(vector[flat.slice_of("u_chol")], chol[np.tril_indices(M)])
    assert vector[flat.slice_of("absent")].size == 0


def value_of(parameters: dict[str, nn.Parameter]) -> Tensor:
    u_mean, u_chol = parameters["u_mean"], parameters["u_chol"].tril()
    return (u_mean.sin() * u_chol.cosh().sum(0)).sum() + parameters["other"].exp().sum()


def gradient(parameters: dict[str, nn.Parameter]) -> Tensor:
    found = torch.autograd.grad(value_of(parameters), list(parameters.values()))
    return torch.cat([each.reshape(-1) for each in found])


@each_view
def test_the_gradient_is_that_of_the_coordinates(
    frame: Tensor | None, units: dict[str, Tensor] | None
) -> None:
    """By central differences along each of z, with x = T z."""
    parameters = q_of_u()
    flat = FlatParameters(parameters)
    coordinates = Coordinates(flat, frame, units)
    slopes, x = coordinates.of_gradient(flat.packed(gradient(parameters))), flat.read()
    step, numeric = 1e-5, np.zeros(FLAT_SIZE)
    for i, along in enumerate(np.eye(FLAT_SIZE)):
        moved = []
        for sign in (1, -1):
            flat.write(x + coordinates.to_step(sign * step * along))
            moved.append(value_of(parameters).item())
        numeric[i] = (moved[0] - moved[1]) / (2 * step)
    # Curvature of third order times step² is 1e-9 of the slopes.
    np.testing.assert_allclose(slopes, numeric, rtol=1e-6, atol=1e-6 * np.abs(numeric).max())


@each_view
def test_steps_go_round_and_meet_gradients(
    frame: Tensor | None, units: dict[str, Tensor] | None
) -> None:
    """T⁻¹ T = 1, and the slope along a step is the same number in x and in z."""
    coordinates = Coordinates(FlatParameters(q_of_u()), frame, units)
    step, gradient = some(0), some(1)
    # C has a condition below 10.
    inside = coordinates.of_step(step)
    np.testing.assert_allclose(coordinates.to_step(inside), step, rtol=1e-13, atol=1e-14)
    assert coordinates.of_gradient(gradient) @ inside == pytest.approx(gradient @ step, rel=1e-13)


def test_the_frame_is_of_q_alone() -> None:
    parameters = q_of_u()
    flat = FlatParameters(parameters)
    plain, framed = flat.read(), Coordinates(flat, FRAME).of_step(flat.read())
    np.testing.assert_array_equal(framed[M : M + 6], plain[M : M + 6])
    expected = np.linalg.solve(FRAME.numpy(), parameters["u_mean"].detach().numpy())
    np.testing.assert_allclose(framed[:M], expected, rtol=1e-13)
    chol = np.linalg.solve(FRAME.numpy(), parameters["u_chol"].detach().numpy())
    lower = chol[np.tril_indices(M)]
    np.testing.assert_allclose(framed[M + 6 :], lower, rtol=1e-13, atol=1e-14)


def test_units_are_of_the_others_alone() -> None:
    flat = FlatParameters(q_of_u())
    seen = Coordinates(flat, FRAME, UNITS).of_step(flat.read())
    expected = flat.read()[M : M + 6] / UNITS["other"].numpy().ravel()
    np.testing.assert_allclose(seen[M : M + 6], expected, rtol=1e-15)


def test_float32_parameters_have_a_float64_vector() -> None:
    parameters = q_of_u(torch.float32)
    flat = FlatParameters(parameters)
    vector = flat.read()
    assert vector.dtype == np.float64
    before = {name: p.detach().clone() for name, p in parameters.items()}
    flat.write(vector)
    for name, p in parameters.items():
        assert p.dtype == torch.float32 and torch.equal(p.detach(), before[name])


def test_one_value_with_others_for_some_parameters() -> None:
    found = FlatParameters(q_of_u()).full(-np.inf, {"other": -2.0})
    np.testing.assert_array_equal(found[M : M + 6], -2.0)
    assert np.isneginf(found[:M]).all() and np.isneginf(found[M + 6 :]).all()


Function = Callable[[float], tuple[float, float]]


def searched(
    function: Function, length: float, longest: float = math.inf, most: float = math.inf
) -> tuple[Point | None, list[float]]:
    """The point found from 0 upwards, and the lengths that were tried; not finite beyond `most`."""
    tried = []

    def at(length: float) -> Point | None:
        tried.append(length)
        value, slope = function(length)
        gradient = np.array([slope])
        return Point(np.array([length]), value, gradient, slope) if length <= most else None

    return line_search(at, *function(0.0), length, longest), tried


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


def test_a_search_returns_from_values_that_are_not_finite() -> None:
    found, tried = searched(lambda x: (-x, -1.0), 100.0, most=3.0)
    assert found is not None and 0 < found.x[0] <= 3.0 < max(tried)


def test_a_search_without_descent_finds_nothing() -> None:
    assert searched(lambda x: (x, -1.0), 1.0)[0] is None
    found, tried = searched(bowl, 1.0, most=0.0)
    assert found is None and 0 < len(tried) <= 30


def test_rounding_is_known_by_equal_values() -> None:
    found, tried = searched(lambda x: (1.0, -1e-9), 1.0)
    assert found is None and len(tried) == 2


def test_a_search_ends_at_the_longest_step() -> None:
    found, tried = searched(lambda x: (-x, -1.0), 1.0, longest=5.0)
    assert found is not None and found.x[0] == 5.0 and max(tried) == 5.0


def test_tensors_have_the_same_coordinates_as_arrays() -> None:
    """A vector of tensors has the whole of u_chol, with 0 above the diagonal."""
    parameters = q_of_u()
    packed, whole = FlatParameters(parameters), FlatParameters(parameters, torch)
    lower = torch.cat([torch.ones(M + 6), torch.ones(M, M).tril().reshape(-1)]).bool()
    vector = whole.packed(torch.randn(M + 6 + M * M, generator=GENERATOR, dtype=torch.float64))
    assert not vector[~lower].any() and len(packed.read()) == int(lower.sum())
    arrays, tensors = Coordinates(packed, FRAME, UNITS), Coordinates(whole, FRAME, UNITS)
    for change in ("of_step", "of_gradient", "to_step"):
        found = getattr(tensors, change)(vector)
        assert not found[~lower].any()
        expected = getattr(arrays, change)(vector[lower].numpy())
        np.testing.assert_allclose(found[lower].numpy(), expected, rtol=1e-12)
    whole.write(vector)
    np.testing.assert_array_equal(packed.read(), vector[lower].numpy())


BOUNDS = LowerBounds(np.array([-np.inf, 0.0, 1.0]))


def test_a_direction_is_projected_to_the_bounds() -> None:
    x, gradient = np.array([0.0, 2.0, 1.0]), np.array([1.0, 1.0, 1.0])
    down = np.array([-9.0, -8.0, -1.0])
    up, held = BOUNDS.held(x, -gradient), BOUNDS.held(x, gradient)
    np.testing.assert_array_equal(held, [False, False, True])
    np.testing.assert_array_equal(up, [False, False, False])
    np.testing.assert_array_equal(BOUNDS.project(x, down, held), [-9.0, -2.0, 0.0])
    np.testing.assert_array_equal(BOUNDS.project(x, -down, held), [9.0, 8.0, 0.0])
    np.testing.assert_array_equal(BOUNDS.project(x, -down, up), [9.0, 8.0, 1.0])
    np.testing.assert_array_equal(BOUNDS.free(gradient, held), [1.0, 1.0, 0.0])
    np.testing.assert_array_equal(BOUNDS.free(-gradient, up), [-1.0, -1.0, -1.0])
    assert BOUNDS.max_length(x, np.array([-9.0, -0.5, 0.0])) == 4.0
    assert BOUNDS.max_length(x, np.array([-9.0, 0.5, 2.0])) == math.inf
    np.testing.assert_array_equal(BOUNDS.clip(np.array([-3.0, -3.0, 3.0])), [-3.0, 0.0, 3.0])


def test_without_bounds_nothing_changes() -> None:
    none, x = LowerBounds(np.full(2, -np.inf)), np.array([1.0, -2.0])
    assert none.held(x, x) is None
    np.testing.assert_array_equal(none.project(x, -x, None), -x)
    np.testing.assert_array_equal(none.free(x, None), x)
    np.testing.assert_array_equal(none.clip(x), x)
    assert none.max_length(x, -x) == math.inf


Array = NDArray[np.float64]
SIZE = 5
RANDOM = np.random.default_rng(0)
PLAIN = FlatParameters({"x": nn.Parameter(torch.zeros(SIZE, dtype=torch.float64))})
UNIT = torch.tensor([1.0, 10.0, 0.1, 3.0, 0.5], dtype=torch.float64)
SEEN = Coordinates(PLAIN, None, {"x": UNIT})
ROOT = RANDOM.normal(size=(SIZE, SIZE))
HESSIAN = ROOT @ ROOT.T + np.diag([1.0, 1e3, 10.0, 0.1, 1.0])


def pairs(number: int) -> list[tuple[Array, Array]]:
    """Steps and changes of the gradient of a function with curvature; not quite a quadratic."""
    steps = RANDOM.normal(size=(number, SIZE))
    return [(s, HESSIAN @ s * RANDOM.uniform(0.5, 2.0)) for s in steps]


def bfgs(H: Array, s: Array, y: Array) -> Array:
    """The inverse form: (1 − ρ s yᵀ) H (1 − ρ y sᵀ) + ρ s sᵀ."""
    rho = 1 / (s @ y)
    left = np.eye(SIZE) - rho * np.outer(s, y)
    return left @ H @ left.T + rho * np.outer(s, s)


def diagonal(known: list[tuple[Array, Array]]) -> Array:
    """Of the inverse of the direct form D⁻¹ − D⁻¹s sᵀD⁻¹ / sᵀD⁻¹s + y yᵀ / sᵀy, after each pair."""
    D = np.ones(SIZE)
    for s, y in known:
        D = D * (s @ y) / (y @ (D * y))
        B = np.diag(1 / D)
        B = B - np.outer(B @ s, B @ s) / (s @ B @ s) + np.outer(y, y) / (s @ y)
        D = 1 / B.diagonal()
    return D


@pytest.mark.parametrize("number", [1, 3, 4, 7, 13, 14, 15, 40])
@pytest.mark.parametrize("unit", [None, UNIT])
def test_it_is_the_dense_formula_of_the_last_pairs(number: int, unit: torch.Tensor | None) -> None:
    T = np.eye(SIZE) if unit is None else np.diag(unit.numpy())
    coordinates = Coordinates(PLAIN, None, None if unit is None else {"x": unit})
    known, found = pairs(number), InverseCurvature(np.zeros(SIZE), memory=3)
    for s, y in known:
        found.add(s, y, coordinates)
    inverse = np.linalg.inv(T)
    H = T @ np.diag(diagonal([(inverse @ s, T @ y) for s, y in known])) @ T
    guess = H
    for s, y in known[-3:]:
        H = bfgs(H, s, y)
    gradient = RANDOM.normal(size=SIZE)
    np.testing.assert_allclose(found.times(gradient, coordinates), H @ gradient, rtol=1e-9)
    np.testing.assert_allclose(
        found.diagonal_times(gradient, coordinates), guess @ gradient, rtol=1e-11
    )


def test_it_is_the_last_curvature_also_in_other_coordinates() -> None:
    """H y = s for the last pair, whatever the coordinates are afterwards."""
    found = InverseCurvature(np.zeros(SIZE), memory=4)
    known = pairs(6)
    for s, y in known:
        found.add(s, y, SEEN)
    s, y = known[-1]
    for coordinates in (SEEN, Coordinates(PLAIN)):
        np.testing.assert_allclose(found.times(y, coordinates), s, rtol=1e-10)


def test_the_diagonal_learns_curvatures_that_differ() -> None:
    """From 40 steps it knows curvatures over six orders to a factor, without any pair."""
    curvature = np.logspace(-3, 3, SIZE)
    found = InverseCurvature(np.zeros(SIZE), memory=1)
    for s in RANDOM.normal(size=(40, SIZE)) / np.sqrt(curvature):
        found.add(s, curvature * s, Coordinates(PLAIN))
    ratio = found.diagonal_times(np.ones(SIZE), Coordinates(PLAIN)) * curvature
    assert 0.1 < ratio.min() and ratio.max() < 10


@pytest.mark.parametrize("sign", [-1.0, 0.0, np.nan])
def test_a_pair_without_curvature_is_left_out(sign: float) -> None:
    found = InverseCurvature(np.zeros(SIZE), memory=3)
    found.add(np.ones(SIZE), sign * np.ones(SIZE), SEEN)
    assert found.has_pair == 0
    gradient = RANDOM.normal(size=SIZE)
    np.testing.assert_allclose(found.times(gradient, SEEN), UNIT.numpy() ** 2 * gradient)


@pytest.mark.parametrize("unit", [1e-12, 1e12])
def test_curvature_has_no_unit(unit: float) -> None:
    found = InverseCurvature(np.zeros(SIZE), memory=3)
    for s, y in pairs(3):
        found.add(s, unit * y, SEEN)
    assert found.has_pair == 1
    step = RANDOM.normal(size=SIZE)
    found.add(step, unit * HESSIAN @ step, SEEN)
    np.testing.assert_allclose(found.times(unit * HESSIAN @ step, SEEN), step, rtol=1e-6)


def test_tensors_have_the_same_curvature_as_arrays() -> None:
    """The rows of tensors move with each pair, and pairs without curvature are masked."""
    arrays = InverseCurvature(np.zeros(SIZE), memory=3)
    tensors = InverseCurvature(torch.zeros(SIZE, dtype=torch.float64), memory=3)
    plain, gradient = Coordinates(PLAIN), RANDOM.normal(size=SIZE)
    for i, (s, y) in enumerate(pairs(9)):
        change = -y if i % 4 == 2 else y
        arrays.add(s, change, plain)
        tensors.add(torch.from_numpy(s), torch.from_numpy(change), plain)
        expected = arrays.times(gradient, plain)
        found = tensors.times(torch.from_numpy(gradient), plain).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    assert float(tensors.has_pair) == arrays.has_pair == 1

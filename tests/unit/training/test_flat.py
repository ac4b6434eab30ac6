"""Parameters as one vector, and its scaled coordinates."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from directgp.training.lbfgs import Coordinates, FlatParameters, Vector

M = 4
CHOL = M * (M + 1) // 2
SIZE = M + 6 + CHOL
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
    return np.random.default_rng(seed).normal(size=SIZE)


def test_parameters_go_round() -> None:
    parameters = q_of_u()
    flat = FlatParameters(parameters)
    before = {name: p.detach().clone() for name, p in parameters.items()}
    vector = flat.read()
    assert vector.shape == (SIZE,) and vector.dtype == np.float64
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


def gradients(parameters: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    found = torch.autograd.grad(value_of(parameters), list(parameters.values()))
    return dict(zip(parameters, found, strict=True))


@each_view
def test_the_gradient_is_that_of_the_coordinates(
    frame: Tensor | None, units: dict[str, Tensor] | None
) -> None:
    """By central differences along each of z, with x = T z."""
    parameters = q_of_u()
    flat = FlatParameters(parameters)
    coordinates = Coordinates(flat, frame, units)
    slopes, x = coordinates.of_gradient(flat.join(gradients(parameters))), flat.read()
    step, numeric = 1e-5, np.zeros(SIZE)
    for i, along in enumerate(np.eye(SIZE)):
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

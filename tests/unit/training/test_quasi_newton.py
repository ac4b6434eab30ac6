"""The inverse curvature against the dense formula of BFGS."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from directgp.training.lbfgs import Coordinates, FlatParameters, InverseCurvature

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
    known, found = pairs(number), InverseCurvature(SIZE, memory=3)
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
    found = InverseCurvature(SIZE, memory=4)
    known = pairs(6)
    for s, y in known:
        found.add(s, y, SEEN)
    s, y = known[-1]
    for coordinates in (SEEN, Coordinates(PLAIN)):
        np.testing.assert_allclose(found.times(y, coordinates), s, rtol=1e-10)


def test_the_diagonal_learns_curvatures_that_differ() -> None:
    """From 40 steps it knows curvatures over six orders to a factor, without any pair."""
    curvature = np.logspace(-3, 3, SIZE)
    found = InverseCurvature(SIZE, memory=1)
    for s in RANDOM.normal(size=(40, SIZE)) / np.sqrt(curvature):
        found.add(s, curvature * s, Coordinates(PLAIN))
    ratio = found.diagonal_times(np.ones(SIZE), Coordinates(PLAIN)) * curvature
    assert 0.1 < ratio.min() and ratio.max() < 10


@pytest.mark.parametrize("sign", [-1.0, 0.0, np.nan])
def test_a_pair_without_curvature_is_left_out(sign: float) -> None:
    found = InverseCurvature(SIZE, memory=3)
    found.add(np.ones(SIZE), sign * np.ones(SIZE), SEEN)
    assert found.empty
    gradient = RANDOM.normal(size=SIZE)
    np.testing.assert_allclose(found.times(gradient, SEEN), UNIT.numpy() ** 2 * gradient)


@pytest.mark.parametrize("unit", [1e-12, 1e12])
def test_curvature_has_no_unit(unit: float) -> None:
    found = InverseCurvature(SIZE, memory=3)
    for s, y in pairs(3):
        found.add(s, unit * y, SEEN)
    assert not found.empty
    step = RANDOM.normal(size=SIZE)
    found.add(step, unit * HESSIAN @ step, SEEN)
    np.testing.assert_allclose(found.times(unit * HESSIAN @ step, SEEN), step, rtol=1e-6)

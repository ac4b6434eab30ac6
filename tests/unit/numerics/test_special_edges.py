"""Infinities, NaN, inverses, transforms: what the tables of tails leave out."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from directgp.numerics.special import (
    inverse_mills,
    log1mexp,
    log_ndtr,
    log_ndtri,
    wright_omega,
)
from tests.reference import special as reference

Function = Callable[[Tensor], Tensor]

FUNCTIONS: list[Function] = [
    inverse_mills,
    log1mexp,
    log_ndtr,
    log_ndtri,
    wright_omega,
]
INF, NAN = math.inf, math.nan

each_function = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
# PyTorch's forward mode loads scripts of its own, in a way it has itself deprecated.
with_forward_mode = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is dep:DeprecationWarning"
)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def inside(function: Function, size: int = 5) -> Tensor:
    """Points of the function's domain."""
    x = torch.linspace(0.2, 3.0, size, dtype=torch.float64)
    return -x if function is log_ndtri else x


@pytest.mark.parametrize(
    ("function", "x", "limit"),
    [
        (log_ndtr, -INF, -INF),
        (log_ndtr, INF, 0.0),
        (inverse_mills, -INF, INF),
        (inverse_mills, INF, 0.0),
        (log1mexp, 0.0, -INF),
        (log1mexp, INF, 0.0),
        (log_ndtri, -INF, -INF),
        (log_ndtri, 0.0, INF),
        (log_ndtri, 0.1, NAN),
        (wright_omega, -INF, 0.0),
        (wright_omega, INF, INF),
    ],
)
@each_dtype
def test_limits(function: Function, x: float, limit: float, dtype: torch.dtype) -> None:
    value = function(torch.tensor([x], dtype=dtype))
    torch.testing.assert_close(value, torch.tensor([limit], dtype=dtype), equal_nan=True)


@each_function
@each_dtype
def test_nan_stays_where_it_is(function: Function, dtype: torch.dtype) -> None:
    x = inside(function).to(dtype)
    x[2] = NAN
    x.requires_grad_()
    value = function(x)
    (slope,) = torch.autograd.grad(value.sum(), x)
    expected = [False, False, True, False, False]
    assert value.isnan().tolist() == expected
    assert slope.isnan().tolist() == expected


@each_function
@pytest.mark.parametrize("shape", [(), (0,), (3, 1, 2)])
@each_dtype
def test_shape_and_dtype_are_kept(
    function: Function, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = torch.full(shape, -0.5 if function is log_ndtri else 0.5, dtype=dtype)
    value = function(x)
    assert value.shape == shape
    assert value.dtype == dtype


@with_forward_mode
@each_function
def test_derivatives_agree_with_differences(function: Function) -> None:
    x = inside(function).requires_grad_()
    assert torch.autograd.gradcheck(function, (x,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, (x,))


def test_second_derivative_in_the_left_tail_agrees_with_differences() -> None:
    x = torch.tensor([-20.0, -9.0, -7.0, -4.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(inverse_mills, (x,), atol=1e-7)


@with_forward_mode
@each_function
def test_vmap_of_derivatives_equals_the_plain_ones(function: Function) -> None:
    x = inside(function)
    second = torch.func.vmap(torch.func.grad(torch.func.grad(function)))(x)
    hessian = torch.func.hessian(lambda point: function(point).sum())(x)
    torch.testing.assert_close(hessian, torch.diag(second))


def test_second_derivative_of_log_ndtr_at_infinity() -> None:
    x = torch.tensor([-INF, INF], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(inverse_mills(x).sum(), x)
    torch.testing.assert_close(slope, torch.tensor([-1.0, 0.0], dtype=torch.float64))


@pytest.mark.parametrize(
    "log_p",
    [-1e30, -5e15, -1e6, -701.0, -700.0, -699.0, -100.0, -5.0, -0.7, -0.6, -1e-3, -1e-18, -1e-300],
)
def test_log_ndtri_inverts_log_ndtr(log_p: float) -> None:
    """Newton's step from the answer, taken in 60 digits, is below rounding."""
    x = float(log_ndtri(torch.tensor(log_p, dtype=torch.float64)))
    step = (reference.log_ndtr(x) - log_p) / reference.inverse_mills(x)
    assert abs(float(step)) < 1e-14 * abs(x)


def test_log_ndtri_in_float32_is_the_float64_one_rounded() -> None:
    log_p = -torch.logspace(-30, 30, 50, dtype=torch.float32)
    torch.testing.assert_close(log_ndtri(log_p), log_ndtri(log_p.double()).float())


@each_dtype
def test_wright_omega_solves_its_equation(dtype: torch.dtype) -> None:
    eps = torch.finfo(dtype).eps
    x = torch.cat([-torch.logspace(1.5, -3, 200), torch.logspace(-3, 30, 300)]).to(dtype)
    omega = wright_omega(x)
    torch.testing.assert_close(omega + torch.log(omega), x, rtol=4 * eps, atol=4 * eps)

"""Special functions against mpmath: values, gradients, tails, infinities and inverses."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import mpmath as mp
import pytest
import torch
from torch import Tensor

from directgp.numerics.log_square import expected_log_square
from directgp.numerics.special import (
    _by_erfcx,
    inverse_mills,
    log1mexp,
    log_ndtr,
    log_ndtr_and_slope,
    log_ndtr_derivatives,
    log_ndtri,
    log_softplus,
    softplus_derivatives,
    softplus_inverse,
    wright_omega,
)
from tests.reference import special
from tests.reference import special as reference
from tests.reference.special import Reference, relative_errors

FLOAT64, FLOAT32 = torch.float64, torch.float32

# Both sides of every switch between branches are here.
LEFT = [-1e8, -1e6, -1e4, -300.0, -38.0, -20.0, -10.0, -7.01, -6.99, -6.0, -5.0, -3.01, -2.99, -2.0]
CENTRE = [-1.0, -0.5, -1e-3, -1e-9, 0.0, 1e-9, 1e-3, 0.5, 1.0]
# The last of each is just short of where φ(x) leaves the normal numbers.
RIGHT = {FLOAT64: [2.0, 4.0, 8.0, 13.1, 20.0, 30.0, 37.5], FLOAT32: [2.0, 4.0, 8.0, 13.1]}
NORMAL = {dtype: LEFT + CENTRE + right for dtype, right in RIGHT.items()}
POSITIVE = [1e-3, 0.1, 0.5, 0.69, 0.7, 1.0, 3.0, 10.0, 40.0]
GAP = {
    FLOAT64: [1e-300, 1e-16, *POSITIVE, 100.0, 700.0],
    FLOAT32: [1e-37, 1e-8, *POSITIVE, 87.0],
}
OUTER = [-10.0, -3.0, -1.0, -1e-3, 0.0, 0.5, 0.9, 1.1, 2.0, 3.0, 10.0, 100.0, 1e4, 1e8]
OMEGA = {
    FLOAT64: [-700.0, -100.0, -37.0, -36.0, -35.0, -20.0, *OUTER],
    FLOAT32: [-87.0, -20.0, -16.0, -15.9, *OUTER],
}


@dataclass(frozen=True)
class Row:
    """One function, its references, and the relative errors allowed in float32."""

    function: Callable[[Tensor], Tensor]
    value: Reference
    slope: Reference
    points: dict[torch.dtype, list[float]]
    value_float32: float = 1e-6
    slope_float32: float = 1e-6

    def tolerance(self, dtype: torch.dtype, float32: float) -> float:
        return float32 if dtype == FLOAT32 else 1e-12


# In the right tail a relative change ε of x, a rounding, changes φ(x) by x² ε: here up to 172 ε.
RIGHT_TAIL = 2e-5
ROWS = [
    Row(
        log_ndtr,
        reference.log_ndtr,
        reference.inverse_mills,
        NORMAL,
        value_float32=RIGHT_TAIL,
        slope_float32=RIGHT_TAIL,
    ),
    Row(
        inverse_mills,
        reference.inverse_mills,
        reference.inverse_mills_slope,
        NORMAL,
        value_float32=RIGHT_TAIL,
        slope_float32=RIGHT_TAIL,
    ),
    Row(log1mexp, reference.log1mexp, reference.log1mexp_slope, GAP),
    # A change ε in log ω = x − ω ≈ −16 changes ω by 16 ε.
    Row(
        wright_omega,
        reference.wright_omega,
        reference.wright_omega_slope,
        OMEGA,
        value_float32=3e-6,
        slope_float32=3e-6,
    ),
]

each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.function.__name__)
each_dtype = pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)


def slope_of(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    point = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(function(point).sum(), point)
    return slope


@each_row
@each_dtype
def test_values_agree_with_mpmath(row: Row, dtype: torch.dtype) -> None:
    x = torch.tensor(row.points[dtype], dtype=dtype)
    errors = relative_errors(row.function(x), x, row.value)
    assert max(errors) < row.tolerance(dtype, row.value_float32)


@each_row
@each_dtype
def test_slopes_agree_with_mpmath(row: Row, dtype: torch.dtype) -> None:
    x = torch.tensor(row.points[dtype], dtype=dtype)
    errors = relative_errors(slope_of(row.function, x), x, row.slope)
    assert max(errors) < row.tolerance(dtype, row.slope_float32)


@each_dtype
def test_second_derivative_of_log_ndtr(dtype: torch.dtype) -> None:
    x = torch.tensor(NORMAL[dtype], dtype=dtype, requires_grad=True)
    (first,) = torch.autograd.grad(log_ndtr(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    errors = relative_errors(second, x, reference.inverse_mills_slope)
    assert max(errors) < (RIGHT_TAIL if dtype == FLOAT32 else 1e-12)


def test_slope_is_not_that_of_torch() -> None:
    """The reason for a gradient of our own; when this fails, torch's may do."""
    x = torch.tensor([-1e4], dtype=FLOAT32)
    errors = relative_errors(slope_of(torch.special.log_ndtr, x), x, reference.inverse_mills)
    assert max(errors) > 1.0


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
def test_limits_at_infinity_and_at_the_ends(
    function: Function, x: float, limit: float, dtype: torch.dtype
) -> None:
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


SOFTPLUS_AT = [
    -745.0,
    -100.0,
    -20.001,
    -19.999,
    -4.7,
    -4.5,
    -1.0,
    0.0,
    1.0,
    19.0,
    21.0,
    39.0,
    41.0,
    7e2,
]


def softplus_logs(f: float) -> tuple[float, float, float]:
    """log s, its slope ρ and ρ′, in fifty digits."""
    with mp.workdps(400):
        x = mp.exp(mp.mpf(f))
        s, slope = mp.log1p(x), x / (1 + x)
        rho = slope / s
        return float(mp.log(s)), float(rho), float(rho * (1 - slope - rho))


@pytest.mark.parametrize("f", SOFTPLUS_AT)
def test_log_softplus_and_derivatives_agree_with_mpmath(f: float) -> None:
    found = softplus_derivatives(torch.tensor([f], dtype=torch.float64))[2:]
    for value, truth in zip(found, softplus_logs(f), strict=True):
        assert value.item() == pytest.approx(truth, rel=2e-14, abs=1e-300)


@pytest.mark.parametrize("f", SOFTPLUS_AT)
def test_autograd_slope_of_log_softplus(f: float) -> None:
    x = torch.tensor([f], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(log_softplus(x).sum(), x)
    assert slope.item() == pytest.approx(softplus_logs(f)[1], rel=1e-13)


@pytest.mark.parametrize("s", [1e-300, 1e-9, 0.3, 1.0, 30.0, 1e4])
def test_softplus_inverse_inverts_softplus(s: float) -> None:
    f = softplus_inverse(torch.tensor([s], dtype=torch.float64))
    assert torch.exp(log_softplus(f)).item() == pytest.approx(s, rel=1e-12)


def test_softplus_inverse_of_0_is_minus_infinity() -> None:
    assert softplus_inverse(torch.zeros(1)).item() == -torch.inf


NDTR_EXACT = (special.log_ndtr, special.inverse_mills, special.inverse_mills_slope)

# Both sides of the switch at −10, whose two branches must agree, and far into either tail.
NDTR_POINTS = [-1e4, -40.0, -10.001, -9.999, -5.0, -0.5, 0.0, 0.5, 5.0, 12.0]

# Those of a device switch at −25.
DEVICE_POINTS = [*NDTR_POINTS, -25.001, -24.999]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("order", [0, 1, 2])
def test_log_ndtr_and_derivatives(order: int, dtype: torch.dtype) -> None:
    x = torch.tensor(NDTR_POINTS, dtype=dtype)
    errors = special.relative_errors(log_ndtr_derivatives(x)[order], x, NDTR_EXACT[order])
    # x²/2 rounds in the exponent of φ: an error of x²ε, and x + λ(x) loses two digits at −10.
    assert max(errors) <= (2e-12 if dtype == torch.float64 else 2e-3)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_log_ndtr_as_a_device_computes_them(order: int) -> None:
    x = torch.tensor(DEVICE_POINTS, dtype=torch.float64)
    errors = special.relative_errors(_by_erfcx(x)[order], x, NDTR_EXACT[order])
    assert max(errors) <= 2e-12


def test_log_ndtr_and_slope_alone() -> None:
    x = torch.tensor(NDTR_POINTS, dtype=torch.float64)
    for got, want in zip(log_ndtr_and_slope(x), log_ndtr_derivatives(x)[:2], strict=True):
        assert torch.equal(got, want)


def test_log_ndtr_one_deep_point_leaves_the_others_alone() -> None:
    x = torch.tensor([-3.0, 0.0, 2.0], dtype=torch.float64)
    alone = log_ndtr_derivatives(x)
    beside = log_ndtr_derivatives(torch.cat([x, torch.tensor([-50.0], dtype=x.dtype)]))
    for a, b in zip(alone, beside, strict=True):
        assert torch.equal(a, b[:3])


def log_square(c: float, mean: float, variance: float) -> float:
    """E[log(c + x²)] by mpmath, in pieces that are fine around 0 and around the mean."""
    with mp.workdps(20):
        sd, root = mp.sqrt(variance), mp.sqrt(c)
        near = {sign * root * mp.mpf(4) ** i for i in range(20) for sign in (-1, 1)}
        cuts = {mean + sd * i for i in range(-12, 13, 2)} | near | {mp.mpf(0)}
        inside = sorted(x for x in cuts if abs(x - mean) <= 12 * sd)
        total = mp.quad(
            lambda x: mp.exp(-(((x - mean) / sd) ** 2) / 2) * mp.log(c + x * x),
            inside,
            method="gauss-legendre",
            maxdegree=4,
        )
        return float(total / (sd * mp.sqrt(2 * mp.pi)))


@pytest.mark.parametrize("c", [1e-8, 0.1, 50.0])
@pytest.mark.parametrize("mean", [0.0, 2.0, 1e3])
@pytest.mark.parametrize("variance", [1e-6, 1.0, 100.0])
def test_log_square_agrees_with_mpmath(c: float, mean: float, variance: float) -> None:
    arguments = (torch.tensor([x], dtype=torch.float64) for x in (c, mean, variance))
    truth = log_square(c, mean, variance)
    assert expected_log_square(*arguments).item() == pytest.approx(truth, rel=1e-12, abs=1e-12)


def test_log_square_gradient() -> None:
    c, mean, variance = (
        torch.tensor(x, dtype=torch.float64, requires_grad=True)
        for x in ([0.2, 3.0], [-1.0, 5.0], [2.0, 0.3])
    )
    assert torch.autograd.gradcheck(expected_log_square, (c, mean, variance))


def test_log_square_ratio_of_scales_does_not_matter() -> None:
    arguments = [torch.tensor([x], dtype=torch.float64) for x in (1e-10, 3.0, 7.0)]
    plain = expected_log_square(*arguments)
    scaled = expected_log_square(
        *(x * k for x, k in zip(arguments, (1e12, 1e6, 1e12), strict=True))
    )
    assert (scaled - plain).item() == pytest.approx(12 * torch.log(torch.tensor(10.0)).item())

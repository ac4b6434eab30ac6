"""Formulas in float64 whose first derivatives are written by hand."""

import pytest
import torch
from torch import Tensor

from directgp.errors import UnsupportedError
from directgp.numerics.autograd import in_float64


def formula(y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return y * torch.sin(a) * torch.exp(b)


def sloped(y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    value = formula(y, a, b)
    return value, y * torch.cos(a) * torch.exp(b), value


def twice_too_steep(y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    value, by_a, by_b = sloped(y, a, b)
    return value, 2 * by_a, by_b


def arguments(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """y and the first argument of shape (3, 4), a second one for each of three rows."""
    generator = torch.Generator().manual_seed(0)
    y, a = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64).to(dtype)
    b = torch.randn(3, 1, generator=generator, dtype=torch.float64).to(dtype)
    return y, a.requires_grad_(), b.requires_grad_()


def test_value_and_derivatives_of_the_first_order() -> None:
    y, a, b = arguments()
    value = in_float64(formula, sloped, y, a, b)
    torch.testing.assert_close(value, formula(y, a, b))
    assert torch.autograd.gradcheck(lambda *x: in_float64(formula, sloped, y, *x), (a, b))
    with pytest.raises(UnsupportedError, match="cannot be differentiated again"):
        torch.autograd.grad(value.sum(), (a, b), create_graph=True)


def test_control_the_slopes_are_those_given() -> None:
    y, a, b = arguments()
    right, wrong = (
        torch.autograd.grad(in_float64(formula, slopes, y, a, b).sum(), a)[0]
        for slopes in (sloped, twice_too_steep)
    )
    torch.testing.assert_close(wrong, 2 * right)


def test_one_slope_for_two_arguments() -> None:
    y, a, _ = arguments()
    shift = torch.zeros((), dtype=torch.float64, requires_grad=True)

    def shifted(y: Tensor, a: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        slope = 2 * (a + shift) * y
        return y * (a + shift) ** 2, slope, slope

    value = in_float64(lambda y, a, s: shifted(y, a, s)[0], shifted, y, a, shift)
    by_a, by_shift = torch.autograd.grad(value.sum(), (a, shift))
    torch.testing.assert_close(by_a, 2 * a.detach() * y)
    torch.testing.assert_close(by_shift, by_a.sum())


@pytest.mark.parametrize("followed", [True, False])
def test_float32_is_rounded_once(followed: bool) -> None:
    y, a, b = arguments(torch.float32)
    with torch.set_grad_enabled(followed):
        value = in_float64(formula, sloped, y, a, b)
    wide = formula(y.double(), a.double(), b.double())
    assert torch.equal(value, wide.float())
    assert value.requires_grad == followed
    if followed:
        found = torch.autograd.grad(value.sum(), (a, b))
        for mine, other in zip(found, torch.autograd.grad(wide.sum(), (a, b)), strict=True):
            assert mine.dtype == torch.float32
            torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-6)


def test_an_argument_that_asks_for_nothing_gets_nothing() -> None:
    y, a, b = arguments()
    value = in_float64(formula, sloped, y, a, b.detach())
    assert torch.autograd.grad(value.sum(), a)[0].shape == a.shape


def test_transforms_go_by_the_formula() -> None:
    y, a, b = (x.detach() for x in arguments())
    slope = torch.func.grad(lambda x: in_float64(formula, sloped, y, x, b).sum())(a)
    torch.testing.assert_close(slope, sloped(y, a, b)[1])


def test_an_argument_may_be_made_from_another() -> None:
    y, a, _ = arguments()

    def of_one(a: Tensor) -> Tensor:
        return in_float64(formula, sloped, y, a, a.sin())

    assert torch.autograd.gradcheck(of_one, a)

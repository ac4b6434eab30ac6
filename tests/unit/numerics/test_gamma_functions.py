"""Functions around log Γ and e^x, against mpmath, with their gradients."""

from collections.abc import Callable

import mpmath
import pytest
import torch
from mpmath import mpf
from torch import Tensor

from directgp.numerics.special import (
    exp_excess,
    log_gamma,
    log_minus_digamma,
    stirling,
    trigamma,
)

_mp = mpmath.mp.clone()
_mp.dps = 60

POSITIVE = [1e-6, 1e-3, 0.3, 1.0, 1.4616, 2.0, 4.5, 11.0, 49.9, 50.1, 1e3, 1e7, 1e12]
REAL = [-700.0, -3.0, -0.0101, -0.0099, -1e-9, 1e-12, 0.0099, 0.0101, 1.0, 30.0, 600.0]

CASES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[mpf], mpf], list[float]]] = {
    "exp_excess": (exp_excess, lambda x: _mp.expm1(x) - x, REAL),
    "stirling": (stirling, lambda x: x * _mp.log(x) - x - _mp.loggamma(x), POSITIVE),
    "log_minus_digamma": (log_minus_digamma, lambda x: _mp.log(x) - _mp.psi(0, x), POSITIVE),
    "trigamma": (trigamma, lambda x: _mp.psi(1, x), POSITIVE),
}


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient(name: str) -> None:
    function, exact, places = CASES[name]
    x = torch.tensor(places, dtype=torch.float64, requires_grad=True)
    value = function(x)
    (slope,) = torch.autograd.grad(value.sum(), x)
    for place, got, rise in zip(places, value.tolist(), slope.tolist(), strict=True):
        at = _mp.mpf(place)
        truth = exact(at)
        # 1/x − ψ′(x) is a difference of nearly equal numbers where x is large.
        allowed = 1e-9 if name == "log_minus_digamma" and place > 1e3 else 1e-11
        assert abs(got - truth) <= 3e-13 * abs(truth), place
        change = _mp.diff(exact, at)
        slack = 1e-16 / place if name == "log_minus_digamma" else 0
        assert abs(rise - change) <= allowed * abs(change) + slack, place


def test_second_derivative_of_log_gamma() -> None:
    x = torch.tensor(POSITIVE, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(log_gamma(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    for place, got in zip(POSITIVE, second.tolist(), strict=True):
        truth = _mp.psi(1, _mp.mpf(place))
        assert abs(got - truth) <= 1e-13 * truth

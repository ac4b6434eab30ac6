import mpmath as mp
import pytest
import torch

from directgp.numerics.special import log_softplus, log_softplus_derivatives, softplus_inverse

POINTS = [-745.0, -100.0, -20.001, -19.999, -4.7, -4.5, -1.0, 0.0, 1.0, 19.0, 21.0, 39.0, 41.0, 7e2]


def exact(f: float) -> tuple[float, float, float]:
    """log s, its slope ρ and ρ′, in fifty digits."""
    with mp.workdps(400):
        x = mp.exp(mp.mpf(f))
        s, slope = mp.log1p(x), x / (1 + x)
        rho = slope / s
        return float(mp.log(s)), float(rho), float(rho * (1 - slope - rho))


@pytest.mark.parametrize("f", POINTS)
def test_derivatives(f: float) -> None:
    found = log_softplus_derivatives(torch.tensor([f], dtype=torch.float64))
    for value, truth in zip(found, exact(f), strict=True):
        assert value.item() == pytest.approx(truth, rel=2e-14, abs=1e-300)


@pytest.mark.parametrize("f", POINTS)
def test_autograd_slope(f: float) -> None:
    x = torch.tensor([f], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(log_softplus(x).sum(), x)
    assert slope.item() == pytest.approx(exact(f)[1], rel=1e-13)


@pytest.mark.parametrize("s", [1e-300, 1e-9, 0.3, 1.0, 30.0, 1e4])
def test_inverse(s: float) -> None:
    f = softplus_inverse(torch.tensor([s], dtype=torch.float64))
    assert torch.exp(log_softplus(f)).item() == pytest.approx(s, rel=1e-12)


def test_inverse_of_nothing() -> None:
    assert softplus_inverse(torch.zeros(1)).item() == -torch.inf

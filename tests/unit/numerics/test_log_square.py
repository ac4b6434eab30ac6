import mpmath as mp
import pytest
import torch

from directgp.numerics.special import expected_log_square


def exact(c: float, mean: float, variance: float) -> float:
    """E[log(c + x²)] by mpmath, in pieces that are fine around 0 and around the mean."""
    with mp.workdps(30):
        sd, root = mp.sqrt(variance), mp.sqrt(c)
        cuts = {mean + sd * i for i in range(-12, 13)}
        cuts |= {sign * root * mp.mpf(2) ** i for i in range(-3, 40) for sign in (-1, 1)} | {
            mp.mpf(0)
        }
        inside = sorted(x for x in cuts if abs(x - mean) <= 12 * sd)
        return float(
            mp.quad(lambda x: mp.npdf(x, mean, sd) * mp.log(c + x**2), inside, maxdegree=5)
        )


@pytest.mark.parametrize("c", [1e-8, 0.1, 50.0])
@pytest.mark.parametrize("mean", [0.0, 2.0, 1e3])
@pytest.mark.parametrize("variance", [1e-6, 1.0, 100.0])
def test_value(c: float, mean: float, variance: float) -> None:
    arguments = (torch.tensor([x], dtype=torch.float64) for x in (c, mean, variance))
    truth = exact(c, mean, variance)
    assert expected_log_square(*arguments).item() == pytest.approx(truth, rel=1e-12, abs=1e-12)


def test_gradient() -> None:
    c, mean, variance = (
        torch.tensor(x, dtype=torch.float64, requires_grad=True)
        for x in ([0.2, 3.0], [-1.0, 5.0], [2.0, 0.3])
    )
    assert torch.autograd.gradcheck(expected_log_square, (c, mean, variance))


def test_ratio_of_scales_does_not_matter() -> None:
    arguments = [torch.tensor([x], dtype=torch.float64) for x in (1e-10, 3.0, 7.0)]
    plain = expected_log_square(*arguments)
    scaled = expected_log_square(
        *(x * k for x, k in zip(arguments, (1e12, 1e6, 1e12), strict=True))
    )
    assert (scaled - plain).item() == pytest.approx(12 * torch.log(torch.tensor(10.0)).item())

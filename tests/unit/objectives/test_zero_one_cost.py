"""Costs of the two errors, the threshold they imply, and the tails."""

import pytest
import torch
from scipy import stats

from directgp import Marginals
from directgp.likelihoods import Logistic, Probit
from directgp.objectives import LogLoss, ZeroOneCost

FLOAT64 = torch.float64
FAR = torch.tensor([-30.0, -12.0, -5.0, 5.0, 12.0, 30.0], dtype=FLOAT64)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_probit_tails(label: float) -> None:
    """c_y·Φ(−(2y−1)μ/√(1+v)) and its slope in μ, down to 1e-100."""
    mean = FAR.clone().requires_grad_()
    y, variance = torch.full_like(FAR, label), torch.full_like(FAR, 1.0)
    value = ZeroOneCost(0.1, 3.0)(Probit(), y, Marginals(mean, variance))
    (slope,) = torch.autograd.grad(value.sum(), mean)
    cost, sign = (3.0, 1) if label else (0.1, -1)
    x = FAR.numpy() / 2**0.5
    want = torch.from_numpy(cost * stats.norm.cdf(-sign * x))
    want_slope = torch.from_numpy(-sign * cost * stats.norm.pdf(x) / 2**0.5)
    torch.testing.assert_close(value.detach(), want, rtol=1e-12, atol=0)
    torch.testing.assert_close(slope, want_slope, rtol=1e-12, atol=0)


@pytest.mark.parametrize("likelihood", [Probit(), Logistic()], ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("dtype", [torch.float32, FLOAT64])
def test_the_tail_keeps_its_gradient(likelihood: Probit | Logistic, dtype: torch.dtype) -> None:
    mean = torch.tensor([-12.0, 12.0], dtype=dtype, requires_grad=True)
    y, variance = torch.ones(2, dtype=dtype), torch.full((2,), 0.5, dtype=dtype)
    value = ZeroOneCost()(likelihood, y, Marginals(mean, variance))
    (slope,) = torch.autograd.grad(value.sum(), mean)
    assert value[0].item() == pytest.approx(1.0, abs=1e-4)
    assert 0 < value[1].item() < 1e-4
    assert bool((slope < 0).all()) and bool((slope > -1e-4).all())


@pytest.mark.parametrize("likelihood", [Probit(), Logistic()], ids=lambda each: type(each).__name__)
def test_unit_costs_count_errors(likelihood: Probit | Logistic) -> None:
    """E[p(1−y)] = 1 − E[p(y)], with the log loss of y."""
    y = torch.tensor([0.0, 1.0, 1.0], dtype=FLOAT64)
    q = Marginals(
        torch.tensor([0.3, -2.0, 1.0], dtype=FLOAT64), torch.tensor([1.0, 4.0, 0.1], dtype=FLOAT64)
    )
    right = torch.exp(-LogLoss()(likelihood, y, q))
    torch.testing.assert_close(ZeroOneCost()(likelihood, y, q), 1 - right)


@pytest.mark.parametrize(
    ("false_positive", "false_negative", "threshold"),
    [(1.0, 1.0, 0.5), (1.0, 3.0, 0.25), (9.0, 1.0, 0.9), (1e308, 1e308, 0.5), (1e-300, 1e300, 0.0)],
)
def test_threshold(false_positive: float, false_negative: float, threshold: float) -> None:
    assert ZeroOneCost(false_positive, false_negative).threshold == pytest.approx(threshold)


def test_the_threshold_is_where_the_two_decisions_cost_the_same() -> None:
    loss = ZeroOneCost(false_positive=2.0, false_negative=0.5)
    chance = loss.threshold
    mean = torch.full((2,), stats.norm.ppf(chance), dtype=FLOAT64)
    q = Marginals(mean, torch.full((2,), 1e-20, dtype=FLOAT64))
    wrong = loss(Probit(), torch.tensor([0.0, 1.0], dtype=FLOAT64), q)
    say_one, say_zero = 2.0 * (1 - chance), 0.5 * chance
    assert say_one == pytest.approx(say_zero)
    # Under that P(y = 1), labels drawn from the predictive: cost c_0·p for y = 0, c_1·(1−p) for 1.
    torch.testing.assert_close(wrong, torch.tensor([2.0 * chance, 0.5 * (1 - chance)]).double())

"""Scores of predictions."""

import math

import pytest
import torch
from scipy import stats

from directgp.likelihoods import Gaussian, Poisson, Probit
from directgp.metrics import SCORES, judge
from directgp.shapes import Marginals

MEAN = torch.tensor([0.5, -1.0, 2.0]).double()
VARIANCE = torch.tensor([0.2, 0.5, 0.1]).double()
Q = Marginals(MEAN, VARIANCE)


def test_regression_by_formula() -> None:
    y = torch.tensor([0.4, 1.5, 2.0]).double()
    found = judge("regression", Gaussian(0.3), y, Q)
    deviation = (VARIANCE + 0.3).sqrt()
    log_density = stats.norm.logpdf(y, MEAN, deviation)
    assert found.scores["nll"].tolist() == pytest.approx((-log_density).tolist())
    assert found.scores["mse"].tolist() == pytest.approx(((y - MEAN) ** 2).tolist())
    assert found.scores["coverage"].tolist() == [1, 0, 1]
    ends = [stats.norm.ppf(level, MEAN, deviation).tolist() for level in (0.05, 0.95)]
    assert found.lower.tolist() == pytest.approx(ends[0])
    assert found.upper.tolist() == pytest.approx(ends[1])
    assert found.up_to.tolist() == pytest.approx(stats.norm.cdf(y, MEAN, deviation).tolist())
    assert torch.equal(found.below, found.up_to)


def test_units_of_the_target() -> None:
    y = torch.tensor([0.4, 1.5, 2.0]).double()
    plain = judge("regression", Gaussian(0.3), y, Q)
    found = judge("regression", Gaussian(0.3), y, Q, offset=100.0, scale=20.0)
    factors = {"mse": 400.0, "crps": 20.0, "coverage": 1.0}
    for name, factor in factors.items():
        assert found.scores[name].tolist() == pytest.approx((factor * plain.scores[name]).tolist())
    shifted = plain.scores["nll"] + math.log(20.0)
    assert found.scores["nll"].tolist() == pytest.approx(shifted.tolist())
    for name in ("actual", "mean", "lower", "upper"):
        before = getattr(plain, name)
        assert getattr(found, name).tolist() == pytest.approx((100 + 20 * before).tolist())


def test_labels() -> None:
    found = judge("classification", Probit(), torch.tensor([1.0, 1.0, 0.0]).double(), Q)
    p = stats.norm.cdf(MEAN / (1 + VARIANCE).sqrt())
    assert found.mean.tolist() == pytest.approx(p.tolist())
    assert found.scores["error"].tolist() == [0, 1, 1]
    assert found.scores["brier"].tolist() == pytest.approx(
        [(1 - p[0]) ** 2, (1 - p[1]) ** 2, p[2] ** 2]
    )
    chance = [p[0], p[1], 1 - p[2]]
    assert found.scores["nll"].tolist() == pytest.approx([-math.log(c) for c in chance])
    assert set(found.scores) == {"nll", "error", "brier"}


def test_counts() -> None:
    y = torch.tensor([0.0, 3.0, 8.0]).double()
    found = judge("count", Poisson(), y, Q)
    mean = torch.exp(MEAN + VARIANCE / 2)
    expected = [float(mean[0]), float(3 - mean[1]) / 3, float((mean[2] - 8).abs()) / 8]
    assert found.scores["mre"].tolist() == pytest.approx(expected)
    assert found.below[0] == 0 and bool((found.up_to > found.below).all())


@pytest.mark.parametrize("task", ["regression", "classification", "count"])
def test_every_score_has_a_mean_of_each_row(task: str) -> None:
    likelihood = {"regression": Gaussian(0.3), "classification": Probit(), "count": Poisson()}[task]
    found = judge(task, likelihood, torch.tensor([1.0, 0.0, 1.0]).double(), Q)
    named = {"rmse": "mse"}
    assert set(found.scores) == {named.get(each.name, each.name) for each in SCORES[task]}
    assert set(found.means()) >= {score.name for score in SCORES[task]}
    if task != "classification":
        assert found.means()["rmse"] == pytest.approx(math.sqrt(float(found.scores["mse"].mean())))
    assert all(values.shape == (3,) for values in found.scores.values())

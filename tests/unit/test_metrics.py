"""Scores of predictions."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from directgp.likelihoods import Gaussian, OrderedProbit, Poisson, Probit, Softmax
from directgp.likelihoods.base import Likelihood
from directgp.metrics import SCORES, judge, one_against_rest, reliability
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


@pytest.mark.parametrize("rate", [0.4, 1.0, 3.0, 20.0])
def test_calibrated_counts_have_the_coverage_of_their_intervals(rate: float) -> None:
    """E over all counts of their central share is 0.9; intervals of whole counts hold more."""
    y = torch.arange(80).double()
    f = Marginals(torch.full_like(y, math.log(rate)), torch.full_like(y, 1e-12))
    found = judge("count", Poisson(), y, f)
    chances = stats.poisson.pmf(y, rate)
    assert float(chances @ found.scores["coverage"].numpy()) == pytest.approx(0.9, abs=1e-6)
    inside = (found.lower <= y) & (y <= found.upper)
    assert float(chances @ inside.numpy()) > 0.9
    outside = (y < found.lower - 1) | (y > found.upper + 1)
    assert not found.scores["coverage"][outside].any()


@pytest.mark.parametrize(("log_rate", "variance"), [(14.0, 2.0), (18.0, 2.0), (20.0, 4.0)])
def test_large_counts_are_covered_in_float32_as_in_float64(
    log_rate: float, variance: float
) -> None:
    rng = np.random.default_rng(0)
    y = torch.as_tensor(rng.poisson(np.exp(rng.normal(log_rate, variance**0.5, 400)))).float()
    f = Marginals(torch.full_like(y, log_rate), torch.full_like(y, variance))
    found = judge("count", Poisson(), y, f).scores["coverage"]
    wide = Marginals(f.mean.double(), f.variance.double())
    truth = judge("count", Poisson(), y.double(), wide).scores["coverage"]
    torch.testing.assert_close(found, truth)
    # The standard error of the coverage is 0.3/√400.
    assert abs(float(found.mean()) - 0.9) < 4 * 0.3 / 20


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


CHANCES = torch.tensor(
    [[0.72, 0.22, 0.06], [0.24, 0.13, 0.63], [0.34, 0.45, 0.21]], dtype=torch.float64
)
"""Rows of three classes."""

CERTAIN = Marginals(CHANCES.log().mT, torch.full((3, 3), 1e-13).double())


def test_three_classes_by_hand() -> None:
    y = torch.tensor([0.0, 1.0, 2.0]).double()
    found = judge("classification", Softmax(3), y, CERTAIN)
    assert found.chances is not None
    torch.testing.assert_close(found.chances, CHANCES, rtol=1e-9, atol=1e-9)
    own = [0.72, 0.13, 0.21]
    assert found.scores["nll"].tolist() == pytest.approx([-math.log(p) for p in own])
    assert found.scores["error"].tolist() == [0, 1, 1]
    squares = [0.1304, 1.2114, 0.9422]
    assert found.scores["brier"].tolist() == pytest.approx([each / 2 for each in squares])
    assert found.mean.tolist() == pytest.approx([0.34, 1.39, 0.87])
    assert found.up_to.tolist() == pytest.approx([0.72, 0.37, 1.0])
    assert found.below.tolist() == pytest.approx([0.0, 0.24, 0.79])
    assert found.lower.tolist() == [0, 0, 0] and found.upper.tolist() == [2, 2, 2]
    # Bins of 0.1: 0.06; 0.13 (true); 0.21 (true), 0.22, 0.24; 0.34; 0.45; 0.63; 0.72 (true).
    distances = [0.06, 1 - 0.13, 1 - 0.67, 0.34, 0.45, 0.63, 1 - 0.72]
    assert found.means()["ece"] == pytest.approx(sum(distances) / 9)


@pytest.mark.parametrize("likelihood", [Softmax(2), OrderedProbit(2)])
def test_two_classes_have_the_same_scores_by_any_likelihood(likelihood: Likelihood) -> None:
    """Probabilities of a probit model, given to likelihoods of any number of classes."""
    y, tiny = torch.tensor([1.0, 1.0, 0.0]).double(), torch.full((3,), 1e-13).double()
    expected = judge("classification", Probit(), y, Marginals(MEAN, tiny))
    p = torch.special.ndtr(MEAN)
    f = torch.stack([(1 - p).log(), p.log()]) if likelihood.num_latent > 1 else MEAN
    found = judge("classification", likelihood.double(), y, Marginals(f, tiny.expand_as(f)))
    for name, value in expected.means().items():
        assert found.means()[name] == pytest.approx(value, rel=1e-9)
    for name in ("mean", "lower", "upper", "below", "up_to"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))
    assert found.chances is None


def test_the_ece_of_two_classes_is_that_of_either() -> None:
    random = np.random.default_rng(0)
    p = random.uniform(size=200)
    labels = (random.uniform(size=200) < p**2).astype(np.float64)
    second = reliability(*one_against_rest(labels, np.column_stack([1 - p, p])))
    first = reliability(1 - labels, 1 - p)
    assert second.expected_error == pytest.approx(first.expected_error, rel=1e-9)
    assert second.count.sum() == 200


def test_probabilities_that_are_not_finite_have_no_ece() -> None:
    y, nan = torch.tensor([1.0, 0.0, 1.0]).double(), torch.full((3,), math.nan).double()
    found = judge("classification", Probit(), y, Q)
    assert math.isnan(replace(found, mean=nan).means()["ece"])


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
    of_rows = {named.get(each.name, each.name) for each in SCORES[task]}
    # The ECE is not a mean over rows.
    assert set(found.scores) == of_rows - {"ece"}
    assert set(found.means()) >= {score.name for score in SCORES[task]}
    if task != "classification":
        assert found.means()["rmse"] == pytest.approx(math.sqrt(float(found.scores["mse"].mean())))
    assert all(values.shape == (3,) for values in found.scores.values())

"""Methods without a Gaussian process: their distributions are what one computes by hand."""

import numpy as np
import pytest
import torch
from scipy import stats

from directgp.experiments.baselines import predict_baseline
from directgp.experiments.splits import CellData, ScaledParts
from directgp.likelihoods import NegativeBinomial
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.counts import PoissonExp
from directgp.metrics import judge
from directgp.registry import Task

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(600, 2))
LINEAR = 1.0 + 2.0 * X[:, 0] + 0.3 * RANDOM.normal(size=600)
TREND = np.exp(1.0 + 0.5 * X[:, 0])
TARGETS: dict[str, np.ndarray] = {
    "linear": LINEAR,
    "poisson": RANDOM.poisson(TREND).astype(np.float64),
    "spread": RANDOM.poisson(RANDOM.gamma(TREND / 9, 9.0)).astype(np.float64),
    "labels": (RANDOM.uniform(size=600) < 1 / (1 + np.exp(-2 * X[:, 0]))).astype(np.float64),
}


def rows(target: str, task: Task) -> ScaledParts:
    y = TARGETS[target]
    train, validation, test = slice(0, 300), slice(300, 400), slice(400, 600)
    data = CellData((X[train], y[train]), (X[validation], y[validation]), (X[test], y[test]), 300)
    return ScaledParts.of(data, task)


def nll(method: str, target: str, task: Task) -> float:
    given = rows(target, task)
    likelihood, q = predict_baseline(method, task, given, 0)
    y = torch.as_tensor(given.test[1])
    scalings = given.scalings
    judged = judge(task, likelihood.double(), y, q, scalings.offset, scalings.unit)
    return judged.means()["nll"]


def test_the_mean_is_a_normal_distribution_of_the_training_rows() -> None:
    train, test = LINEAR[:300], LINEAR[400:]
    expected = -stats.norm.logpdf(test, train.mean(), train.std()).mean()
    assert nll("mean", "linear", "regression") == pytest.approx(expected, rel=1e-6)


def test_the_mean_of_labels_is_their_share() -> None:
    share, test = TARGETS["labels"][:300].mean(), TARGETS["labels"][400:]
    expected = -stats.bernoulli.logpmf(test, share).mean()
    assert nll("mean", "labels", "classification") == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("method", ["linear", "boosting"])
def test_labels_of_one_class_are_predicted_by_their_share(method: str) -> None:
    data = CellData((X[:20], np.ones(20)), (X[20:30], np.ones(10)), (X[30:50], np.ones(20)), 20)
    _, q = predict_baseline(method, "classification", ScaledParts.of(data, "classification"), 0)
    assert (q.mean > 10).all()


def of_classes() -> ScaledParts:
    """Three classes by the first feature, and one that the training rows lack."""
    y = np.digitize(X[:, 0] + 0.3 * X[:, 1], [-0.5, 0.7]).astype(np.float64)
    y[599] = 3.0
    train, valid, test = ((X[p], y[p]) for p in (slice(300), slice(300, 400), slice(400, 600)))
    return ScaledParts.of(
        CellData(train, valid, test, len(train[1]), num_classes=4), "classification"
    )


@pytest.mark.parametrize("method", ["mean", "linear", "boosting"])
def test_several_classes_are_predicted_by_their_probabilities(method: str) -> None:
    given = of_classes()
    likelihood, q = predict_baseline(method, "classification", given, 0)
    judged = judge("classification", likelihood.double(), torch.as_tensor(given.test[1]), q)
    train, y = (part[1].astype(int) for part in (given.train, given.test))
    assert judged.chances is not None
    chances = judged.chances.numpy()
    # A class without training rows has 10⁻⁶, before the sum is made 1.
    np.testing.assert_allclose(chances[:, 3], 1e-6, rtol=1e-5)
    if method == "mean":
        shares = np.bincount(train, minlength=4) / len(train)
        np.testing.assert_allclose(chances[0], shares, atol=2e-6)
    else:
        assert judged.means()["error"] < 0.1
    own = -np.log(chances[np.arange(len(y)), y])
    assert judged.means()["nll"] == pytest.approx(own.mean(), rel=1e-9)


def test_a_linear_model_finds_a_linear_function_and_its_noise() -> None:
    # The entropy of the noise; its standard error over 200 rows is √(1/2)/√200.
    entropy = float(stats.norm(0, 0.3).entropy())
    assert nll("linear", "linear", "regression") == pytest.approx(entropy, abs=3 * 0.05)
    assert nll("boosting", "linear", "regression") > nll("linear", "linear", "regression")


def test_linear_and_boosted_labels_beat_their_share() -> None:
    mean = nll("mean", "labels", "classification")
    for method in ("linear", "boosting"):
        assert nll(method, "labels", "classification") < mean - 0.1


def test_counts_that_scatter_more_than_poisson_counts_are_recognised() -> None:
    def likelihood(method: str, target: str) -> Likelihood:
        return predict_baseline(method, "count", rows(target, "count"), 0)[0]

    assert isinstance(likelihood("linear", "poisson"), PoissonExp)
    for method in ("mean", "linear", "boosting"):
        assert isinstance(likelihood(method, "spread"), NegativeBinomial)

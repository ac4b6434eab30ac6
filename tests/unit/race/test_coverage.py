"""Coverage of intervals: groups of examples, and the test for too few targets inside."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm
from torch import Tensor

from directgp.errors import UnsupportedError
from directgp.likelihoods import (
    Gaussian,
    Likelihood,
    NegativeBinomial,
    Poisson,
    Probit,
    StudentT,
)
from directgp.objectives import CRPSLoss, LogLoss, SquareLoss
from directgp.posteriors.prior import Prior
from directgp.predictive import predictive_interval
from directgp.race import coverage
from directgp.race.coverage import Coverage, Group, MemberExamples
from directgp.training.data import Data
from directgp.training.result import TrainingResult
from tests.unit.training.models import normal, seeded, start

N = 400


def trained(X: Tensor, likelihood: Likelihood) -> TrainingResult:
    """A model whose q(u) is the prior, with a small variance of f."""
    posterior = start(X)
    with torch.no_grad():
        posterior.prior.raw_output_scale.fill_(-4.0)
    return TrainingResult(posterior, likelihood, "log_loss", 1.0, "joint", (), 0.0)


def single(result: TrainingResult, y: Tensor, weight: float = 1.0) -> MemberExamples:
    """A member that predicts the examples of `uniform`."""
    return MemberExamples(weight, result.posterior, result.likelihood, Data(uniform(len(y)), y))


def checked(X: Tensor, y: Tensor, likelihood: Likelihood) -> Coverage:
    """The coverage of a single model."""
    posterior = trained(X, likelihood).posterior
    part = [MemberExamples(1.0, posterior, likelihood, Data(X, y))]
    return Coverage.of([part], LogLoss(), X.shape[1])


def ard_prior(X: Tensor, lengthscales: list[float]) -> Prior:
    prior = Prior.from_data(X, None, kernel="rbf", ard=True, mean="zero")
    prior.kernel.lengthscale = torch.tensor(lengthscales)
    return prior


def uniform(n: int = N) -> Tensor:
    return torch.rand(n, 1, generator=seeded(1), dtype=torch.float64)


@pytest.mark.parametrize(
    "likelihood",
    [Gaussian(0.5), StudentT(2.5, 0.4), Poisson(), NegativeBinomial(0.7)],
    ids=lambda likelihood: type(likelihood).__name__,
)
def test_targets_are_inside_if_they_are_inside_the_predicted_interval(
    likelihood: Likelihood,
) -> None:
    X = normal(N, 2)
    drawn = likelihood.sample(normal(N, seed=5), np.random.RandomState(0))
    result, y = trained(X, likelihood), torch.as_tensor(drawn)
    lower, upper = predictive_interval(likelihood, result.posterior.predict(X), 0.9)
    inside = int(((lower <= y) & (y <= upper)).sum())
    groups = checked(X, y, likelihood).groups
    # The kernel has one lengthscale for both features: the predicted mean alone.
    assert {group.feature for group in groups} == {None}
    assert sum(group.inside for group in groups) == inside < N
    assert sum(group.number for group in groups) == N


def test_intervals_are_too_narrow_where_the_noise_is_larger() -> None:
    X, loud = uniform(), uniform()[:, 0] > 0.8
    y = torch.where(loud, 3.0, 1.0) * normal(N, seed=2)
    found = checked(X, y, Gaussian(1.0))
    assert {group.feature for group in found.narrow} == {0}
    low, high = sorted((group.low, group.high) for group in found.narrow)
    assert low[0] > 0.75 and high[1] == float(X.max())
    # Ten groups by the feature; the prior mean is the same everywhere.
    assert len(found.groups) == 11
    worst = found.narrow[0]
    assert worst.probability == pytest.approx(binom.cdf(worst.inside, worst.number, 0.9), rel=1e-9)
    assert not checked(X, normal(N, seed=2), Gaussian(1.0)).narrow
    assert not checked(X, normal(N, seed=2), Gaussian(9.0)).narrow, "wide ones are none"


@pytest.mark.parametrize(("inside", "narrow"), [(28, True), (29, False)])
def test_the_tolerance_is_that_of_a_binomial_over_all_groups(inside: int, narrow: bool) -> None:
    groups = tuple(Group(0, k, k + 1, 36, 40) for k in range(19))
    worst = Group(None, 0.0, 1.0, inside, 40)
    assert (binom.cdf(inside, 40, 0.9) < 0.01 / 20) == narrow
    assert Coverage((worst, *groups)).narrow == ((worst,) if narrow else ())


def test_many_examples_show_no_shortfall_that_does_not_matter() -> None:
    assert binom.cdf(8100, 10_000, 0.9) < 1e-100
    assert not Coverage((Group(0, 0.0, 1.0, 8100, 10_000),)).narrow
    assert Coverage((Group(0, 0.0, 1.0, 7900, 10_000),)).narrow


def test_equal_inputs_are_in_one_group() -> None:
    """Training rows are sorted, equal ones by their targets."""
    X = torch.arange(2.0, dtype=torch.float64).repeat_interleave(N // 2)[:, None]
    y = normal(2, N // 2).sort().values.reshape(-1)
    found = checked(X, y, Gaussian(1.0))
    assert sorted(group.number for group in found.groups) == [N // 2, N // 2, N]
    assert not found.narrow


def test_the_feature_is_that_of_the_smallest_lengthscale() -> None:
    X = normal(N, 3)
    result = trained(X, Gaussian())
    result.posterior.prior = ard_prior(X, [2.0, 0.5, 1.0])
    part = [MemberExamples(1.0, result.posterior, Gaussian(), Data(X, X[:, 0]))]
    found = Coverage.of([part], LogLoss(), 3)
    assert {group.feature for group in found.groups} == {None, 1}
    assert max(group.high for group in found.groups if group.feature == 1) == float(X[:, 1].max())


def test_each_part_has_a_model_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = uniform(), normal(N)
    right, narrow = (trained(X, Gaussian(noise)) for noise in (1.0, 1e-4))
    parts = [[single(each, y)] for each in (right, narrow)]
    groups = Coverage.of(parts, LogLoss(), 1).groups
    mean, *_ = (group for group in groups if group.feature is None)
    alone = [Coverage.of([part], LogLoss(), 1).groups for part in parts]
    assert mean.number == 2 * N
    assert mean.inside == sum(g.inside for found in alone for g in found if g.feature is None)
    monkeypatch.setattr(coverage, "_MAX_EXAMPLES", 100)
    assert sum(group.number for group in Coverage.of(parts, LogLoss(), 1).groups) == 400


def test_labels_and_likelihoods_without_quantiles_are_not_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X = uniform()
    assert checked(X, (X[:, 0] > 0.5).double(), Probit()) == Coverage()

    def no_quantiles(*args: Any) -> None:
        raise UnsupportedError("There are none.")

    monkeypatch.setattr(coverage, "predictive_cdf", no_quantiles)
    assert checked(X, X[:, 0], Gaussian()) == Coverage()


def test_a_loss_that_is_no_density_is_not_checked() -> None:
    """It does not train the width of intervals."""
    X, part = uniform(), [single(trained(uniform(), Gaussian()), uniform()[:, 0])]
    assert Coverage.of([part], LogLoss(), 1) != Coverage()
    assert Coverage.of([part], SquareLoss(), X.shape[1]) == Coverage()
    assert Coverage.of([part], CRPSLoss(), X.shape[1]) == Coverage()


# Mixtures


def test_intervals_are_those_of_the_mixture() -> None:
    """A narrow member and a wide one: quantiles of ½N(0, a) + ½N(0, b) by their cdf."""
    X, y = uniform(), 3 * normal(N)
    narrow, wide = (trained(X, Gaussian(noise)) for noise in (0.01, 9.0))
    members = [single(narrow, y, 0.5), single(wide, y, 0.5)]
    found = Coverage.of([members], LogLoss(), 1)
    cdf = sum(0.5 * norm.cdf(y, *moments(each, X)) for each in (narrow, wide))
    inside = int(((cdf >= 0.05) & (cdf < 0.95)).sum())
    assert sum(group.inside for group in found.groups if group.feature is None) == inside
    alone = Coverage.of([[single(narrow, y)]], LogLoss(), 1)
    assert alone.narrow and not found.narrow


def moments(result: TrainingResult, X: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of y."""
    q, likelihood = result.posterior.predict(X), result.likelihood
    assert isinstance(likelihood, Gaussian)
    return q.mean, (q.variance + likelihood.noise.detach()).sqrt()


def test_members_with_a_stack_are_grouped_by_the_features() -> None:
    """A column of the stack, which has the smallest lengthscale, is no feature to report."""
    X = normal(N, 3)
    with_stack, without = trained(X, Gaussian()), trained(X[:, :2], Gaussian())
    y = X[:, 0]
    with_stack.posterior.prior = ard_prior(X, [2.0, 0.5, 0.1])
    members = [
        MemberExamples(0.7, with_stack.posterior, Gaussian(), Data(X, y)),
        MemberExamples(0.3, without.posterior, Gaussian(), Data(X[:, :2], y)),
    ]
    for part in (members, members[:1]):
        groups = Coverage.of([part], LogLoss(), 2).groups
        assert {group.feature for group in groups} == {None, 1}
        highest = max(group.high for group in groups if group.feature == 1)
        assert highest == float(X[:, 1].max())

"""Coverage of intervals: groups of examples, and the test for too few targets inside."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from directgp.training.coverage import Coverage, Group, noise_depends_on_inputs
from directgp.training.race import Trial
from directgp.training.search import Search
from scipy.stats import binom, kruskal
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
from directgp.objectives import LogLoss
from directgp.predictive import predictive_interval
from directgp.training import coverage
from directgp.training.data import Data
from directgp.training.result import TrainingResult
from directgp.training.validation import HoldOut
from tests.unit.training.fake_runs import FakeRuns, State, model, models, searched
from tests.unit.training.models import normal, regression, seeded, start

N = 400


def trained(X: Tensor, likelihood: Likelihood) -> TrainingResult:
    """A model whose q(u) is the prior, with a small variance of f."""
    posterior = start(X)
    with torch.no_grad():
        posterior.prior.raw_output_scale.fill_(-4.0)
    return TrainingResult(posterior, likelihood, "log_loss", 1.0, "joint", (), 0.0)


def checked(X: Tensor, y: Tensor, likelihood: Likelihood) -> Coverage:
    return Coverage.of([(trained(X, likelihood), Data(X, y), likelihood)], LogLoss())


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


def test_a_better_worst_group_must_not_cost_coverage_elsewhere() -> None:
    def groups(worst: int, other: int) -> Coverage:
        return Coverage((Group(None, 0.0, 1.0, worst, 20), Group(None, 1.0, 2.0, other, 20)))

    before = groups(8, 19)
    assert groups(17, 17).clearly_better(before) and groups(12, 15).clearly_better(before)
    assert not groups(12, 14).clearly_better(before), "27 were inside"
    assert not groups(9, 19).clearly_better(before)
    assert not Coverage().clearly_better(before)


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
    prior = model(Gaussian(), X, ard=True).posterior.prior
    prior.kernel.lengthscale = torch.tensor([2.0, 0.5, 1.0])
    result.posterior.prior = prior
    found = Coverage.of([(result, Data(X, X[:, 0]), Gaussian())], LogLoss())
    assert {group.feature for group in found.groups} == {None, 1}
    assert max(group.high for group in found.groups if group.feature == 1) == float(X[:, 1].max())


def test_each_part_has_a_model_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = uniform(), normal(N)
    right, narrow = (trained(X, Gaussian(noise)) for noise in (1.0, 1e-4))
    parts = [(each, Data(X, y), each.likelihood) for each in (right, narrow)]
    mean, *_ = (group for group in Coverage.of(parts, LogLoss()).groups if group.feature is None)
    alone = [Coverage.of([part], LogLoss()).groups for part in parts]
    assert mean.number == 2 * N
    assert mean.inside == sum(g.inside for found in alone for g in found if g.feature is None)
    monkeypatch.setattr(coverage, "_MAX_EXAMPLES", 100)
    assert sum(group.number for group in Coverage.of(parts, LogLoss()).groups) == 400


def test_labels_and_likelihoods_without_quantiles_are_not_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X = uniform()
    assert checked(X, (X[:, 0] > 0.5).double(), Probit()) == Coverage()

    def no_quantiles(*args: Any) -> None:
        raise UnsupportedError("There are none.")

    monkeypatch.setattr(coverage, "predictive_cdf", no_quantiles)
    assert checked(X, X[:, 0], Gaussian()) == Coverage()


# The search

GOOD, BAD = 18, 8
"""Targets inside of 20."""

NOISE = torch.linspace(-1, 1, 8, dtype=torch.float64)
LOSS = {("elbo", 1.0): 1.03, ("joint", 1.0): 1.0, ("joint", 4.0): 1.02}


def noisy(state: State, mean: float, noise: float = 9.0) -> Tensor:
    """Losses of the eight validation examples, whose differences have large errors."""
    return mean + noise * (state.beta + 9 * (state.mode == "elbo")) * NOISE


def fell_back(
    inside: dict[tuple[str, float], list[int]],
    loss: Callable[[State], Tensor] = lambda state: noisy(state, LOSS[state.mode, state.beta]),
    **how: Any,
) -> tuple[Search, FakeRuns]:
    """Search with fake runs, and the coverage of a mode and β at each time it is asked for."""
    asked = {key: iter(numbers) for key, numbers in inside.items()}
    fake = FakeRuns(loss)

    def covered(self: Search, trial: Trial) -> Coverage:
        number = next(asked[trial.hyperparameters, trial.beta])
        return Coverage((Group(None, 0.0, 1.0, number, 20),))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Search, "_coverage_of", covered)
        return searched(HoldOut(0.2), fake, betas=[4.0, 1.0], **how), fake


def test_the_next_candidate_is_taken_where_it_covers_clearly_better() -> None:
    """The chosen one is asked for its coverage, the next before and after it is finished."""
    tried = {("joint", 1.0): [BAD], ("joint", 4.0): [GOOD, GOOD, GOOD]}
    found, fake = fell_back(tried)
    assert found.best.beta == 4.0 == found.path.beta
    assert found.replaced == ("joint, β = 1", Group(None, 0.0, 1.0, BAD, 20))
    assert found.path.replaced == "joint, β = 1" and not found.coverage.narrow
    assert fake.calls[-1].beta == 4.0 and fake.calls[-1].phase.final


@pytest.mark.parametrize(
    "tried",
    [
        # It covers enough itself; the next one does not, or only before it was finished.
        {("joint", 1.0): [GOOD]},
        {("joint", 1.0): [BAD], ("joint", 4.0): [BAD], ("elbo", 1.0): [BAD]},
        {("joint", 1.0): [BAD], ("joint", 4.0): [GOOD, BAD]},
        # One more target inside is not clearly better.
        {("joint", 1.0): [BAD], ("joint", 4.0): [BAD + 1], ("elbo", 1.0): [BAD + 1]},
    ],
)
def test_the_chosen_candidate_stays(tried: dict[tuple[str, float], list[int]]) -> None:
    found, fake = fell_back(tried)
    assert found.best.beta == 1.0 and found.best.hyperparameters == "joint"
    assert found.replaced is None and found.path.replaced == ""
    assert bool(found.coverage.narrow) == (tried["joint", 1.0] == [BAD])
    assert fake.calls[-1].beta == 1.0 and fake.calls[-1].phase.final


@pytest.mark.parametrize(
    ("gap", "noise", "taken"), [(0.04, 9.0, True), (0.06, 9.0, False), (0.04, 1e-3, False)]
)
def test_coverage_may_cost_a_little_loss_within_its_error(
    gap: float, noise: float, taken: bool
) -> None:
    loss = {("elbo", 1.0): 9.0, ("joint", 1.0): 1.0, ("joint", 4.0): 1 + gap}
    tried = {("joint", 1.0): [BAD], ("joint", 4.0): 3 * [GOOD]}
    found, _ = fell_back(tried, lambda state: noisy(state, loss[state.mode, state.beta], noise))
    assert (found.replaced is not None) == taken


def test_the_likelihood_that_lost_is_a_candidate_too() -> None:
    """The ELBO solution of the first likelihood is known, whatever likelihood is chosen."""

    def loss(state: State) -> Tensor:
        likely = 1.01 if "gaussian" in state.model else 1.02 if state.mode == "elbo" else 1.0
        return noisy(state, likely + 0.03 * (state.beta == 4))

    tried = {("joint", 1.0): [BAD], ("elbo", 1.0): [GOOD, GOOD, GOOD]}
    found, fake = fell_back(tried, loss, models=models(regression()[0], 1))
    assert found.replaced is not None and found.replaced[0] == "rbf, studentt, joint, β = 1"
    assert fake.calls[-1].model == "rbf, gaussian" == found.trials[found.path.chosen].model.name
    assert [each.name for each in found.models.values() if each.chosen] == ["rbf, gaussian"]
    assert len(found.path.points) == 4 and found.path.chosen == 3


def test_a_loss_that_is_no_density_is_not_checked() -> None:
    assert searched(HoldOut(0.2), objective="square_loss", max_steps=2).coverage == Coverage()
    assert searched(HoldOut(0.2), max_steps=2).coverage != Coverage()


def test_the_test_of_scatter_is_that_of_kruskal_and_wallis() -> None:
    random = np.random.default_rng(0)
    values, places = np.abs(random.normal(size=300)), random.integers(0, 5, 300)
    chance, gain = coverage._scatter(values, places)
    groups = [values[places == place] for place in range(5)]
    assert chance == pytest.approx(kruskal(*groups).pvalue, rel=1e-9)
    logs = sum(len(group) * np.log(np.mean(group**2)) for group in groups) / 300
    assert gain == pytest.approx(0.5 * (np.log(np.mean(values**2)) - logs), rel=1e-9)
    # Ties get the mean of their ranks, and make the test stricter by a little.
    rounded = np.round(values, 1)
    tied = kruskal(*(rounded[places == place] for place in range(5))).pvalue
    assert tied <= coverage._scatter(rounded, places)[0] < 1.2 * tied


def scatters(y: Tensor, X: Tensor, likelihood: Likelihood) -> bool:
    return noise_depends_on_inputs([(trained(X, likelihood), Data(X, y), likelihood)])


SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "rising": lambda x: torch.exp(x),
    "valley": lambda x: 0.3 + x.abs(),
    "waves": lambda x: torch.exp(torch.sin(4 * x)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_noise_that_depends_on_a_feature_is_found(shape: str) -> None:
    X = normal(N, 3)
    noise = SHAPES[shape](X[:, 1])
    y = noise / noise.square().mean().sqrt() * normal(N, seed=3)
    assert scatters(y, X, Gaussian(1.0))
    assert not scatters(y[:50], X[:50], Gaussian(1.0)), "too few rows"


@pytest.mark.parametrize("likelihood", [Gaussian(1.0), StudentT(3.0, 0.5)], ids=str)
@pytest.mark.slow
def test_noise_of_one_level_is_seldom_taken_for_another(likelihood: Likelihood) -> None:
    """At most 1 in 100; outliers that the model does not know are none of them."""
    X, random = normal(200, 2), np.random.RandomState(0)
    heavy = StudentT(2.2, 0.5)
    drawn = [torch.as_tensor(heavy.sample(torch.zeros(200), random)) for _ in range(200)]
    # P(more than 8 of 200) with 1 % each is 1e-4.
    assert sum(scatters(y, X, likelihood) for y in drawn) <= 8


def test_noise_that_hardly_changes_is_not_worth_another_model() -> None:
    X = normal(20_000, 1)
    y = (1 + 0.1 * torch.tanh(X[:, 0])) * normal(20_000, seed=3)
    chance, gain = coverage._scatter(y.abs().numpy(), coverage._places(X[:, 0].numpy(), 8))
    assert chance < 1e-9 and 0 < gain < 0.02
    assert not scatters(y, X, Gaussian(1.0))

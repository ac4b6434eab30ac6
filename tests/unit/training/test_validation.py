"""Training and validation examples, and selection by paired differences."""

import math

import pytest
import torch

from directgp.errors import InvalidInputError, NumericalError
from directgp.likelihoods import Gaussian, Likelihood, Poisson, Probit
from directgp.objectives import LogLoss
from directgp.posteriors import SparsePosterior
from directgp.training import Folds, Forward, Given, Groups, HoldOut
from directgp.training.data import Data
from directgp.training.result import StageResult, Status, TrainingResult
from directgp.training.validation import Split, Validation, compare, split
from tests.unit.training.models import counts, inputs, normal, seeded, start

X, Y, EXPOSURE = counts(23)
WEIGHTS = normal(23, seed=5).abs()
DATA = Data(X, Y, WEIGHTS)
LIKELIHOOD = Poisson().with_exposure(EXPOSURE)


def splits(validation: Validation, seed: int = 0) -> list[Split]:
    return split(validation, DATA, start(X), LIKELIHOOD, seeded(seed))


def rows(data: Data) -> list[int]:
    """Which rows of X these are."""
    return [int((X == row).all(-1).nonzero()) for row in data.X]


def exposure_of(likelihood: Likelihood, n: int) -> torch.Tensor:
    """log p(0 given 0) = −exposure."""
    zeros = torch.zeros(n).double()
    return -likelihood.log_prob(zeros, zeros)


@pytest.mark.parametrize(
    ("validation", "sizes"), [(Folds(5), [5, 5, 5, 4, 4]), (HoldOut(0.3), [7])]
)
def test_rows_targets_weights_and_exposures_stay_together(
    validation: Validation, sizes: list[int]
) -> None:
    found = splits(validation)
    assert [len(part.validation) for part in found] == sizes
    for part in found:
        assert sorted(rows(part.training) + rows(part.validation)) == list(range(23))
        sides = ((part.training, part.likelihood), (part.validation, part.validation_likelihood))
        for data, likelihood in sides:
            index = torch.tensor(rows(data))
            assert torch.equal(data.y, Y[index])
            assert data.weights is not None and torch.equal(data.weights, WEIGHTS[index])
            torch.testing.assert_close(exposure_of(likelihood, len(data)), EXPOSURE[index])


def test_folds_validate_every_example_once() -> None:
    held = [row for part in splits(Folds(4)) for row in rows(part.validation)]
    assert sorted(held) == list(range(23))


@pytest.mark.parametrize("validation", [Folds(3), HoldOut(0.5)])
def test_one_seed_has_one_split_and_another_seed_another(validation: Validation) -> None:
    one, same, other = (rows(splits(validation, seed)[0].validation) for seed in (0, 0, 1))
    assert one == same != other


def test_more_folds_than_examples_leave_one_out() -> None:
    assert [len(part.validation) for part in splits(Folds(100))] == [1] * 23


@pytest.mark.parametrize(("fraction", "held"), [(0.001, 1), (0.5, 12), (0.999, 22)])
def test_something_is_held_out_and_something_left(fraction: float, held: int) -> None:
    """Half of 23 rounds to the even 12."""
    part = splits(HoldOut(fraction))[0]
    assert (len(part.validation), len(part.training)) == (held, 23 - held)


def test_given_examples_are_taken_with_a_likelihood_for_them() -> None:
    new = inputs(4, seed=8)
    theirs = Poisson().with_exposure(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    (part,) = splits(Given(new, torch.ones(4), theirs))
    assert part.training is DATA and part.likelihood is LIKELIHOOD
    exposures = dict(part.validation_likelihood.named_buffers())
    assert part.validation.X is new and theirs.log_exposure is not None
    assert torch.equal(exposures["log_exposure"], theirs.log_exposure)
    with pytest.raises(InvalidInputError, match="likelihood of Given must be given"):
        splits(Given(new, torch.ones(4)))


def test_losses_are_those_of_the_trained_likelihood() -> None:
    """Its parameters, with the exposures of the validation examples."""
    posterior, trained = start(X), Gaussian(0.7)
    (part,) = split(HoldOut(0.3), Data(X, Y), posterior, Gaussian(0.1), seeded())
    stage = StageResult("elbo", Status.CONVERGED, "", 0, 0, 0.0, (), 0.0, (), False)
    result = TrainingResult(posterior, trained, "elbo", 1.0, "joint", (stage,), 0.0)
    losses = part.losses(result, LogLoss())
    expected = LogLoss()(trained, part.validation.y, posterior.predict(part.validation.X))
    assert torch.equal(losses, expected.detach()) and not losses.requires_grad


@pytest.mark.parametrize("weighted", [False, True])
def test_square_errors_are_those_of_the_mean_of_y(weighted: bool) -> None:
    """That of counts is exposure · exp(μ + v / 2)."""
    posterior, data = start(X), Data(X, Y, WEIGHTS if weighted else None)
    with torch.no_grad():
        posterior.u_mean.fill_(0.5)
    stage = StageResult("elbo", Status.CONVERGED, "", 0, 0, 0.0, (), 0.0, (), False)
    for likelihood in (Gaussian(0.1), LIKELIHOOD):
        result = TrainingResult(posterior, likelihood, "elbo", 1.0, "joint", (stage,), 0.0)
        (part,) = split(HoldOut(0.3), data, posterior, likelihood, seeded())
        held = rows(part.validation)
        q = posterior.predict(X[held])
        mean = q.mean
        if likelihood is LIKELIHOOD:
            mean = EXPOSURE[held] * (q.mean + q.variance / 2).exp()
        share = WEIGHTS[held] / WEIGHTS[held].mean() if weighted else None
        torch.testing.assert_close(part.shares, share)
        squares = (Y[held] - mean).square()
        expected = squares if share is None else share * squares
        torch.testing.assert_close(part.squares(result), expected, rtol=1e-6, atol=0)


def test_settings_tell_one_from_another() -> None:
    new, y = inputs(4, seed=8), torch.ones(4)
    exposed = [Poisson().with_exposure(torch.full((4,), value)) for value in (1.0, 2.0)]
    every: list[Validation] = [
        HoldOut(0.1),
        HoldOut(0.2),
        Folds(2),
        Folds(3),
        Given(new, y),
        Given(new, 2 * y),
        Given(2 * new, y),
        *(Given(new, y, likelihood) for likelihood in exposed),
    ]
    assert len({validation.settings() for validation in every}) == len(every)
    assert Given(new, y).settings() == Given(new.clone(), y.clone()).settings()


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_a_part_is_between_none_and_all(fraction: float) -> None:
    with pytest.raises(InvalidInputError, match="fraction of HoldOut must be between 0 and 1"):
        HoldOut(fraction)


def test_too_few_folds_or_rows_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="number of Folds must be at least 2"):
        Folds(1)
    lone = Data(X[:1], Y[:1])
    for validation in (HoldOut(), Folds()):
        with pytest.raises(InvalidInputError, match=r"at least two rows.*Give validation data"):
            split(validation, lone, start(X), Poisson(), seeded())
    assert len(split(Given(X, Y), lone, start(X), Poisson(), seeded())) == 1
    for bad in (Given(X[:, :1], Y), Given(X, Y - 0.5), Given(X[:0], Y[:0])):
        with pytest.raises(InvalidInputError, match=r"validation|y of Poisson"):
            split(bad, lone, start(X), Poisson(), seeded())


def test_validation_examples_without_weight_are_refused() -> None:
    """Their losses would be 0 for every candidate."""
    held = rows(splits(HoldOut(0.2))[0].validation)
    weights = torch.ones(23, dtype=torch.float64)
    weights[held] = 0.0
    data = Data(X, Y, weights)
    with pytest.raises(InvalidInputError, match="weights must be positive for some of the valid"):
        split(HoldOut(0.2), data, start(X), LIKELIHOOD, seeded(0))
    assert len(split(Folds(3), data, start(X), LIKELIHOOD, seeded(0))) == 3


def test_weights_may_be_integers() -> None:
    weights = torch.arange(1, 24)
    parts = split(Folds(3), Data(X, Y, weights), start(X), LIKELIHOOD, seeded(0))
    assert [part.mean_weight for part in parts] == [12.0] * 3


@pytest.mark.parametrize("validation", [Folds(3), HoldOut(0.3)], ids=str)
def test_labels_come_in_equal_shares(validation: Folds | HoldOut) -> None:
    """Else a part to train on might have one label alone."""
    X_many = inputs(40)
    labels = torch.zeros(40, dtype=torch.float64)
    labels[[3, 17, 31]] = 1.0
    found = split(validation, Data(X_many, labels), start(X_many), Probit(), seeded())
    for part in found:
        assert int(part.validation.y.sum()) == 1 and int(part.training.y.sum()) == 2
    validated = sum(len(part.validation) for part in found)
    assert validated == (40 if isinstance(validation, Folds) else 12)


def test_weights_are_relative_to_their_mean() -> None:
    """So that the mean of the losses is one of losses."""
    posterior, likelihood = start(X), Gaussian(0.1)
    stage = StageResult("elbo", Status.CONVERGED, "", 0, 0, 0.0, (), 0.0, (), False)
    result = TrainingResult(posterior, likelihood, "elbo", 1.0, "elbo", (stage,), 0.0)

    def mean_loss(weights: torch.Tensor | None) -> float:
        parts = split(Folds(2), Data(X, Y, weights), posterior, likelihood, seeded())
        return float(torch.cat([part.losses(result, LogLoss()) for part in parts]).mean())

    assert mean_loss(torch.full((len(X),), 7.0)) == pytest.approx(mean_loss(None), rel=1e-12)


def test_noise_alone_chooses_the_most_regularised() -> None:
    """Candidates that differ by noise of each example have no winner: the first is taken.

    The difference to the luckiest of five is above one standard error in some of 40 draws.
    """
    chosen = []
    for seed in range(40):
        shared = 3 * normal(1, 200, seed=1000 + seed)
        chosen.append(compare(shared + 0.1 * normal(5, 200, seed=seed), threshold=3.0).chosen)
    assert chosen.count(0) >= 39


def test_the_smallest_mean_is_not_enough() -> None:
    losses = torch.stack([torch.tensor([1.0, 1.0, 1.0, 1.0]), torch.tensor([0.0, 1.9, 1.0, 1.0])])
    found = compare(losses)
    assert found.mean.tolist() == pytest.approx([1.0, 0.975])
    assert found.chosen == 0


def test_a_clear_winner_wins_though_examples_vary_far_more() -> None:
    """Paired: a spread of 10 between examples hides nothing of a difference of 0.1 in each."""
    shared = 10 * normal(1, 100, seed=1)
    gain = torch.tensor([[0.0], [0.1], [-0.1], [0.2]]).double()
    found = compare(shared + gain + 0.01 * normal(4, 100, seed=2))
    assert found.chosen == 2
    assert float(found.error[2]) > 0.5 > 0.01 > float(found.difference_error[0])


def test_the_figures_by_their_definitions() -> None:
    losses = normal(3, 50, seed=3).exp()
    found = compare(losses)
    best = int(losses.mean(-1).argmin())
    gap = losses - losses[best]
    torch.testing.assert_close(found.mean, losses.mean(-1))
    torch.testing.assert_close(found.difference, gap.mean(-1))
    torch.testing.assert_close(found.error, losses.std(-1) / math.sqrt(50))
    torch.testing.assert_close(found.difference_error, gap.std(-1) / math.sqrt(50))
    assert float(found.difference[best]) == 0.0 == float(found.difference_error[best])


@pytest.mark.parametrize(("threshold", "chosen"), [(0.0, 2), (0.9, 2), (1.1, 1), (100.0, 0)])
def test_the_threshold_is_in_standard_errors(threshold: float, chosen: int) -> None:
    """Differences of +1 and −1 about a mean of d have a standard error of about 1/√n."""
    n = 100
    wiggle = torch.tensor([1.0, -1.0]).double().repeat(n // 2)
    error = float(wiggle.std()) / math.sqrt(n)
    losses = torch.stack([wiggle + 5 * error, wiggle + error, torch.zeros(n).double()])
    assert compare(losses, threshold=threshold).chosen == chosen


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_candidate_that_is_not_finite_is_out(bad: float) -> None:
    losses = torch.ones(3, 4).double()
    losses[0, 2] = bad
    losses[2] -= 0.5
    found = compare(losses)
    assert found.chosen == 2
    assert found.mean[0] == math.inf == found.difference[0]
    losses[1:, 0] = bad
    with pytest.raises(NumericalError, match="No candidate has a finite loss on every"):
        compare(losses)


def test_ties_go_to_the_first() -> None:
    losses = torch.stack([torch.arange(4.0) + 1, torch.arange(4.0), torch.arange(4.0)])
    assert compare(losses).chosen == 1
    assert compare(losses[1:]).chosen == 0


def test_one_validation_example_tells_nothing() -> None:
    """Its error is unknown, so that the most regularised is taken."""
    found = compare(torch.tensor([[1.0], [0.0]]))
    assert found.chosen == 0 and bool(found.error.isinf().all())


def test_one_candidate_is_chosen() -> None:
    assert compare(normal(1, 5)).chosen == 0


def test_float32_losses_are_compared_in_float64() -> None:
    """Differences of 1e-3 of losses of 1e4 are beyond the mean of 1000 float32 numbers."""
    shared = (1e4 + normal(1, 1000)).float()
    losses = torch.cat([shared, shared - 2**-9])
    assert compare(losses).chosen == 1


def test_forecasts_are_validated_on_the_rows_after_each_origin() -> None:
    times = torch.randperm(40, generator=torch.Generator().manual_seed(0)).double()
    X = torch.stack([torch.zeros(40).double(), times], 1)
    parts = _parts_of(Forward(1, number=2, share=0.25), X)
    for origin, part in zip((20, 30), parts, strict=True):
        assert sorted(part.training.X[:, 1].tolist()) == [*range(origin)]
        assert sorted(part.validation.X[:, 1].tolist()) == [*range(origin, origin + 10)]


def test_reversed_times_are_validated_at_their_other_end() -> None:
    X = torch.arange(20).double().reshape(-1, 1)
    (part,) = _parts_of(Forward(0, reversed=True, number=1, share=0.25), X)
    assert sorted(part.validation.X[:, 0].tolist()) == [0, 1, 2, 3, 4]


def test_equal_times_stay_on_one_side_of_an_origin() -> None:
    X = (torch.arange(30) // 7).double().reshape(-1, 1)
    for part in _parts_of(Forward(0, number=2, share=0.3), X):
        assert float(part.training.X.max()) < float(part.validation.X.min())


def test_one_time_cannot_validate_forecasts() -> None:
    with pytest.raises(InvalidInputError, match="one time alone"):
        _parts_of(Forward(0), torch.zeros(20, 1).double())


def test_folds_keep_the_rows_of_a_group_together() -> None:
    X = (torch.arange(60) % 7).double().reshape(-1, 1)
    parts = _parts_of(Groups(0, number=3), X)
    assert len(parts) == 3
    held = []
    for part in parts:
        groups = set(part.validation.X[:, 0].tolist())
        assert not groups & set(part.training.X[:, 0].tolist())
        held += sorted(groups)
    assert sorted(held) == [*range(7)]


def test_one_group_cannot_be_validated_by_groups() -> None:
    with pytest.raises(InvalidInputError, match="at least two"):
        _parts_of(Groups(0), torch.zeros(20, 1).double())


def _parts_of(validation: Forward | Groups, X: torch.Tensor) -> list[Split]:
    y = torch.zeros(len(X)).double()
    posterior = SparsePosterior.from_data(X, num_inducing=2)
    generator = torch.Generator().manual_seed(0)
    return split(validation, Data(X, y, None), posterior, Gaussian(), generator)

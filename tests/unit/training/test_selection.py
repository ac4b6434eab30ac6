"""Selection by paired differences, on known losses."""

import math

import pytest
import torch
from torch import Tensor

from directgp.errors import NumericalError
from directgp.training.validation import compare
from tests.unit.training.models import normal


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


def test_one_candidate() -> None:
    assert compare(normal(1, 5)).chosen == 0


def test_float32_losses_are_compared_in_float64() -> None:
    """Differences of 1e-3 of losses of 1e4 are beyond the mean of 1000 float32 numbers."""
    shared = (1e4 + normal(1, 1000)).float()
    losses = torch.cat([shared, shared - 2**-9])
    assert compare(losses).chosen == 1


# Groups


def grouped(*means: float, wiggle: float = 0.1) -> Tensor:
    """Candidates of these mean losses, with noise of each example that the others do not share."""
    noise = normal(len(means), 100, seed=5)
    noise = (noise - noise.mean(-1, keepdim=True)) / noise.std(-1, keepdim=True)
    return torch.tensor(means).double()[:, None] + wiggle * noise


GROUPS = ["elbo", "fixed", "fixed", "fixed", "joint", "joint"]


@pytest.mark.parametrize(
    ("means", "chosen"),
    [
        # A difference of two has an error of about 0.1·√2/√100 = 0.014.
        ([1.0, 1.0, 0.995, 1.0, 0.994, 1.0], 0),
        ([1.0, 0.5, 0.495, 0.5, 0.49, 0.9], 2),
        ([1.0, 0.9, 0.8, 0.9, 0.6, 0.5], 5),
        ([0.1, 0.9, 0.8, 0.9, 0.6, 0.5], 0),
        ([1.0, 0.2, 0.3, 0.4, 0.6, 0.5], 1),
    ],
)
def test_the_best_of_the_safest_group_that_is_good_enough(means: list[float], chosen: int) -> None:
    assert compare(grouped(*means), GROUPS).chosen == chosen


def test_within_a_group_the_smallest_mean_counts() -> None:
    """Where `compare` would take the first that cannot be told from it."""
    losses = grouped(0.5, 0.499, 0.498)
    assert compare(losses).chosen == 0
    assert compare(losses, ["joint"] * 3).chosen == 2


def test_the_threshold_of_groups_is_in_standard_errors() -> None:
    losses = grouped(0.53, 0.5)
    gap = losses[0] - losses[1]
    ratio = float(gap.mean() / (gap.std() / math.sqrt(100)))
    assert compare(losses, ["elbo", "joint"], 1.01 * ratio).chosen == 0
    assert compare(losses, ["elbo", "joint"], 0.99 * ratio).chosen == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_group_that_is_not_finite_is_out(bad: float) -> None:
    losses = grouped(0.0, 1.0, 2.0)
    losses[0, 3] = bad
    assert compare(losses, ["elbo", "fixed", "joint"]).chosen == 1
    with pytest.raises(NumericalError, match="No candidate has a finite loss"):
        compare(losses[:1], ["elbo"])


def test_one_example_takes_the_safest_group() -> None:
    losses = torch.tensor([[3.0], [2.0], [1.0], [math.inf]])
    assert compare(losses, ["elbo", "fixed", "fixed", "joint"]).chosen == 0
    assert compare(losses.flip(0), ["elbo", "fixed", "fixed", "joint"]).chosen == 1


def test_figures_of_groups_are_those_of_compare() -> None:
    losses = grouped(1.0, 0.5, 0.2)
    one, other = compare(losses), compare(losses, ["a", "b", "c"])
    for name in ("mean", "error", "difference", "difference_error"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name))

"""Batches: every example once in an epoch, and an unbiased objective."""

from itertools import combinations

import pytest
import torch
from torch import Tensor

from directgp.likelihoods import Gaussian, Likelihood, Poisson
from directgp.objectives import LogLoss, Objective
from directgp.training.data import Data, Model, RandomBatches, Randomness
from directgp.training.problems import FreeProblem, HeldProblem
from tests.unit.training.models import counts, normal, regression, seeded, start


def made(n: int, size: int, generator: torch.Generator) -> RandomBatches:
    return RandomBatches(Data(normal(n, 1), normal(n)), size, generator)


def epoch(batches: RandomBatches, steps: int) -> list[list[int]]:
    found = []
    for _ in range(steps):
        batches.advance()
        found.append(batches.index.tolist())
    return found


@pytest.mark.parametrize(
    ("n", "size", "sizes"), [(10, 4, [4, 4, 2]), (9, 3, [3, 3, 3]), (3, 7, [3])]
)
def test_an_epoch_takes_every_example_once(n: int, size: int, sizes: list[int]) -> None:
    batches = made(n, size, seeded())
    orders = []
    for _ in range(4):
        taken = epoch(batches, len(sizes))
        assert [len(batch) for batch in taken] == sizes
        flat = [index for batch in taken for index in batch]
        assert sorted(flat) == list(range(n))
        orders.append(tuple(flat))
    assert n < 5 or len(set(orders)) == 4


def test_one_seed_has_one_order_and_another_seed_another() -> None:
    one, same, other = (epoch(made(30, 7, seeded(seed)), 12) for seed in (0, 0, 1))
    assert one == same != other


def test_every_order_is_as_likely() -> None:
    """All 6 orders of 3 examples, 600 times 6 draws: 4 standard deviations are 91."""
    batches = made(3, 3, seeded())
    orders = list(map(tuple, epoch(batches, 3600)))
    assert all(abs(orders.count(order) - 600) < 91 for order in set(orders))
    assert len(set(orders)) == 6


def test_batches_resume_from_their_state() -> None:
    generator = seeded()
    batches = made(11, 4, generator)
    epoch(batches, 4)
    position = {name: value.clone() for name, value in batches.state().items()}
    state = generator.get_state()
    expected = epoch(batches, 9)
    other = seeded(99)
    again = made(11, 4, other)
    again.load_state(position)
    other.set_state(state)
    assert epoch(again, 9) == expected


def problem(
    kind: str, data: Data, likelihood: Likelihood, batch_size: int | None
) -> FreeProblem | HeldProblem:
    posterior = start(data.X)
    posterior.set_q(0.3 * normal(6), 0.5 * torch.eye(6).double() + 0.1 * normal(6, 6).tril())
    objective = Objective(LogLoss(), len(data), 0.7)
    randomness = Randomness(seeded(), frozen=False)
    batches = None if batch_size is None else RandomBatches(data, batch_size, seeded())
    problem = HeldProblem if kind == "held" else FreeProblem
    return problem(Model(posterior, likelihood), data, objective, randomness, batches)


def value(problem: FreeProblem | HeldProblem) -> Tensor:
    problem.prepare()
    return problem.value(0).detach()


each_kind = pytest.mark.parametrize("kind", ["free", "held"])


def examples(name: str, n: int) -> tuple[Data, Likelihood]:
    weights = 0.5 + normal(n, seed=9).abs()
    if name == "regression":
        return Data(*regression(n), weights), Gaussian(0.2)
    X, y, exposure = counts(n)
    return Data(X, y, weights), Poisson().with_exposure(exposure)


@each_kind
@pytest.mark.parametrize("name", ["regression", "counts"])
def test_an_epoch_adds_up_to_the_whole(kind: str, name: str) -> None:
    """Weighted by their sizes; targets, weights and exposures go with their rows."""
    data, likelihood = examples(name, 23)
    whole = value(problem(kind, data, likelihood, None))
    parts = problem(kind, data, likelihood, 5)
    total = sum(size * value(parts) for size in (5, 5, 5, 5, 3))
    torch.testing.assert_close(total / 23, whole, rtol=1e-13, atol=0)


@each_kind
def test_a_short_batch_is_right_on_average(kind: str) -> None:
    """The mean over all 15 batches of two examples of six: no other weight would do."""
    data, likelihood = examples("regression", 6)
    whole = value(problem(kind, data, likelihood, None))
    parts = problem(kind, data, likelihood, 4)
    values = []
    for pair in combinations(range(6), 2):
        rest = [i for i in range(6) if i not in pair]
        parts.batches.load_state({"epoch": torch.tensor([*rest, *pair]), "taken": torch.tensor(4)})
        values.append(value(parts))
    assert parts.batches.state()["taken"] == 6
    torch.testing.assert_close(torch.stack(values).mean(), whole, rtol=1e-13, atol=0)
    assert float(torch.stack(values).std()) > 0.01


@each_kind
def test_gradients_add_up_too(kind: str) -> None:
    whole = problem(kind, *examples("regression", 13), None)
    parts = problem(kind, *examples("regression", 13), 5)
    whole.prepare()
    whole.value(0).backward()
    for size in (5, 5, 3):
        parts.prepare()
        (size / 13 * parts.value(0)).backward()
    for name, parameter in whole.parameters.items():
        assert parameter.grad is not None
        expected = parts.parameters[name].grad
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-10, atol=1e-12, msg=name)

"""Adam on one vector: torch's own steps, bounds, and a state that can be saved."""

import pytest
import torch
from torch import Tensor, nn

from directgp.training.adam import FlatAdam


def parameters() -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (3, 2), "b": (), "c": (4,)}
    return {
        name: nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
        for name, shape in shapes.items()
    }


def loss(p: dict[str, nn.Parameter]) -> Tensor:
    return (p["a"] ** 4).sum() + torch.exp(p["b"]) * p["c"].square().sum()


def advance(p: dict[str, nn.Parameter], adam: FlatAdam, steps: int) -> None:
    for _ in range(steps):
        adam.step(adam.gradient(lambda: loss(p))[1])


def test_its_steps_are_those_of_torch() -> None:
    ours, theirs = parameters(), parameters()
    other = torch.optim.Adam(theirs.values(), lr=0.05)
    advance(ours, FlatAdam(ours, 0.05, {}), 20)
    for _ in range(20):
        other.zero_grad()
        loss(theirs).backward()
        other.step()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-12, atol=1e-14)


def test_floors_hold_and_a_parameter_without_gradient_stays() -> None:
    p = parameters()
    p["unused"] = nn.Parameter(torch.ones(2, dtype=torch.float64))
    advance(p, FlatAdam(p, 0.5, {"b": 0.25}), 15)
    assert p["b"].item() == 0.25
    assert bool((p["unused"] == 1).all())


def test_a_state_that_was_kept_goes_on_bit_for_bit() -> None:
    p = parameters()
    adam = FlatAdam(p, 0.05, {})
    advance(p, adam, 7)
    kept = adam.state()
    advance(p, adam, 5)
    again = parameters()
    other = FlatAdam(again, 0.9, {})
    other.load_state(kept)
    advance(again, other, 5)
    assert other.learning_rate == 0.05
    assert all(torch.equal(again[name], value) for name, value in p.items())


def test_flags_of_models_are_spread_over_their_values() -> None:
    p = {"a": nn.Parameter(torch.zeros(2, 3)), "b": nn.Parameter(torch.zeros(2))}
    spread = FlatAdam(p, 0.1, {}).spread(torch.tensor([True, False]))
    assert spread.tolist() == [True] * 3 + [False] * 3 + [True, False]


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float64)], ids=str)
def test_parameters_of_two_precisions_train_together(
    dtypes: tuple[torch.dtype, torch.dtype],
) -> None:
    p = {str(dtype): nn.Parameter(torch.ones(2, dtype=dtype)) for dtype in dtypes}
    adam = FlatAdam(p, 0.1, {})
    losses = torch.stack([value.double().square().sum() for value in p.values()])
    adam.step(adam.gradient(lambda: losses)[1])
    for value in p.values():
        torch.testing.assert_close(
            value.double(), torch.full((2,), 0.9).double(), atol=1e-6, rtol=0
        )

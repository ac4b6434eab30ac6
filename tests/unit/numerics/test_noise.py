from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor

from directgp.numerics.random import exponential, standard_normal, uniform

SOURCES = [(standard_normal, "norm"), (uniform, "uniform"), (exponential, "expon")]


@pytest.mark.parametrize(("draw", "law"), SOURCES, ids=[law for _, law in SOURCES])
def test_law(draw: Callable[..., Tensor], law: str) -> None:
    like = torch.empty(5000, dtype=torch.float64)
    draws = draw(4, like, torch.Generator().manual_seed(3))
    assert draws.shape == (4, 5000)
    assert draws.dtype == torch.float64
    assert stats.kstest(draws.reshape(-1).numpy(), law).pvalue > 1e-4


@pytest.mark.parametrize("number", [1, 2, 7])
def test_any_number_of_normal_draws(number: int) -> None:
    like = torch.empty(3, dtype=torch.float64)
    draws = standard_normal(number, like, torch.Generator().manual_seed(3))
    assert draws.shape == (number, 3)
    assert len(set(draws.reshape(-1).tolist())) == 3 * number


def test_normal_draws_that_share_a_radius_are_independent() -> None:
    """Half of them are cosines and half sines of the same points in the plane."""
    like = torch.empty(40_000, dtype=torch.float64)
    one, other = standard_normal(1, like, torch.Generator().manual_seed(3)).reshape(2, -1)
    radius, angle = one**2 + other**2, torch.atan2(other, one)
    assert stats.kstest(radius.numpy(), "chi2", (2,)).pvalue > 1e-4
    assert stats.kstest(angle.numpy(), "uniform", (-torch.pi, 2 * torch.pi)).pvalue > 1e-4
    for a, b in ((one, other), (one**2, other**2), (radius, angle)):
        assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1].item()) < 4 / len(one) ** 0.5


@pytest.mark.parametrize("draw", [standard_normal, uniform, exponential])
def test_only_the_generator_is_used(draw: Callable[..., Tensor]) -> None:
    before = torch.get_rng_state()
    like = torch.empty(3)
    draws = [draw(2, like, torch.Generator().manual_seed(5)) for _ in range(2)]
    assert torch.equal(draws[0], draws[1])
    assert torch.equal(before, torch.get_rng_state())


def test_uniform_excludes_its_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda *_, **__: torch.zeros(1, 2, dtype=torch.float64))
    assert bool((uniform(1, torch.empty(2), None) > 0).all())

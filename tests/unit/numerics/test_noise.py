from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor

from directgp.numerics.noise import exponential, standard_normal, uniform

SOURCES = [(standard_normal, "norm"), (uniform, "uniform"), (exponential, "expon")]


@pytest.mark.parametrize(("draw", "law"), SOURCES, ids=[law for _, law in SOURCES])
def test_law(draw: Callable[..., Tensor], law: str) -> None:
    like = torch.empty(5000, dtype=torch.float64)
    draws = draw(4, like, torch.Generator().manual_seed(3))
    assert draws.shape == (4, 5000)
    assert draws.dtype == torch.float64
    assert stats.kstest(draws.reshape(-1).numpy(), law).pvalue > 1e-4


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

"""Random draws have the right law and dtype; truncated normal draws stay within their bounds."""

import math
from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor

from directgp.numerics.random import (
    exponential,
    sample_above,
    sample_between,
    standard_normal,
    uniform,
)
from directgp.numerics.special import log1mexp, log_ndtr

SOURCES = [(standard_normal, "norm"), (uniform, "uniform"), (exponential, "expon")]


@pytest.mark.parametrize(("draw", "law"), SOURCES, ids=[law for _, law in SOURCES])
def test_draws_have_their_distribution(draw: Callable[..., Tensor], law: str) -> None:
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


INF = math.inf
NUM_DRAWS = 20_000


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def filled(value: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.full((NUM_DRAWS,), value, dtype=dtype)


def looks_uniform(u: Tensor, alpha: float = 1e-4) -> bool:
    """Kolmogorov–Smirnov test of u ~ Uniform(0, 1), with its asymptotic critical value."""
    n = len(u)
    steps = torch.arange(n + 1, dtype=torch.float64) / n
    ordered = u.double().sort().values
    distance = torch.maximum(steps[1:] - ordered, ordered - steps[:-1]).max()
    return float(distance) < math.sqrt(-math.log(alpha / 2) / (2 * n))


def survival_above(z: Tensor, lower: Tensor) -> Tensor:
    """P(Z > z | Z > lower), uniform for the right law."""
    return torch.exp(log_ndtr(-z) - log_ndtr(-lower))


def survival_between(z: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """P(Z > z | lower < Z < upper) for bounds whose middle is right of 0."""
    log_z, log_lower, log_upper = log_ndtr(-z), log_ndtr(-lower), log_ndtr(-upper)
    log_ratio = log1mexp(log_z - log_upper) - log1mexp(log_lower - log_upper)
    return torch.exp(log_z - log_lower + log_ratio)


@pytest.mark.parametrize("lower", [-INF, -50.0, -3.0, 0.0, 1.5, 8.0, 40.0, 1e4])
def test_draws_above_have_the_truncated_distribution(lower: float) -> None:
    z = sample_above(filled(lower), seeded())
    assert looks_uniform(survival_above(z, filled(lower)))


@pytest.mark.parametrize(
    ("lower", "upper"),
    [
        (-INF, INF),
        (-1.0, INF),
        (-1.0, 1.0),
        (-2.0, 5.0),
        (-4.0, 38.0),
        (3.0, 3.5),
        (8.0, 9.0),
        (40.0, 40.01),
        (40.0, INF),
        (1e4, 1e4 + 1e-4),
    ],
)
@pytest.mark.parametrize("mirror", [False, True])
def test_draws_between_have_the_truncated_distribution(
    lower: float, upper: float, mirror: bool
) -> None:
    if mirror:
        z = -sample_between(filled(-upper), filled(-lower), seeded(1))
    else:
        z = sample_between(filled(lower), filled(upper), seeded(2))
    assert looks_uniform(survival_between(z, filled(lower), filled(upper)))


@pytest.mark.parametrize(
    ("lower", "upper"),
    [
        (1e-20, 2e-20),
        (-1e-9, 2e-9),
        (0.0, 9e-8),  # one side of the switch between the two inversions
        (0.0, 2e-7),  # and the other
        (3.0, 3.0 + 1e-9),
        (-5.0 - 1e-8, -5.0),
    ],
)
def test_law_in_a_tiny_interval_is_uniform(lower: float, upper: float) -> None:
    z = sample_between(filled(lower), filled(upper), seeded(3))
    assert looks_uniform((z - lower) / (upper - lower))


def test_law_in_a_tiny_interval_far_out_is_exponential() -> None:
    lower, width = 1e5, 1e-8
    upper = lower + 5 * width
    rate, z = lower, sample_between(filled(lower), filled(upper), seeded(4))
    u = torch.expm1(-rate * (z - lower)) / math.expm1(-rate * (upper - lower))
    # Doubles are 1.5e-11 apart here, an interval of 3400: coarse, but finer than the test sees.
    assert looks_uniform(u)


@pytest.mark.parametrize("lower", [2.0, 3.0, 4.0])
def test_negative_control_exponential_tail(lower: float) -> None:
    """The common approximation z ≈ lower + E/lower is refused."""
    uniform = torch.rand(NUM_DRAWS, generator=seeded(5), dtype=torch.float64)
    z = lower - torch.log1p(-uniform) / lower
    assert not looks_uniform(survival_above(z, filled(lower)))


def test_negative_control_wrong_bound() -> None:
    z = sample_above(filled(1.52), seeded(6))
    assert not looks_uniform(survival_above(z, filled(1.5)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("lower", [-INF, -1e8, -7.3, 0.1, 5.7, 40.0, 1e4, 1e8])
def test_draws_above_are_finite_and_above(lower: float, dtype: torch.dtype) -> None:
    bound = filled(lower, dtype)
    z = sample_above(bound, seeded(7))
    assert z.dtype == dtype
    assert z.isfinite().all()
    assert (z >= bound).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("middle", [-1e8, -1e4, -40.0, -0.7, 0.0, 0.3, 12.1, 1e8])
@pytest.mark.parametrize("width", [0.0, 1e-12, 1e-7, 1e-3, 1.0, 50.0, INF])
def test_draws_between_are_within(middle: float, width: float, dtype: torch.dtype) -> None:
    lower, upper = (filled(end, dtype)[:1000] for end in (middle - width / 2, middle + width / 2))
    z = sample_between(lower, upper, seeded(8))
    assert z.dtype == dtype
    assert z.isfinite().all()
    assert (lower <= z).all() and (z <= upper).all()


def test_extreme_uniforms_give_finite_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.rand` may return 0 and 1 − 2⁻⁵³."""
    ends = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda *_, **__: ends)
    for lower, upper in [(-INF, INF), (0.0, INF), (-INF, -40.0), (1e4, INF)]:
        low, high = torch.full((2,), lower).double(), torch.full((2,), upper).double()
        assert sample_between(low, high, seeded()).isfinite().all()
        assert sample_above(low, seeded()).isfinite().all()


def test_empty_interval_and_nan_give_nan() -> None:
    lower = torch.tensor([1.0, math.nan, 0.0, 0.0])
    upper = torch.tensor([0.0, 1.0, math.nan, 1.0])
    assert sample_between(lower, upper, seeded()).isnan().tolist() == [True, True, True, False]
    assert sample_above(lower, seeded()).isnan().tolist() == [False, True, False, False]


def test_same_seed_same_draws_and_no_global_state() -> None:
    lower = torch.zeros(2, 3, requires_grad=True)
    state = torch.get_rng_state()
    first, second = sample_above(lower, seeded(9)), sample_above(lower, seeded(9))
    assert torch.equal(first, second)
    assert first.shape == (2, 3)
    assert not first.requires_grad
    assert torch.equal(state, torch.get_rng_state())

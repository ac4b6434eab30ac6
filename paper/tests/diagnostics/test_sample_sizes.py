"""Numbers of samples of the convergence corollaries, and their schedules."""

import math
from statistics import NormalDist
from typing import Any

import pytest
import torch
from torch import Tensor

from directgp.errors import InvalidInputError, NumericalError
from directgp.likelihoods import Gaussian, Probit
from directgp.likelihoods.counts import PoissonExp
from directgp.log_expectations import BiasedMonteCarlo
from directgp.shapes import Marginals
from directgp_paper.diagnostics import (
    Difficulty,
    SampleSchedule,
    bmc_schedule,
    difficulty,
    harmonic_step_size,
    paper_bounds,
    smooth_bmc_schedules,
    tight_bounds,
)

Y = torch.tensor([1.0, 0.0, 1.0])
MEAN = torch.tensor([0.5, 1.0, 0.0], dtype=torch.float64)
VARIANCE = torch.tensor([0.3, 2.0, 1.0], dtype=torch.float64)
MARGINALS = Marginals(MEAN, VARIANCE)


def _probit_expectations(y: float, mean: float, variance: float) -> tuple[float, float, float]:
    """E φ, E φ′ and E φ″ of probit: derivatives of Φ((2y−1)μ/√(1+v)) in μ."""
    sign, root = 2 * y - 1, math.sqrt(1 + variance)
    height = NormalDist().pdf(mean / root)
    curvature = -sign * mean / root**3 * height
    return NormalDist().cdf(sign * mean / root), sign * height / root, curvature


EXPECTATIONS = [
    _probit_expectations(y, mean, variance)
    for y, mean, variance in zip(Y.tolist(), MEAN.tolist(), VARIANCE.tolist(), strict=True)
]
# Of φ′ and φ″: both signs of the slope are published, one label has one.
RANGES = {
    "paper": (2 / math.sqrt(2 * math.pi), 2 / math.sqrt(2 * math.pi * math.e)),
    "tight": (1 / math.sqrt(2 * math.pi), 2 / math.sqrt(2 * math.pi * math.e)),
}


@pytest.mark.parametrize("bounds", ["paper", "tight"])
def test_relative_form_by_hand(bounds: str) -> None:
    slope_range, curvature_range = RANGES[bounds]
    by_hand = [
        max(
            (1 / density) ** 2,
            (slope_range / abs(slope)) ** 2,
            (curvature_range / (abs(curvature) or 1.0)) ** 2,
        )
        for density, slope, curvature in EXPECTATIONS
    ]
    assert EXPECTATIONS[2][2] == 0  # So that Q = 1 has its case.
    hard = difficulty(Probit(), Y, MARGINALS, bounds="paper" if bounds == "paper" else "tight")
    assert torch.exp(hard.log_factor).tolist() == pytest.approx(by_hand, rel=1e-9)
    gamma, delta = 0.1, 0.01
    scale = math.log(6 * 3 / delta) / (2 * gamma**2)
    required = hard.required(gamma, delta).tolist()
    assert required == pytest.approx([scale * factor for factor in by_hand], rel=1e-9)


def test_absolute_form_by_hand() -> None:
    slope_range, curvature_range = RANGES["tight"]
    zeta = min(density for density, _, _ in EXPECTATIONS)
    by_hand = max(1 / zeta**2, slope_range**2, curvature_range**2)
    hard = difficulty(Probit(), Y, MARGINALS, form="absolute")
    assert hard.zeta == pytest.approx(zeta, rel=1e-9)
    assert torch.exp(hard.log_factor).tolist() == pytest.approx([by_hand] * 3, rel=1e-9)


def test_tight_bounds_save_orders_of_magnitude_for_counts() -> None:
    y = torch.tensor([3.0, 40.0])
    marginals = Marginals(
        torch.tensor([1.5, 3.5], dtype=torch.float64), torch.tensor([0.3, 0.1], dtype=torch.float64)
    )
    paper, tight = (
        float(difficulty(PoissonExp(), y, marginals, bounds=bounds).log_factor.max())
        for bounds in ("paper", "tight")
    )
    assert paper - tight > math.log(1e5)


def test_count_expectations_by_a_plain_sum() -> None:
    y, mean, variance = 3.0, 0.5, 0.5
    deviation = math.sqrt(variance)
    f = torch.linspace(mean - 9 * deviation, mean + 9 * deviation, 20_001, dtype=torch.float64)
    mass = torch.exp(-0.5 * ((f - mean) / deviation) ** 2)
    mass, rate = mass / mass.sum(), torch.exp(f)
    density = torch.exp(y * f - rate - math.lgamma(y + 1))
    expected = torch.stack(
        [
            (mass * density).sum(),
            (mass * density * (y - rate)).sum().abs(),
            (mass * density * ((y - rate) ** 2 - rate)).sum().abs(),
        ]
    )
    target = torch.tensor([y])
    bounds = tight_bounds(PoissonExp(), target)
    ranges = torch.cat([bounds.density_upper, bounds.slope_range, bounds.curvature_range])
    marginals = Marginals(
        torch.tensor([mean], dtype=torch.float64), torch.tensor([variance], dtype=torch.float64)
    )
    hard = difficulty(PoissonExp(), target, marginals)
    torch.testing.assert_close(
        hard.log_terms[:, 0], 2 * torch.log(ranges / expected), rtol=0.0, atol=1e-8
    )


def test_batches_of_states_share_their_targets() -> None:
    states = Marginals(torch.stack([MEAN, MEAN + 1]), torch.stack([VARIANCE, VARIANCE]))
    hard = difficulty(Probit(), Y, states)
    assert hard.log_factor.shape == (2, 3)
    assert hard.num_data == 3
    first = difficulty(Probit(), Y, MARGINALS)
    torch.testing.assert_close(hard.log_factor[0], first.log_factor)


def _schedule(delta: float = 0.05, cap: int | None = None) -> SampleSchedule:
    return bmc_schedule(difficulty(Probit(), Y, MARGINALS), delta=delta, cap=cap)


def test_failure_probabilities_sum_to_delta() -> None:
    schedule = _schedule(delta=0.2)
    total = sum(schedule.failure(step) for step in range(20_000))
    assert total == pytest.approx(0.2, rel=1e-4)
    smooth, _ = smooth_bmc_schedules(schedule.difficulty)
    assert smooth.failure(3) == harmonic_step_size(3) ** 4


def test_samples_grow_and_smoothing_falls() -> None:
    hard = difficulty(Probit(), Y, MARGINALS)
    smooth, nu = smooth_bmc_schedules(hard)
    for schedule in (_schedule(), smooth):
        sizes = [schedule(step) for step in range(8)]
        assert sizes == sorted(set(sizes))
        assert all(schedule.at(step).used > schedule.at(step).required for step in range(8))
        assert not schedule.at(7).capped
    expected = [hard.zeta / 2, hard.zeta / 3, hard.zeta / 10]
    assert [nu(step) for step in (0, 1, 8)] == pytest.approx(expected)


def test_growth_is_as_t_squared_times_log() -> None:
    schedule = _schedule()
    early, late = schedule.at(98).required, schedule.at(998).required
    logs = [math.log(6 * 3 / schedule.failure(step)) for step in (98, 998)]
    assert late / early == pytest.approx((1000 / 100) ** 2 * logs[1] / logs[0])


def test_a_cap_is_reported() -> None:
    free, capped = _schedule(), _schedule(cap=50)
    assert capped(3) == 50
    assert capped.at(3).capped
    assert capped.at(3).required == free.at(3).required
    roomy = _schedule(cap=free(3))
    assert roomy(3) == free(3)
    assert not roomy.at(3).capped
    with pytest.raises(InvalidInputError, match="cap"):
        _schedule(cap=0)


def test_improbable_targets_need_a_cap() -> None:
    marginals = Marginals(torch.tensor([-60.0], dtype=torch.float64), torch.ones(1).double())
    hard = difficulty(Probit(), torch.tensor([1.0]), marginals)
    with pytest.raises(NumericalError, match="cap"):
        bmc_schedule(hard)(0)
    assert bmc_schedule(hard, cap=10).at(0).capped


def test_step_sizes_above_a_half_are_refused() -> None:
    hard = difficulty(Probit(), Y, MARGINALS)
    assert harmonic_step_size(0) == 0.5
    with pytest.raises(InvalidInputError, match="at most ½"):
        bmc_schedule(hard, step_size=lambda step: 1 / (step + 1))(0)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("option", ["bounds", "form"])
def test_unknown_options_are_refused(option: str) -> None:
    unknown: dict[str, Any] = {option: "other"}
    with pytest.raises(InvalidInputError, match=rf"{option}.* must be .*Got 'other'"):
        difficulty(Probit(), Y, MARGINALS, **unknown)


def test_schedules_drive_the_rule() -> None:
    hard = difficulty(Probit(), Y, MARGINALS)
    samples, nu = smooth_bmc_schedules(hard, cap=30)

    def value(rule: BiasedMonteCarlo, step: int) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return rule(Probit(), Y, MEAN, VARIANCE, generator=generator, step=step)

    for step in (0, 4):
        fixed = BiasedMonteCarlo(num_samples=samples(step), nu=nu(step))
        scheduled = BiasedMonteCarlo(num_samples=samples, nu=nu)
        torch.testing.assert_close(value(scheduled, step), value(fixed, step))


def test_bmc_errors_stay_within_the_guarantee() -> None:
    """At the required L the means of φ, φ′ and φ″ are within γ of their expectations."""
    likelihood, y = Gaussian(noise=0.5), torch.tensor([0.3, -1.0], dtype=torch.float64)
    mean, variance = torch.zeros(2).double(), torch.tensor([0.2, 1.0]).double()
    gamma, failure, rounds = 0.5, 0.1, 20
    hard = difficulty(likelihood, y, Marginals(mean, variance))
    num_samples = math.floor(float(hard.required(gamma, failure).max())) + 1
    failures = 0
    generator = torch.Generator().manual_seed(1)
    for _ in range(rounds):
        noise = torch.randn(num_samples, 2, generator=generator, dtype=torch.float64)
        f = mean + torch.sqrt(variance) * noise
        residual = y - f
        density = torch.exp(likelihood.log_prob(y, f).detach())
        total = variance + 0.5
        expected = torch.exp(-0.5 * y**2 / total) / torch.sqrt(2 * math.pi * total)
        pairs = [
            (density, expected),
            (density * residual / 0.5, expected * y / total),
            (density * (residual**2 / 0.25 - 2), expected * (y**2 / total**2 - 1 / total)),
        ]
        ratios = torch.stack([sampled.mean(dim=0) / exact for sampled, exact in pairs])
        failures += int((ratios - 1).abs().max() > gamma)
    assert failures <= failure * rounds


def test_tight_bounds_are_the_default() -> None:
    """The default is the tight form, never above the published one but for rounding."""
    default = difficulty(Probit(), Y, MARGINALS)
    paper = difficulty(Probit(), Y, MARGINALS, bounds="paper")
    assert isinstance(default, Difficulty)
    assert bool((default.log_factor <= paper.log_factor + 1e-12).all())
    wider = paper_bounds(Probit(), Y).slope_range > tight_bounds(Probit(), Y).slope_range
    assert bool(wider.all())

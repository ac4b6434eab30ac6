"""The descent of the convergence corollaries, its constants, and the limits of fixed L."""

import itertools
import math
import sys
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from directgp import expected_log_prob, log_expectation
from directgp.errors import InvalidInputError, NumericalError, UnsupportedError
from directgp.likelihoods import Likelihood, Logistic, Poisson, Probit, StudentT
from directgp.log_expectations import BiasedMonteCarlo
from directgp.log_expectations.rule import at_step
from directgp.posteriors import Prior, SparsePosterior
from directgp.shapes import Marginals
from directgp_paper.diagnostics import (
    ConvergenceConstants,
    DescentPath,
    DescentProblem,
    HarmonicSteps,
    Moments,
    Region,
    convergence_constants,
    convergence_rule,
    descend,
    expected_bmc,
    gradient_draws,
    stationary_point,
)
from directgp_paper.diagnostics import __main__ as command
from directgp_paper.diagnostics.bounds import density_derivatives
from directgp_paper.diagnostics.schedules import SampleSchedule

N, M = 10, 2
X = torch.linspace(-2, 2, N, dtype=torch.float64)[:, None]
Y = torch.tensor([0.0, 0, 1, 0, 0, 1, 1, 1, 0, 1])
REGION = Region(radius=1.0, lower=0.4, upper=2.0)
STEPS = HarmonicSteps(20.0)


def posterior() -> SparsePosterior:
    prior = Prior(RBFKernel(), output_scale=1.5)
    return SparsePosterior(prior, torch.tensor([[-1.0], [1.0]], dtype=torch.float64))


def make_problem(likelihood: Likelihood | None = None, y: Tensor = Y) -> DescentProblem:
    return DescentProblem.of(posterior(), likelihood or Logistic(), X, y, beta=N / 4)


PROBLEM = make_problem()
MINIMUM = stationary_point(PROBLEM, REGION)
CONSTANTS = convergence_constants(PROBLEM, REGION)


def random_point(random: np.random.Generator, region: Region = REGION) -> Moments:
    """Draw a point of the region, on its boundary as often as not."""
    direction = random.standard_normal(M)
    size = region.radius * random.choice([1.0, random.uniform()])
    values = random.choice([region.lower, region.upper, random.uniform(0.4, 2)], M)
    vectors, _ = np.linalg.qr(random.standard_normal((M, M)))
    mean = torch.as_tensor(size * direction / np.linalg.norm(direction))
    return Moments(mean, torch.as_tensor((vectors * values) @ vectors.T))


# The objective


def test_objective_is_that_of_the_posterior() -> None:
    model, at = posterior(), random_point(np.random.default_rng(0))
    model.set_q(at.mean, torch.linalg.cholesky(at.cov))
    with torch.no_grad():
        marginals = model.marginals(X)
        terms = log_expectation(Logistic(), Y, marginals.mean, marginals.variance)
        expected = float(-terms.mean() + PROBLEM.beta / N * model.kl())
    assert PROBLEM.exact(at)[0] == pytest.approx(expected, rel=1e-9)


def test_gradient_is_that_of_the_objective() -> None:
    random = np.random.default_rng(1)
    at, step = random_point(random), 1e-5
    for _ in range(5):
        other = random_point(random)
        forward, backward = (PROBLEM.exact(at.plus(s, other))[0] for s in (step, -step))
        slope = PROBLEM.exact(at)[1].dot(other)
        assert (forward - backward) / (2 * step) == pytest.approx(slope, abs=1e-8)


# The region


def test_projection_is_the_nearest_point() -> None:
    random = np.random.default_rng(2)
    for _ in range(20):
        cov = torch.as_tensor(random.standard_normal((M, M)))
        outside = Moments(torch.as_tensor(3 * random.standard_normal(M)), cov + cov.T)
        nearest, moved = REGION.project(outside)
        assert moved
        assert REGION.project(nearest)[0].plus(-1.0, nearest).norm < 1e-12
        # ⟨x − Px, z − Px⟩ ≤ 0 for every z of a convex set says that Px is nearest.
        for _ in range(10):
            towards = random_point(random).plus(-1.0, nearest)
            assert outside.plus(-1.0, nearest).dot(towards) < 1e-12


def test_points_inside_stay() -> None:
    start = PROBLEM.start
    same, moved = REGION.project(start)
    assert same is start
    assert not moved
    only_cov, moved = REGION.project(Moments(torch.zeros(M).double(), 5 * torch.eye(M).double()))
    assert moved
    assert torch.equal(only_cov.mean, torch.zeros(M).double())


def test_wrong_regions_and_points_raise() -> None:
    with pytest.raises(InvalidInputError, match="0 < lower < upper"):
        Region(1.0, 0.0, 2.0)
    nan = Moments(torch.full((M,), math.nan).double(), torch.eye(M).double())
    with pytest.raises(NumericalError, match="smaller steps"):
        REGION.project(nan)


# The constants


@pytest.mark.parametrize(
    ("likelihood", "y"),
    [(Logistic(), Y), (Probit(), Y), (Poisson(), 2 * Y)],
    ids=["logistic", "probit", "poisson"],
)
def test_constants_hold_in_the_region(likelihood: Likelihood, y: Tensor) -> None:
    problem, random = make_problem(likelihood, y), np.random.default_rng(3)
    constants = convergence_constants(problem, REGION)
    f = torch.linspace(-30, 30, 60001, dtype=torch.float64)[:, None]
    found = [float(d.abs().max()) for d in density_derivatives(likelihood, y.double(), f)]
    bounds = [constants.density, constants.slope, constants.curvature]
    assert found == pytest.approx(bounds, rel=1e-6)
    points = [random_point(random) for _ in range(60)]
    smallest = min(float(problem.exact_slopes(problem.marginals(at))[0].min()) for at in points)
    assert constants.zeta <= math.exp(smallest) * (1 + 1e-9)
    ratios = []
    for first, second in itertools.pairwise(points):
        change = problem.exact(first)[1].plus(-1.0, problem.exact(second)[1])
        ratios.append(change.norm / first.plus(-1.0, second).norm)
    assert max(ratios) <= constants.lipschitz
    assert constants.lipschitz < 300 * max(ratios)


def test_zeta_is_attained() -> None:
    # The corner of the hardest example: m against its label, V smallest.
    norms = PROBLEM.squared_norms.sqrt()
    means = PROBLEM.offset - (2 * Y.double() - 1) * REGION.radius * norms
    hardest = math.inf
    for i in range(N):
        m = (means - PROBLEM.offset)[i] * PROBLEM.A[:, i] / norms[i] ** 2
        at = Moments(m, REGION.lower * torch.eye(M).double())
        assert not REGION.project(Moments(0.9999 * at.mean, at.cov))[1]
        values = PROBLEM.exact_slopes(PROBLEM.marginals(at))[0]
        hardest = min(hardest, math.exp(float(values[i])))
    assert CONSTANTS.zeta == pytest.approx(hardest, rel=1e-9)


@pytest.mark.parametrize("smooth", [False, True])
def test_errors_of_steps_are_bounded(smooth: bool) -> None:
    rule = convergence_rule(CONSTANTS, smooth=smooth, step_size=lambda _: 0.1)
    random, generator = np.random.default_rng(4), torch.Generator().manual_seed(0)
    sizes = []
    for _ in range(10):
        at = random_point(random)
        exact = PROBLEM.exact(at)[1]
        sampled = PROBLEM.gradient(at, PROBLEM.slopes(rule, PROBLEM.marginals(at), generator))
        sizes.append(sampled.plus(-1.0, exact).norm)
    assert max(sizes) <= 0.1 * CONSTANTS.c3
    assert CONSTANTS.c3 < CONSTANTS.q < 2 * CONSTANTS.c3


def test_ratio_bound_of_the_absolute_form() -> None:
    # The extremes of N̂/(D̂ + ν), ν ≤ αζ, are at the ends of the intervals of N̂ and D̂.
    for alpha in (0.01, 0.2, 0.5):
        for D in (CONSTANTS.zeta, 0.5, 1.0):
            for N_k in (-CONSTANTS.slope, 0.0, CONSTANTS.slope):
                ends = [
                    (N_k + a * alpha) / (D * (1 + b * alpha) + nu)
                    for a in (-1, 1)
                    for b in (-1, 1)
                    for nu in (0.0, alpha * CONSTANTS.zeta)
                ]
                bound = 2 * alpha * (1 + CONSTANTS.slope) / CONSTANTS.zeta
                assert max(abs(end - N_k / D) for end in ends) <= bound


def test_likelihood_must_be_log_concave() -> None:
    with pytest.raises(UnsupportedError, match="log-concave"):
        convergence_constants(make_problem(StudentT()), REGION)


# The descent


def run(
    rule: BiasedMonteCarlo | None, steps: int, seed: int = 0, evaluate_at: range | None = None
) -> DescentPath:
    return descend(
        PROBLEM,
        REGION,
        steps,
        rule=rule,
        step_size=STEPS,
        generator=torch.Generator().manual_seed(seed),
        evaluate_at=evaluate_at,
    )


def test_exact_gradients_reach_the_minimum(without_shape_checks: None) -> None:
    path = run(None, 400)
    assert (path.steps[0], path.steps[-1]) == (0, 400)
    assert PROBLEM.exact(MINIMUM)[1].norm < 1e-12
    assert path.points[-1].plus(-1.0, MINIMUM).norm < 2e-5
    assert path.gradient_norm[-1] < 2e-6
    assert path.objective == sorted(path.objective, reverse=True)
    assert (path.projected, path.capped, path.num_samples[-1]) == ([], [], 0)


def tolerance(rule: BiasedMonteCarlo, steps: int) -> float:
    """Bound ‖∇h‖ after the steps: that of exact gradients, and Λ times 4 standard deviations.

    Near the minimum the error of r obeys e_{t+1} = (1 − γ_t H)e_t + γ_t w_t with H ≥ λ, so its
    variance is at most Σ γ_t² σ²/L_t Π_{s>t} (1 − γ_s λ)², σ²/L that of a gradient with L samples.
    """
    generator = torch.Generator().manual_seed(1)
    many = BiasedMonteCarlo(1000, gradient="second_derivative")
    drawn = gradient_draws(many, Logistic(), Y, PROBLEM.marginals(MINIMUM), 200, generator)
    squares = PROBLEM.squared_norms
    noise = (squares * drawn[0].var(0) + squares**2 * drawn[1].var(0)).sum() / N**2 * 1000
    curvature, variance = PROBLEM.beta / N / 2, 0.0
    for step in range(steps):
        gamma, samples = STEPS(step), at_step(rule.num_samples, step)
        variance = (1 - gamma * curvature) ** 2 * variance + gamma**2 * float(noise) / samples
    return run(None, steps).gradient_norm[-1] + CONSTANTS.lipschitz * 4 * math.sqrt(variance)


def test_bmc_by_the_theory_converges(without_shape_checks: None) -> None:
    rule = convergence_rule(CONSTANTS, step_size=STEPS)
    path = run(rule, 150)
    norms = np.array(path.gradient_norm)
    limit = tolerance(rule, 150)
    assert norms[-1] < limit < 0.02
    assert norms[-1] < 0.02 * norms[0]
    assert (path.projected, path.capped) == ([], [])
    total = sum(int(at_step(rule.num_samples, step)) for step in range(150))
    assert path.num_samples[-1] == total


def test_smooth_bmc_converges_with_its_smoothing() -> None:
    path = run(convergence_rule(CONSTANTS, smooth=True, step_size=STEPS), 150)
    at, nu = path.points[-1], STEPS(149) * CONSTANTS.zeta
    value, by_mean, by_variance = PROBLEM.exact_slopes(PROBLEM.marginals(at))
    weight = 1 / (1 + nu * torch.exp(-value))
    smoothed = PROBLEM.gradient(at, (value, weight * by_mean, weight * by_variance)).norm
    # The point follows the zero of the smoothed gradient, where ∇h is of the order of ν.
    assert smoothed < 0.3 * path.gradient_norm[-1]
    assert path.gradient_norm[-1] < path.gradient_norm[0] / 5


def test_cap_is_recorded() -> None:
    rule = convergence_rule(CONSTANTS, step_size=STEPS, cap=500)
    path, schedule = run(rule, 60), rule.num_samples
    assert isinstance(schedule, SampleSchedule)
    required = [schedule.at(step).required for step in range(60)]
    assert path.capped == [step for step in range(60) if required[step] >= 500]
    assert 0 < len(path.capped) < 60


def test_projection_is_recorded() -> None:
    small = Region(radius=0.1, lower=0.9, upper=1.1)
    path = descend(PROBLEM, small, 10, evaluate_at=[10])
    assert path.steps == [10]
    assert path.projected
    assert float(path.points[0].mean.norm()) <= 0.1 + 1e-12
    with pytest.raises(NumericalError, match="no zero in the region"):
        stationary_point(PROBLEM, small)


def test_blocks_of_samples_are_one_average(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("directgp_paper.diagnostics.descent._BLOCK_ELEMENTS", 30 * N)
    rule = BiasedMonteCarlo(70, nu=0.2, gradient="second_derivative")
    path = descend(
        PROBLEM, REGION, 1, rule=rule, generator=torch.Generator().manual_seed(5), evaluate_at=[1]
    )
    marginals, again = PROBLEM.marginals(PROBLEM.start), torch.Generator().manual_seed(5)
    draws = []
    for count in (30, 30, 10):
        # The rule draws from the generator alone: the same call gives the same blocks.
        single = BiasedMonteCarlo(count, gradient="second_derivative")
        value, by_mean, by_variance = PROBLEM.slopes(single, marginals, again)
        draws.append(count * torch.exp(value) * torch.stack([by_mean, by_variance, by_mean**0]))
    sums = torch.stack(draws).sum(0)
    slopes = sums[:2] / (sums[2] + 70 * 0.2)
    gradient = PROBLEM.gradient(PROBLEM.start, (sums[2], slopes[0], slopes[1]))
    by_hand = PROBLEM.start.plus(-0.5, gradient)
    assert path.points[0].plus(-1.0, by_hand).norm < 1e-12


def test_step_sizes() -> None:
    assert [HarmonicSteps(4.0)(step) for step in (0, 6, 14)] == [0.5, 0.5, 0.25]
    with pytest.raises(InvalidInputError, match="above 0"):
        HarmonicSteps(0.0)


# Fixed L

MARGINALS = Marginals(
    torch.tensor([-1.5, 0.2, 1.0, 0.0]).double(), torch.tensor([0.3, 1.0, 2.5, 0.05]).double()
)
LABELS = torch.tensor([1.0, 0.0, 0.0, 1.0])


@pytest.mark.parametrize(
    ("likelihood", "shrink"), [(Logistic(), 1.0), (Probit(), 1.0), (Poisson(), 0.1)], ids=str
)
def test_one_sample_is_the_elbo(likelihood: Likelihood, shrink: float) -> None:
    mean = MARGINALS.mean.clone().requires_grad_()
    variance = (shrink * MARGINALS.variance).requires_grad_()
    value = expected_log_prob(likelihood, LABELS, mean, variance)
    slopes = torch.autograd.grad(value.sum(), (mean, variance))
    found = expected_bmc(likelihood, LABELS, Marginals(mean, variance), 1)
    for a, b in zip(found, (value.detach(), *slopes), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("num_samples", [2, 3])
def test_few_samples_by_tensor_quadrature(num_samples: int) -> None:
    points, weights = (torch.as_tensor(x) for x in np.polynomial.hermite_e.hermegauss(48))
    weights = weights / weights.sum()
    grids = torch.meshgrid(*[torch.arange(48)] * num_samples, indexing="ij")
    chosen = [grid.reshape(-1) for grid in grids]
    weight = torch.stack([weights[index] for index in chosen]).prod(0)
    for i in range(4):
        f = MARGINALS.mean[i] + MARGINALS.variance[i].sqrt() * points
        density = density_derivatives(Logistic(), LABELS[i].double(), f)[0]
        average = torch.stack([density[index] for index in chosen]).mean(0)
        expected = float((weight * torch.log(average)).sum())
        found = float(expected_bmc(Logistic(), LABELS, MARGINALS, num_samples)[0][i])
        assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("gradient", ["pathwise", "second_derivative"])
@pytest.mark.parametrize("num_samples", [2, 10])
def test_expectations_by_monte_carlo(
    num_samples: int, gradient: Literal["pathwise", "second_derivative"]
) -> None:
    rule = BiasedMonteCarlo(num_samples, gradient=gradient)
    generator = torch.Generator().manual_seed(6)
    repeats = 20_000
    shape = (repeats, 4)
    mean, variance = MARGINALS.mean.expand(shape), MARGINALS.variance.expand(shape)
    value = rule(Logistic(), LABELS, mean, variance, generator=generator)
    draws = gradient_draws(rule, Logistic(), LABELS, MARGINALS, repeats, generator)
    exact = expected_bmc(Logistic(), LABELS, MARGINALS, num_samples, gradient)
    for drawn, expected in zip((value, *draws), exact, strict=True):
        error = drawn.std(0) / math.sqrt(repeats)
        assert bool(((drawn.mean(0) - expected).abs() < 4 * error).all())


def test_pathwise_slopes_are_those_of_the_bound() -> None:
    step, slopes = 1e-5, expected_bmc(Logistic(), LABELS, MARGINALS, 5)
    for place, name in enumerate(("mean", "variance")):
        ends = []
        for sign in (1, -1):
            moved = {"mean": MARGINALS.mean, "variance": MARGINALS.variance}
            moved[name] = moved[name] + sign * step
            ends.append(expected_bmc(Logistic(), LABELS, Marginals(**moved), 5)[0])
        torch.testing.assert_close(
            (ends[0] - ends[1]) / (2 * step), slopes[1 + place], rtol=1e-6, atol=1e-8
        )


def test_out_of_reach_raises() -> None:
    with pytest.raises(NumericalError, match="smaller variances"):
        expected_bmc(Poisson(), LABELS, MARGINALS, 1)


def test_bounds_rise_to_the_log_expectation() -> None:
    exact = log_expectation(Logistic(), LABELS, MARGINALS.mean, MARGINALS.variance)
    gaps = [
        exact - expected_bmc(Logistic(), LABELS, MARGINALS, number)[0]
        for number in (1, 2, 10, 1000)
    ]
    assert all(bool((a > b).all()) for a, b in itertools.pairwise(gaps))
    assert bool((gaps[-1] < 2e-3 * gaps[0]).all())
    with pytest.raises(InvalidInputError, match="at least 1"):
        expected_bmc(Logistic(), LABELS, MARGINALS, 0)


Form = Literal["pathwise", "second_derivative"]


def limit(num_samples: int, gradient: Form = "pathwise") -> Moments:
    slopes = partial(expected_bmc, Logistic(), Y, num_samples=num_samples, gradient=gradient)
    return stationary_point(PROBLEM, REGION, slopes)


@pytest.mark.parametrize("gradient", ["pathwise", "second_derivative"])
def test_fixed_samples_stop_at_the_computed_level(
    gradient: Form, without_shape_checks: None
) -> None:
    # The part of ∇h along its value g at the limit has mean ‖g‖ up to O(γ). Each seed gives one
    # independent average over its last steps.
    g = PROBLEM.exact(limit(2, gradient))[1]
    rule = BiasedMonteCarlo(2, gradient=gradient)
    parts = []
    for seed in range(4):
        path = run(rule, 300, seed, range(150, 301, 5))
        along = [PROBLEM.exact(at)[1].dot(g) / g.norm for at in path.points]
        parts.append(float(np.mean(along)))
    error = float(np.std(parts, ddof=1)) / math.sqrt(len(parts))
    assert abs(float(np.mean(parts)) - g.norm) < 4 * error
    assert 4 * error < 0.5 * g.norm


def test_levels_fall_with_the_number_of_samples() -> None:
    levels = [PROBLEM.exact(limit(number))[1].norm for number in (1, 2, 10)]
    assert levels[0] > 2 * levels[1] > 8 * levels[2] > 0


# The command


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command run on the small problem."""
    monkeypatch.setattr(command, "study_problem", lambda: PROBLEM)
    names = ["bMC, L = 1", "bMC by φ″, L = 10"]
    monkeypatch.setattr(command, "FIXED", {name: command.FIXED[name] for name in names})


def test_command(
    quick: None,
    without_shape_checks: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    figure = tmp_path / "figure.png"
    monkeypatch.setattr("directgp.plots.rendering._svg", lambda figure: "")
    words = ["convergence", "--steps", "20", "--fixed-steps", "30", "--cap", "900"]
    monkeypatch.setattr(sys, "argv", ["diagnostics", *words, "--figure", str(figure)])
    command.main()
    printed = capsys.readouterr().out
    for name in (command.EXACT, command.BMC, command.SMOOTH, command.GROWING, "bMC, L = 1"):
        assert name in printed
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_bounds_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["diagnostics", "bounds"])
    command.main()
    assert "Misprints" in capsys.readouterr().out


def test_study_has_its_minimum_in_the_region() -> None:
    problem = command.study_problem()
    found = stationary_point(problem, command.REGION)
    constants: ConvergenceConstants = convergence_constants(problem, command.REGION)
    assert problem.exact(found)[1].norm < 1e-10
    assert constants.zeta > 0.2

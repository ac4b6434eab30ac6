"""Derivatives, peaks, moments and closed forms of the likelihoods against references."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from directgp.likelihoods import Gaussian, Poisson, Probit, StudentT
from directgp.likelihoods.base import UnimodalInF
from directgp.likelihoods.counts import CountLikelihood
from tests.properties.checks import relative_error
from tests.properties.tables import LIKELIHOODS, LikelihoodRow, marked
from tests.properties.test_accuracy import named
from tests.reference import log_expectation as reference

FLOAT64 = torch.float64

FAR = {
    "gaussian": [(0.7, f) for f in (-1e6, -3.0, 0.0, 40.0, 1e8)],
    "probit": [(y, f) for y in (0.0, 1.0) for f in (-40.0, -8.0, -0.3, 2.0, 8.0, 37.0, 40.0)],
    "logistic": [(y, f) for y in (0.0, 1.0) for f in (-800.0, -30.0, -0.3, 2.0, 30.0, 800.0)],
    "poisson_exp": [(y, f) for y in (0.0, 3.0, 5000.0) for f in (-700.0, -2.0, 8.0, 30.0, 700.0)],
    "poisson_softplus": [
        (y, f)
        for y in (0.0, 3.0, 5000.0)
        for f in (-700.0, -40.0, -21.0, -19.0, -4.7, -4.5, 0.3, 20.0, 40.0, 700.0)
    ],
    "negative_binomial": [
        (y, f) for y in (0.0, 3.0, 5000.0) for f in (-700.0, -30.0, 0.3, 9.0, 30.0, 700.0)
    ],
    "binomial": [(y, f) for y in (0.0, 3.0, 60.0) for f in (-700.0, -30.0, 0.3, 30.0, 700.0)],
    "com_poisson": [(y, f) for y in (0.0, 3.0, 5000.0) for f in (-300.0, -20.0, 0.3, 4.0, 30.0)],
    "zero_inflated_poisson": [
        (y, f) for y in (0.0, 3.0, 5000.0) for f in (-700.0, -2.0, 1.3, 4.0, 700.0)
    ],
    "zero_inflated_negative_binomial": [
        (y, f) for y in (0.0, 3.0, 5000.0) for f in (-700.0, -30.0, 0.3, 9.0, 30.0, 300.0)
    ],
    "student_t": [(0.7, 0.7 + 0.6 * r) for r in (-1e4, -40.0, -0.1, 1.0, 3.0, 1e4)],
    "gaussian_known_noise": [(0.7, f) for f in (-1e6, -3.0, 0.0, 40.0, 1e8)],
    "gamma": [(y, f) for y in (1e-30, 0.2, 3.0, 5e3) for f in (-600.0, -30.0, 0.3, 9.0, 600.0)],
    "weibull": [(y, f) for y in (1e-30, 0.2, 3.0, 5e3) for f in (-600.0, -30.0, 0.3, 9.0, 600.0)],
    "weibull_censored": [
        (y, f) for y in (1e-30, 0.2, 3.0, 5e3) for f in (-600.0, -30.0, 0.3, 9.0, 600.0)
    ],
    "log_normal": [(y, f) for y in (1e-30, 0.2, 3.0, 5e3) for f in (-1e6, -30.0, 0.3, 9.0, 1e8)],
    "beta": [(y, f) for y in (1e-9, 0.6, 0.999) for f in (-600.0, -30.0, 0.3, 9.0, 30.0, 600.0)],
    "tobit": [(y, f) for y in (-1.0, 0.7, 3.0) for f in (-40.0, -8.0, 0.3, 2.0, 8.0, 20.0)],
    "ordinal": [(y, f) for y in (0.0, 1.0, 2.0, 3.0) for f in (-40.0, -8.0, -0.3, 2.0, 8.0, 37.0)],
}


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_far_out_against_mpmath(row: LikelihoodRow) -> None:
    """Relative errors, so that a slope that underflows or cancels fails."""
    likelihood = row.make()
    y, f = torch.tensor(FAR[row.name], dtype=FLOAT64).T
    found = likelihood.derivatives(y, f)
    values = found.value + likelihood.log_base(y)
    torch.testing.assert_close(found.value, likelihood.log_kernel(y, f), rtol=1e-12, atol=0)
    for i, (target, at) in enumerate(FAR[row.name]):
        exact = reference.log_prob(row.name, target, at, **row.theta)
        slopes = reference.log_prob_slopes(row.name, target, at, **row.theta)
        got = values[i].item(), found.first[i].item(), found.second[i].item()
        for number, truth in zip(got, (exact, *slopes), strict=True):
            assert relative_error(number, truth, 1e-300) <= 2e-12, (target, at)


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_against_autograd(row: LikelihoodRow) -> None:
    likelihood = row.make()
    f = torch.linspace(-6, 6, 25, dtype=FLOAT64, requires_grad=True)
    for target in row.targets:
        y = torch.full_like(f, target)
        kernel = likelihood.log_kernel(y, f)
        (first,) = torch.autograd.grad(kernel.sum(), f, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), f)
        for got, want in zip(likelihood.derivatives(y, f), (kernel, first, second), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_log_concave_is_declared_where_it_holds(row: LikelihoodRow) -> None:
    f = torch.linspace(-30, 30, 601, dtype=FLOAT64)
    second = [row.make().derivatives(torch.full_like(f, y), f).second for y in row.targets]
    assert bool((torch.stack(second) <= 0).all()) == row.make().integration.log_concave


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_log_prob_in_float32_is_the_float64_number_rounded(row: LikelihoodRow) -> None:
    y, f = torch.tensor(FAR[row.name], dtype=FLOAT64).T.float()
    narrow = row.make().log_prob(y, f)
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow, row.make().log_prob(y.double(), f.double()).float())


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_shapes_broadcast(row: LikelihoodRow) -> None:
    likelihood = row.make()
    y = torch.tensor(row.targets, dtype=FLOAT64)
    f = torch.linspace(-1, 1, 4, dtype=FLOAT64)[:, None].expand(4, len(y))
    for i in range(4):
        torch.testing.assert_close(likelihood.log_prob(y, f)[i], likelihood.log_prob(y, f[i]))


GRID = torch.linspace(-60, 60, 240_001, dtype=FLOAT64)
INTERVALS = torch.tensor([(-50, -49.5), (-3, 2), (0.4, 0.5), (1, 12), (-40, 40)], dtype=FLOAT64)


def unimodal(row: LikelihoodRow) -> UnimodalInF:
    likelihood = row.make()
    assert isinstance(likelihood, UnimodalInF)
    return likelihood


def targets(row: LikelihoodRow) -> list[float]:
    return [y for y in row.targets if abs(y) < 50]


def heights(row: LikelihoodRow, y: float) -> Tensor:
    return row.make().log_prob(torch.full_like(GRID, y), GRID).detach()


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_the_peak_is_where_brute_force_finds_it(row: LikelihoodRow) -> None:
    for y in targets(row):
        found = heights(row, y)
        target = torch.tensor(y, dtype=FLOAT64)
        peak, top = unimodal(row).argmax(target), unimodal(row).log_max(target)
        if torch.isfinite(peak):
            assert peak.item() == pytest.approx(GRID[found.argmax()].item(), abs=1e-3)
            assert top.item() >= found.max().item() - 1e-12
        else:
            end = 0 if peak < 0 else -1
            assert found[end] == found.max()
        assert top.item() == pytest.approx(found.max().item(), abs=1e-5)


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_the_maximum_over_an_interval(row: LikelihoodRow) -> None:
    lower, upper = INTERVALS.T
    for y in targets(row):
        got = unimodal(row).log_max_between(torch.full_like(lower, y), lower, upper)
        height = heights(row, y)
        for (low, high), top in zip(INTERVALS.tolist(), got.tolist(), strict=True):
            inside = height[(low - 1e-9 <= GRID) & (high + 1e-9 >= GRID)]
            assert top == pytest.approx(inside.max().item(), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("row", LIKELIHOODS[3:6], ids=named)
def test_exposure_moves_the_peak(row: LikelihoodRow) -> None:
    counts = row.make()
    assert isinstance(counts, CountLikelihood)
    likelihood = counts.with_exposure(torch.tensor([0.5, 20.0]))
    y = torch.tensor([3.0, 3.0], dtype=FLOAT64)
    torch.testing.assert_close(likelihood.conditional_mean(likelihood.argmax(y)), y)


PLACES = torch.tensor([-4.0, -0.5, 0.0, 1.0, 3.0], dtype=FLOAT64)


@pytest.mark.parametrize("row", marked([row for row in LIKELIHOODS if row.discrete]), ids=named)
def test_moments_of_discrete_targets(row: LikelihoodRow) -> None:
    likelihood = row.make()
    number = {"label": 2, "class": 4}.get(row.target_kind, 4000)
    outcomes = torch.arange(number, dtype=FLOAT64)
    y, f = torch.meshgrid(outcomes, PLACES, indexing="ij")
    p = likelihood.log_prob(y, f).exp()
    mean = (p * y).sum(0)
    torch.testing.assert_close(p.sum(0), torch.ones_like(PLACES))
    torch.testing.assert_close(likelihood.conditional_mean(PLACES), mean)
    torch.testing.assert_close(
        likelihood.conditional_variance(PLACES), (p * (y - mean) ** 2).sum(0)
    )


@pytest.mark.parametrize("likelihood", [Gaussian(noise=0.25), StudentT(df=12.0, scale=0.5)])
def test_moments_of_real_targets(likelihood: Gaussian | StudentT) -> None:
    step = 0.01
    y, f = torch.meshgrid(torch.arange(-200, 200, step, dtype=FLOAT64), PLACES, indexing="ij")
    p = likelihood.log_prob(y, f).exp() * step
    torch.testing.assert_close(p.sum(0), torch.ones_like(PLACES))
    torch.testing.assert_close(likelihood.conditional_mean(PLACES), (p * y).sum(0))
    spread = (p * (y - PLACES) ** 2).sum(0)
    torch.testing.assert_close(likelihood.conditional_variance(PLACES), spread)


@pytest.mark.parametrize(
    ("df", "mean", "variance"), [(2.0, 1.0, math.inf), (1.0, math.nan, math.inf)]
)
def test_moments_that_do_not_exist(df: float, mean: float, variance: float) -> None:
    f = torch.ones(1, dtype=FLOAT64)
    likelihood = StudentT(df=df)
    assert likelihood.conditional_mean(f).item() == pytest.approx(mean, nan_ok=True)
    assert likelihood.conditional_variance(f).item() == variance


def test_exposure_multiplies_the_mean_count() -> None:
    exposure = torch.tensor([0.1, 1.0, 9.0, 100.0, 2.0])
    for row in LIKELIHOODS:
        likelihood = row.make()
        # The mean count of Conway and Maxwell is not e^f: exposures are added to f as logs.
        if isinstance(likelihood, CountLikelihood) and row.name != "com_poisson":
            got = likelihood.with_exposure(exposure).conditional_mean(PLACES)
            torch.testing.assert_close(got, exposure.double() * likelihood.conditional_mean(PLACES))


N = 6
GENERATOR = torch.Generator().manual_seed(0)
MEAN = torch.randn(N, generator=GENERATOR, dtype=torch.float64)
VARIANCE = 0.1 + torch.rand(N, generator=GENERATOR, dtype=torch.float64)
LABELS = torch.tensor([0.0, 1.0] * 3, dtype=torch.float64)
COUNTS = torch.tensor([0.0, 1.0, 2.0, 3.0, 5.0, 40.0], dtype=torch.float64)
EXPOSURE = torch.tensor([0.5, 1.0, 2.0, 3.0, 0.1, 8.0], dtype=torch.float64)

Formula = Callable[[Tensor, Tensor, Tensor], Tensor]

GAUSSIAN = Gaussian(0.3)
FORMULAS: dict[str, tuple[Formula, Tensor]] = {
    "probit, predictive": (Probit().log_predictive, LABELS),
    "gaussian, predictive": (GAUSSIAN.log_predictive, MEAN.flip(0)),
    "gaussian, gibbs": (GAUSSIAN.expected_log_prob, MEAN.flip(0)),
    "poisson, gibbs": (Poisson().expected_log_prob, COUNTS),
    "exposed, gibbs": (Poisson().with_exposure(EXPOSURE).expected_log_prob, COUNTS),
}
each = pytest.mark.parametrize("name", FORMULAS)


def marginals() -> tuple[Tensor, Tensor]:
    return MEAN.clone().requires_grad_(), VARIANCE.clone().requires_grad_()


@each
def test_slopes_in_mean_and_variance(name: str) -> None:
    formula, y = FORMULAS[name]
    assert torch.autograd.gradcheck(lambda *q: formula(y, *q), marginals())


@each
def test_the_value_does_not_depend_on_who_asks(name: str) -> None:
    """With slopes and without them, two ways of computing the same."""
    formula, y = FORMULAS[name]
    with torch.no_grad():
        plain = formula(y, *marginals())
    torch.testing.assert_close(formula(y, *marginals()).detach(), plain, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("noise", [0.3, torch.tensor([[0.2], [0.5]])], ids=["one", "batch"])
@pytest.mark.parametrize("name", ["log_predictive", "expected_log_prob"])
def test_slope_in_the_noise(name: str, noise: float | Tensor) -> None:
    likelihood = Gaussian(noise)
    q = MEAN.expand(2, N), VARIANCE.expand(2, N)
    y = MEAN.flip(0).expand(2, N)

    def value(raw: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(likelihood, {"raw_noise": raw}, (name,))
        return found

    likelihood.forward = lambda name: getattr(likelihood, name)(y, *q)
    raw = likelihood.raw_noise.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(value, (raw,))


@pytest.mark.parametrize("name", ["log_predictive", "expected_log_prob"])
def test_a_frozen_noise_gets_no_gradient(name: str) -> None:
    mean, variance = marginals()
    likelihood = Gaussian(0.3)
    getattr(likelihood.frozen(), name)(MEAN.flip(0), mean, variance).sum().backward()
    assert likelihood.raw_noise.grad is None and mean.grad is not None


@each
def test_targets_may_be_broadcast(name: str) -> None:
    """One row of targets for several rows of marginals, with and without gradients."""
    formula, y = FORMULAS[name]
    mean, variance = (q.detach().expand(3, N).clone().requires_grad_() for q in marginals())
    found = formula(y, mean, variance)
    torch.testing.assert_close(found[1], formula(y, *marginals()), rtol=1e-14, atol=0)
    found.sum().backward()
    one_mean, one_variance = marginals()
    formula(y, one_mean, one_variance).sum().backward()
    for many, one in ((mean, one_mean), (variance, one_variance)):
        assert many.grad is not None and one.grad is not None
        torch.testing.assert_close(many.grad[1], one.grad)

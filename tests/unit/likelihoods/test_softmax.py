"""Softmax and robust-max likelihoods of K classes, by every rule."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from torch import Tensor

from directgp import Marginals, expected_log_prob, log_expectation
from directgp.errors import InvalidInputError, NumericalError, UnsupportedError
from directgp.likelihoods import HeteroscedasticGaussian, Likelihood, Logistic, RobustMax, Softmax
from directgp.log_expectations import BiasedMonteCarlo, ProductSampling, Quadrature, Rule
from directgp.predictive import predictive_mean

VARIANCES = (1e-6, 0.01, 0.2, 1.0, 9.0, 100.0)
MEANS = (-40.0, -3.0, -0.5, 0.0, 2.0, 15.0)


def parameters(*values: object) -> list[Tensor]:
    wide = (torch.tensor(np.array(value, dtype=np.float64)) for value in values)
    return [each.requires_grad_() for each in wide]


def gradients(value: Tensor, *inputs: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(value.sum(), inputs))


@pytest.mark.parametrize("integral", [log_expectation, expected_log_prob])
@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.slow_for("1-", "2-")
def test_two_classes_are_logistic_with_the_difference_of_the_latents(
    integral: object, label: int
) -> None:
    grid = np.array([(m, a, b) for m in MEANS for a in VARIANCES for b in VARIANCES])
    gap, first, second = grid.T
    mean, variance = parameters([gap + 1.5, 0 * gap + 1.5], [first, second])
    y = torch.full((len(grid),), label)
    found = integral(Softmax(2), y, mean, variance)  # type: ignore[operator]
    single, total = parameters(gap, first + second)
    truth = integral(Logistic(), 1 - y, single, total)  # type: ignore[operator]
    torch.testing.assert_close(found, truth, rtol=1e-9, atol=0)
    (by_mean, by_variance), (slope, bend) = (
        gradients(found, mean, variance),
        gradients(truth, single, total),
    )
    scale = slope.abs()
    assert float(((by_mean[0] - slope).abs() / scale).max()) < 1e-7
    assert float(((by_mean[1] + slope).abs() / scale).max()) < 1e-7
    for own in by_variance:
        assert float(((own - bend).abs() / scale).max()) < 1e-7


def _by_cubature(y: int, mean: Tensor, variance: Tensor) -> tuple[float, float]:
    """Return log E[p] and E[log p] by the trapezoid rule over three latents.

    softmax is analytic up to an imaginary part of π of any latent: the rule errs by e^{−2π·π/h}.
    """
    z = torch.linspace(-8.5, 8.5, 69, dtype=torch.float64)
    weight = torch.exp(-0.5 * z * z)
    weight = weight / weight.sum()
    f = torch.stack(torch.meshgrid(z, z, z, indexing="ij")).flatten(1)
    weights = torch.einsum("i,j,k->ijk", weight, weight, weight).flatten()
    points = mean[:, None] + variance.sqrt()[:, None] * f
    logs = points[y] - torch.logsumexp(points, 0)
    return math.log(float(weights @ logs.exp())), float(weights @ logs)


@pytest.mark.parametrize("label", [0, 1, 2])
@pytest.mark.parametrize(
    ("mean", "variance"),
    [
        ((0.3, -1.0, 0.5), (0.5, 1.0, 0.1)),
        ((4.0, -2.0, 0.0), (2.0, 0.3, 1.5)),
        ((-6.0, 1.0, 3.0), (0.05, 3.0, 0.7)),
    ],
)
def test_three_classes_agree_with_cubature(
    label: int, mean: tuple[float, ...], variance: tuple[float, ...]
) -> None:
    m, v = (torch.tensor(each, dtype=torch.float64) for each in (mean, variance))
    y = torch.tensor([label])
    density, gibbs = _by_cubature(label, m, v)
    found = log_expectation(Softmax(3), y, m[:, None], v[:, None])
    assert float(found) == pytest.approx(density, rel=1e-9)
    assert float(expected_log_prob(Softmax(3), y, m[:, None], v[:, None])) == pytest.approx(
        gibbs, rel=1e-9
    )


def test_probabilities_of_all_classes_sum_to_one() -> None:
    random = torch.Generator().manual_seed(0)
    mean = 5 * torch.randn(7, 40, generator=random, dtype=torch.float64)
    variance = 10 ** (3 * torch.rand(7, 40, generator=random, dtype=torch.float64) - 1.5)
    for likelihood in (Softmax(7), RobustMax(7, epsilon=0.01)):
        logs = likelihood.log_class_probabilities(mean, variance)
        torch.testing.assert_close(logs.logsumexp(0), torch.zeros(40).double(), rtol=0, atol=1e-9)


def test_a_constant_added_to_every_latent_changes_nothing() -> None:
    mean, variance = torch.randn(4, 9, dtype=torch.float64), torch.rand(4, 9).double() + 0.1
    y = torch.arange(9) % 4
    one, other = (log_expectation(Softmax(4), y, mean + c, variance) for c in (0.0, 300.0))
    torch.testing.assert_close(one, other, rtol=1e-9, atol=0)


RULES: list[Rule | str] = [
    "auto",
    BiasedMonteCarlo(5),
    BiasedMonteCarlo(5, nu=0.01),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("likelihood", [Softmax(3), RobustMax(3)], ids=["softmax", "robust_max"])
def test_gradients_are_those_of_the_value(likelihood: Likelihood, rule: Rule | str) -> None:
    if isinstance(likelihood, RobustMax) and rule != "auto":
        pytest.skip("RobustMax is not smooth in f.")
    random = torch.Generator().manual_seed(1)
    mean = torch.randn(3, 8, generator=random, dtype=torch.float64).requires_grad_()
    variance = (torch.rand(3, 8, generator=random, dtype=torch.float64) + 0.2).requires_grad_()
    y = torch.arange(8) % 3

    def value(mean: Tensor, variance: Tensor) -> Tensor:
        draws = torch.Generator().manual_seed(7)
        return log_expectation(likelihood, y, mean, variance, rule, draws).sum()

    found = gradients(value(mean, variance), mean, variance)
    for given, gradient in zip((mean, variance), found, strict=True):
        for place in ((0, 0), (1, 3), (2, 7), (1, 1)):
            step = torch.zeros_like(given)
            step[place] = 1e-5
            ends = []
            for sign in (1, -1):
                moved = given.detach() + sign * step
                pair = (moved, variance) if given is mean else (mean, moved)
                ends.append(value(*pair).item())
            slope = (ends[0] - ends[1]) / 2e-5
            assert float(gradient[place]) == pytest.approx(slope, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("form", ["mixed", "score", "pathwise"])
@pytest.mark.slow
def test_product_sampling_of_three_latents_is_unbiased(form: str) -> None:
    mean = torch.tensor([[0.5], [-1.0], [2.0]], dtype=torch.float64)
    variance = torch.tensor([[1.5], [0.3], [4.0]], dtype=torch.float64)
    number = 20_000
    m, v = (each.expand(3, number).clone().requires_grad_() for each in (mean, variance))
    rule, random = ProductSampling(1, gradient=form), torch.Generator().manual_seed(3)  # type: ignore[arg-type]
    y = torch.zeros(number)
    drawn = gradients(log_expectation(Softmax(3), y, m, v, rule, random), m, v)
    one, other = (each.clone().requires_grad_() for each in (mean, variance))
    exact = gradients(log_expectation(Softmax(3), y[:1], one, other), one, other)
    for slopes, truth in zip(drawn, exact, strict=True):
        z = (slopes.mean(1) - truth[:, 0]) / (slopes.std(1) / number**0.5)
        # Six z-scores a form: 4.5 is passed once in some 25,000 runs.
        assert float(z.abs().max()) < 4.5


def test_draws_of_an_unlikely_label_are_exact_too() -> None:
    mean, variance = torch.tensor([[-6.0], [1.0], [0.0]]).double(), torch.full((3, 1), 2.0).double()
    number = 4000
    m, v = (each.expand(3, number).clone().requires_grad_() for each in (mean, variance))
    random = torch.Generator().manual_seed(4)
    rule = ProductSampling(1, gradient="score")
    (slopes,) = gradients(log_expectation(Softmax(3), torch.zeros(number), m, v, rule, random), m)
    one = mean.clone().requires_grad_()
    (truth,) = gradients(log_expectation(Softmax(3), torch.zeros(1), one, variance), one)
    z = (slopes.mean(1) - truth[:, 0]) / (slopes.std(1) / number**0.5)
    assert float(z.abs().max()) < 4.5


@pytest.mark.parametrize("label", [0, 1, 2])
def test_the_probability_to_be_largest_agrees_with_scipy(label: int) -> None:
    mean, deviation = np.array([0.2, -0.7, 1.1]), np.array([1.3, 0.2, 2.5])
    others = [k for k in range(3) if k != label]

    def integrand(f: float) -> float:
        chances = norm.cdf((f - mean[others]) / deviation[others])
        return float(norm.pdf(f, mean[label], deviation[label]) * chances.prod())

    reach = 12 * deviation[label]
    truth, _ = quad(
        integrand, mean[label] - reach, mean[label] + reach, epsabs=1e-13, epsrel=1e-12, limit=500
    )
    epsilon = 0.01
    m, v = (torch.tensor(each)[:, None] for each in (mean, deviation**2))
    found = log_expectation(RobustMax(3, epsilon), torch.tensor([label]), m, v)
    low = epsilon / 2
    assert float(found.exp()) == pytest.approx(low + (1 - epsilon - low) * truth, rel=1e-9)


def test_float32_marginals_give_float32_values() -> None:
    mean, variance = torch.zeros(3, 2), torch.ones(3, 2)
    found = log_expectation(Softmax(3), torch.tensor([0, 2]), mean, variance)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.full((2,), -math.log(3)))


def test_samples_have_the_probabilities_of_the_classes() -> None:
    f = torch.tensor([[1.0], [0.0], [-1.0]]).expand(-1, 20_000)
    for likelihood in (Softmax(3), RobustMax(3, 0.1)):
        drawn = likelihood.sample(f, np.random.RandomState(0))
        chances = likelihood.class_probabilities(f.double())[:, 0].numpy()
        shares = np.bincount(drawn.astype(int), minlength=3) / 20_000
        error = np.sqrt(chances * (1 - chances) / 20_000)
        assert (abs(shares - chances) < 4.5 * error).all()


def test_wrong_arguments_are_named() -> None:
    mean = torch.zeros(2, 4)
    with pytest.raises(InvalidInputError, match=r"\(\.\.\., 3, n\)"):
        log_expectation(Softmax(3), torch.zeros(4), mean, mean + 1)
    with pytest.raises(InvalidInputError, match="num_classes of Softmax must be at least 2"):
        Softmax(1)
    with pytest.raises(InvalidInputError, match="epsilon"):
        RobustMax(3, 0.9)
    with pytest.raises(InvalidInputError, match=r"a label, 0, 1, … or 2"):
        log_expectation(Softmax(3), torch.tensor([0, 3]), torch.zeros(3, 2), torch.ones(3, 2))
    with pytest.raises(UnsupportedError, match="RobustMax"):
        log_expectation(RobustMax(3), torch.zeros(1), torch.zeros(3, 1), torch.ones(3, 1), "ups")
    with pytest.raises(UnsupportedError, match="RobustMax"):
        log_expectation(RobustMax(3), torch.zeros(1), torch.zeros(3, 1), torch.ones(3, 1), "bmc")


@pytest.mark.parametrize(
    "likelihood", [Softmax(2), RobustMax(2), HeteroscedasticGaussian()], ids=str
)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinity_end_in_an_error(likelihood: Likelihood, bad: float) -> None:
    mean, variance = torch.zeros(2, 3).double(), torch.ones(2, 3).double()
    mean[0, 1] = bad
    with pytest.raises(NumericalError, match="NaN or infinity"):
        Quadrature()(likelihood, torch.zeros(3), mean, variance)


def test_batches_have_targets_of_their_own() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, variance = (torch.randn(2, 3, 5, generator=generator).double() for _ in range(2))
    y, variance = torch.randint(3, (2, 5), generator=generator), variance.square() + 0.1
    for function in (log_expectation, expected_log_prob):
        found = function(Softmax(3), y, mean, variance)
        for k in range(2):
            torch.testing.assert_close(found[k], function(Softmax(3), y[k], mean[k], variance[k]))
    with pytest.raises(InvalidInputError, match=r"y \(..., n\), the others \(..., 3, n\)"):
        log_expectation(Softmax(3), torch.zeros(3, 5), mean[0], variance[0])


@pytest.mark.parametrize("gap", [300.0, 700.0, 745.0, 2000.0])
def test_a_class_far_behind_has_a_loss_in_proportion_to_its_distance(gap: float) -> None:
    """p(y given f) is E e^{f_y} · E[1 / Σ e^{f_k}] there, which does not depend on the distance."""
    y, variance = torch.tensor([2]), torch.tensor([[1.0], [0.3], [2.0]]).double()

    def loss(away: float) -> Tensor:
        mean = torch.tensor([[0.0], [0.4], [-away]]).double()
        return log_expectation(Softmax(3), y, mean, variance)

    torch.testing.assert_close(loss(gap) + gap, loss(100.0) + 100, rtol=0, atol=1e-9)


def test_a_probability_that_underflows_raises_an_error() -> None:
    mean, variance = torch.tensor([[0.0], [-3000.0]]).double(), torch.full((2, 1), 1e3).double()
    with pytest.raises(NumericalError, match="Check mean and variance"):
        log_expectation(Softmax(2), torch.tensor([1]), mean, variance)


@pytest.mark.parametrize("gibbs", [False, True], ids=["log_loss", "elbo"])
@pytest.mark.slow
def test_wide_and_narrow_latents_of_one_example(gibbs: bool) -> None:
    """Against a sum over nodes of all three latents; groups of deviations have their own grids."""
    deviations = (0.03, 0.2, 0.5, 2.0, 8.0, 30.0)
    rows = np.array([(a, b, c) for a in deviations for b in deviations for c in (0.03, 2.0, 30.0)])
    mean, variance = parameters([[0.5], [-0.2], [0.1]] * np.ones((3, len(rows))), rows.T**2)
    y = torch.zeros(len(rows))
    integral = expected_log_prob if gibbs else log_expectation
    found = integral(Softmax(3), y, mean, variance)
    nodes = torch.linspace(-8, 8, 129, dtype=torch.float64)
    weights = torch.exp(-0.5 * nodes**2)
    weights = weights / weights.sum()
    every = torch.stack(torch.meshgrid(nodes, nodes, nodes, indexing="ij")).flatten(1)
    weight = torch.einsum("a,b,c->abc", weights, weights, weights).flatten()
    fine = (rows < 3).all(1)
    for k in np.flatnonzero(fine):
        f = mean[:, k, None] + variance[:, k, None].sqrt() * every
        log_p = f[0] - torch.logsumexp(f, 0)
        truth = (weight * log_p).sum() if gibbs else torch.log((weight * log_p.exp()).sum())
        torch.testing.assert_close(found[k], truth, rtol=1e-9, atol=1e-9)
    # The chances of all classes are 1 together, also of wide ones.
    chances = Softmax(3).log_class_probabilities(mean.detach(), variance.detach()).exp().sum(0)
    torch.testing.assert_close(chances, torch.ones_like(chances), rtol=1e-9, atol=0)


def test_classes_have_no_mean() -> None:
    q = Marginals(torch.zeros(3, 2), torch.ones(3, 2))
    with pytest.raises(UnsupportedError, match="classes of Softmax"):
        predictive_mean(Softmax(3), q)

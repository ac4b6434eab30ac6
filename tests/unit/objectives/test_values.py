"""Every point loss × likelihood: values against mpmath and scipy, gradients, shapes, precision."""

import mpmath
import pytest
import torch
from scipy import stats
from torch import Tensor

from directgp import Marginals
from directgp.likelihoods import Gaussian, Likelihood, Probit
from directgp.objectives import (
    AbsoluteLoss,
    CRPSLoss,
    GibbsLoss,
    LogLoss,
    PinballLoss,
    PointLoss,
    SquareLoss,
)
from tests.properties.checks import Answer, default_dtype, seeded
from tests.properties.tables import (
    LIKELIHOODS,
    LikelihoodRow,
    Point,
    columns,
    marked,
    ordinary,
    points,
)
from tests.properties.test_accuracy import named
from tests.properties.test_invariance import COMPANY, FACTORS, assert_same, block
from tests.unit.objectives.tables import POINT_LOSSES, PointLossRow, served

FLOAT64 = torch.float64

MAX_VARIANCE = 1.0
"""Up to where the average of e^f over q is right in the reference."""


def losses(loss: PointLoss, likelihood: Likelihood, some: list[Point]) -> Tensor:
    y, mean, variance = columns(some)
    return loss(likelihood, y, Marginals(mean, variance)).detach()


@pytest.mark.parametrize(("loss", "row"), served(POINT_LOSSES), ids=named)
@pytest.mark.slow_for("-ordinal", "-com_poisson", "-zero_inflated", "-beta")
def test_values_are_those_of_the_definition(loss: PointLossRow, row: LikelihoodRow) -> None:
    """In float64; that float32 gives the same is tested beside the gradients."""
    # The two expectations have tables of their own, in which there is every regime.
    every = 6 if isinstance(loss.loss, LogLoss | GibbsLoss) else 2
    some = ordinary(row)[:2] + points(row, MAX_VARIANCE)[::every]
    got = losses(loss.loss, row.make(), some).tolist()
    for point, value in zip(some, got, strict=True):
        truth = loss.truth(row, point)
        assert abs(value - truth) <= loss.tolerance * abs(truth) + 1e-30, (point, value)


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_jensen(row: LikelihoodRow) -> None:
    """−log E_q[p] ≤ −E_q[log p], strictly where q has a width."""
    some = ordinary(row)
    predictive, gibbs = (losses(loss, row.make(), some) for loss in (LogLoss(), GibbsLoss()))
    assert bool((predictive < gibbs).all())
    absurd = points(row)
    predictive, gibbs = (losses(loss, row.make(), absurd) for loss in (LogLoss(), GibbsLoss()))
    assert bool((predictive <= gibbs + 1e-9 * gibbs.abs() + 1e-15).all())


REAL = [Point(0.7, 0.5, 1.0), Point(-2.0, 1.0, 0.1), Point(300.0, 0.0, 10.0)]


@pytest.mark.parametrize("level", [1e-6, 0.1, 0.5, 0.975])
def test_pinball_against_scipy(level: float) -> None:
    got = losses(PinballLoss(level), Gaussian(0.25), REAL).tolist()
    for (y, mean, variance), value in zip(REAL, got, strict=True):
        quantile = stats.norm.ppf(level, mean, (variance + 0.25) ** 0.5)
        want = level * max(y - quantile, 0) + (1 - level) * max(quantile - y, 0)
        assert value == pytest.approx(want, rel=1e-12)


def test_pinball_at_one_half_is_half_the_absolute_loss() -> None:
    half, whole = (losses(loss, Gaussian(0.25), REAL) for loss in (PinballLoss(), AbsoluteLoss()))
    assert torch.equal(2 * half, whole)


@pytest.mark.parametrize("level", [0.1, 0.8])
def test_the_quantile_is_the_best_prediction(level: float) -> None:
    """Over draws of y the slope in the mean is P(Y ≤ ŷ) − τ = 0 at the true distribution."""
    y = torch.from_numpy(stats.norm.ppf((torch.arange(1000.0) + 0.5) / 1000, 0.5, 1.5))
    mean = torch.full((1000,), 0.5, dtype=FLOAT64, requires_grad=True)
    variance = torch.full((1000,), 2.0, dtype=FLOAT64)
    loss = PinballLoss(level)(Gaussian(0.25), y, Marginals(mean, variance)).mean()
    (slope,) = torch.autograd.grad(loss, mean)
    assert abs(slope.sum().item()) <= 1e-9


def test_square_loss_of_a_label_is_half_the_brier_score() -> None:
    some = [Point(1.0, 0.5, 1.0), Point(0.0, 0.5, 1.0), Point(1.0, -20.0, 3.0)]
    got = losses(SquareLoss(), Probit(), some).tolist()
    for (y, mean, variance), value in zip(some, got, strict=True):
        chance = stats.norm.cdf(mean / (1 + variance) ** 0.5)
        assert value == pytest.approx((chance - y) ** 2 / 2, rel=1e-12)


SCORES = torch.tensor([0.0, 1e-12, 1e-3, -0.3, 0.8, 1.0, -4.0, 9.0, 40.0, -1e4, 1e9, 1e30])


def test_crps_and_slopes_keep_their_digits() -> None:
    """Value and slopes in y, μ and s of the closed form, at z from 0 to absurd."""
    y = SCORES.double().requires_grad_()
    mean, variance = torch.zeros_like(y).requires_grad_(), torch.full_like(y, 0.75).requires_grad_()
    likelihood = Gaussian(0.25)
    value = CRPSLoss()(likelihood, y, Marginals(mean, variance))
    slopes = torch.autograd.grad(value.sum(), (y, mean, variance, likelihood.raw_noise))
    noise_slope = mpmath.mpf(0)
    with mpmath.workdps(30):
        for i, z in enumerate(SCORES.double().tolist()):
            sign = mpmath.erf(z / mpmath.sqrt(2))
            flat = 2 * mpmath.npdf(z) - 1 / mpmath.sqrt(mpmath.pi)
            near(value[i], z * sign + flat)
            near(slopes[0][i], sign)
            near(slopes[1][i], -sign)
            near(slopes[2][i], flat / 2)
            noise_slope += flat / 2
    near(slopes[3] / torch.sigmoid(likelihood.raw_noise), noise_slope)


def near(got: Tensor, want: mpmath.mpf) -> None:
    assert abs(got.item() - want) <= 1e-12 * abs(want), (got.item(), want)


def test_crps_of_a_sure_prediction_is_the_absolute_error() -> None:
    some = [Point(y, mean, 1e-14) for y, mean, _ in REAL]
    crps, absolute = (losses(loss, Gaussian(1e-14), some) for loss in (CRPSLoss(), AbsoluteLoss()))
    torch.testing.assert_close(crps, absolute, rtol=0, atol=1e-7)
    assert bool((crps < absolute).all())


PAIRS = served(POINT_LOSSES)
each_pair = pytest.mark.parametrize(("loss", "row"), marked(PAIRS), ids=named)


def ask(
    loss: PointLossRow, likelihood: Likelihood, y: Tensor, mean: Tensor, variance: Tensor
) -> Answer:
    """Value and both gradients, zero where the loss does not see the variance."""
    mean, variance = mean.detach().requires_grad_(), variance.detach().requires_grad_()
    value = loss.loss(likelihood, y, Marginals(mean, variance))
    slopes = torch.autograd.grad(
        value.sum(), (mean, variance), allow_unused=True, materialize_grads=True
    )
    return Answer(value.detach(), *slopes)


@each_pair
def test_gradcheck(loss: PointLossRow, row: LikelihoodRow) -> None:
    """In the mean, the variance and the likelihood's parameters, which gradcheck moves in place."""
    y, mean, variance = columns(ordinary(row))
    likelihood = row.make()

    def of(mean: Tensor, variance: Tensor, *parameters: Tensor) -> Tensor:
        return loss.loss(likelihood, y, Marginals(mean, variance))

    inputs = (mean.requires_grad_(), variance.requires_grad_(), *likelihood.parameters())
    assert torch.autograd.gradcheck(of, inputs, eps=1e-5, atol=1e-7, rtol=1e-6)


@each_pair
def test_what_enters_has_a_gradient(loss: PointLossRow, row: LikelihoodRow) -> None:
    y, mean, variance = columns(ordinary(row))
    likelihood = row.make()
    wanted = [variance.requires_grad_(), *likelihood.parameters()]
    value = loss.loss(likelihood, y, Marginals(mean.requires_grad_(), variance))
    slopes = torch.autograd.grad(value.sum(), wanted, allow_unused=True, materialize_grads=True)
    enters = any(bool((slope != 0).any()) for slope in slopes)
    assert enters == loss.loss.uses_variance(likelihood) == (row.name not in loss.blind)


@each_pair
def test_batches_equal_rows(loss: PointLossRow, row: LikelihoodRow) -> None:
    arguments = block(row, (2, 3, 5))
    together = ask(loss, row.make(), *arguments)
    assert together.value.shape == (2, 3, 5)
    for i in range(2):
        for j in range(3):
            alone = ask(loss, row.make(), *(column[i, j] for column in arguments))
            assert_same(Answer(*(column[i, j] for column in together)), alone, COMPANY)


@each_pair
def test_targets_are_shared_by_a_batch(loss: PointLossRow, row: LikelihoodRow) -> None:
    y, mean, variance = block(row, (3, 5))
    shared = ask(loss, row.make(), y[0], mean, variance)
    assert_same(shared, ask(loss, row.make(), y[0].expand(3, 5), mean, variance))


@pytest.mark.parametrize(
    ("loss", "row"), marked([pair for pair in PAIRS if pair[1].theta]), ids=named
)
def test_a_parameter_for_each_member_of_a_batch(loss: PointLossRow, row: LikelihoodRow) -> None:
    arguments = block(row, (3, 5))
    together = ask(loss, row.make(FACTORS), *arguments)
    for i in range(3):
        alone = ask(loss, row.make(FACTORS[i]), *(column[i] for column in arguments))
        assert_same(Answer(*(column[i] for column in together)), alone, COMPANY)


@each_pair
def test_float32_gives_the_float64_numbers_rounded(loss: PointLossRow, row: LikelihoodRow) -> None:
    """Also for a parameter of each member, which is in float64."""
    arguments = block(row, (3, 4))
    wide = ask(loss, row.make(FACTORS), *arguments)
    narrow = ask(loss, row.make(FACTORS), *(column.float() for column in arguments))
    for mine, other in zip(narrow, wide, strict=True):
        assert (mine.dtype, other.dtype) == (torch.float32, torch.float64)
        torch.testing.assert_close(mine, other.float(), rtol=1e-6, atol=0)


@each_pair
def test_dtype_of_targets_does_not_matter(loss: PointLossRow, row: LikelihoodRow) -> None:
    if row.target_kind == "proportion":
        pytest.skip("no whole number is a proportion")
    y, mean, variance = columns(ordinary(row))
    y = y.round().clamp(min=1.0) if row.target_kind == "positive" else y.round()
    assert_same(
        ask(loss, row.make(), y.to(torch.int64), mean, variance),
        ask(loss, row.make(), y, mean, variance),
    )


@each_pair
def test_nothing_is_drawn(loss: PointLossRow, row: LikelihoodRow) -> None:
    generator = seeded()
    before = generator.get_state()
    y, mean, variance = block(row, (4,))
    loss.loss(row.make(), y, Marginals(mean, variance), generator=generator, step=3)
    assert loss.loss.deterministic
    assert torch.equal(generator.get_state(), before)


@each_pair
def test_torch_defaults_do_not_matter(loss: PointLossRow, row: LikelihoodRow) -> None:
    arguments = block(row, (6,))
    usual = ask(loss, row.make(), *arguments)
    with default_dtype(torch.float64):
        unusual = ask(loss, row.make(), *arguments)
    for mine, other in zip(unusual, usual, strict=True):
        assert torch.equal(mine, other)


@each_pair
def test_no_examples(loss: PointLossRow, row: LikelihoodRow) -> None:
    none = torch.zeros(0, dtype=torch.float64)
    assert loss.loss(row.make(), none, Marginals(none, none)).shape == (0,)

"""(1/n) Σ weight·loss + (β/N)·KL: scaling, β, weights, errors, and the curvature in the mean."""

import math

import pytest
import torch
from torch import Tensor

from directgp import Marginals
from directgp.errors import InvalidInputError
from directgp.likelihoods import Gaussian, Poisson
from directgp.log_expectations import BiasedMonteCarlo
from directgp.objectives import GibbsLoss, LogLoss, Objective, SquareLoss
from directgp.objectives.base import mean_curvature
from tests.properties.checks import seeded
from tests.properties.tables import LIKELIHOODS, LikelihoodRow, marked
from tests.properties.test_accuracy import named
from tests.unit.objectives.tables import POINT_LOSSES, PointLossRow, served

FLOAT64 = torch.float64
N = 12
KL = torch.tensor(3.5, dtype=FLOAT64)
LIKELIHOOD = Gaussian(0.3)


def data(*shape: int) -> tuple[Tensor, Marginals]:
    """Targets and marginals of N examples."""
    y, mean, spread = torch.randn(3, *shape, N, generator=seeded(), dtype=FLOAT64)
    return y, Marginals(mean, spread.exp())


def rows(q: Marginals, index: slice | Tensor) -> Marginals:
    return Marginals(q.mean[..., index], q.variance[..., index])


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0, 20.0])
def test_objective_by_hand(beta: float) -> None:
    y, q = data()
    total = SquareLoss()(LIKELIHOOD, y, q).sum() + beta * KL
    got = N * Objective(SquareLoss(), N, beta)(LIKELIHOOD, y, q, KL)
    torch.testing.assert_close(got, 0.5 * ((y - q.mean) ** 2).sum() + beta * KL)
    torch.testing.assert_close(got, total)


def test_minus_the_elbo_in_closed_form() -> None:
    """With β = 1 and the Gibbs loss."""
    y, q = data()
    noise = torch.tensor(0.3, dtype=FLOAT64)
    log_prob = -0.5 * (math.log(2 * math.pi) + noise.log() + (y - q.mean) ** 2 / noise)
    elbo = (log_prob - 0.5 * q.variance / noise).sum() - KL
    got = Objective(GibbsLoss(), N)(LIKELIHOOD, y, q, KL)
    torch.testing.assert_close(got, -elbo / N)


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize(("loss", "row"), marked(served(POINT_LOSSES)), ids=named)
def test_batches_of_one_size_average_to_the_whole(
    loss: PointLossRow, row: LikelihoodRow, size: int
) -> None:
    y, q = data()
    inside = row.target_kind in ("positive", "proportion")
    y = torch.where(y > 0, 0.75, 0.25) if inside else (y > 0).double()
    objective = Objective(loss.loss, N, 0.7)
    likelihood = row.make()
    parts = [slice(start, start + size) for start in range(0, N, size)]
    values = [objective(likelihood, y[part], rows(q, part), KL) for part in parts]
    whole = objective(likelihood, y, q, KL)
    torch.testing.assert_close(torch.stack(values).mean(), whole, rtol=1e-9, atol=0)


def test_a_batch_stands_for_all_the_data() -> None:
    """N times the objective of a batch is (N/n) Σ loss + β·KL."""
    y, q = data()
    part = slice(0, 5)
    losses = LogLoss()(LIKELIHOOD, y[part], rows(q, part))
    got = N * Objective(LogLoss(), N, 0.7)(LIKELIHOOD, y[part], rows(q, part), KL)
    torch.testing.assert_close(got, N / 5 * losses.sum() + 0.7 * KL)


def test_no_weight_for_an_infinite_kl() -> None:
    """With β = 0 the KL does not enter, whatever it is, nor its gradient."""
    y, q = data()
    kl = torch.tensor(torch.inf, dtype=FLOAT64, requires_grad=True)
    mean = q.mean.requires_grad_()
    value = Objective(LogLoss(), N, 0.0)(LIKELIHOOD, y, Marginals(mean, q.variance), kl)
    torch.testing.assert_close(value, LogLoss()(LIKELIHOOD, y, q).mean())
    slope, kl_slope = torch.autograd.grad(value, (mean, kl), allow_unused=True)
    assert bool(torch.isfinite(slope).all()) and kl_slope is None


def test_a_grid_of_beta_with_an_infinite_kl() -> None:
    y, q = data(3)
    kl = torch.tensor([torch.inf, 2.0, 5.0], dtype=FLOAT64, requires_grad=True)
    beta = torch.tensor([0.0, 0.5, 10.0], dtype=FLOAT64)
    value = Objective(LogLoss(), N, beta)(LIKELIHOOD, y, q, kl)
    want = LogLoss()(LIKELIHOOD, y, q).mean(-1) + torch.tensor([0.0, 1.0, 50.0]) / N
    torch.testing.assert_close(value, want)
    (slope,) = torch.autograd.grad(value.sum(), kl)
    torch.testing.assert_close(slope, beta / N)


@pytest.mark.parametrize("dtype", [torch.float32, FLOAT64])
def test_a_grid_of_beta_is_many_objectives(dtype: torch.dtype) -> None:
    y, q = data(3)
    y, q = y[0].to(dtype), Marginals(q.mean.to(dtype), q.variance.to(dtype))
    kl = torch.tensor([1.0, 2.0, 3.0], dtype=dtype)
    beta = torch.tensor([0.0, 0.1, 4.0])
    grid = Objective(LogLoss(), N, beta)(LIKELIHOOD, y, q, kl)
    assert grid.dtype == dtype and grid.shape == (3,)
    for i in range(3):
        one = Objective(LogLoss(), N, float(beta[i]))
        alone = one(LIKELIHOOD, y, Marginals(q.mean[i], q.variance[i]), kl[i])
        torch.testing.assert_close(grid[i], alone)


@pytest.mark.parametrize("dtype", [torch.int64, FLOAT64])
def test_weights_repeat_rows(dtype: torch.dtype) -> None:
    """In the sum, N times the objective; a weight of 0 leaves the row out."""
    y, q = data()
    times = torch.tensor([0, 1, 2, 3] * 3)
    repeated = torch.arange(N).repeat_interleave(times)
    total = len(repeated)
    weighted = Objective(LogLoss(), N, 0.7)(LIKELIHOOD, y, q, KL, weights=times.to(dtype))
    longer = Objective(LogLoss(), total, 0.7)(LIKELIHOOD, y[repeated], rows(q, repeated), KL)
    torch.testing.assert_close(N * weighted, total * longer)


def test_unit_weights_change_nothing() -> None:
    y, q = data(2)
    objective, kl = Objective(LogLoss(), N), torch.ones(2, dtype=FLOAT64)
    plain = objective(LIKELIHOOD, y, q, kl)
    assert torch.equal(objective(LIKELIHOOD, y, q, kl, weights=torch.ones(N)), plain)


def test_combine_takes_losses_already_computed() -> None:
    y, q = data()
    objective, weights = Objective(LogLoss(), N, 0.7), torch.rand(N, generator=seeded())
    losses = LogLoss()(LIKELIHOOD, y, q)
    want = objective(LIKELIHOOD, y, q, KL, weights=weights)
    assert torch.equal(objective.combine(losses, KL, weights), want)


def test_generator_and_step_reach_the_rule() -> None:
    y, q = data()
    y = torch.arange(float(N), dtype=FLOAT64)
    rule = BiasedMonteCarlo(num_samples=lambda step: 5 + step)
    objective = Objective(LogLoss(rule), N)

    def value(seed: int, step: int) -> float:
        return float(objective(Poisson(), y, q, KL, generator=seeded(seed), step=step))

    assert value(1, 0) == value(1, 0)
    assert len({value(1, 0), value(2, 0), value(1, 7)}) == 3


@pytest.mark.parametrize("num_data", [0, -3])
def test_num_data_is_checked(num_data: int) -> None:
    with pytest.raises(InvalidInputError) as caught:
        Objective(LogLoss(), num_data)
    assert str(caught.value) == f"num_data of Objective must be at least 1. Got {num_data}."


def test_num_data_is_required() -> None:
    with pytest.raises(TypeError, match="num_data"):
        Objective(LogLoss())  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("beta", "got"),
    [
        (-0.1, "-0.1"),
        (math.nan, "nan at index 0"),
        (math.inf, "inf at index 0"),
        (torch.tensor([1.0, -2.0]), "-2.0 at index 1"),
        (torch.tensor([[0.0, math.nan], [1.0, -1.0]]), "nan at index 1 (and 1 more)"),
    ],
)
def test_beta_is_checked(beta: float | Tensor, got: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        Objective(LogLoss(), N, beta)
    assert str(caught.value).startswith("beta of Objective must be finite and at least 0. Got ")
    assert got in str(caught.value)


CONCAVE = [row for row in LIKELIHOODS if row.make().integration.log_concave]
each_row = pytest.mark.parametrize("row", marked(CONCAVE), ids=lambda row: row.name)
each_loss = pytest.mark.parametrize("gibbs", [True, False], ids=["gibbs", "log_loss"])

MEANS = torch.tensor([-2.0, -0.3, 0.4, 1.7], dtype=torch.float64)
VARIANCES = torch.tensor([1e-3, 0.2, 3.0], dtype=torch.float64)


def points(row: LikelihoodRow) -> tuple[Tensor, Marginals]:
    """Every plausible target with every mean and variance."""
    y = torch.tensor([y for y in row.targets if abs(y) < 100], dtype=torch.float64)
    grid = torch.cartesian_prod(y, MEANS, VARIANCES)
    return grid[:, 0], Marginals(grid[:, 1], grid[:, 2])


def second_differences(row: LikelihoodRow, gibbs: bool, step: float) -> Tensor:
    """(−l₂ + 16 l₁ − 30 l₀ + 16 l₋₁ − l₋₂)/(12 h²)."""
    y, at = points(row)
    loss = GibbsLoss() if gibbs else LogLoss()
    total = torch.zeros_like(at.mean)
    for steps, weight in ((-2, -1), (-1, 16), (0, -30), (1, 16), (2, -1)):
        moved = Marginals(at.mean + steps * step, at.variance)
        total += weight * loss(row.make(), y, moved).detach()
    return total / (12 * step**2)


@each_row
@each_loss
def test_it_is_the_second_derivative(row: LikelihoodRow, gibbs: bool) -> None:
    y, at = points(row)
    curvature = mean_curvature(row.make(), y, at, gibbs)
    expected = second_differences(row, gibbs, 1e-2)
    # Differences of values of size s err by 1e-14·s/h² = 1e-10·s, and by h⁴ of sixth derivatives.
    size = (GibbsLoss() if gibbs else LogLoss())(row.make(), y, at).detach().abs() + 1
    allowed = 1e-8 * size + 1e-5 * expected.abs()
    assert bool(((curvature - expected).abs() <= allowed).all())


@each_row
@each_loss
def test_a_log_concave_likelihood_has_a_convex_loss(row: LikelihoodRow, gibbs: bool) -> None:
    """Averaging keeps log-concavity, so that nothing is cut off at 0 here, but for rounding."""
    y, at = points(row)
    curvature = mean_curvature(row.make(), y, at, gibbs)
    assert bool((curvature >= 0).all()) and float(curvature.max()) > 1e-3
    assert not curvature.requires_grad


def test_where_the_loss_is_concave_it_counts_as_flat() -> None:
    """Far from a Student's t: its log loss bends downwards, and a frame wants no such direction."""
    (row,) = (row for row in LIKELIHOODS if row.name == "student_t")
    y = torch.tensor([0.0, 0.0], dtype=torch.float64)
    at = Marginals(torch.tensor([0.1, 20.0]).double(), torch.tensor([0.1, 0.1]).double())
    for gibbs in (True, False):
        near, far = mean_curvature(row.make(), y, at, gibbs).tolist()
        assert near > 0.1 and far == 0.0


def test_closed_forms_of_the_gaussian() -> None:
    """1/σ² for Gibbs, 1/(v + σ²) for log loss."""
    (row,) = (row for row in LIKELIHOODS if row.name == "gaussian")
    y, at = points(row)
    noise = row.theta["noise"]
    gibbs, log_loss = (mean_curvature(row.make(), y, at, kind) for kind in (True, False))
    torch.testing.assert_close(gibbs, torch.full_like(gibbs, 1 / noise), rtol=1e-10, atol=0)
    # The two terms of far targets cancel: 1e3 and more, known to 1e-16.
    torch.testing.assert_close(log_loss, 1 / (at.variance + noise), rtol=1e-9, atol=1e-9)


def test_the_parameters_of_the_likelihood_are_left_alone() -> None:
    for row in CONCAVE:
        likelihood = row.make()
        y, at = points(row)
        mean_curvature(likelihood, y, at, False)
        assert all(p.grad is None and p.requires_grad for p in likelihood.parameters())


def test_it_works_where_gradients_are_switched_off() -> None:
    y, at = points(CONCAVE[0])
    with torch.no_grad():
        inside = mean_curvature(CONCAVE[0].make(), y, at, False)
    assert torch.equal(inside, mean_curvature(CONCAVE[0].make(), y, at, False))

"""(1/n) Σ weight·loss + (β/N)·KL: scaling, β, weights and errors."""

import math

import pytest
import torch
from torch import Tensor

from directgp import Marginals
from directgp.errors import InvalidInputError
from directgp.likelihoods import Gaussian, Poisson
from directgp.log_expectations import BiasedMonteCarlo
from directgp.objectives import GibbsLoss, LogLoss, Objective, SquareLoss
from tests.properties.checks import seeded
from tests.properties.tables import LikelihoodRow
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
@pytest.mark.parametrize(("loss", "row"), served(POINT_LOSSES), ids=named)
def test_batches_of_one_size_average_to_the_whole(
    loss: PointLossRow, row: LikelihoodRow, size: int
) -> None:
    y, q = data()
    y = (y > 0).double()
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

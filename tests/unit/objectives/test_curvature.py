"""The curvature of the log losses in the mean, against second differences of their values."""

import pytest
import torch
from torch import Tensor

from directgp import Marginals
from directgp.objectives import GibbsLoss, LogLoss
from directgp.objectives.base import mean_curvature
from tests.properties.tables import LIKELIHOODS, LikelihoodRow

CONCAVE = [row for row in LIKELIHOODS if row.make().log_concave]
each_row = pytest.mark.parametrize("row", CONCAVE, ids=lambda row: row.name)
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

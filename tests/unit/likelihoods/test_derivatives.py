"""ℓ, ℓ′ and ℓ″ against autograd, and against mpmath far out."""

import pytest
import torch

from tests.properties.checks import relative_error
from tests.properties.tables import LIKELIHOODS, LikelihoodRow
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
    "student_t": [(0.7, 0.7 + 0.6 * r) for r in (-1e4, -40.0, -0.1, 1.0, 3.0, 1e4)],
}


@pytest.mark.parametrize("row", LIKELIHOODS, ids=named)
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


@pytest.mark.parametrize("row", LIKELIHOODS, ids=named)
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


@pytest.mark.parametrize("row", LIKELIHOODS, ids=named)
def test_concave_where_it_says_so(row: LikelihoodRow) -> None:
    f = torch.linspace(-30, 30, 601, dtype=FLOAT64)
    second = [row.make().derivatives(torch.full_like(f, y), f).second for y in row.targets]
    assert bool((torch.stack(second) <= 0).all()) == row.make().log_concave


@pytest.mark.parametrize("row", LIKELIHOODS, ids=named)
def test_log_prob_in_float32_is_the_float64_number_rounded(row: LikelihoodRow) -> None:
    y, f = torch.tensor(FAR[row.name], dtype=FLOAT64).T.float()
    narrow = row.make().log_prob(y, f)
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow, row.make().log_prob(y.double(), f.double()).float())


@pytest.mark.parametrize("row", LIKELIHOODS, ids=named)
def test_shapes_broadcast(row: LikelihoodRow) -> None:
    likelihood = row.make()
    y = torch.tensor(row.targets, dtype=FLOAT64)
    f = torch.linspace(-1, 1, 4, dtype=FLOAT64)[:, None].expand(4, len(y))
    for i in range(4):
        torch.testing.assert_close(likelihood.log_prob(y, f)[i], likelihood.log_prob(y, f[i]))

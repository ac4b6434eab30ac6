"""Properties of every point loss: gradients, batch axes, precision, arguments that matter."""

import pytest
import torch
from torch import Tensor

from directgp import Marginals
from directgp.likelihoods import Likelihood
from tests.properties.checks import Answer, default_dtype, seeded
from tests.properties.tables import LikelihoodRow, columns, ordinary
from tests.properties.test_accuracy import named
from tests.properties.test_invariance import COMPANY, FACTORS, assert_same, block
from tests.unit.objectives.tables import POINT_LOSSES, PointLossRow, served

PAIRS = served(POINT_LOSSES)
each_pair = pytest.mark.parametrize(("loss", "row"), PAIRS, ids=named)


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


@pytest.mark.parametrize(("loss", "row"), [pair for pair in PAIRS if pair[1].theta], ids=named)
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
    y, mean, variance = columns(ordinary(row))
    y = y.round()
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

"""Batch shape, order, dtype of y, torch's defaults and global random state have no effect."""

import pytest
import torch
from torch import Tensor

from directgp.likelihoods import Likelihood
from directgp.likelihoods.counts import CountLikelihood
from directgp.log_expectations import Quadrature
from tests.properties.checks import Answer, ask, default_dtype, misses, seeded
from tests.properties.tables import (
    DETERMINISTIC,
    LIKELIHOODS,
    ONE_OF_EACH,
    RULES,
    STOCHASTIC,
    LikelihoodRow,
    Point,
    RuleRow,
    columns,
    crossed,
    marked,
    pairs,
    points,
    single,
)
from tests.properties.test_accuracy import named
from tests.reference import log_expectation as reference


def block(row: LikelihoodRow, shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Plausible and absurd points of a likelihood, in a shape; some share their mean."""
    number = torch.Size(shape).numel()
    some = points(row)
    y, mean, variance = (
        column.reshape(shape)
        for column in columns([some[7 * i % len(some)] for i in range(number)])
    )
    return y, mean, variance


def assert_same(got: Answer, want: Answer, rtol: float = 1e-12) -> None:
    # Other nodes: also an absolute error, for values that cross 0.
    atol = 1e-11 if rtol == COMPANY else 0.0
    for mine, other in zip(got, want, strict=True):
        torch.testing.assert_close(mine, other, rtol=rtol, atol=atol)


# The company of other examples may change the number of nodes, within the rule's tolerance.
COMPANY = 1e-9


@pytest.mark.parametrize(("row", "rule"), marked(pairs(DETERMINISTIC)), ids=named)
def test_batches_equal_rows(row: LikelihoodRow, rule: RuleRow) -> None:
    arguments = block(row, (3, 5))
    together = ask(rule.rule, row.make(), *arguments)
    assert together.value.shape == (3, 5)
    for i in range(3):
        alone = ask(rule.rule, row.make(), *(column[i] for column in arguments))
        assert_same(Answer(*(column[i] for column in together)), alone, COMPANY)


@pytest.mark.parametrize(("row", "rule"), marked(crossed(STOCHASTIC)), ids=named)
def test_shape_and_block_do_not_matter_to_draws(row: LikelihoodRow, rule: RuleRow) -> None:
    arguments = block(row, (2, 3, 2))
    shaped = ask(rule.rule, row.make(), *arguments)
    flat = ask(rule.rule, row.make(), *(column.reshape(-1) for column in arguments))
    assert_same(Answer(*(column.reshape(-1) for column in shaped)), flat)


@pytest.mark.parametrize(("row", "rule"), marked(pairs(DETERMINISTIC)), ids=named)
def test_order_does_not_matter(row: LikelihoodRow, rule: RuleRow) -> None:
    arguments = block(row, (30,))
    order = torch.randperm(30, generator=seeded())
    shuffled = ask(rule.rule, row.make(), *(column[order] for column in arguments))
    straight = ask(rule.rule, row.make(), *arguments)
    assert_same(shuffled, Answer(*(column[order] for column in straight)))


def test_more_examples_than_a_block_holds() -> None:
    """Long batches are worked through in parts."""
    row = LIKELIHOODS[3]
    few = block(row, (48,))
    many = ask(Quadrature(), row.make(), *(column.repeat(420) for column in few))
    once = ask(Quadrature(), row.make(), *few)
    assert_same(many, Answer(*(column.repeat(420) for column in once)), COMPANY)


FACTORS = torch.tensor([[0.5], [1.0], [3.0]], dtype=torch.float64)


def with_parameters(rules: list[RuleRow]) -> list[tuple[LikelihoodRow, RuleRow]]:
    return [pair for pair in crossed(rules) if pair[0].theta]


@pytest.mark.parametrize(("row", "rule"), marked(with_parameters(ONE_OF_EACH)), ids=named)
def test_a_parameter_for_each_member_of_a_batch(row: LikelihoodRow, rule: RuleRow) -> None:
    """Shape (B, 1) means the same as the value repeated for each example."""
    arguments = block(row, (3, 20))
    batch = ask(rule.rule, row.make(FACTORS), *arguments)
    repeated = row.make(FACTORS.expand(3, 20).reshape(-1))
    flat = ask(rule.rule, repeated, *(column.reshape(-1) for column in arguments))
    # A parameter for each example has no table of Z in common, which is right to 1e-11; the slopes
    # at a draw of a count of thousands are small differences.
    tolerance = 10 * COMPANY if row.name == "com_poisson" else 1e-12
    assert_same(Answer(*(column.reshape(-1) for column in batch)), flat, tolerance)
    if rule.deterministic:
        for i in range(3):
            alone = ask(rule.rule, row.make(FACTORS[i, 0]), *(column[i] for column in arguments))
            assert_same(Answer(*(column[i] for column in batch)), alone, COMPANY)


@pytest.mark.parametrize(("row", "rule"), with_parameters(RULES), ids=named)
@pytest.mark.slow_for("com_poisson")
def test_parameter_gradients_of_a_batch(row: LikelihoodRow, rule: RuleRow) -> None:
    """The gradient of a shared parameter is the sum over the examples that share it."""
    arguments = block(row, (3, 20))
    batch, each = row.make(FACTORS), row.make(FACTORS.expand(3, 20).clone())
    for likelihood in (batch, each):
        rule.rule(likelihood, *arguments, generator=seeded()).sum().backward()
    for shared, separate in zip(batch.parameters(), each.parameters(), strict=True):
        assert shared.grad is not None and separate.grad is not None
        together = separate.grad.sum(-1, keepdim=True)
        torch.testing.assert_close(shared.grad, together, rtol=1e-9, atol=0)


COUNTS = [row for row in LIKELIHOODS if isinstance(row.make(), CountLikelihood)]
EXPOSURE = torch.tensor([0.01, 0.5, 1.0, 7.0, 300.0], dtype=torch.float64)


def exposed(row: LikelihoodRow, exposure: Tensor) -> Likelihood:
    likelihood = row.make()
    assert isinstance(likelihood, CountLikelihood)
    return likelihood.with_exposure(exposure)


@pytest.mark.parametrize("y", [0.0, 4.0])
@pytest.mark.parametrize("row", marked(COUNTS), ids=named)
def test_exposure_against_the_reference(row: LikelihoodRow, y: float) -> None:
    some = [Point(y, *single(-2.6, variance)) for variance in (0.3, 87.0)]
    for exposure in (0.01, 7.0, 300.0):
        likelihood = exposed(row, torch.tensor([exposure], dtype=torch.float64))
        truths = [
            reference.log_expectation(row.name, *point, exposure=exposure, **row.theta)
            for point in some
        ]
        assert misses(ask(Quadrature(), likelihood, *columns(some)), some, truths, 1e-8) == []


SHAPES = [(5,), (1, 5), (3, 1), (3, 5)]
"""Of exposures: each with every rule for one likelihood, and one for all likelihoods."""


@pytest.mark.parametrize(
    ("row", "rule", "shape"),
    marked(
        [
            (row, rule, shape)
            for row in COUNTS
            for rule in ONE_OF_EACH[1:]
            for shape in (SHAPES if row is COUNTS[0] else SHAPES[2:3])
        ]
    ),
    ids=named,
)
def test_exposures_of_any_shape(row: LikelihoodRow, rule: RuleRow, shape: tuple[int, ...]) -> None:
    arguments = block(row, (3, 5))
    exposure = torch.rand(shape, generator=seeded(), dtype=torch.float64) + 0.5
    batch = ask(rule.rule, exposed(row, exposure), *arguments)
    repeated = exposed(row, exposure.expand(3, 5).reshape(-1))
    flat = ask(rule.rule, repeated, *(column.reshape(-1) for column in arguments))
    assert_same(Answer(*(column.reshape(-1) for column in batch)), flat)


@pytest.mark.parametrize("rule", ONE_OF_EACH[1:], ids=named)
@pytest.mark.parametrize("row", marked(COUNTS), ids=named)
def test_a_mask_and_indices_select_exposures(row: LikelihoodRow, rule: RuleRow) -> None:
    """A mask selects and flattens; integers index what it left."""
    arguments = block(row, (3, 5))
    likelihood = exposed(row, EXPOSURE)
    mask = torch.rand(3, 5, generator=seeded()) < 0.6
    index = torch.tensor([2, 0, 3])
    taken = likelihood.take(mask).take(index)
    by_hand = exposed(row, EXPOSURE.expand(3, 5)[mask][index])
    some = tuple(column[mask][index] for column in arguments)
    assert_same(ask(rule.rule, taken, *some), ask(rule.rule, by_hand, *some))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int32, torch.bool])
@pytest.mark.parametrize("rule", ONE_OF_EACH, ids=named)
def test_dtype_of_targets_does_not_matter(rule: RuleRow, dtype: torch.dtype) -> None:
    row = next(row for row in LIKELIHOODS if row.name == "probit")
    y, mean, variance = columns([Point(0.0, 0.5, 1.0), Point(1.0, -3.0, 0.1)])
    got = ask(rule.rule, row.make(), y.to(dtype), mean, variance)
    assert_same(got, ask(rule.rule, row.make(), y, mean, variance))


@pytest.mark.parametrize(("row", "rule"), marked(crossed(RULES)), ids=named)
def test_dtype_of_marginals_is_that_of_the_result(row: LikelihoodRow, rule: RuleRow) -> None:
    """float32 gives the float64 numbers, rounded: the integral is done in float64."""
    y, mean, variance = block(row, (8,))
    narrow = ask(rule.rule, row.make(), y.float(), mean.float(), variance.float())
    wide = ask(rule.rule, row.make(), y, mean, variance)
    for mine, other in zip(narrow, wide, strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, other.float(), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("row", "rule"), marked(crossed(RULES)), ids=named)
def test_torch_defaults_and_global_state_do_not_matter(row: LikelihoodRow, rule: RuleRow) -> None:
    arguments = block(row, (6,))
    usual = ask(rule.rule, row.make(), *arguments)
    torch.manual_seed(123)
    with default_dtype(torch.float64):
        before = torch.get_rng_state()
        unusual = ask(rule.rule, row.make(), *arguments)
        assert torch.equal(torch.get_rng_state(), before)
    for mine, other in zip(unusual, usual, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize(("row", "rule"), marked(crossed(STOCHASTIC)), ids=named)
def test_the_seed_decides(row: LikelihoodRow, rule: RuleRow) -> None:
    y = 0.75 if row.target_kind == "proportion" else 1.0
    arguments = tuple(column.repeat(50) for column in columns([Point(y, 0.5, 1.0)]))
    first, again, other = (ask(rule.rule, row.make(), *arguments, seed=s) for s in (1, 1, 2))
    for a, b, c in zip(first[1:], again[1:], other[1:], strict=True):
        assert torch.equal(a, b)
        # The mixed gradient of a Gaussian likelihood does not vary at all.
        assert row.name == "gaussian" or not torch.equal(a, c)


@pytest.mark.parametrize(("row", "rule"), marked(pairs(DETERMINISTIC)), ids=named)
def test_deterministic_rules_draw_nothing(row: LikelihoodRow, rule: RuleRow) -> None:
    generator = seeded()
    before = generator.get_state()
    rule.rule(row.make(), *block(row, (4,)), generator=generator)
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize("rule", STOCHASTIC, ids=named)
def test_without_a_generator_nobody_s_state_is_touched(rule: RuleRow) -> None:
    """Noise then comes from the operating system, and a global seed does not decide it."""
    row = LIKELIHOODS[3]
    arguments = [column.requires_grad_() for column in columns([Point(1.0, 0.5, 1.0)] * 50)]
    slopes = []
    for _ in range(2):
        before = torch.manual_seed(5).get_state()
        value = rule.rule(row.make(), *arguments)
        assert torch.equal(torch.get_rng_state(), before)
        slopes.append(torch.autograd.grad(value.sum(), arguments[1])[0])
    assert not torch.equal(*slopes)

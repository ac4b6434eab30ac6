"""The two public expectations: values against mpmath, gradients by finite differences, errors."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import directgp
from directgp.errors import InvalidInputError, NumericalError, UnsupportedError
from directgp.likelihoods import Likelihood, Logistic, NegativeBinomial, Poisson, Probit
from directgp.likelihoods.capabilities import ClosedFormLogPredictive
from directgp.log_expectations import (
    BiasedMonteCarlo,
    ClosedForm,
    ProductSampling,
    Quadrature,
    Rule,
)
from tests.properties.checks import Answer, ask, misses
from tests.properties.tables import (
    DETERMINISTIC,
    LIKELIHOODS,
    REGIMES,
    LikelihoodRow,
    Point,
    RuleRow,
    columns,
    marked,
    ordinary,
    pairs,
    points,
    single,
)
from tests.properties.test_accuracy import named

PLACES = [REGIMES[i] for i in (0, 4, 7, 8)]


def gibbs(row: LikelihoodRow, some: list[Point], dtype: torch.dtype) -> Answer:
    y, mean, variance = columns(some, dtype)
    marginals = mean.requires_grad_(), variance.requires_grad_()
    value = directgp.expected_log_prob(row.make(), y, *marginals)
    return Answer(value.detach(), *torch.autograd.grad(value.sum(), marginals))


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_expected_log_prob(row: LikelihoodRow) -> None:
    # The first two targets suffice: E_q[log p] is linear in a count, and quadratic in a real y.
    some = [Point(y, place.mean, place.variance) for place in PLACES for y in row.targets[:2]]
    truths = [row.gibbs_truth(point) for point in some]
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        assert misses(gibbs(row, some, dtype), some, truths, tolerance) == []


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_expected_log_prob_of_batches(row: LikelihoodRow) -> None:
    arguments = [column.reshape(2, -1) for column in columns(points(row)[:12])]
    together = directgp.expected_log_prob(row.make(), *arguments)
    for i in range(2):
        alone = directgp.expected_log_prob(row.make(), *(column[i] for column in arguments))
        torch.testing.assert_close(together[i], alone, rtol=1e-9, atol=1e-300)


def marginals(row: LikelihoodRow) -> tuple[Tensor, Tensor, Tensor]:
    y, mean, variance = columns(ordinary(row))
    return y, mean.requires_grad_(), variance.requires_grad_()


@pytest.mark.parametrize(("row", "rule"), marked(pairs(DETERMINISTIC)), ids=named)
def test_gradcheck_of_rules(row: LikelihoodRow, rule: RuleRow) -> None:
    y, *some = marginals(row)
    likelihood = row.make()
    assert torch.autograd.gradcheck(
        lambda mean, variance, *_: rule.rule(likelihood, y, mean, variance),
        (*some, *likelihood.parameters()),
        eps=1e-6,
        atol=1e-5,
    )


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_gradcheck_of_expected_log_prob(row: LikelihoodRow) -> None:
    y, *some = marginals(row)
    likelihood = row.make()
    assert torch.autograd.gradcheck(
        lambda mean, variance, *_: directgp.expected_log_prob(likelihood, y, mean, variance),
        (*some, *likelihood.parameters()),
        eps=1e-6,
        atol=1e-5,
    )


def test_auto_is_the_closed_form_where_there_is_one() -> None:
    for row in LIKELIHOODS:
        arguments = columns(ordinary(row))
        closed = isinstance(row.make(), ClosedFormLogPredictive)
        named_rule = "closed_form" if closed else "quadrature"
        auto = directgp.log_expectation(row.make(), *arguments)
        assert torch.equal(auto, directgp.log_expectation(row.make(), *arguments, named_rule))
        exact = directgp.log_expectation(row.make(), *arguments, Quadrature())
        torch.testing.assert_close(auto, exact, rtol=1e-9, atol=0)


def test_a_large_count_keeps_its_digits() -> None:
    """y = 300 under q = N(0.5, 0.3): −50.6, where Gauss–Hermite nodes centred on q say −986."""
    row = LIKELIHOODS[3]
    point = Point(300.0, *single(0.5, 0.3))
    value = directgp.log_expectation(row.make(), *columns([point]))
    assert value.item() == pytest.approx(float(row.truth(point).value), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("quadrature", Quadrature()),
        ("bmc", BiasedMonteCarlo(10)),
        ("smooth_bmc", BiasedMonteCarlo(10, nu=1e-4)),
        ("ups", ProductSampling(1)),
    ],
)
def test_rules_by_name(name: str, rule: Rule) -> None:
    y, mean, variance = (torch.tensor([x], dtype=torch.float64) for x in (3.0, 0.5, 0.8))
    by_name, by_rule = (
        directgp.log_expectation(
            Poisson(), y, mean, variance, rule=r, generator=torch.Generator().manual_seed(4)
        )
        for r in (name, rule)
    )
    assert torch.equal(by_name, by_rule)


ONES = torch.ones(3)
NAN = float("nan")
PUBLIC = [directgp.log_expectation, directgp.expected_log_prob]
CASES: list[tuple[tuple[Any, ...], str]] = [
    (
        (ONES.reshape(3, 1), ONES, ONES),
        "must have shapes (..., n) with one n. Got (3, 1), (3,) and (3,). Flatten a column y",
    ),
    ((torch.ones(2), ONES, ONES), "Got (2,), (3,) and (3,)."),
    ((ONES, ONES, torch.tensor([1.0, -0.5, 0.0])), "Got -0.5 at index 1 (and 1 more)."),
    (
        (ONES, ONES, torch.tensor([1.0, 0.0, 1.0])),
        "must be positive and finite. Got 0.0 at index 1",
    ),
    ((ONES, torch.tensor([1.0, 1.0, NAN]), ONES), "must be finite. Got nan at index 2."),
    ((ONES, ONES, torch.full((3,), torch.inf)), "Got inf at index 0 (and 2 more)."),
    ((ONES, 1e151 * ONES.double(), ONES), "of a magnitude up to 1e+150. Got 1e+151 at index 0"),
    ((ONES, 2e15 * ONES, ONES), "of a magnitude up to 1.8e+15. Got"),
    ((ONES, ONES, 6e159 * ONES.double()), "must be at most 1e+150. Got 6e+159 at index 0"),
    ((2 * ONES, ONES, ONES), "y of Probit must be a label, 0 or 1. Got 2.0 at index 0"),
]


@pytest.mark.parametrize(("arguments", "message"), CASES, ids=range(len(CASES)))
@pytest.mark.parametrize("function", PUBLIC, ids=lambda function: function.__name__)
def test_invalid_shapes_and_values_are_refused(
    function: Callable[..., Any], arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        function(Probit(), *arguments)


@pytest.mark.parametrize("function", PUBLIC, ids=lambda function: function.__name__)
def test_errors_name_the_function(function: Callable[..., Any]) -> None:
    with pytest.raises(InvalidInputError, match=f"variance of {function.__name__} must be"):
        function(Probit(), ONES, ONES, -ONES)


def test_an_unknown_rule_is_refused() -> None:
    names = "['bmc', 'closed_form', 'quadrature', 'smooth_bmc', 'ups']"
    message = f"rule must be 'auto', one of {names} or a Rule."
    with pytest.raises(InvalidInputError, match=re.escape(f"{message} Got 'magic'.")):
        directgp.log_expectation(Probit(), ONES, ONES, ONES, rule="magic")


@pytest.mark.parametrize("rule", [ClosedForm(), "closed_form"])
@pytest.mark.parametrize("likelihood", [Poisson(), Logistic()])
def test_a_likelihood_without_closed_form_is_refused(
    likelihood: Likelihood, rule: Rule | str
) -> None:
    name = type(likelihood).__name__
    message = f"ClosedForm needs a likelihood with a closed-form log predictive. Got {name}. Use"
    with pytest.raises(UnsupportedError, match=re.escape(message)):
        directgp.log_expectation(likelihood, ONES, ONES, ONES, rule=rule)


class Odd(Likelihood):
    """A likelihood that is neither log-concave nor anything else that a rule can use."""

    def log_kernel(self, y: Any, f: Any) -> Any:
        return -torch.log1p((f - y) ** 2)

    def derivatives(self, y: Any, f: Any) -> Any:
        raise AssertionError("no rule should come this far")

    def conditional_mean(self, f: Any) -> Any:
        return f

    def conditional_variance(self, f: Any) -> Any:
        return f

    def check_targets(self, y: Any) -> None:
        return


@pytest.mark.parametrize(
    "rule", [Quadrature(num_nodes=64), ProductSampling(), ProductSampling(sampler="paper")]
)
def test_a_likelihood_that_the_rule_cannot_use_is_refused(rule: Rule) -> None:
    with pytest.raises(UnsupportedError, match=re.escape("Got Odd. Use")):
        ask(rule, Odd(), ONES, ONES, ONES)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BiasedMonteCarlo(num_samples=0), "num_samples must be at least 1. Got 0."),
        (lambda: ProductSampling(num_samples=0), "num_samples must be at least 1. Got 0."),
        (lambda: BiasedMonteCarlo(nu=-1e-3), "nu must be finite and at least 0. Got -0.001."),
        (lambda: BiasedMonteCarlo(nu=NAN), "nu must be finite and at least 0. Got nan."),
        (lambda: Quadrature(num_nodes=1), "num_nodes of Quadrature must be 'auto' or at least 2."),
    ],
)
def test_settings_of_rules_out_of_range_are_refused(make: Callable[[], Rule], message: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        make()


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("make", "field"),
    [
        (BiasedMonteCarlo, "gradient"),
        (ProductSampling, "gradient"),
        (ProductSampling, "sampler"),
        (Quadrature, "nodes"),
        (Poisson, "link"),
    ],
)
def test_an_unknown_option_of_a_rule_or_link_is_refused(
    make: Callable[..., Any], field: str
) -> None:
    with pytest.raises(InvalidInputError, match=rf"^{field}.* must be .*Got 'other'\.$"):
        make(**{field: "other"})


def test_column_and_row_are_refused_but_batches_broadcast() -> None:
    batch = torch.ones(4, 3)
    assert directgp.log_expectation(Probit(), ONES, batch, batch).shape == (4, 3)
    with pytest.raises(InvalidInputError, match="with one n"):
        directgp.log_expectation(Probit(), torch.ones(3, 1), torch.ones(1, 3), ONES)


@pytest.mark.usefixtures("without_shape_checks")
def test_integer_marginals_are_refused() -> None:
    message = "mean of log_expectation must be of a floating dtype. Got torch.int64."
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        directgp.log_expectation(Probit(), torch.ones(1), torch.ones(1).long(), torch.ones(1))


@pytest.mark.parametrize("function", PUBLIC, ids=lambda function: function.__name__)
def test_parameters_and_exposures_of_another_shape_are_refused(
    function: Callable[..., Any],
) -> None:
    models = NegativeBinomial(torch.ones(4, 1))
    with pytest.raises(InvalidInputError, match="raw_dispersion of NegativeBinomial must be"):
        function(models, ONES, ONES, ONES)
    with pytest.raises(InvalidInputError, match="log_exposure of PoissonExp must be of a shape"):
        function(Poisson().with_exposure(torch.ones(40)), ONES, ONES, ONES)
    assert function(models, ONES, ONES.expand(4, -1), ONES).shape == (4, len(ONES))


def test_second_derivatives_are_refused() -> None:
    """The slopes are computed beside the value: differentiating them would give a wrong number."""
    likelihood = NegativeBinomial(2.0)
    mean = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    value = directgp.log_expectation(likelihood, ONES, mean, torch.ones_like(mean))
    inputs = [mean, likelihood.raw_dispersion]
    for loss in (value.sum(), value.square().sum()):
        with pytest.raises(UnsupportedError, match="cannot be differentiated again"):
            torch.autograd.grad(loss, inputs, create_graph=True)


@pytest.mark.parametrize(("mean", "variance"), [(0.35, 1e6), (-1e4, 1e4), (-1e4, 1e10)])
def test_slopes_of_a_zero_count_are_finite_for_wide_marginals(mean: float, variance: float) -> None:
    given = [torch.tensor([v], dtype=torch.float64, requires_grad=True) for v in (mean, variance)]
    directgp.log_expectation(Poisson(), torch.zeros(1), given[0], given[1]).sum().backward()
    slopes = [each.grad for each in given]
    assert all(slope is not None and bool(torch.isfinite(slope).all()) for slope in slopes)


def test_what_cannot_be_computed_is_an_error() -> None:
    y, mean, variance = (torch.tensor([v], dtype=torch.float64) for v in (1e12, -2e9, 1e-4))
    with pytest.raises(NumericalError, match=r"log_expectation cannot be computed at index \(0,\)"):
        directgp.log_expectation(NegativeBinomial(), y, mean, variance)

"""Point losses by name; which likelihoods and settings they accept; the costs of two errors."""

import pytest
import torch
from scipy import stats

from directgp import Marginals
from directgp.errors import InvalidInputError, UnsupportedError
from directgp.likelihoods import Logistic, Probit, StudentT
from directgp.log_expectations import BiasedMonteCarlo, ProductSampling, Quadrature, Rule
from directgp.objectives import (
    AbsoluteLoss,
    CRPSLoss,
    GibbsLoss,
    LogLoss,
    PinballLoss,
    PointLoss,
    SquareLoss,
    ZeroOneCost,
    resolve_point_loss,
)
from tests.properties.tables import LikelihoodRow, marked
from tests.properties.test_accuracy import named
from tests.properties.test_tables import concrete
from tests.unit.objectives.tables import POINT_LOSSES, PointLossRow, refused, served


def test_no_missing_point_losses() -> None:
    assert concrete(PointLoss) == {type(row.loss) for row in POINT_LOSSES}


def test_every_point_loss_has_a_name_of_its_own() -> None:
    classes = concrete(PointLoss)
    names = {row.loss.name for row in POINT_LOSSES}
    assert len(names) == len(classes)
    assert {type(resolve_point_loss(name)) for name in names} == classes


NAMES = {row.loss.name for row in POINT_LOSSES}

DEFAULTS: dict[str, PointLoss] = {
    "elbo": GibbsLoss(),
    "log_loss": LogLoss(),
    "square_loss": SquareLoss(),
    "absolute_loss": AbsoluteLoss(),
    "pinball_loss": PinballLoss(level=0.5),
    "zero_one_cost": ZeroOneCost(false_positive=1.0, false_negative=1.0),
    "crps": CRPSLoss(),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_point_losses_by_name(name: str) -> None:
    assert resolve_point_loss(name) == DEFAULTS[name]
    assert DEFAULTS[name].name == name


@pytest.mark.parametrize("rule", ["ups", "quadrature", BiasedMonteCarlo(num_samples=3)], ids=repr)
def test_log_loss_takes_the_rule(rule: Rule | str) -> None:
    assert resolve_point_loss("log_loss", rule) == LogLoss(rule)


@pytest.mark.parametrize("rule", ["quadrature", Quadrature()], ids=repr)
@pytest.mark.parametrize("name", sorted(NAMES - {"log_loss"}))
def test_other_losses_refuse_a_rule(name: str, rule: Rule | str) -> None:
    with pytest.raises(InvalidInputError, match=r"^rule for \w+ must be 'auto'. Got .*'log_loss'"):
        resolve_point_loss(name, rule)


def test_a_point_loss_is_kept_as_it_is() -> None:
    loss = PinballLoss(level=0.9)
    assert resolve_point_loss(loss) is loss


@pytest.mark.parametrize("loss", [SquareLoss(), LogLoss(), LogLoss("ups")], ids=repr)
def test_a_point_loss_has_its_rule_already(loss: PointLoss) -> None:
    with pytest.raises(InvalidInputError, match=r"Got 'bmc'\. .*LogLoss\(rule=\.\.\.\)"):
        resolve_point_loss(loss, "bmc")


@pytest.mark.parametrize("name", ["mse", "", "LOG_LOSS"])
def test_unknown_names_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        resolve_point_loss(name)
    assert str(caught.value) == (
        f"objective must be one of {sorted(NAMES)} or a PointLoss. Got {name!r}."
    )


@pytest.mark.parametrize(
    ("rule", "deterministic"),
    [
        ("auto", True),
        ("closed_form", True),
        ("quadrature", True),
        (Quadrature(num_nodes=64), True),
        ("bmc", False),
        ("smooth_bmc", False),
        ("ups", False),
        (BiasedMonteCarlo(num_samples=10), False),
        (ProductSampling(), False),
    ],
    ids=repr,
)
def test_log_loss_is_as_deterministic_as_its_rule(rule: Rule | str, deterministic: bool) -> None:
    assert LogLoss(rule).deterministic == deterministic


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(("loss", "row"), marked(served(POINT_LOSSES)), ids=named)
def test_likelihoods_that_are_served(loss: PointLossRow, row: LikelihoodRow) -> None:
    loss.loss.check(row.make())


@pytest.mark.parametrize(("loss", "row"), marked(refused(POINT_LOSSES)), ids=named)
def test_unsupported_likelihoods_are_refused(loss: PointLossRow, row: LikelihoodRow) -> None:
    likelihood, one = row.make(), torch.ones(1)
    with pytest.raises(UnsupportedError) as checked:
        loss.loss.check(likelihood)
    with pytest.raises(UnsupportedError) as called:
        loss.loss(likelihood, one, Marginals(one, one))
    text = str(checked.value)
    assert text == str(called.value)
    assert text.startswith(type(loss.loss).__name__)
    assert f"Got {type(likelihood).__name__}." in text
    assert loss.remedy in text


def test_square_loss_says_why_not_student_t() -> None:
    with pytest.raises(UnsupportedError, match=r"neither the scale nor the tails.*Use Gaussian"):
        SquareLoss().check(StudentT())


def test_log_loss_refuses_an_unknown_rule() -> None:
    with pytest.raises(InvalidInputError, match=r"rule must be 'auto'.*Got 'exact'"):
        LogLoss("exact").check(StudentT())


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 90.0, NAN, INF])
def test_a_pinball_level_out_of_range_is_refused(level: float) -> None:
    message = f"level of PinballLoss must be strictly between 0 and 1. Got {level}."
    with pytest.raises(InvalidInputError) as caught:
        PinballLoss(level)
    assert str(caught.value) == message


@pytest.mark.parametrize("cost", [0.0, -1.0, NAN, INF])
@pytest.mark.parametrize("key", ["false_positive", "false_negative"])
def test_a_cost_that_is_not_positive_is_refused(key: str, cost: float) -> None:
    message = f"{key} of ZeroOneCost must be positive and finite. Got {cost}."
    with pytest.raises(InvalidInputError) as caught:
        ZeroOneCost(**{key: cost})
    assert str(caught.value) == message


FLOAT64 = torch.float64
FAR = torch.tensor([-30.0, -12.0, -5.0, 5.0, 12.0, 30.0], dtype=FLOAT64)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_probit_tails(label: float) -> None:
    """c_y·Φ(−(2y−1)μ/√(1+v)) and its slope in μ, down to 1e-100."""
    mean = FAR.clone().requires_grad_()
    y, variance = torch.full_like(FAR, label), torch.full_like(FAR, 1.0)
    value = ZeroOneCost(0.1, 3.0)(Probit(), y, Marginals(mean, variance))
    (slope,) = torch.autograd.grad(value.sum(), mean)
    cost, sign = (3.0, 1) if label else (0.1, -1)
    x = FAR.numpy() / 2**0.5
    want = torch.from_numpy(cost * stats.norm.cdf(-sign * x))
    want_slope = torch.from_numpy(-sign * cost * stats.norm.pdf(x) / 2**0.5)
    torch.testing.assert_close(value.detach(), want, rtol=1e-12, atol=0)
    torch.testing.assert_close(slope, want_slope, rtol=1e-12, atol=0)


@pytest.mark.parametrize("likelihood", [Probit(), Logistic()], ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("dtype", [torch.float32, FLOAT64])
def test_the_tail_keeps_its_gradient(likelihood: Probit | Logistic, dtype: torch.dtype) -> None:
    mean = torch.tensor([-12.0, 12.0], dtype=dtype, requires_grad=True)
    y, variance = torch.ones(2, dtype=dtype), torch.full((2,), 0.5, dtype=dtype)
    value = ZeroOneCost()(likelihood, y, Marginals(mean, variance))
    (slope,) = torch.autograd.grad(value.sum(), mean)
    assert value[0].item() == pytest.approx(1.0, abs=1e-4)
    assert 0 < value[1].item() < 1e-4
    assert bool((slope < 0).all()) and bool((slope > -1e-4).all())


@pytest.mark.parametrize("likelihood", [Probit(), Logistic()], ids=lambda each: type(each).__name__)
def test_unit_costs_count_errors(likelihood: Probit | Logistic) -> None:
    """E[p(1−y)] = 1 − E[p(y)], with the log loss of y."""
    y = torch.tensor([0.0, 1.0, 1.0], dtype=FLOAT64)
    q = Marginals(
        torch.tensor([0.3, -2.0, 1.0], dtype=FLOAT64), torch.tensor([1.0, 4.0, 0.1], dtype=FLOAT64)
    )
    right = torch.exp(-LogLoss()(likelihood, y, q))
    torch.testing.assert_close(ZeroOneCost()(likelihood, y, q), 1 - right)


@pytest.mark.parametrize(
    ("false_positive", "false_negative", "threshold"),
    [(1.0, 1.0, 0.5), (1.0, 3.0, 0.25), (9.0, 1.0, 0.9), (1e308, 1e308, 0.5), (1e-300, 1e300, 0.0)],
)
def test_threshold_of_costs(false_positive: float, false_negative: float, threshold: float) -> None:
    assert ZeroOneCost(false_positive, false_negative).threshold == pytest.approx(threshold)


def test_the_threshold_is_where_the_two_decisions_cost_the_same() -> None:
    loss = ZeroOneCost(false_positive=2.0, false_negative=0.5)
    chance = loss.threshold
    mean = torch.full((2,), stats.norm.ppf(chance), dtype=FLOAT64)
    q = Marginals(mean, torch.full((2,), 1e-20, dtype=FLOAT64))
    wrong = loss(Probit(), torch.tensor([0.0, 1.0], dtype=FLOAT64), q)
    say_one, say_zero = 2.0 * (1 - chance), 0.5 * chance
    assert say_one == pytest.approx(say_zero)
    # Under that P(y = 1), labels drawn from the predictive: cost c_0·p for y = 0, c_1·(1−p) for 1.
    torch.testing.assert_close(wrong, torch.tensor([2.0 * chance, 0.5 * (1 - chance)]).double())

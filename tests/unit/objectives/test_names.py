"""Point losses by name, and which of them take a rule."""

import pytest

from directgp.errors import InvalidInputError
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

NAMES: dict[str, PointLoss] = {
    "elbo": GibbsLoss(),
    "log_loss": LogLoss(),
    "square_loss": SquareLoss(),
    "absolute_loss": AbsoluteLoss(),
    "pinball_loss": PinballLoss(level=0.5),
    "zero_one_cost": ZeroOneCost(false_positive=1.0, false_negative=1.0),
    "crps": CRPSLoss(),
}


@pytest.mark.parametrize("name", NAMES)
def test_names(name: str) -> None:
    assert resolve_point_loss(name) == NAMES[name]
    assert NAMES[name].name == name


@pytest.mark.parametrize("rule", ["ups", "quadrature", BiasedMonteCarlo(num_samples=3)], ids=repr)
def test_log_loss_takes_the_rule(rule: Rule | str) -> None:
    assert resolve_point_loss("log_loss", rule) == LogLoss(rule)


@pytest.mark.parametrize("rule", ["quadrature", Quadrature()], ids=repr)
@pytest.mark.parametrize("name", sorted(set(NAMES) - {"log_loss"}))
def test_the_others_take_none(name: str, rule: Rule | str) -> None:
    with pytest.raises(InvalidInputError, match=r"^rule for \w+ must be 'auto'. Got .*'log_loss'"):
        resolve_point_loss(name, rule)


def test_a_point_loss_passes() -> None:
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

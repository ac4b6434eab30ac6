"""Rules and point losses as specs: classes of fixed tables with plain settings."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from directgp.errors import UnsupportedError
from directgp.estimators.persistence.schema import LossSpec, RuleSpec, Strict
from directgp.log_expectations.base import Rule
from directgp.log_expectations.closed_form import ClosedForm
from directgp.log_expectations.monte_carlo import BiasedMonteCarlo
from directgp.log_expectations.product_sampling import ProductSampling
from directgp.log_expectations.quadrature import Quadrature
from directgp.objectives.absolute_loss import AbsoluteLoss
from directgp.objectives.base import PointLoss
from directgp.objectives.crps import CRPSLoss
from directgp.objectives.log_losses import GibbsLoss, LogLoss
from directgp.objectives.pinball_loss import PinballLoss
from directgp.objectives.square_loss import SquareLoss
from directgp.objectives.zero_one_cost import ZeroOneCost

RULES: dict[str, type[Any]] = {
    make.__name__: make for make in (BiasedMonteCarlo, ClosedForm, ProductSampling, Quadrature)
}
LOSSES: dict[str, type[Any]] = {
    make.__name__: make
    for make in (
        AbsoluteLoss,
        CRPSLoss,
        GibbsLoss,
        LogLoss,
        PinballLoss,
        SquareLoss,
        ZeroOneCost,
    )
}
_RULE: TypeAdapter[RuleSpec] = TypeAdapter(RuleSpec)
_LOSS: TypeAdapter[LossSpec] = TypeAdapter(LossSpec)


def rule_spec(rule: Rule) -> RuleSpec:
    """What rebuilds a rule."""
    spec: RuleSpec = _checked(_RULE.validate_python, rule, _settings(rule, RULES, "rule"))
    return spec


def loss_spec(loss: PointLoss) -> LossSpec:
    """What rebuilds a point loss."""
    settings = _settings(loss, LOSSES, "point loss")
    if isinstance(settings.get("rule"), Rule):
        settings["rule"] = rule_spec(settings["rule"])
    spec: LossSpec = _checked(_LOSS.validate_python, loss, settings)
    return spec


def load_rule(spec: RuleSpec) -> Rule:
    """The rule of a spec."""
    rule: Rule = _build(dict(spec), RULES)
    return rule


def load_loss(spec: LossSpec) -> PointLoss:
    """The point loss of a spec."""
    settings = dict(spec)
    if isinstance(settings.get("rule"), Strict):
        settings["rule"] = load_rule(settings["rule"])
    loss: PointLoss = _build(settings, LOSSES)
    return loss


def _build(settings: dict[str, Any], table: dict[str, type[Any]]) -> Any:
    return table[settings.pop("kind")](**settings)


def _settings(choice: Any, table: dict[str, type[Any]], who: str) -> dict[str, Any]:
    kind = type(choice).__name__
    if table.get(kind) is not type(choice):
        raise UnsupportedError(
            f"The {who} {kind} cannot be saved. Those that can are {', '.join(table)}."
        )
    found = {"kind": kind}
    for field in fields(choice):
        value = getattr(choice, field.name)
        if callable(value) and not isinstance(value, Rule):
            raise UnsupportedError(
                f"{field.name} of {kind} is a function of the training step, and functions cannot"
                " be saved. Give a number before saving."
            )
        found[field.name] = value.item() if isinstance(value, np.generic) else value
    return found


def _checked(validate: Callable[..., Any], choice: object, settings: dict[str, Any]) -> Any:
    try:
        return validate(settings)
    except ValidationError as error:
        raise UnsupportedError(
            f"{choice} cannot be saved: its settings have to be plain numbers, bools and the words"
            " that its class knows."
        ) from error

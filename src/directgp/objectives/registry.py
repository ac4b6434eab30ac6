"""Look up point losses by name."""

from directgp.errors import require
from directgp.log_expectations.rule import Rule
from directgp.objectives.base import PointLoss
from directgp.objectives.log_losses import GibbsLoss, LogLoss
from directgp.objectives.pointwise import (
    AbsoluteLoss,
    CRPSLoss,
    PinballLoss,
    SquareLoss,
    ZeroOneCost,
)

_LOSSES: dict[str, PointLoss] = {
    loss.name: loss
    for loss in (
        AbsoluteLoss(),
        CRPSLoss(),
        GibbsLoss(),
        LogLoss(),
        PinballLoss(),
        SquareLoss(),
        ZeroOneCost(),
    )
}


def resolve_point_loss(objective: str | PointLoss, rule: Rule | str = "auto") -> PointLoss:
    """The point loss of that name, as by default; "log_loss" takes the rule, the others none.

    Examples
    --------
    >>> resolve_point_loss("log_loss", "ups")
    LogLoss(rule='ups')
    """
    if isinstance(objective, PointLoss):
        loss, remedy = objective, "Give a LogLoss its rule: LogLoss(rule=...)."
    else:
        allowed = f"one of {sorted(_LOSSES)} or a PointLoss"
        require(objective in _LOSSES, "objective", allowed, repr(objective))
        loss, remedy = _LOSSES[objective], "The rule is for 'log_loss'."
        if isinstance(loss, LogLoss):
            return LogLoss(rule)
    require(rule == "auto", f"rule for {type(loss).__name__}", "'auto'", repr(rule), remedy)
    return loss

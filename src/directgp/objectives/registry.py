"""Look up point losses by name."""

from directgp.errors import require
from directgp.log_expectations.rule import Rule
from directgp.objectives.base import PointLoss
from directgp.objectives.log_losses import LogLoss
from directgp.registry import LOSSES


def resolve_point_loss(objective: str | PointLoss, rule: Rule | str = "auto") -> PointLoss:
    """Return the point loss of that name; "log_loss" takes the rule, the others none.

    Examples
    --------
    >>> resolve_point_loss("log_loss", "ups")
    LogLoss(rule='ups')
    """
    if isinstance(objective, PointLoss):
        loss, remedy = objective, "Give a LogLoss its rule: LogLoss(rule=...)."
    else:
        names = sorted(row.name for row in LOSSES.rows() if not row.collapsed)
        allowed = f"one of {names} or a PointLoss"
        require(objective in names, "objective", allowed, repr(objective))
        loss, remedy = LOSSES[objective].make(), "The rule is for 'log_loss'."
        if isinstance(loss, LogLoss):
            return LogLoss(rule)
    require(rule == "auto", f"rule for {type(loss).__name__}", "'auto'", repr(rule), remedy)
    return loss

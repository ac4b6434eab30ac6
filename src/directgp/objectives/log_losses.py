"""Define the Gibbs loss (ELBO) and the log loss (log-loss DLM); look up losses by name."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Num
from torch import Tensor
from typing_extensions import override

from directgp.errors import require
from directgp.likelihoods.base import ClosedFormGibbs, Likelihood, ScaleMixture
from directgp.log_expectations.api import named_rule, resolve_rule
from directgp.log_expectations.elbo_term import gibbs_term
from directgp.log_expectations.rule import Rule
from directgp.objectives.base import PointLoss
from directgp.registry import LOSSES
from directgp.shapes import BatchedRow, Marginals


@final
@dataclass(frozen=True)
class GibbsLoss(PointLoss):
    """−E_q[log p(y given f)]: with β = 1 the objective is minus the ELBO."""

    name = "elbo"
    gibbs = True
    eliminates = "vfe"

    @override
    def validation_loss(self) -> PointLoss:
        return LogLoss()

    @override
    def check(self, likelihood: Likelihood) -> None:
        """Do nothing: every likelihood has this loss."""

    @override
    def fixed_work(self, likelihood: Likelihood) -> bool:
        # The number of nodes of a scale mixture depends on the values.
        if isinstance(likelihood, ScaleMixture):
            return False
        alike = all(constant.numel() == 1 for constant in likelihood.buffers())
        smooth = likelihood.log_concave and alike and not likelihood.trainable
        return isinstance(likelihood, ClosedFormGibbs) or smooth

    @override
    def __call__(
        self,
        likelihood: Likelihood,
        y: Num[Tensor, "*#batch n"],
        marginals: Marginals,
        *,
        generator: torch.Generator | None = None,
        step: int = 0,
    ) -> BatchedRow:
        return -gibbs_term(likelihood, y, marginals.mean, marginals.variance)


@final
@dataclass(frozen=True)
class LogLoss(PointLoss):
    """−log E_q[p(y given f)], through a rule: log-loss DLM.

    Parameters
    ----------
    rule : Rule or str
        As in `directgp.log_expectation`.
    """

    rule: Rule | str = "auto"

    name = "log_loss"

    @property
    @override
    def deterministic(self) -> bool:
        return self.rule == "auto" or named_rule(self.rule).deterministic

    @property
    @override
    def smooth(self) -> bool:
        return self.rule == "auto" or named_rule(self.rule).smooth

    @override
    def validation_loss(self) -> PointLoss:
        return LogLoss()

    @override
    def check(self, likelihood: Likelihood) -> None:
        resolve_rule(self.rule, likelihood).check(likelihood)

    @override
    def fixed_work(self, likelihood: Likelihood) -> bool:
        return resolve_rule(self.rule, likelihood).fixed_work(likelihood)

    @override
    def __call__(
        self,
        likelihood: Likelihood,
        y: Num[Tensor, "*#batch n"],
        marginals: Marginals,
        *,
        generator: torch.Generator | None = None,
        step: int = 0,
    ) -> BatchedRow:
        rule = resolve_rule(self.rule, likelihood)
        return -rule(
            likelihood, y, marginals.mean, marginals.variance, generator=generator, step=step
        )


def mean_curvature(
    likelihood: Likelihood, y: Num[Tensor, "*#batch n"], marginals: Marginals, gibbs: bool
) -> BatchedRow:
    """Return ∂²loss/∂μ², or 0 where that is negative.

    A Gaussian average satisfies ∂_v = ½∂²_μ. So the curvature of the Gibbs loss is 2 ∂_v loss, and
    that of the log loss 2 ∂_v loss + (∂_μ loss)².
    """
    mean = marginals.mean.detach().requires_grad_()
    variance = marginals.variance.detach().requires_grad_()
    loss = GibbsLoss() if gibbs else LogLoss()
    with torch.enable_grad():
        total = loss(likelihood.frozen(), y, Marginals(mean, variance)).sum()
    slope, variance_slope = torch.autograd.grad(total, (mean, variance))
    curvature = 2 * variance_slope if gibbs else 2 * variance_slope + slope**2
    return curvature.clamp(min=0.0)


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

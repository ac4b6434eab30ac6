"""Define the objective, (N/n)·Σ point loss + β·KL, with the losses of the ELBO and of DLM."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, final

import torch
from jaxtyping import Float, Num
from torch import Tensor
from typing_extensions import override

from directgp.errors import require, require_all
from directgp.integration.evaluate import Rows, of_one_shape, parameter_gradient
from directgp.integration.gibbs import gibbs_fixed_work, gibbs_slopes, gibbs_term
from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.api import named_rule, resolve_rule
from directgp.log_expectations.rule import Rule
from directgp.numerics.autograd import Slopes
from directgp.registry import LOSSES
from directgp.shapes import BatchedRow, Marginals


class LossGradient(NamedTuple):
    """Losses, and the gradient of Σ_i weight_i·loss_i."""

    losses: BatchedRow
    """loss_i."""

    mean: BatchedRow
    """weight_i·∂loss_i/∂μ_i."""

    variance: BatchedRow
    """weight_i·∂loss_i/∂v_i."""

    parameters: tuple[Tensor, ...]
    """The gradient in each of `Likelihood.learned`."""


class PointLoss(ABC):
    """The loss of one example given q(f_i) = N(μ_i, v_i), to be minimised.

    It depends on marginals and target alone, not on the posterior, β or the number of data.
    """

    name: ClassVar[str]
    """The name that users type."""

    gibbs: ClassVar[bool] = False
    """Whether the loss is minus the mean of the log density over q, as in the ELBO."""

    eliminates: ClassVar[Literal["vfe", "square_loss"] | None] = None
    """The closed form of the optimal q(u) under Gaussian noise, where there is one."""

    unit_power: ClassVar[int] = 0
    """If y is multiplied by c, the loss is multiplied by c to this power."""

    log_density: ClassVar[bool] = False
    """Whether the loss is minus a log density of y. If y is multiplied by c, log c is added to
    it."""

    @property
    def deterministic(self) -> bool:
        """Whether the same arguments give the same numbers."""
        return True

    @property
    def smooth(self) -> bool:
        """Whether the gradient is the derivative of the value at fixed random numbers."""
        return True

    @property
    def threshold(self) -> float:
        """The probability of label 1 above which predicting 1 costs less."""
        return 0.5

    def validation_loss(self) -> "PointLoss":
        """Return the loss to compare trained models by, computed without draws."""
        return self

    def forecast(self, likelihood: Likelihood, marginals: Marginals) -> Float[Tensor, "s n"] | None:
        """Return what the loss of a mixture needs to know of a member, for each example.

        None if the losses of the members are enough.
        """
        return None

    def of_mixture(
        self,
        losses: Float[Tensor, "c n"],
        forecasts: Float[Tensor, "c s n"] | None,
        weights: Float[Tensor, " c"],
        y: Num[Tensor, " n"],
    ) -> Float[Tensor, " n"]:
        """Return the loss of each example under Σ_k w_k p_k(y), from what is known of its members.

        It is −log Σ_k w_k p_k for a log density. For a loss that is linear in the distribution, and
        unless a subclass knows better, it is the mean of the losses.
        """
        if self.log_density:
            return -torch.logsumexp(weights.log()[:, None] - losses, 0)
        return weights @ losses

    def uses_variance(self, likelihood: Likelihood) -> bool:
        """Return whether the loss depends on the variance of f or on the noise.

        A loss that depends on neither does not train them.
        """
        return True

    def fixed_work(self, likelihood: Likelihood) -> bool:
        """Return whether the operations do not depend on the values, as a CUDA graph needs."""
        return True

    def check(self, likelihood: Likelihood) -> None:
        """Raise `UnsupportedError` if the likelihood lacks what the loss needs."""
        return None

    @abstractmethod
    def __call__(
        self,
        likelihood: Likelihood,
        y: Num[Tensor, "*#batch n"],
        marginals: Marginals,
        *,
        generator: torch.Generator | None = None,
        step: int = 0,
    ) -> BatchedRow:
        """Return the loss of each example, differentiable in the marginals and the likelihood.

        Targets are not checked.
        """

    def gradient(
        self,
        likelihood: Likelihood,
        y: Num[Tensor, "*#batch n"],
        marginals: Marginals,
        weights: Num[Tensor, "*#batch n"] | float,
        *,
        generator: torch.Generator | None = None,
        step: int = 0,
    ) -> LossGradient:
        """Return the losses and the gradient of Σ_i weight_i·loss_i.

        They come from `_slopes` without a graph, or from autograd.
        """
        with torch.no_grad():
            rows = of_one_shape(y, marginals.mean, marginals.variance, likelihood.num_latent)
            slopes = self._slopes(likelihood, rows)
            if slopes is not None:
                return _gradient(likelihood, slopes, rows[1], weights)
        q = Marginals(*(row.detach().requires_grad_() for row in rows[1:]))
        with torch.enable_grad():
            losses = self(likelihood, y, q, generator=generator, step=step)
            total = (weights * losses).sum()
        wanted = (q.mean, q.variance, *likelihood.learned())
        mean, variance, *parameters = torch.autograd.grad(
            total, wanted, allow_unused=True, materialize_grads=True
        )
        return LossGradient(losses.detach(), mean, variance, tuple(parameters))

    def _slopes(self, likelihood: Likelihood, rows: Rows) -> Slopes | None:
        """Return minus the loss, and its slopes in mean, variance and constants of the likelihood.

        Return None if autograd has to compute them.
        """
        return None


def _gradient(
    likelihood: Likelihood, slopes: Slopes, mean: BatchedRow, weights: Tensor | float
) -> LossGradient:
    """Return the gradient of −Σ_i weight_i·value_i, in shape and dtype of the mean."""
    by = -weights
    parameters = parameter_gradient(likelihood, slopes[3:], by)
    rows: Slopes = slopes[0].neg(), by * slopes[1], by * slopes[2]
    if mean.dtype != torch.float64:
        rows = tuple(row.to(mean.dtype) for row in rows)
    if rows[2].shape != mean.shape:
        rows = tuple(row.expand(mean.shape).contiguous() for row in rows)
    losses, mean_part, variance_part = rows
    return LossGradient(losses, mean_part, variance_part, parameters)


@final
@dataclass(frozen=True)
class Objective:
    """The function that training minimises: point loss + β·KL.

    Parameters
    ----------
    point_loss : PointLoss
        The loss of one example.
    num_data : int
        N, the number of training examples, whatever the size of a batch.
    beta : float or tensor
        β ≥ 0, or a grid of values, one for each member of a batch of models.

    Examples
    --------
    >>> import torch
    >>> from directgp import Marginals
    >>> from directgp.likelihoods import Gaussian
    >>> from directgp.objectives import LogLoss, Objective
    >>> y, q = torch.ones(2), Marginals(torch.zeros(2), torch.ones(2))
    >>> objective = Objective(LogLoss(), num_data=2, beta=0.5)
    >>> float(objective(Gaussian(1.0), y, q, kl=torch.tensor(4.0)).detach())
    2.5155...
    """

    point_loss: PointLoss
    num_data: int
    beta: float | Tensor = 1.0

    def __post_init__(self) -> None:
        require(self.num_data >= 1, "num_data of Objective", "at least 1", self.num_data)
        beta = torch.as_tensor(self.beta).reshape(-1)
        allowed = torch.isfinite(beta) & (beta >= 0)
        require_all(allowed, beta, "beta of Objective", "finite and at least 0")

    def __call__(
        self,
        likelihood: Likelihood,
        y: Num[Tensor, "*#batch n"],
        marginals: Marginals,
        kl: Float[Tensor, "*batch"],
        *,
        weights: Num[Tensor, "*#batch n"] | None = None,
        generator: torch.Generator | None = None,
        step: int = 0,
    ) -> Float[Tensor, "*batch"]:
        """Return (1/n) Σ_i weight_i·loss_i + (β/N)·KL, the objective divided by N."""
        losses = self.point_loss(likelihood, y, marginals, generator=generator, step=step)
        return self.combine(losses, kl, weights)

    def combine(
        self,
        losses: BatchedRow,
        kl: Float[Tensor, "*batch"],
        weights: Num[Tensor, "*#batch n"] | None = None,
    ) -> Float[Tensor, "*batch"]:
        """Return the objective from losses already computed."""
        mean = (losses if weights is None else weights * losses).mean(-1)
        if isinstance(self.beta, Tensor):
            beta = self.beta.to(kl)
            # 0·KL is 0 even where q(u) has collapsed and the KL is infinite.
            share = torch.where(beta > 0, beta * torch.where(beta > 0, kl, 0.0), 0.0)
            return mean + share / self.num_data
        return torch.add(mean, kl, alpha=self.beta / self.num_data) if self.beta > 0 else mean


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
    def fixed_work(self, likelihood: Likelihood) -> bool:
        return gibbs_fixed_work(likelihood)

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

    @override
    def _slopes(self, likelihood: Likelihood, rows: Rows) -> Slopes | None:
        return gibbs_slopes(likelihood, rows)


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
    log_density = True

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
        q = marginals
        return -rule(likelihood, y, q.mean, q.variance, generator=generator, step=step)

    @override
    def _slopes(self, likelihood: Likelihood, rows: Rows) -> Slopes | None:
        return resolve_rule(self.rule, likelihood).slopes(likelihood, rows)


def mean_curvature(
    likelihood: Likelihood, y: Num[Tensor, "*#batch n"], marginals: Marginals, gibbs: bool
) -> BatchedRow:
    """Return ∂²loss/∂μ², or 0 where that is negative.

    A Gaussian average satisfies ∂_v = ½∂²_μ. So the curvature of the Gibbs loss is 2 ∂_v loss, and
    that of the log loss 2 ∂_v loss + (∂_μ loss)².
    """
    loss = GibbsLoss() if gibbs else LogLoss()
    _, slope, variance_slope, _ = loss.gradient(likelihood.frozen(), y, marginals, 1.0)
    curvature = 2 * variance_slope if gibbs else 2 * variance_slope + slope**2
    return curvature.clamp(min=0.0)


def resolve_point_loss(objective: str | PointLoss, rule: Rule | str = "auto") -> PointLoss:
    """Return the point loss of a name, or a given one; only "log_loss" takes a rule.

    Examples
    --------
    >>> resolve_point_loss("log_loss", "ups")
    LogLoss(rule='ups')
    """
    if objective == LogLoss.name:
        return LogLoss(rule)
    if isinstance(objective, PointLoss):
        loss = objective
        remedy = "Give a LogLoss its rule: LogLoss(rule=...)."
    else:
        names = sorted(row.name for row in LOSSES.values() if not row.collapsed)
        allowed = f"one of {names} or a PointLoss"
        require(objective in names, "objective", allowed, repr(objective))
        loss = LOSSES[objective].make()
        remedy = "The rule is for 'log_loss'."
    require(rule == "auto", f"rule for {type(loss).__name__}", "'auto'", repr(rule), remedy)
    return loss

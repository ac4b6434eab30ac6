"""Define point losses other than log losses: square, absolute, pinball, CRPS, 0–1 cost."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, cast, final

import torch
from jaxtyping import Num
from torch import Tensor
from typing_extensions import override

from directgp.errors import UnsupportedError, require
from directgp.integration.contract import Binary, has
from directgp.integration.evaluate import Rows, of_one_shape
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import (
    Censored,
    ClosedFormCRPS,
    ClosedFormMedian,
    ClosedFormMoments,
    ClosedFormQuantiles,
    GaussianPredictive,
    PredictiveMeanSlopes,
)
from directgp.log_expectations.api import resolve_rule
from directgp.numerics.autograd import Slopes
from directgp.objectives.base import PointLoss
from directgp.objectives.points import Points, half_distance, quantile_of, spread_quantiles
from directgp.predictive.moments import predictive_mean
from directgp.shapes import BatchedRow, Marginals


class DeterministicLoss(PointLoss):
    """A point loss without draws: computed in float64, returned in the dtype of the mean.

    A likelihood must have the capability; the error message names it and a remedy.
    """

    _capability: ClassVar[type]
    """The protocol that a likelihood must have."""

    _needs: ClassVar[str]
    """The capability in words."""

    _remedy: ClassVar[str] = "Use Gaussian, or log_loss."
    """The last sentence of a refusal."""

    _knows_limits: ClassVar[bool] = False
    """Whether the loss is defined for a censored target, of which only a limit is known."""

    @override
    def check(self, likelihood: Likelihood) -> None:
        if not has(likelihood, self._capability):
            raise UnsupportedError(
                f"{type(self).__name__} needs {self._needs}. Got {type(likelihood).__name__}. "
                f"{self._remedy}"
            )
        if has(likelihood, Censored) and not self._knows_limits:
            raise UnsupportedError(
                f"{type(self).__name__} compares predictions with y, and a censored y is only a "
                f"limit. Got {type(likelihood).__name__}. {self._remedy} CRPS knows limits, too."
            )

    @final
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
        self.check(likelihood)
        mean = marginals.mean
        variance = marginals.variance
        wide = of_one_shape(y.double(), mean.double(), variance.double(), likelihood.num_latent)
        return self._evaluate(likelihood, *wide).to(mean.dtype)

    @abstractmethod
    def _evaluate(self, likelihood: Any, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Implement `__call__` for float64 tensors of one shape and a checked likelihood.

        With P latents mean and variance have an axis of them, as in `Rows`.
        """


@final
@dataclass(frozen=True)
class SquareLoss(DeterministicLoss):
    """½(ŷ − y)² with ŷ = E[y], the predictive mean: μ for a Gaussian, e^{μ+v/2} for counts."""

    name = "square_loss"
    eliminates = "square_loss"
    unit_power = 2
    _capability = ClosedFormMoments
    _needs = "a likelihood with a closed-form predictive mean"
    _remedy = "Use Probit for labels, Poisson(link='exp') for counts, or log_loss."

    @override
    def uses_variance(self, likelihood: Likelihood) -> bool:
        return not likelihood.additive

    @override
    def check(self, likelihood: Likelihood) -> None:
        if likelihood.additive and not has(likelihood, GaussianPredictive):
            raise UnsupportedError(
                f"SquareLoss depends on neither the scale nor the tails of noise that is not "
                f"Gaussian. Got {type(likelihood).__name__}. Use Gaussian, or log_loss."
            )
        super().check(likelihood)

    @override
    def _evaluate(self, likelihood: Any, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        prediction: Tensor = likelihood.predictive_mean(mean, variance)
        return 0.5 * (prediction - y) ** 2

    @override
    def forecast(self, likelihood: Likelihood, marginals: Marginals) -> Points:
        return predictive_mean(likelihood, marginals)[None]

    @override
    def of_mixture(
        self, losses: Tensor, forecasts: Tensor | None, weights: Tensor, y: Tensor
    ) -> Tensor:
        """Return ½(Σ_k w_k ŷ_k − y)²."""
        means = cast(Tensor, forecasts)[:, 0]
        return 0.5 * (weights @ means - y) ** 2

    @override
    def _slopes(self, likelihood: Likelihood, rows: Rows) -> Slopes | None:
        if not has(likelihood, PredictiveMeanSlopes):
            return None
        y, mean, variance = (row.double() for row in rows)
        slopes = cast(PredictiveMeanSlopes, likelihood).predictive_mean_slopes(mean, variance)
        residual = y - slopes[0]
        return (residual * residual).mul_(-0.5), residual * slopes[1], residual * slopes[2]


@final
@dataclass(frozen=True)
class AbsoluteLoss(DeterministicLoss):
    """The distance of y from ŷ, the predictive median: μ for a Gaussian."""

    name = "absolute_loss"
    unit_power = 1
    _capability = ClosedFormMedian
    _needs = "a likelihood with a closed-form predictive median"

    @override
    def uses_variance(self, likelihood: Likelihood) -> bool:
        return False

    @override
    def _evaluate(self, likelihood: Any, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return torch.abs(y - likelihood.predictive_median(mean, variance))

    @override
    def forecast(self, likelihood: Likelihood, marginals: Marginals) -> Points:
        return spread_quantiles(likelihood, marginals)

    @override
    def of_mixture(
        self, losses: Tensor, forecasts: Tensor | None, weights: Tensor, y: Tensor
    ) -> Tensor:
        """Return the distance of y from the median of the mixture."""
        return torch.abs(y - quantile_of(cast(Tensor, forecasts), weights, 0.5))


@final
@dataclass(frozen=True)
class PinballLoss(DeterministicLoss):
    """ρ_τ(y − ŷ) with ŷ the predictive τ-quantile and ρ_τ(r) = max(τr, (τ−1)r).

    A target above ŷ costs τ a unit, one below it 1 − τ. At τ = ½ it is half the absolute loss.

    Parameters
    ----------
    level : float
        τ, strictly between 0 and 1.

    Examples
    --------
    >>> import torch
    >>> from directgp import Marginals
    >>> from directgp.likelihoods import Gaussian
    >>> q = Marginals(torch.zeros(2), torch.zeros(2))
    >>> PinballLoss(level=0.9)(Gaussian(1.0), torch.tensor([2.2816, 0.2816]), q).detach()
    tensor([0.9000, 0.1000])
    """

    level: float = 0.5

    name = "pinball_loss"
    unit_power = 1
    _capability = ClosedFormQuantiles
    _needs = "a likelihood with closed-form predictive quantiles"

    def __post_init__(self) -> None:
        allowed = "strictly between 0 and 1"
        require(0 < self.level < 1, "level of PinballLoss", allowed, self.level)

    @override
    def check(self, likelihood: Likelihood) -> None:
        super().check(likelihood)
        if likelihood.task == "classification":
            raise UnsupportedError(
                f"PinballLoss needs quantiles that are smooth in f, and those of classes are "
                f"steps. Got {type(likelihood).__name__}. {self._remedy}"
            )

    @override
    def uses_variance(self, likelihood: Likelihood) -> bool:
        return self.level != 0.5

    @override
    def _evaluate(self, likelihood: Any, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        level = torch.full_like(y, self.level)
        return self._cost(y - likelihood.predictive_quantile(level, mean, variance))

    def _cost(self, residual: Tensor) -> Tensor:
        return torch.maximum(self.level * residual, (self.level - 1) * residual)

    @override
    def forecast(self, likelihood: Likelihood, marginals: Marginals) -> Points:
        return spread_quantiles(likelihood, marginals, self.level)

    @override
    def of_mixture(
        self, losses: Tensor, forecasts: Tensor | None, weights: Tensor, y: Tensor
    ) -> Tensor:
        """Return ρ_τ(y − ŷ) with ŷ the τ-quantile of the mixture."""
        return self._cost(y - quantile_of(cast(Tensor, forecasts), weights, self.level))


@final
@dataclass(frozen=True)
class CRPSLoss(DeterministicLoss):
    """∫ (F(t) − 1{y ≤ t})² dt with F the predictive distribution function, in the units of y.

    For a Gaussian it is s(z(2Φ(z) − 1) + 2φ(z) − 1/√π) with s = √(v + σ²), z = (y − μ)/s. It grows
    linearly with the distance of y, the log loss as its square (Gneiting and Raftery, 2007).

    Examples
    --------
    >>> import torch
    >>> from directgp import Marginals
    >>> from directgp.likelihoods import Gaussian
    >>> q = Marginals(torch.zeros(2), torch.full((2,), 0.5))
    >>> CRPSLoss()(Gaussian(0.5), torch.tensor([0.0, 100.0]), q).detach()
    tensor([ 0.2337, 99.4358])
    """

    name = "crps"
    unit_power = 1
    _knows_limits = True
    _capability = ClosedFormCRPS
    _needs = "a likelihood with a closed-form CRPS"

    @override
    def _evaluate(self, likelihood: Any, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        loss: Tensor = likelihood.predictive_crps(y, mean, variance)
        return loss

    @override
    def forecast(self, likelihood: Likelihood, marginals: Marginals) -> Points:
        return spread_quantiles(likelihood, marginals)

    @override
    def of_mixture(
        self, losses: Tensor, forecasts: Tensor | None, weights: Tensor, y: Tensor
    ) -> Tensor:
        """Return Σ_k w_k·CRPS_k less what the members' disagreement takes away.

        CRPS(F) = E|Y − y| − ½E|Y − Y'|, so that the CRPS of a mixture is lower than the mean of its
        members' by ½E|Y − Y'| − Σ_k w_k ½E|Y_k − Y_k'|, the difference of the spreads.
        """
        points = cast(Tensor, forecasts)
        one = weights.new_ones(1)
        each = torch.stack([half_distance(member[None], one) for member in points])
        return weights @ (losses + each) - half_distance(points, weights)


@final
@dataclass(frozen=True)
class ZeroOneCost(DeterministicLoss):
    """c_y·E_q[p(1−y given f)], the expected cost when the label is drawn from the predictive.

    It is linear in the predictive probability, so that training drives probabilities to 0 or 1,
    towards the cheaper label: they are decisions, not calibrated probabilities.

    Parameters
    ----------
    false_positive : float
        c_0 > 0, the cost of predicting 1 where y = 0.
    false_negative : float
        c_1 > 0, the cost of predicting 0 where y = 1.

    Examples
    --------
    >>> import torch
    >>> from directgp import Marginals
    >>> from directgp.likelihoods import Probit
    >>> q = Marginals(torch.zeros(2), torch.ones(2))
    >>> ZeroOneCost(false_negative=10.0)(Probit(), torch.tensor([0.0, 1.0]), q)
    tensor([0.5000, 5.0000])
    """

    false_positive: float = 1.0
    false_negative: float = 1.0

    name = "zero_one_cost"
    _capability = Binary
    _needs = "a likelihood of two labels"
    _remedy = "Use Probit or Logistic; for real targets or counts, square_loss or log_loss."

    def __post_init__(self) -> None:
        for key in ("false_positive", "false_negative"):
            cost = getattr(self, key)
            require(0 < cost < math.inf, f"{key} of ZeroOneCost", "positive and finite", cost)

    @property
    @override
    def threshold(self) -> float:
        """c_0/(c_0 + c_1): predict 1 where P(y = 1) exceeds it.

        With p = P(y = 1), predicting 1 costs c_0(1 − p) on average and predicting 0 costs c_1·p.
        The first is less where p > c_0/(c_0 + c_1). This needs a calibrated p, as after log-loss
        DLM.
        """
        return 1 / (1 + self.false_negative / self.false_positive)

    @override
    def fixed_work(self, likelihood: Likelihood) -> bool:
        return resolve_rule("auto", likelihood).fixed_work(likelihood)

    @override
    def _evaluate(self, likelihood: Any, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        wrong: Tensor = likelihood.complement(y)
        log_chance = resolve_rule("auto", likelihood)(likelihood, wrong, mean, variance)
        cost = self.false_negative * y + self.false_positive * wrong
        return cost * torch.exp(log_chance)

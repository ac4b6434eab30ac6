"""Biased Monte Carlo (bMC) and its smoothed form."""

import math
from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from typing_extensions import override

from directgp.errors import UnsupportedError, require
from directgp.integration.contract import Estimate, FlatExamples, IntegrationMethod
from directgp.integration.evaluate import (
    Rows,
    average_slopes,
    evaluate,
    per_latent,
    without_overflow,
)
from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.rule import (
    Context,
    Rule,
    Schedule,
    at_step,
    check_num_samples,
)
from directgp.numerics.autograd import Slopes
from directgp.numerics.random import standard_normal
from directgp.shapes import LatentPoints, Values


@final
@dataclass(frozen=True)
class BiasedMonteCarlo(Rule):
    """Log of the mean likelihood of samples from q, log(ν + (1/L) Σ p(y given f_l)).

    With ν = 0 this is bMC, whose expectation lies between the ELBO's term (L = 1) and
    log E_q[p] (L → ∞) and whose bias falls as 1/L; with ν > 0 it is smooth-bMC.

    Parameters
    ----------
    num_samples : int or callable
        L, or a function of the training step.
    nu : float or callable
        ν ≥ 0, added to the mean of the L likelihoods, or a function of the training step.
    gradient : {"pathwise", "second_derivative"}
        How the sample depends on v: through f = μ + √v·ε, or by ∂_v E_q[p] = ½E_q[p″] as in the
        paper's analysis.
    """

    num_samples: Schedule = 10
    nu: Schedule = 0.0
    gradient: Literal["pathwise", "second_derivative"] = "pathwise"

    deterministic = False
    unbiased_gradient = False

    def __post_init__(self) -> None:
        """Raise `InvalidInputError` for settings out of range."""
        if not callable(self.num_samples):
            check_num_samples(self.num_samples)
        if not callable(self.nu):
            _check_nu(self.nu)
        forms = ("pathwise", "second_derivative")
        require(self.gradient in forms, "gradient", f"one of {forms}", repr(self.gradient))

    @property
    @override
    def smooth(self) -> bool:
        return not (callable(self.num_samples) or callable(self.nu))

    @override
    def check(self, likelihood: Likelihood) -> None:
        if not likelihood.integration.smooth:
            raise UnsupportedError(
                f"Monte Carlo rules need a likelihood with a derivative in f. Got "
                f"{type(likelihood).__name__}. Use Quadrature()."
            )

    @override
    def fixed_work(self, likelihood: Likelihood) -> bool:
        constants = (*likelihood.parameters(), *likelihood.buffers())
        return self.smooth and all(constant.numel() == 1 for constant in constants)

    @override
    def with_num_samples(self, num_samples: int) -> "BiasedMonteCarlo":
        return replace(self, num_samples=num_samples)

    @override
    def _evaluate(self, likelihood: Likelihood, rows: Rows, context: Context) -> Values:
        self.check(likelihood)
        num_samples = check_num_samples(at_step(self.num_samples, context.step))
        nu = _check_nu(at_step(self.nu, context.step))

        def estimator(examples: FlatExamples) -> Estimate:
            eps = standard_normal(num_samples, examples.mean, context.generator)
            estimate = self._estimate(examples, eps)
            if nu == 0:
                return estimate
            # log(ν + e^value), whose slopes are scaled by the share of e^value.
            log_nu = torch.full_like(estimate.value, math.log(nu))
            share = torch.sigmoid(estimate.value - log_nu)
            return estimate.transformed(torch.logaddexp(estimate.value, log_nu), share)

        return evaluate(IntegrationMethod(num_samples, estimator), likelihood, rows)

    def _estimate(self, examples: FlatExamples, eps: LatentPoints) -> Estimate:
        """Return log-mean-exp of ℓ(μ + √v·ε), and slopes weighted by the samples' likelihoods."""
        likelihood, y, mean, variance = examples
        deviation = torch.sqrt(variance)
        f = torch.addcmul(mean, deviation, eps)
        value, first, second = likelihood.derivatives(y, f)
        top = value.amax(0)
        weights = value.sub_(top).exp_()
        total = weights.sum(0)
        share = per_latent(weights, first)
        first, second = without_overflow(share, first, second)
        pull = share * first
        mean_slope = pull.sum(0).div_(total)
        if self.gradient == "pathwise":
            variance_slope = pull.mul_(eps).sum(0).div_(deviation.mul_(2).mul_(total))
        else:
            variance_slope = (share * second).addcmul_(pull, first).sum(0).div_(2 * total)
        parameters: Slopes = ()
        if likelihood.learned():
            parameters = average_slopes(likelihood, y, f, weights / total)
        log_mean = (total / len(eps)).log_().add_(top)
        return Estimate(log_mean + likelihood.log_base(y), mean_slope, variance_slope, parameters)


def _check_nu(nu: int | float) -> int | float:
    require(0 <= nu < math.inf, "nu", "finite and at least 0", nu)
    return nu

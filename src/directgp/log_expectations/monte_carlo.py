"""Biased Monte Carlo (bMC) and its smoothed form."""

import math
from dataclasses import dataclass
from typing import Literal, final

import torch
from typing_extensions import override

from directgp.errors import require
from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.attach import attach_parameters, attach_slopes
from directgp.log_expectations.base import Moment, Rule, Schedule, Values, at_step, check_num_samples
from directgp.numerics.noise import standard_normal


@final
@dataclass(frozen=True)
class BiasedMonteCarlo(Rule):
    """log of the mean likelihood of samples from q, log(ν + (1/L) Σ p(y given f_l)).

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
        """Refuse what cannot be meant."""
        if not callable(self.num_samples):
            check_num_samples(self.num_samples)
        if not callable(self.nu):
            _check_nu(self.nu)
        forms = ("pathwise", "second_derivative")
        require(self.gradient in forms, "gradient", f"one of {forms}", repr(self.gradient))

    @override
    def _evaluate(
        self, likelihood: Likelihood, y: Values, mean: Values, variance: Values, moment: Moment
    ) -> Values:
        num_samples = check_num_samples(at_step(self.num_samples, moment.step))
        nu = _check_nu(at_step(self.nu, moment.step))
        with torch.no_grad():
            eps = standard_normal(num_samples, mean, moment.generator)
            deviation = torch.sqrt(variance)
            f = torch.addcmul(mean, deviation, eps)
            value, first, second = likelihood.derivatives(y, f)
            top = value.amax(0)
            weights = torch.exp(value - top)
            total = weights.sum(0)
            log_mean = top + torch.log(total) - math.log(num_samples) + likelihood.log_base(y)
            weights = weights / total
            mean_slope = (weights * first).sum(0)
            if self.gradient == "pathwise":
                variance_slope = (weights * first * eps).sum(0) / (2 * deviation)
            else:
                variance_slope = 0.5 * (weights * (second + first**2)).sum(0)
            if nu > 0:
                log_nu = math.log(nu)
                kept = torch.sigmoid(log_mean - log_nu)
                log_mean = torch.logaddexp(log_mean, torch.full_like(log_mean, log_nu))
                mean_slope, variance_slope = kept * mean_slope, kept * variance_slope
                weights = kept * weights
        estimate = attach_slopes(log_mean, mean, variance, mean_slope, variance_slope)
        return attach_parameters(estimate, likelihood, y, f, weights)


def check_num_samples(num_samples: float) -> int:
    require(num_samples >= 1, "num_samples", "at least 1", num_samples)
    return int(num_samples)


def _check_nu(nu: int | float) -> int | float:
    require(0 <= nu < math.inf, "nu", "finite and at least 0", nu)
    return nu

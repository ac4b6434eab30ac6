"""Poisson counts: p(y given f) = e^{−λ} λ^y / y!, with λ = e^f or λ = log(1 + e^f)."""

import math
from typing import Literal, final, overload

import torch
from scipy.special import gammaincc
from torch.nn.functional import softplus
from typing_extensions import override

from directgp.errors import require
from directgp.likelihoods.base import Derivatives
from directgp.likelihoods.counts import CountLikelihood, on_cpu
from directgp.numerics.autograd import in_float64
from directgp.numerics.special import (
    log_softplus,
    log_softplus_derivatives,
    softplus_inverse,
    wright_omega,
)
from directgp.shapes import Values


class PoissonCounts(CountLikelihood):
    """What the two links share."""

    @override
    def log_base(self, y: Values) -> Values:
        return -torch.lgamma(y + 1)

    @override
    def conditional_variance(self, f: Values) -> Values:
        return self.conditional_mean(f)

    @override
    def cdf(self, y: Values, f: Values) -> Values:
        return on_cpu(gammaincc, y + 1, self.conditional_mean(f))

    @override
    def log_arrival(self, y: Values, delta: Values) -> Derivatives:
        events = y + 1
        growth = torch.expm1(delta)
        return Derivatives(-events * _exp_excess(delta), -events * growth, -events * (1 + growth))


def _exp_excess(x: Values) -> Values:
    """e^x − 1 − x, by series where the difference cancels."""
    series = 0.5 * x**2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6))))
    return torch.where(x.abs() < 0.01, series, torch.expm1(x) - x)


@final
class PoissonExp(PoissonCounts):
    """Poisson counts with λ = e^f."""

    # exp(−e^f) decays to the right only while cos(Im f) > 0.
    strip = 0.5 * math.pi

    @override
    def log_kernel(self, y: Values, f: Values) -> Values:
        log_rate = self._log_rate(f)
        return y * log_rate - torch.exp(log_rate)

    @override
    def derivatives(self, y: Values, f: Values) -> Derivatives:
        log_rate = self._log_rate(f)
        rate = torch.exp(log_rate)
        return Derivatives((y * log_rate).sub_(rate), y - rate, rate.neg_())

    @override
    def conditional_mean(self, f: Values) -> Values:
        return torch.exp(self._log_rate(f))

    @override
    def argmax(self, y: Values) -> Values:
        return torch.log(self._per_exposure(y))

    @override
    def log_rate_slope(self, f: Values) -> Values:
        return self._log_rate(f)

    def product_mode(self, y: Values, mean: Values, variance: Values) -> Values:
        """δ = vy − ω(log v + μ + log e + vy), where ω + log ω = x (Wright's function)."""
        pull = variance * y
        return pull - wright_omega(torch.log(variance) + self._log_rate(mean) + pull)

    def expected_log_prob(self, y: Values, mean: Values, variance: Values) -> Values:
        """y(μ + log e) − e·exp(μ + v/2) − log y!."""
        return in_float64(self._gibbs, self._gibbs_and_slopes, y, mean, variance)

    def _gibbs(self, y: Values, mean: Values, variance: Values) -> Values:
        log_rate = self._log_rate(mean)
        return y * log_rate - torch.exp(log_rate + 0.5 * variance) + self.log_base(y)

    def _gibbs_and_slopes(
        self, y: Values, mean: Values, variance: Values
    ) -> tuple[Values, Values, Values]:
        """The same, y − λ̄ and −λ̄/2 with λ̄ = e·exp(μ + v/2)."""
        log_rate = self._log_rate(mean)
        rate = torch.add(log_rate, variance, alpha=0.5).exp_()
        value = (torch.lgamma(y + 1) + rate).neg_().addcmul_(y, log_rate)
        return value, y - rate, rate.mul_(-0.5)

    def predictive_mean(self, mean: Values, variance: Values) -> Values:
        """e·exp(μ + v/2)."""
        return torch.exp(self._log_rate(mean) + 0.5 * variance)

    def predictive_variance(self, mean: Values, variance: Values) -> Values:
        """E y + (e^v − 1)(E y)²."""
        expected = self.predictive_mean(mean, variance)
        return expected + torch.expm1(variance) * expected**2


@final
class PoissonSoftplus(PoissonCounts):
    """Poisson counts with λ = log(1 + e^f)."""

    # With a large exposure the peak lies where λ = e^f, as with the other link.
    strip = 0.5 * math.pi

    @override
    def log_kernel(self, y: Values, f: Values) -> Values:
        log_rate = self._log_rate(log_softplus(f))
        return y * log_rate - torch.exp(log_rate)

    @override
    def derivatives(self, y: Values, f: Values) -> Derivatives:
        log_s, rho, rho_slope = log_softplus_derivatives(f)
        log_rate = self._log_rate(log_s)
        rate = torch.exp(log_rate)
        first = (y - rate) * rho
        return Derivatives(
            y * log_rate - rate, first, y * rho_slope - rate * rho * torch.sigmoid(-f)
        )

    @override
    def conditional_mean(self, f: Values) -> Values:
        return torch.exp(self._log_rate(log_softplus(f)))

    @override
    def argmax(self, y: Values) -> Values:
        return softplus_inverse(self._per_exposure(y))

    @override
    def log_rate_slope(self, f: Values) -> Values:
        return self._log_rate(-softplus(-f))


@overload
def Poisson(link: Literal["exp"] = "exp") -> PoissonExp: ...
@overload
def Poisson(link: Literal["softplus"]) -> PoissonSoftplus: ...
def Poisson(link: Literal["exp", "softplus"] = "exp") -> PoissonCounts:
    """Counts with rate λ(f), times an optional exposure: the class that fits the link.

    Parameters
    ----------
    link : {"exp", "softplus"}
        λ = e^f, or λ = log(1 + e^f).

    Examples
    --------
    >>> import torch
    >>> Poisson(link="exp").log_prob(torch.tensor([3.0]), torch.tensor([1.0]))
    tensor([-1.5100])
    """
    require(link in _LINKS, "link of Poisson", "'exp' or 'softplus'", repr(link))
    return _LINKS[link]()


_LINKS: dict[str, type[PoissonExp] | type[PoissonSoftplus]] = {
    "exp": PoissonExp,
    "softplus": PoissonSoftplus,
}

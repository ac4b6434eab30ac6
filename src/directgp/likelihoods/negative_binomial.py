"""Over-dispersed counts: negative binomial with mean λ = e^f and variance λ + λ²/r."""

import math
from typing import final

import torch
from scipy.special import betainc
from torch import Tensor
from torch.nn.functional import logsigmoid
from typing_extensions import override

from directgp.likelihoods.base import Derivatives, positive, unconstrained
from directgp.likelihoods.counts import CountLikelihood, on_cpu
from directgp.numerics.special import softplus
from directgp.shapes import Values


@final
class NegativeBinomial(CountLikelihood):
    """p(y given f) = Γ(y+r)/(y! Γ(r)) · (r/(r+λ))^r (λ/(r+λ))^y with λ = e^f.

    Parameters
    ----------
    dispersion : float or tensor
        r > 0 to start from; Poisson is the limit r → ∞.

    Examples
    --------
    >>> import torch
    >>> likelihood = NegativeBinomial(dispersion=2.0)
    >>> likelihood.conditional_variance(torch.tensor([0.0], dtype=torch.float64)).item()
    1.5
    """

    # For λ well above r the kernel is exp(−y·r·e^{−f}) to leading order, as in the Poisson case.
    strip = 0.5 * math.pi

    def __init__(self, dispersion: float | Tensor = 1.0) -> None:
        super().__init__()
        self.raw_dispersion = unconstrained(dispersion, "dispersion of NegativeBinomial")

    @property
    def dispersion(self) -> Tensor:
        """The dispersion r."""
        return self._per_example(positive(self.raw_dispersion))

    @override
    def log_kernel(self, y: Values, f: Values) -> Values:
        z = self._log_odds(f)
        return y * logsigmoid(z) - self.dispersion * softplus(z)

    @override
    def log_base(self, y: Values) -> Values:
        r = self.dispersion
        return torch.lgamma(y + r) - torch.lgamma(r) - torch.lgamma(y + 1)

    @override
    def derivatives(self, y: Values, f: Values) -> Derivatives:
        z, r = self._log_odds(f), self.dispersion
        success, failure = torch.sigmoid(z), torch.sigmoid(-z)
        value = y * logsigmoid(z) - r * softplus(z)
        return Derivatives(value, y * failure - r * success, -(y + r) * success * failure)

    @override
    def conditional_mean(self, f: Values) -> Values:
        return torch.exp(self._log_rate(f))

    @override
    def conditional_variance(self, f: Values) -> Values:
        rate = self.conditional_mean(f)
        return rate + rate**2 / self.dispersion

    @override
    def argmax(self, y: Values) -> Values:
        return torch.log(self._per_exposure(y))

    def predictive_mean(self, mean: Values, variance: Values) -> Values:
        """e·exp(μ + v/2)."""
        return torch.exp(self._log_rate(mean) + 0.5 * variance)

    def predictive_variance(self, mean: Values, variance: Values) -> Values:
        """E y + (e^v/r + e^v − 1)(E y)²."""
        expected = self.predictive_mean(mean, variance)
        factor = torch.exp(variance) / self.dispersion + torch.expm1(variance)
        return expected + factor * expected**2

    @override
    def cdf(self, y: Values, f: Values) -> Values:
        # I(r, y+1; 1−p) = 1 − I(y+1, r; p): the smaller of p = λ/(r+λ) and 1 − p has its digits.
        z, r, events = self._log_odds(f), self.dispersion, y + 1
        rare = z < 0
        first, second = torch.where(rare, events, r), torch.where(rare, r, events)
        value = on_cpu(betainc, first, second, torch.sigmoid(-z.abs()))
        return torch.where(rare, 1 - value, value)

    @override
    def log_arrival(self, y: Values, delta: Values) -> Derivatives:
        # With a = y + 1, m = min(a, r) and x = δ, or −δ where a < r, the log density is
        # −m·x − (a + r) log(1 + m/(a + r)·(e^−x − 1)), without cancellation for large a or r.
        events, r = y + 1, self.dispersion
        total, smaller = events + r, torch.minimum(events, r)
        x = torch.where(events < r, -delta, delta)
        value = -smaller * x - total * torch.log1p(smaller / total * torch.expm1(-x))
        z = torch.log(events / r) + delta
        success, failure = torch.sigmoid(z), torch.sigmoid(-z)
        return Derivatives(value, events * failure - r * success, -total * success * failure)

    @override
    def log_rate_slope(self, f: Values) -> Values:
        return self._log_rate(f)

    def _log_odds(self, f: Values) -> Values:
        """log(λ/r)."""
        return self._log_rate(f) - torch.log(self.dispersion)

"""Likelihoods of counts with exposure: Poisson and negative binomial."""

import math
from abc import abstractmethod
from dataclasses import replace
from functools import lru_cache
from typing import Literal, TypeVar, final, overload

import numpy as np
import torch
from jaxtyping import Float, Int, Num
from scipy.special import betainc, gammaincc
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from directgp.errors import refuse, require_all
from directgp.integration.contract import Derivatives, Integrator
from directgp.integration.trapezoid import TrapezoidSums
from directgp.likelihoods.base import UnimodalInF, by_scipy, unconstrained
from directgp.likelihoods.capabilities import ParameterText
from directgp.likelihoods.numeric import Draws
from directgp.likelihoods.rows import RowConstants
from directgp.numerics.arrays import array_of
from directgp.numerics.autograd import Slopes, in_float64
from directgp.numerics.fixed_sizes import fixed_sizes
from directgp.numerics.special import (
    log_softplus,
    sigmoids,
    softplus,
    softplus_derivatives,
    softplus_inverse,
    wright_omega,
)
from directgp.registry import MAX_COUNT
from directgp.shapes import Row, Targets, Values

SomeCount = TypeVar("SomeCount", bound="CountLikelihood")


# exp(−e^f) decays to the right only while cos(Im f) > 0. The other links and the negative binomial
# have such an edge too: at large exposures, and where λ is well above r. The logs have no edge:
# their nearest singularities are those of log(1 + e^f), at ±iπ, where the slopes have poles.
_COUNT_SUMS = TrapezoidSums(strip=0.5 * math.pi, log_strip=0.85 * math.pi, fixed_work=True)


class CountLikelihood(UnimodalInF):
    """y ∈ {0, 1, 2, …} with mean e·λ(f); the exposure e is 1 unless given per example."""

    task = "count"
    rows = RowConstants("exposure", buffer="log_exposure", stored=torch.log)
    log_exposure: Tensor | None

    @property
    @override
    def integration(self) -> Integrator:
        return _COUNT_SUMS

    def with_exposure(self: SomeCount, exposure: Num[Tensor, "..."]) -> SomeCount:
        """Return this likelihood for exposures of shape (..., n), sharing its parameters."""
        return self.with_row_values(exposure)

    @override
    def check_targets(self, y: Targets) -> None:
        check_counts(y, type(self).__name__)

    def rough_latent(self, y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """log((y + ½)/e)."""
        counts = torch.log(y + 0.5)
        return counts if self.log_exposure is None else counts - self.log_exposure.to(y)

    def draw(self, f: Draws, mean: Draws, random: np.random.RandomState) -> Draws:
        """Return draws of y given f, with numpy."""
        drawn = random.poisson(np.minimum(mean, _LARGEST_RATE)).astype(np.float64)
        return np.asarray(np.where(mean > _LARGEST_RATE, np.floor(mean), drawn))

    @abstractmethod
    def log_mean(self, f: Values) -> Values:
        """Return log e + log λ(f), the log of `conditional_mean`."""

    @override
    def conditional_mean(self, f: Values) -> Values:
        return torch.exp(self.log_mean(f))

    @abstractmethod
    def cdf(self, y: Values, f: Values) -> Values:
        """Return P(Y ≤ y given f) for a count y; not differentiable."""

    def doubt(self, y: Values, f: Values) -> tuple[Values, Values]:
        """Return the log of the mean count ≥ 1 − p where y = 0, and its slope in f."""
        return torch.where(y == 0, self.log_mean(f), 0.0), torch.ones_like(f)

    def _per_exposure(self, y: Values) -> Values:
        """Return y / e."""
        if self.log_exposure is None:
            return y
        return y * torch.exp(-self._view.of(self.log_exposure))

    def _plus_log_exposure(self, log_rate: Values) -> Values:
        """Return log λ + log e, given log λ."""
        if self.log_exposure is None:
            return log_rate
        return log_rate + self._view.of(self.log_exposure)


_SMALLEST_DISPERSION = 1e-6
_LARGEST_LOG_RATE = 709.0
"""e^710 is beyond float64."""

_LARGEST_RATE = 1e18
"""numpy draws no Poisson variable beyond 9e18, where its spread is below rounding anyway."""


def check_counts(y: Targets, who: str) -> None:
    """Raise `InvalidInputError` for targets that are no counts."""
    counts = torch.isfinite(y) & (y >= 0) & (y == torch.floor(y))
    require_all(counts, y, f"y of {who}", "a count, 0, 1, 2, …")
    require_all(y.double() <= MAX_COUNT, y, f"y of {who}", f"at most {MAX_COUNT:,}")


_SMALL_COUNTS = 1024
"""Counts below have tables: `lgamma` is slow on a CPU."""


def _small_counts(y: Values) -> Int[Tensor, "..."] | None:
    """Return the counts as indices of a table, or None where they have none."""
    if torch._C._are_functorch_transforms_active() or y.numel() == 0:
        return None
    array = array_of(y)
    if isinstance(array, Tensor) or not (array.min() >= 0 and array.max() < _SMALL_COUNTS):
        return None
    index = array.astype(np.int64)
    return torch.from_numpy(index) if (index == array).all() else None


@lru_cache(maxsize=1)
def _minus_log_factorials() -> Float[Tensor, " _"]:
    """−log k! for small counts k; not to be written to."""
    return -torch.lgamma(torch.arange(1, _SMALL_COUNTS + 1, dtype=torch.float64))


def log_factorial(y: Values) -> Values:
    """Return log y!; from a table for small counts on a CPU."""
    index = _small_counts(y)
    if index is None:
        return torch.lgamma(y + 1)
    return _minus_log_factorials().take(index).to(y.dtype).neg_()


class ExponentialRate(CountLikelihood):
    """Base of count likelihoods with λ = e^f."""

    @override
    def log_mean(self, f: Values) -> Values:
        return self._plus_log_exposure(f)

    @override
    def argmax(self, y: Values) -> Values:
        return torch.log(self._per_exposure(y))

    def log_rate_slope(self, f: Values) -> Values:
        """Return the log of the derivative of the mean count in f."""
        return self.log_mean(f)

    def predictive_mean(self, mean: Values, variance: Values) -> Values:
        """e·exp(μ + v/2)."""
        return torch.exp(self.log_mean(mean) + 0.5 * variance)

    def predictive_mean_slopes(self, mean: Values, variance: Values) -> Slopes:
        """ŷ = e·exp(μ + v/2), ŷ and ŷ/2."""
        expected = self.predictive_mean(mean, variance)
        return expected, expected, 0.5 * expected


class PoissonCounts(CountLikelihood):
    """Base of the Poisson likelihoods with either link."""

    @override
    def log_kernel(self, y: Values, f: Values) -> Values:
        log_mean = self.log_mean(f)
        return y * log_mean - torch.exp(log_mean)

    @override
    def log_base(self, y: Values) -> Values:
        return -log_factorial(y)

    @override
    def conditional_variance(self, f: Values) -> Values:
        return self.conditional_mean(f)

    @override
    def cdf(self, y: Values, f: Values) -> Values:
        return by_scipy(gammaincc, y + 1, self.conditional_mean(f))

    def log_arrival(self, y: Values, delta: Values) -> Derivatives:
        """Return the log density of the arrival, as `Arrivals` says."""
        events = y + 1
        growth = torch.expm1(delta)
        x = delta
        # e^x − 1 − x, by series where the difference cancels.
        series = 0.5 * x**2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6))))
        excess = torch.where(x.abs() < 0.01, series, growth - x)
        return Derivatives(-events * excess, -events * growth, -events * (1 + growth))


@final
class PoissonExp(ExponentialRate, PoissonCounts):
    """Poisson counts with λ = e^f."""

    @override
    def derivatives(self, y: Values, f: Values) -> Derivatives:
        log_mean = self.log_mean(f)
        # p is 0 there, and its slopes 0·∞ if the rate were infinite.
        rate = torch.exp(log_mean.clamp(max=_LARGEST_LOG_RATE))
        return Derivatives((y * log_mean).sub_(rate), y - rate, rate.neg_())

    def product_mode(self, y: Values, mean: Values, variance: Values) -> Values:
        """δ = vy − ω(log v + μ + log e + vy), where ω + log ω = x (Wright's function)."""
        pull = variance * y
        start = torch.log(variance).add_(self.log_mean(mean)).add_(pull)
        return pull.sub_(wright_omega(start, refinements=1))

    def expected_log_prob(self, y: Values, mean: Values, variance: Values) -> Values:
        """y(μ + log e) − e·exp(μ + v/2) − log y!."""
        return in_float64(self._gibbs, self.expected_log_prob_slopes, y, mean, variance)

    def _gibbs(self, y: Values, mean: Values, variance: Values) -> Values:
        log_mean = self.log_mean(mean)
        return y * log_mean - torch.exp(log_mean + 0.5 * variance) + self.log_base(y)

    def expected_log_prob_slopes(self, y: Values, mean: Values, variance: Values) -> Slopes:
        """`expected_log_prob`, y − λ̄ and −λ̄/2 with λ̄ = e·exp(μ + v/2)."""
        log_mean = self.log_mean(mean)
        rate = torch.add(log_mean, variance, alpha=0.5).exp_()
        value = (self.log_base(y) - rate).addcmul_(y, log_mean)
        return value, y - rate, rate.mul_(-0.5)

    def predictive_variance(self, mean: Values, variance: Values) -> Values:
        """E y + (e^v − 1)(E y)²."""
        expected = self.predictive_mean(mean, variance)
        return expected + torch.expm1(variance) * expected**2


@final
class PoissonSoftplus(PoissonCounts):
    """Poisson counts with λ = log(1 + e^f)."""

    @override
    def log_mean(self, f: Values) -> Values:
        return self._plus_log_exposure(log_softplus(f))

    @override
    def derivatives(self, y: Values, f: Values) -> Derivatives:
        rate, failure, log_s, rho, rho_slope = softplus_derivatives(f)
        if self.log_exposure is not None:
            rate = rate * torch.exp(self._view.of(self.log_exposure))
        value = (y * self._plus_log_exposure(log_s)).sub_(rate)
        second = (y * rho_slope).sub_(failure.mul_(rate).mul_(rho))
        return Derivatives(value, torch.sub(y, rate).mul_(rho), second)

    @override
    def argmax(self, y: Values) -> Values:
        return softplus_inverse(self._per_exposure(y))

    @property
    @override
    def integration(self) -> TrapezoidSums:
        # With a large exposure p bends where e·log(1 + e^f) is about 1, too. A recorded step must
        # not wait for this number, and its nodes are not dense anyway.
        exposure = self.log_exposure
        bends_at_zero = fixed_sizes.get() is None
        bends_at_zero = bends_at_zero and (exposure is None or bool((exposure <= 0).all()))
        return replace(_SOFTPLUS_SUMS, bends_at_zero=bends_at_zero)

    def log_rate_slope(self, f: Values) -> Values:
        """Return the log of the derivative of the mean count in f."""
        return self._plus_log_exposure(-functional.softplus(-f))


def _widened(likelihood: PoissonSoftplus, strip: float, lower: Values) -> Values:
    """Return the half-width of a strip where Re f is at least `lower`.

    The singularities of log(1 + e^f) have Re f = 0, and far from them it is f + e^−f. With the
    narrow strip large counts, whose peaks are wide, would need hundreds of nodes.
    """
    if likelihood.log_exposure is not None:
        lower = lower - likelihood._view.of(likelihood.log_exposure).clamp(min=0.0)
    return (0.5 * lower).clamp(min=strip)


_SOFTPLUS_SUMS = replace(_COUNT_SUMS, widened=_widened)


@overload
def Poisson(link: Literal["exp"] = "exp") -> PoissonExp: ...
@overload
def Poisson(link: Literal["softplus"]) -> PoissonSoftplus: ...
def Poisson(link: Literal["exp", "softplus"] = "exp") -> PoissonCounts:
    """Return the likelihood of counts with rate λ(f), times an optional exposure.

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
    if link not in ("exp", "softplus"):
        refuse("link of Poisson", "'exp' or 'softplus'", repr(link))
    return PoissonExp() if link == "exp" else PoissonSoftplus()


@final
class NegativeBinomial(ExponentialRate):
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

    parameter_texts = (
        ParameterText(
            "raw_dispersion",
            "The dispersion of the counts",
            "A few counts are far larger than the others; look at them.",
        ),
    )

    def __init__(self, dispersion: float | Tensor = 1.0) -> None:
        super().__init__()
        self.raw_dispersion = unconstrained(dispersion, "dispersion of NegativeBinomial")

    @property
    def dispersion(self) -> Tensor:
        """The dispersion r."""
        return self._positive(self.raw_dispersion)

    @classmethod
    def from_targets(
        cls, y: Float[Tensor, " n"], unit: float = 1.0, offset: float = 0.0
    ) -> "NegativeBinomial":
        """r by moments, variance = mean + mean²/r, as if the rate were constant."""
        mean = float(y.mean())
        variance = float(y.var(correction=0))
        excess = max(variance - mean, 1e-2 * mean, 1e-6)
        return cls(min(max(mean**2 / excess, 0.1), 100.0))

    def floors(self, deviation: float) -> dict[str, float]:
        """Return the smallest allowed value of positive parameters, by name."""
        return {"raw_dispersion": _SMALLEST_DISPERSION}

    def description(self, unit: float) -> dict[str, float]:
        """Return the parameters to print in `summary()`."""
        return {"dispersion": float(self.dispersion)}

    def draw(self, f: Draws, mean: Draws, random: np.random.RandomState) -> Draws:
        """Return draws of y given f, with numpy."""
        r = self.dispersion.double().cpu().numpy()
        return super().draw(f, mean * random.gamma(r, 1 / r, f.shape), random)

    @override
    def log_kernel(self, y: Values, f: Values) -> Values:
        z, r = self._log_odds(f)
        return y * functional.logsigmoid(z) - r * softplus(z)

    @override
    def log_base(self, y: Values) -> Values:
        r = self.dispersion
        index = _small_counts(y)
        if index is None or r.numel() > 1:
            return torch.lgamma(y + r) - torch.lgamma(r) - torch.lgamma(y + 1)
        # Γ(y+r)/Γ(r) = r(r+1)…(r+y−1).
        number = torch.arange(int(index.max()), dtype=r.dtype, device=r.device)
        rising = functional.pad(torch.log(r + number).cumsum(0), (1, 0))
        return (rising + _minus_log_factorials()[: len(rising)]).take(index)

    @override
    def derivatives(self, y: Values, f: Values) -> Derivatives:
        z, r = self._log_odds(f)
        success, failure, rest = sigmoids(z)
        total = -(y + r)
        value = (total * rest).addcmul_(y, z.clamp(max=0.0)).addcmul_(r, z.clamp(min=0.0), value=-1)
        first = (y * failure).addcmul_(r, success, value=-1)
        return Derivatives(value, first, success.mul_(failure) * total)

    def has_linear_slopes(self) -> bool:
        """Return whether the slopes are linear in f, ℓ and ℓ′."""
        return self.log_exposure is None or not self.log_exposure.requires_grad

    def slopes_of_averages(self, y: Row, f: Row, value: Row, first: Row) -> Slopes:
        """`parameter_slopes` with log(1 + e^z) = (yz − ℓ)/(y+r) and σ(z) = (y − ℓ′)/(y+r)."""
        z, r = self._log_odds(f)
        total = y + r
        free = torch.digamma(total).sub_(torch.digamma(r))
        return (free.sub_((y * z).sub_(value).div_(total)).sub_(first / r),)

    def parameter_slopes(self, y: Values, f: Values) -> Slopes | None:
        """With z = log(λ/r): ψ(y+r) − ψ(r) − log(1 + e^z) + σ(z) − σ(−z)y/r in r."""
        if not self.has_linear_slopes():
            return None
        z, r = self._log_odds(f)
        free = torch.digamma(y + r) - torch.digamma(r)
        return (free - softplus(z) + torch.sigmoid(z) - torch.sigmoid(-z) * (y / r),)

    @override
    def conditional_variance(self, f: Values) -> Values:
        rate = self.conditional_mean(f)
        return rate + rate**2 / self.dispersion

    def predictive_variance(self, mean: Values, variance: Values) -> Values:
        """E y + (e^v/r + e^v − 1)(E y)²."""
        expected = self.predictive_mean(mean, variance)
        factor = torch.exp(variance) / self.dispersion + torch.expm1(variance)
        return expected + factor * expected**2

    @override
    def cdf(self, y: Values, f: Values) -> Values:
        # I(r, y+1; 1−p) = 1 − I(y+1, r; p): the smaller of p = λ/(r+λ) and 1 − p has its digits.
        z, r = self._log_odds(f)
        events = y + 1
        rare = z < 0
        first = torch.where(rare, events, r)
        second = torch.where(rare, r, events)
        value = by_scipy(betainc, first, second, torch.sigmoid(-z.abs()))
        return torch.where(rare, 1 - value, value)

    def log_arrival(self, y: Values, delta: Values) -> Derivatives:
        """Return the log density of the arrival, as `Arrivals` says."""
        # With a = y + 1, m = min(a, r) and x = δ, or −δ where a < r, the log density is
        # −m·x − (a + r) log(1 + m/(a + r)·(e^−x − 1)), without cancellation for large a or r.
        events = y + 1
        r = self.dispersion
        total = events + r
        smaller = torch.minimum(events, r)
        x = torch.where(events < r, -delta, delta)
        value = -smaller * x - total * torch.log1p(smaller / total * torch.expm1(-x))
        z = torch.log(events / r) + delta
        success = torch.sigmoid(z)
        failure = torch.sigmoid(-z)
        return Derivatives(value, events * failure - r * success, -total * success * failure)

    def _log_odds(self, f: Values) -> tuple[Values, Values]:
        """log(λ/r), and r."""
        r = self.dispersion
        return self.log_mean(f) - torch.log(r), r

"""Counts with more zeros than a family has: with probability π a count is 0, whatever f."""

import math
from abc import abstractmethod
from typing import ClassVar, cast, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.integration.contract import Derivatives, ParameterSlopes, has
from directgp.integration.gaussian_sums import GaussianSums
from directgp.integration.inflated import InflatedIntegrals
from directgp.likelihoods.base import unconstrained
from directgp.likelihoods.capabilities import ParameterText, description
from directgp.likelihoods.counts import CountLikelihood, NegativeBinomial, PoissonExp, SomeCount
from directgp.likelihoods.numeric import Draws
from directgp.likelihoods.starts import parameter_floors
from directgp.numerics.autograd import Slopes
from directgp.shapes import Values

_SMALLEST_ODDS = 1e-6

_CLEAR_EXCESS = 0.02
"""Share of zeros, beyond the expected one and three standard errors, that counts as extra."""


class ZeroInflated(CountLikelihood):
    """p(0) = π + (1−π) p₀(0) and p(y) = (1−π) p₀(y) for y > 0, with p₀ the likelihood `base`.

    The parameter is the odds ω = π/(1−π). Averages over q follow from those of the base:
    E_q[p(0)] = π + (1−π) E_q[p₀(0)], so log E_q[p] is a function of log E_q[p₀], too.
    """

    parameter_texts: ClassVar[tuple[ParameterText, ...]] = (
        ParameterText(
            "raw_zero_odds",
            "The share of extra zeros",
            "The counts have no more zeros than the family without inflation gives; use that.",
        ),
    )

    def __init__(self, zero_odds: float | Tensor) -> None:
        super().__init__()
        who = f"zero_odds of {type(self).__name__}"
        self.raw_zero_odds = unconstrained(zero_odds, who)

    def _as(self, family: type[SomeCount]) -> SomeCount:
        """Return a likelihood of the family that shares all but the odds."""
        twin = object.__new__(family)
        twin.__dict__.update(self.__dict__)
        twin.__dict__["_parameters"] = {
            name: raw for name, raw in self._parameters.items() if name != "raw_zero_odds"
        }
        return twin

    @property
    @abstractmethod
    def base(self) -> PoissonExp | NegativeBinomial:
        """The log-concave likelihood p₀, which shares its constants with this one."""

    @property
    def zero_odds(self) -> Tensor:
        """ω."""
        return self._positive(self.raw_zero_odds)

    @property
    def zero_share(self) -> Tensor:
        """π."""
        odds = self.zero_odds
        return odds / (1 + odds)

    @property
    @override
    def integration(self) -> InflatedIntegrals:
        # log p(0) is singular where e^ℓ₀ = −ω: for ℓ₀ = −e^f at f = log(−log ω ± iπ).
        odds = float(self.raw_zero_odds.detach().exp().log1p().min())
        log_strip = 0.85 * math.atan2(math.pi, max(-math.log(odds), 0.0))
        strip = super().integration.strip
        return InflatedIntegrals(strip=strip, zeros=GaussianSums(log_strip), fixed_work=True)

    def inflate(self, y: Values, value: Values) -> tuple[Values, Values, Values]:
        """Return log p(y) for log p₀(y), and its derivatives in that and in ω.

        log((ω + e^ℓ)/(1 + ω)) for y = 0, else ℓ − log(1 + ω).
        """
        odds = self.zero_odds
        zero = y == 0
        loss = torch.expm1(value.clamp(max=0.0))
        inflated = torch.where(zero, torch.log1p(loss / (1 + odds)), value - torch.log1p(odds))
        weight = torch.where(zero, torch.sigmoid(value - torch.log(odds)), 1.0)
        by_odds = torch.where(zero, -loss / (odds + loss + 1), -1.0) / (1 + odds)
        return inflated, weight, by_odds

    @override
    def log_kernel(self, y: Values, f: Values) -> Values:
        # `log_base` is 0 for y = 0.
        return self.inflate(y, self.base.log_kernel(y, f))[0]

    @override
    def log_base(self, y: Values) -> Values:
        return self.base.log_base(y)

    @override
    def derivatives(self, y: Values, f: Values) -> Derivatives:
        """ℓ, wℓ₀′ and wℓ₀″ + w(1−w)ℓ₀′² with w the derivative of ℓ in ℓ₀."""
        base, first, second = self.base.derivatives(y, f)
        value, weight, _ = self.inflate(y, base)
        # ℓ₀ and its slopes overflow where e^ℓ₀, and so w, is 0.
        none = weight == 0
        first = first.masked_fill(none, 0.0)
        second = second.masked_fill(none, 0.0)
        slope = weight * first
        return Derivatives(value, slope, weight * second + (1 - weight) * slope * first)

    def parameter_slopes(self, y: Values, f: Values) -> Slopes | None:
        """Return the derivatives of log p(y given f) in ω and in the constants of the base."""
        base = self.base
        slopes: Slopes | None = ()
        if base.learned():
            has_slopes = has(base, ParameterSlopes)
            slopes = cast(ParameterSlopes, base).parameter_slopes(y, f) if has_slopes else None
        if slopes is None:
            return None
        _, weight, by_odds = self.inflate(y, base.derivatives(y, f).value)
        return by_odds, *(weight * slope for slope in slopes)

    @override
    def log_mean(self, f: Values) -> Values:
        return self.base.log_mean(f) - torch.log1p(self.zero_odds)

    @override
    def conditional_variance(self, f: Values) -> Values:
        """(1−π)(Var₀ + π·mean₀²)."""
        base = self.base
        share = self.zero_share
        mean = base.conditional_mean(f)
        return (1 - share) * (base.conditional_variance(f) + share * mean**2)

    def predictive_mean(self, mean: Values, variance: Values) -> Values:
        """(1−π) E₀[y]."""
        return self.base.predictive_mean(mean, variance) / (1 + self.zero_odds)

    def predictive_variance(self, mean: Values, variance: Values) -> Values:
        """(1−π)(Var₀[y] + π E₀[y]²)."""
        base = self.base
        share = self.zero_share
        expected = base.predictive_mean(mean, variance)
        return (1 - share) * (base.predictive_variance(mean, variance) + share * expected**2)

    @override
    def cdf(self, y: Values, f: Values) -> Values:
        share = self.zero_share
        return share + (1 - share) * self.base.cdf(y, f)

    @override
    def argmax(self, y: Values) -> Values:
        return self.base.argmax(y)

    @override
    def doubt(self, y: Values, f: Values) -> tuple[Values, Values]:
        return self.base.doubt(y, f)

    def floors(self, deviation: float) -> dict[str, float]:
        """Return the smallest allowed value of positive parameters, by name."""
        return {"raw_zero_odds": _SMALLEST_ODDS, **parameter_floors(self.base, deviation)}

    def description(self, unit: float) -> dict[str, float]:
        """Return the parameters to print in `summary()`."""
        return {"share of extra zeros": float(self.zero_share), **description(self.base, unit)}

    @classmethod
    def suits(cls, y: Float[Tensor, " n"]) -> bool:
        """Return whether y has more zeros than negative binomial counts of these moments have."""
        mean = float(y.mean())
        variance = float(y.var(correction=0))
        if mean <= 0:
            return False
        # (r/(r + mean))^r with variance = mean + mean²/r, or e^−mean for variance ≤ mean.
        excess = variance / mean - 1
        expected = math.exp(-mean * (math.log1p(excess) / excess if excess > 1e-6 else 1.0))
        error = math.sqrt(expected * (1 - expected) / len(y))
        return float((y == 0).double().mean()) > expected + 3 * error + _CLEAR_EXCESS

    def draw(self, f: Draws, mean: Draws, random: np.random.RandomState) -> Draws:
        """Return draws of y given f, with numpy."""
        share = self.zero_share.detach().double().cpu().numpy()
        drawn = self.base.draw(f, mean / (1 - share), random)
        return np.asarray(np.where(random.random_sample(f.shape) < share, 0.0, drawn))


def _start_of_odds(y: Float[Tensor, " n"]) -> float:
    """Return the odds of zeros that Poisson counts, of the mean of the others, would not have."""
    counts = y[y > 0]
    if not 0 < len(counts) < len(y):
        return 0.1
    expected = math.exp(-float(counts.mean()))
    share = (1 - len(counts) / len(y) - expected) / (1 - expected)
    share = min(max(share, 0.05), 0.9)
    return share / (1 - share)


@final
class ZeroInflatedPoisson(ZeroInflated):
    """Poisson counts with λ = e^f, and extra zeros.

    Parameters
    ----------
    zero_odds : float or tensor
        Odds ω = π/(1−π) > 0 of an extra zero, to start from.

    Examples
    --------
    >>> import torch
    >>> likelihood = ZeroInflatedPoisson(zero_odds=1.0)
    >>> likelihood.conditional_mean(torch.zeros(1, dtype=torch.float64)).item()
    0.5
    """

    def __init__(self, zero_odds: float | Tensor = 0.25) -> None:
        super().__init__(zero_odds)

    @property
    @override
    def base(self) -> PoissonExp:
        return self._as(PoissonExp)

    @classmethod
    def from_targets(
        cls, y: Float[Tensor, " n"], unit: float = 1.0, offset: float = 0.0
    ) -> "ZeroInflatedPoisson":
        """The zeros beyond those of Poisson counts are extra."""
        return cls(_start_of_odds(y))


@final
class ZeroInflatedNegativeBinomial(ZeroInflated):
    """Negative binomial counts, and extra zeros.

    Parameters
    ----------
    zero_odds : float or tensor
        Odds ω = π/(1−π) > 0 of an extra zero, to start from.
    dispersion : float or tensor
        r > 0 to start from.

    Examples
    --------
    >>> import torch
    >>> likelihood = ZeroInflatedNegativeBinomial(zero_odds=1.0, dispersion=2.0)
    >>> likelihood.conditional_variance(torch.zeros(1, dtype=torch.float64)).item()
    1.0
    """

    parameter_texts = ZeroInflated.parameter_texts + NegativeBinomial.parameter_texts

    def __init__(self, zero_odds: float | Tensor = 0.25, dispersion: float | Tensor = 1.0) -> None:
        super().__init__(zero_odds)
        who = "dispersion of ZeroInflatedNegativeBinomial"
        self.raw_dispersion = unconstrained(dispersion, who)

    @property
    @override
    def base(self) -> NegativeBinomial:
        return self._as(NegativeBinomial)

    @property
    def dispersion(self) -> Tensor:
        """The dispersion r."""
        return self._positive(self.raw_dispersion)

    @classmethod
    def from_targets(
        cls, y: Float[Tensor, " n"], unit: float = 1.0, offset: float = 0.0
    ) -> "ZeroInflatedNegativeBinomial":
        """Half of the zeros beyond those of Poisson counts are extra; r is that of the others."""
        counts = y[y > 0]
        start = NegativeBinomial.from_targets(counts if len(counts) > 1 else y)
        return cls(0.5 * _start_of_odds(y), start.dispersion.detach())

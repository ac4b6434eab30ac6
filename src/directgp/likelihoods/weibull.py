"""Positive times, observed or censored to an interval: the Weibull distribution."""

import math
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor
from typing_extensions import override

from directgp.errors import require_all
from directgp.integration.contract import Derivatives
from directgp.integration.trapezoid import TrapezoidSums
from directgp.likelihoods.base import UnimodalInF, unconstrained
from directgp.likelihoods.capabilities import ParameterText
from directgp.likelihoods.numeric import Draws
from directgp.likelihoods.rows import RowConstants
from directgp.likelihoods.units import OriginalUnits
from directgp.numerics.autograd import Slopes
from directgp.numerics.special import exp_excess, log1mexp, with_slope, wright_omega
from directgp.shapes import Row, Targets, Values

_ENDLESS = 1e100
"""Upper ends from here on are infinite: the row is censored to the right."""

_SMALLEST_SHAPE = 0.05
"""Smallest k that training allows."""

_LARGEST_LOG_HAZARD = 6.5
"""x from which exp(−e^x) is 0 next to 1, and beyond which its inverse overflows."""

_SMALLEST_LOG_HAZARD = -40.0
"""x below which 1 − exp(−e^x) is e^x to the last digit."""

_NOISE = math.pi**2 / 6
"""Variance of the log of a time of shape 1."""


def _finite_ends(values: Tensor) -> Tensor:
    return values.clamp(max=_ENDLESS)


class Times(NamedTuple):
    """The range of the true time: y itself, or an interval between two ends."""

    line: Values
    """log r at y, the lower end."""

    gap: Values
    """log of the ratio of both ends; 1 where the upper end is infinite or the time is exact."""

    exact: Bool[Tensor, "..."]
    """Whether the time is y."""

    endless: Bool[Tensor, "..."]
    """Whether the upper end is infinite."""


@final
class Weibull(UnimodalInF):
    """Times r with survival function P(R > r given f) = exp(−(r e^{−f})^k), where e^f is a scale.

    r is y itself, or with a unit and an offset (unit·y + offset)/abs(unit). With an upper end b of
    each row, `with_row_values`, the time is known to lie between y and b: b = y is a time that was
    observed, and b = ∞ one that is censored to the right. Without upper ends all times were
    observed. Moments, quantiles, intervals and draws are those of the true time.

    Parameters
    ----------
    shape : float or tensor
        k > 0 to start from; k = 1 is the exponential distribution, and the hazard rises with time
        for k > 1.
    unit, offset : float
        The positive times are unit·y + offset. The estimators set them for scaled targets.

    Examples
    --------
    >>> import torch
    >>> times = Weibull(shape=1.0).with_row_values(torch.tensor([3.0, torch.inf]))
    >>> times.log_prob(torch.tensor([3.0, 3.0]), torch.tensor([0.0, 0.0]))
    tensor([-3., -3.], grad_fn=<ToCopyBackward0>)
    """

    latent_scale = "log"
    rows = RowConstants("upper", stored=_finite_ends)
    units: OriginalUnits
    parameter_texts = (
        ParameterText(
            "raw_shape",
            "The shape of the Weibull distribution",
            "Many times are next to 0 compared with others; look at them.",
        ),
    )

    def __init__(self, shape: float | Tensor = 1.5, unit: float = 1.0, offset: float = 0.0) -> None:
        super().__init__()
        self.units = OriginalUnits.of("Weibull", unit, offset, log_latent=True)
        self.raw_shape = unconstrained(shape, "shape of Weibull")

    @property
    def shape(self) -> Tensor:
        """k."""
        return self._positive(self.raw_shape)

    @property
    @override
    def integration(self) -> TrapezoidSums:
        # exp(−e^{−kf}) decays to the left only while cos(k·Im f) > 0. The probabilities of
        # intervals have zeros at the edge of this strip, and the slopes of their logs have poles.
        largest = float(self.shape.detach().max())
        strip = 0.5 * math.pi / largest
        return TrapezoidSums(strip=strip, log_strip=0.85 * strip, growth=largest)

    @classmethod
    def from_targets(cls, y: Row, unit: float = 1.0, offset: float = 0.0) -> "Weibull":
        """A tenth of the variance of log r is noise, of π²/(6k²)."""
        line = cls(unit=unit, offset=offset).rough_latent(y.double())
        spread = 0.1 * max(float(line.var(correction=0)), 1e-9)
        return cls(min(max(math.sqrt(_NOISE / spread), 0.5), 100.0), unit, offset)

    def rough_latent(self, y: Row) -> Row:
        """Return log r."""
        return torch.log(self.units.relative(y.double())).to(y)

    def starting_latent(self, y: Row) -> Row:
        """Return log r."""
        return self.rough_latent(y)

    def floors(self, deviation: float) -> dict[str, float]:
        """Return the smallest shape."""
        return {"raw_shape": _SMALLEST_SHAPE}

    def description(self, unit: float) -> dict[str, float]:
        """Return the shape."""
        return {"shape": float(self.shape)}

    @override
    def check_targets(self, y: Targets) -> None:
        t = self.units.original(y.double())
        positive = torch.isfinite(t) & (t > 0)
        require_all(positive, t, "y of Weibull", "positive and finite", "Leave out times of 0.")
        if self.rows.present(self):
            upper = self.rows.of(self).expand(y.shape)
            require_all(upper >= y, upper, "upper of Weibull", "at least y, the lower end")

    def observed_range(self, y: Values) -> tuple[Values, Values]:
        """Return y, and the upper end of its row, in float64."""
        # float32 has no `_ENDLESS`.
        wide = y.double()
        if not self.rows.present(self):
            return wide, wide
        return wide, torch.maximum(self.rows.of(self).double(), wide)

    def _times(self, y: Values) -> Times:
        line = torch.log(self.units.relative(y))
        if not self.rows.present(self):
            exact = torch.ones_like(y, dtype=torch.bool)
            return Times(line, torch.ones_like(y), exact, ~exact)
        upper = self.rows.of(self)
        endless = upper >= _ENDLESS
        exact = upper <= y
        # Arguments of the formula that is not taken must give finite gradients, too.
        bounded = torch.where(endless | exact, y, upper)
        # The difference of logs cancels for ends that are close to each other.
        excess = (bounded - y) / self.units.relative(y)
        apart = torch.log(self.units.relative(bounded)) - line
        gap = torch.where(excess < 1, torch.log1p(excess), apart)
        return Times(line, torch.where(endless | exact, 1.0, gap), exact, endless)

    def _log_hazard_between(self, times: Times, f: Values) -> Values:
        """Return log D = k(log r_b − f) + log(1 − (r_a/r_b)^k), which no large k overflows."""
        end = times.line + times.gap
        return self.shape * (end - f) + torch.log(-torch.expm1(-self.shape * times.gap))

    # With z = k(log r − f) and the cumulative hazard H = e^z, log p is −H for a censored time, and
    # z − H + log(k/r) = −(e^z − 1 − z) − 1 + log(k/r) for an exact one. An interval of hazard
    # D = H_b − H_a has log p = −H_a + log(1 − e^−D). All are concave in f.

    @override
    def log_kernel(self, y: Values, f: Values) -> Values:
        times = self._times(y)
        z = self.shape * (times.line - f)
        if bool(times.exact.all()):
            return -exp_excess(z)
        inside = _log_share(self._log_hazard_between(times, f))
        survived = torch.where(times.endless, 0.0, inside) - torch.exp(z)
        return torch.where(times.exact, -exp_excess(z), survived)

    @override
    def log_base(self, y: Values) -> Values:
        times = self._times(y)
        density = torch.log(self.shape) - 1 - times.line
        return torch.where(times.exact, density, 0.0)

    @override
    def derivatives(self, y: Values, f: Values) -> Derivatives:
        times = self._times(y)
        shape = self.shape.detach()
        z = shape * (times.line - f)
        hazard = torch.exp(z)
        value = self.log_kernel(y, f).detach()
        if bool(times.exact.all()):
            return Derivatives(value, shape * torch.expm1(z), -(shape**2) * hazard)
        log_hazard = self._log_hazard_between(times, f).detach()
        share = torch.where(times.endless, 0.0, _share_slope(log_hazard))
        bend = torch.where(times.endless, 0.0, _share_bend(log_hazard))
        first = torch.where(times.exact, torch.expm1(z), hazard - share)
        second = torch.where(times.exact, hazard, hazard - bend)
        return Derivatives(value, shape * first, -(shape**2) * second)

    def parameter_slopes(self, y: Values, f: Values) -> Slopes:
        """With L = log r − f: 1/k − L(e^z − 1), or −L_a·H_a + (L_b·H_b − L_a·H_a)/(e^D − 1)."""
        times = self._times(y)
        shape = self.shape.detach()
        line = times.line - f
        hazard = torch.exp(shape * line)
        exact = 1 / shape - line * torch.expm1(shape * line)
        if bool(times.exact.all()):
            return (exact,)
        # ∂ log D/∂k = (L_b·H_b − L_a·H_a)/D.
        pull = line + times.gap / -torch.expm1(-shape * times.gap)
        slope = _share_slope(self._log_hazard_between(times, f).detach())
        share = torch.where(times.endless, 0.0, pull * slope)
        return (torch.where(times.exact, exact, share - line * hazard),)

    def doubt(self, y: Values, f: Values) -> tuple[Values, Values]:
        """Return log H ≥ log(1 − p) of a time that is censored to the right, and its slope in f."""
        times = self._times(y)
        shape = self.shape.detach()
        log_hazard = shape * (times.line - f)
        return torch.where(times.endless, log_hazard, 0.0), (-shape).expand(f.shape)

    @override
    def argmax(self, y: Values) -> Values:
        """Return log r; ∞ for a censored time; where e^D = H_b/H_a for an interval."""
        times = self._times(y)
        shape = self.shape.detach()
        growth = shape * times.gap
        # H_a = D/(e^D − 1) has log H_a = log D − growth − log(1 − e^−growth) with D = growth.
        inside = times.line + times.gap - torch.log(growth / -torch.expm1(-growth)) / shape
        censored = torch.where(times.endless, torch.inf, inside)
        return torch.where(times.exact, times.line, censored)

    def product_mode(self, y: Values, mean: Values, variance: Values) -> Values:
        """Return the root of h′, by Wright's function ω + log ω = x; near it for an interval.

        With w = k²v and z = k(log r − μ), h′(δ) = 0 is kδ + w = w·e^{z−kδ} for an exact time, and
        kδ = w·e^{z−kδ} for one that is censored to the right.
        """
        times = self._times(y)
        shape = self.shape.detach()
        pull = shape**2 * variance
        shift = torch.where(times.exact, pull, 0.0)
        start = torch.log(pull) + shape * (times.line - mean) + shift
        return (wright_omega(start, refinements=1) - shift) / shape

    @override
    def conditional_mean(self, f: Values) -> Values:
        return self.units.of_relative(torch.exp(f + torch.lgamma(1 + 1 / self.shape)))

    @override
    def conditional_variance(self, f: Values) -> Values:
        return self.predictive_variance(f, torch.zeros_like(f))

    def predictive_mean(self, mean: Values, variance: Values) -> Values:
        """The y of r = exp(μ + v/2)·Γ(1 + 1/k)."""
        return self.conditional_mean(mean + 0.5 * variance)

    def predictive_variance(self, mean: Values, variance: Values) -> Values:
        """exp(2μ + v)·(e^v Γ(1 + 2/k) − Γ(1 + 1/k)²)."""
        once = torch.lgamma(1 + 1 / self.shape)
        twice = torch.lgamma(1 + 2 / self.shape)
        return torch.exp(2 * mean + variance + 2 * once) * torch.expm1(variance + twice - 2 * once)

    def cdf(self, y: Values, f: Values) -> Values:
        """1 − exp(−(r e^−f)^k), 0 for t ≤ 0."""
        r = self.units.relative(y)
        log_r = torch.log(torch.where(r > 0, r, 1.0))
        below = -torch.expm1(-torch.exp(self.shape.detach() * (log_r - f)))
        return self.units.ordered(torch.where(r > 0, below, 0.0))

    def draw(self, f: Draws, mean: Draws, random: np.random.RandomState) -> Draws:
        """Return e^f·E^{1/k} with E of an exponential distribution."""
        shape = self.shape.detach().double().cpu().numpy()
        r = np.exp(f) * random.standard_exponential(f.shape) ** (1 / shape)
        return self.units.of_relative(torch.from_numpy(r)).numpy()


def _log_share(x: Values) -> Values:
    """Compute log(1 − exp(−e^x)); differentiable twice."""
    return with_slope(x, _log_share_value, lambda x: with_slope(x, _share_slope, _share_bend))


def _log_share_value(x: Values) -> Values:
    hazard = torch.exp(x.clamp(_SMALLEST_LOG_HAZARD, _LARGEST_LOG_HAZARD))
    return torch.where(x < _SMALLEST_LOG_HAZARD, x, log1mexp(hazard))


def _share_slope(x: Values) -> Values:
    """Return D/(e^D − 1) at D = e^x, the slope of `_log_share`."""
    hazard = torch.exp(x.clamp(_SMALLEST_LOG_HAZARD, _LARGEST_LOG_HAZARD))
    return hazard / torch.expm1(hazard)


def _share_bend(x: Values) -> Values:
    """Return g·(1 − D/(1 − e^−D)) at D = e^x with g = `_share_slope`, the second derivative."""
    hazard = torch.exp(x.clamp(_SMALLEST_LOG_HAZARD, _LARGEST_LOG_HAZARD))
    return hazard / torch.expm1(hazard) * (1 + hazard / torch.expm1(-hazard))

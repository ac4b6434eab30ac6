"""Gaussian noise with censored targets: values beyond a limit are known to lie beyond it."""

import math
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from typing_extensions import override

from directgp.errors import require, require_all
from directgp.integration.contract import Derivatives
from directgp.integration.trapezoid import TrapezoidSums
from directgp.likelihoods.base import check_finite, unconstrained
from directgp.likelihoods.capabilities import NOISE_ADVICE, ParameterText
from directgp.likelihoods.gaussian import GaussianTruth, log_predictive_and_slopes
from directgp.likelihoods.rows import RowConstants
from directgp.likelihoods.units import OriginalUnits
from directgp.numerics.autograd import Slopes, in_float64
from directgp.numerics.fixed_sizes import recording
from directgp.numerics.gaussian import log_density
from directgp.numerics.intervals import ENDLESS, interval_slopes, log_ndtr_between
from directgp.numerics.random import Generator, sample_between, standard_normal
from directgp.shapes import Row, Targets, Values

_AT_LIMIT = 1e-6
"""Deviations of scaled targets within which a value counts as the limit, whose digits differ."""


_ENDLESS_FROM = 1e11
"""Upper ends of rows beyond it, in scaled units, are infinite."""


def _ends_of_rows(values: Tensor) -> Tensor:
    return torch.where(values > _ENDLESS_FROM, ENDLESS, values)


class Observed(NamedTuple):
    """The range of the true value: y itself, or an interval between two ends."""

    exact: Bool[Tensor, "..."]
    """Whether the true value is y."""

    lower: Values
    """The lower end, or y."""

    upper: Values
    """The upper end, or y."""


@final
class Tobit(GaussianTruth):
    """The true value is f plus Gaussian noise of variance σ²; y is that value, cut at limits.

    p(y given f) is N(y; f, σ²) between the limits, Φ((lower − f)/σ) for y ≤ lower and
    Φ((f − upper)/σ) for y ≥ upper. With an upper end b of each row, `with_row_values`, the true
    value is known to lie between y and b, and below b where y ≤ lower; b = y is an exact value.
    Moments, quantiles, intervals and draws are those of the true value.

    Parameters
    ----------
    noise : float or tensor
        The noise variance σ² to start from.
    lower, upper : float
        Limits of detection, in the units of unit·y + offset.
    unit, offset : float
        The estimators set them for scaled targets; limits stay in the units of the user.

    Examples
    --------
    >>> import torch
    >>> limited = Tobit(noise=1.0, lower=0.0)
    >>> limited.log_prob(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]))
    tensor([-0.6931, -0.9189], grad_fn=<ToCopyBackward0>)
    """

    parameter_texts = (ParameterText("raw_noise", "The noise variance", NOISE_ADVICE, True),)
    rows = RowConstants("upper", stored=_ends_of_rows)
    units: OriginalUnits

    def __init__(
        self,
        noise: float | Tensor = 0.1,
        lower: float = -math.inf,
        upper: float = math.inf,
        unit: float = 1.0,
        offset: float = 0.0,
    ) -> None:
        super().__init__()
        self.units = OriginalUnits.of("Tobit", unit, offset)
        require(lower < upper, "lower of Tobit", f"below upper, {upper:g}", lower)
        self.lower = float(lower)
        self.upper = float(upper)
        self.raw_noise = unconstrained(noise, "noise of Tobit")

    @property
    @override
    def noise(self) -> Tensor:
        return self._positive(self.raw_noise)

    @property
    @override
    def integration(self) -> TrapezoidSums:
        # Φ(f/σ) has the scale σ. The zeros of the probability of an interval are nearer.
        strip = math.pi * math.sqrt(float(self.noise.detach().min()))
        return TrapezoidSums(strip=strip, log_strip=0.75 * strip)

    def starting_latent(self, y: Row) -> Row:
        """Return the targets."""
        return y

    @classmethod
    def from_targets(
        cls, y: Float[Tensor, " n"], unit: float = 1.0, offset: float = 0.0
    ) -> "Tobit":
        """The noise starts at a tenth of the variance of the targets."""
        spread = float(y.double().var(correction=0))
        return cls(0.1 * max(spread, 1e-6), unit=unit, offset=offset)

    @override
    def settings(self) -> dict[str, float]:
        limits = {"lower": self.lower, "upper": self.upper}
        return super().settings() | {k: v for k, v in limits.items() if math.isfinite(v)}

    def floors(self, deviation: float) -> dict[str, float]:
        """Return the smallest allowed value of positive parameters, by name."""
        return {"raw_noise": deviation * deviation}

    def description(self, unit: float) -> dict[str, float]:
        """Return the parameters to print in `summary()`."""
        return {"noise standard deviation": unit * float(self.noise.sqrt())}

    @override
    def check_targets(self, y: Targets) -> None:
        check_finite(y, "Tobit")
        if self.rows.present(self):
            upper = self.rows.of(self)
            who = "upper of Tobit"
            allowed = "at least y, the lower end of the interval"
            require_all(upper >= y, upper.expand(y.shape), who, allowed)

    def observed_range(self, y: Values) -> tuple[Values, Values]:
        """Return the ends between which the true value lies, in float64."""
        # float32 has no `ENDLESS`.
        _, lower, upper = self.observed(y.double())
        return lower, upper

    def observed(self, y: Values) -> Observed:
        """Return what y, and the upper end of its row, say of the true value, in units of y."""
        unit = self.units.unit
        offset = self.units.offset
        low, high = sorted((limit - offset) / unit for limit in (self.lower, self.upper))
        margin = _AT_LIMIT if (unit, offset) != (1.0, 0.0) else 0.0
        below = y <= low + margin
        above = y >= high - margin
        end = torch.where(below, low, y)
        if self.rows.present(self):
            row_end = self.rows.of(self)
            # A row whose end is y itself was measured, or is below the limit.
            end = torch.where(row_end > y, row_end, end)
        lower = torch.where(below, -ENDLESS, torch.where(above, high, y))
        upper = torch.where(above, ENDLESS, end)
        return Observed(~(below | above | (end > y)), lower, upper)

    @override
    def argmax(self, y: Values) -> Values:
        _, lower, upper = self.observed(y)
        ends = torch.where(lower < -0.1 * ENDLESS, -torch.inf, torch.inf)
        middle = 0.5 * (lower + upper)
        return torch.where(middle.abs() < 0.1 * ENDLESS, middle, ends)

    # Exact targets have the Gaussian density, censored ones the probability of their interval.

    @override
    def log_kernel(self, y: Values, f: Values) -> Values:
        exact, lower, upper = self.observed(y)
        density = -0.5 * (y - f) ** 2 / self.noise
        scale = torch.rsqrt(self.noise)
        return torch.where(
            exact, density, _between(exact, (lower - f) * scale, (upper - f) * scale)
        )

    @override
    def log_base(self, y: Values) -> Values:
        constant = -0.5 * torch.log(2 * math.pi * self.noise)
        return torch.where(self.observed(y).exact, constant, 0.0)

    @override
    def derivatives(self, y: Values, f: Values) -> Derivatives:
        exact, lower, upper = self.observed(y)
        noise = self.noise.detach()
        scale = torch.rsqrt(noise)
        first = (y - f) / noise
        rows_alike = y.dim() == 1 and y.shape == f.shape[-1:]
        if rows_alike and not (f.is_cuda or recording()):
            return self._by_rows(y, f, first, torch.nonzero(~exact).squeeze(-1))
        cut = interval_slopes(*_ends(exact, (lower - f) * scale, (upper - f) * scale))
        return Derivatives(
            torch.where(exact, -0.5 * (y - f) * first, cut.value),
            torch.where(exact, first, cut.mean * scale),
            torch.where(exact, -1 / noise, cut.excess / noise),
        )

    def _by_rows(self, y: Values, f: Values, first: Values, cut: Tensor) -> Derivatives:
        """Return `derivatives`, with intervals for those examples alone that are not exact."""
        columns = Derivatives(-0.5 * (y - f) * first, first, -1 / self.noise.detach() + 0 * first)
        if len(cut):
            subset = self.take(cut)
            _, lower, upper = subset.observed(y[cut])
            noise = subset.noise.detach()
            scale = torch.rsqrt(noise)
            here = f[..., cut]
            slopes = interval_slopes((lower - here) * scale, (upper - here) * scale)
            parts = slopes.value, slopes.mean * scale, slopes.excess / noise
            for column, part in zip(columns, parts, strict=True):
                column[..., cut] = part
        return columns

    def parameter_slopes(self, y: Values, f: Values) -> Slopes:
        """½((y − f)²/σ⁴ − 1/σ²) in σ², or ½(E[T²] − 1)/σ² for an interval."""
        exact, lower, upper = self.observed(y)
        noise = self.noise.detach()
        scale = torch.rsqrt(noise)
        density = 0.5 * (((y - f) / noise) ** 2 - 1 / noise)
        cut = interval_slopes(*_ends(exact, (lower - f) * scale, (upper - f) * scale))
        return (torch.where(exact, density, 0.5 * cut.scale_slope / noise),)

    def log_predictive(self, y: Values, mean: Values, variance: Values) -> Values:
        """log N(y; μ, s²), or log(Φ((b−μ)/s) − Φ((a−μ)/s)), with s² = v + σ²."""
        return in_float64(self._log_predictive, self._slopes, y, mean, variance, self.noise)

    def log_predictive_slopes(self, y: Values, mean: Values, variance: Values) -> Slopes:
        """`log_predictive` and its slopes."""
        return self._slopes(y, mean, variance, self.noise.detach().double())

    def _log_predictive(self, y: Values, mean: Values, variance: Values, noise: Values) -> Values:
        exact, lower, upper = self.observed(y)
        total = variance + noise
        scale = torch.rsqrt(total)
        cut = _between(exact, (lower - mean) * scale, (upper - mean) * scale)
        return torch.where(exact, log_density(y, mean, total), cut)

    def _slopes(self, y: Values, mean: Values, variance: Values, noise: Values) -> Slopes:
        exact, lower, upper = self.observed(y)
        total = variance + noise
        scale = torch.rsqrt(total)
        cut = interval_slopes(*_ends(exact, (lower - mean) * scale, (upper - mean) * scale))
        value, pull, bend, _ = log_predictive_and_slopes(y, mean, variance, noise)
        by_variance = torch.where(exact, bend, 0.5 * cut.scale_slope / total)
        by_mean = torch.where(exact, pull, cut.mean * scale)
        return torch.where(exact, value, cut.value), by_mean, by_variance, by_variance

    def predictive_crps(self, y: Values, mean: Values, variance: Values) -> Values:
        """∫ P(Y ≤ t)² dt below the observed range, plus ∫ P(Y > t)² dt above it.

        s·(G(z_a) + G(−z_b)) with G(z) = zΦ² + 2φΦ − Φ(z√2)/√π, the integral of Φ² up to z.
        """
        lower, upper = self.observed_range(y)
        centre = mean.double()
        scale = torch.sqrt(variance.double() + self.noise)
        below = _integrated_square((lower - centre) / scale)
        above = _integrated_square((centre - upper) / scale)
        return (scale * (below + above)).to(mean.dtype)

    def sample_product(
        self, y: Values, mean: Values, variance: Values, num_samples: int, generator: Generator
    ) -> Values:
        """Draw from q̃, minus μ.

        The true value less μ is y − μ, or z ~ N(0, v + σ²) within the ends; f − μ given it is
        N(vz/(v+σ²), vσ²/(v+σ²)).
        """
        exact, lower, upper = self.observed(y)
        total = variance + self.noise
        scale = torch.sqrt(total)
        shape = (num_samples, *mean.shape)
        ends = _ends(exact, (lower - mean) / scale, (upper - mean) / scale)
        low, high = (end.expand(shape) for end in ends)
        cut = scale * sample_between(low, high, generator)
        z = torch.where(exact, y - mean, cut)
        spread = torch.sqrt(variance * self.noise / total)
        return variance * z / total + spread * standard_normal(num_samples, mean, generator)


def _ends(exact: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ends of an interval, and −1 and 1 for exact targets, which have none."""
    return torch.where(exact, -1.0, lower), torch.where(exact, 1.0, upper)


def _between(exact: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    return log_ndtr_between(*_ends(exact, lower, upper))


def _integrated_square(z: Values) -> Values:
    """Compute ∫ Φ(x)² dx up to z; 0 for an end at −∞."""
    bounded = z.clamp(min=-40.0)
    below: Values = torch.special.ndtr(bounded)
    density = torch.exp(-0.5 * bounded * bounded) / math.sqrt(2 * math.pi)
    twice = torch.special.ndtr(bounded * math.sqrt(2)) / math.sqrt(math.pi)
    area: Values = bounded * below * below + 2 * density * below - twice
    return area

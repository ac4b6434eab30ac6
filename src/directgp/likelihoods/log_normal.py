"""Positive targets whose logarithm is f plus Gaussian noise."""

import math
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.integration.contract import Derivatives
from directgp.integration.trapezoid import TrapezoidSums
from directgp.likelihoods.base import unconstrained
from directgp.likelihoods.capabilities import NOISE_ADVICE, ParameterText
from directgp.likelihoods.gaussian import gibbs_and_slopes, log_predictive_and_slopes
from directgp.likelihoods.numeric import Draws
from directgp.likelihoods.positive import PositiveTargets
from directgp.numerics.autograd import Slopes, in_float64
from directgp.numerics.gaussian import log_density
from directgp.numerics.random import Generator, standard_normal
from directgp.shapes import Values


@final
class LogNormal(PositiveTargets):
    """p(r given f) = N(log r; f, σ²)/r.

    r is y itself, or with a unit and an offset (unit·y + offset)/abs(unit). Every distribution is
    Gaussian in log r.

    Parameters
    ----------
    noise : float or tensor
        The variance σ² of log r to start from.
    unit, offset : float
        The positive values are unit·y + offset. The estimators set them for scaled targets.

    Examples
    --------
    >>> import torch
    >>> LogNormal(noise=0.25).log_prob(torch.tensor([1.0]), torch.tensor([0.0]))
    tensor([-0.2258], grad_fn=<ToCopyBackward0>)
    """

    integration = TrapezoidSums(strip=math.pi, fixed_work=True)
    parameter_texts = (
        ParameterText("raw_noise", "The variance of the log of the target", NOISE_ADVICE, True),
    )

    def __init__(self, noise: float | Tensor = 0.1, unit: float = 1.0, offset: float = 0.0) -> None:
        super().__init__(unit, offset)
        self.raw_noise = unconstrained(noise, "noise of LogNormal")

    @property
    def noise(self) -> Tensor:
        """σ²."""
        return self._positive(self.raw_noise)

    @classmethod
    def from_targets(
        cls, y: Float[Tensor, " n"], unit: float = 1.0, offset: float = 0.0
    ) -> "LogNormal":
        """The noise starts at a tenth of the variance of log r."""
        spread = float(cls(unit=unit, offset=offset).to_line(y.double()).var(correction=0))
        return cls(0.1 * max(spread, 1e-6), unit, offset)

    def floors(self, deviation: float) -> dict[str, float]:
        """Return the smallest allowed value of positive parameters, by name."""
        return {"raw_noise": _SMALLEST_NOISE}

    def description(self, unit: float) -> dict[str, float]:
        """Return the parameters to print in `summary()`."""
        return {"noise standard deviation of log y": float(self.noise.sqrt())}

    @override
    def log_kernel(self, y: Values, f: Values) -> Values:
        return -0.5 * (self.to_line(y) - f) ** 2 / self.noise

    @override
    def log_base(self, y: Values) -> Values:
        return -0.5 * torch.log(2 * math.pi * self.noise) - self.to_line(y)

    @override
    def derivatives(self, y: Values, f: Values) -> Derivatives:
        noise = self.noise
        residual = self.to_line(y) - f
        first = residual / noise
        return Derivatives(-0.5 * residual * first, first, (-1 / noise).expand(first.shape))

    def parameter_slopes(self, y: Values, f: Values) -> Slopes:
        """½((log r − f)²/σ⁴ − 1/σ²) in σ²."""
        precision = 1 / self.noise
        return (0.5 * (((self.to_line(y) - f) * precision) ** 2 - precision),)

    def log_predictive(self, y: Values, mean: Values, variance: Values) -> Values:
        """log N(log r; μ, v + σ²) − log r."""
        line = self.to_line(y.double())
        return in_float64(_log_predictive, _log_predictive_slopes, line, mean, variance, self.noise)

    def expected_log_prob(self, y: Values, mean: Values, variance: Values) -> Values:
        """log N(log r; μ, σ²) − v/(2σ²) − log r."""
        line = self.to_line(y.double())
        return in_float64(_gibbs, _gibbs_slopes, line, mean, variance, self.noise)

    def log_predictive_slopes(self, y: Values, mean: Values, variance: Values) -> Slopes:
        """log N(log r; μ, v + σ²) − log r and its slopes."""
        line = self.to_line(y.double())
        return _log_predictive_slopes(line, mean, variance, self.noise.detach().double())

    def expected_log_prob_slopes(self, y: Values, mean: Values, variance: Values) -> Slopes:
        """log N(log r; μ, σ²) − v/(2σ²) − log r and its slopes."""
        line = self.to_line(y.double())
        return _gibbs_slopes(line, mean, variance, self.noise.detach().double())

    @override
    def conditional_mean(self, f: Values) -> Values:
        return self.units.of_relative(torch.exp(f + 0.5 * self.noise))

    @override
    def conditional_variance(self, f: Values) -> Values:
        return torch.exp(2 * f + self.noise) * torch.expm1(self.noise)

    def predictive_mean(self, mean: Values, variance: Values) -> Values:
        """The y of r = exp(μ + (v + σ²)/2)."""
        return self.conditional_mean(mean + 0.5 * variance)

    def predictive_variance(self, mean: Values, variance: Values) -> Values:
        """exp(2μ + v + σ²)·(e^{v + σ²} − 1)."""
        total = variance + self.noise
        return torch.exp(2 * mean + total) * torch.expm1(total)

    def predictive_median(self, mean: Values, variance: Values) -> Values:
        """The y of r = e^μ."""
        return self.from_line(mean)

    def predictive_cdf(self, y: Values, mean: Values, variance: Values) -> Values:
        """Φ((log r − μ)/√(v + σ²)), 0 for t ≤ 0."""
        t = self.units.original(y)
        line = self.to_line(torch.where(t > 0, y, self.from_line(torch.zeros_like(y))))
        below: Values = torch.special.ndtr((line - mean) / torch.sqrt(variance + self.noise))
        return self.units.ordered(torch.where(t > 0, below, 0.0))

    def predictive_quantile(self, level: Values, mean: Values, variance: Values) -> Values:
        """The y of r = exp(μ + √(v + σ²) Φ⁻¹(level))."""
        z: Values = torch.special.ndtri(level) * math.copysign(1.0, self.units.unit)
        return self.from_line(mean + torch.sqrt(variance + self.noise) * z)

    def predictive_crps(self, y: Values, mean: Values, variance: Values) -> Values:
        """r(2Φ(z) − 1) − 2·exp(μ + s²/2)·(Φ(z − s) − Φ(−s/√2)), z = (log r − μ)/s, s² = v + σ²."""
        line = self.to_line(y)
        scale = torch.sqrt(variance + self.noise)
        z = (line - mean) / scale
        # Φ by erfc, which keeps its digits in the tail, where exp(μ + s²/2) is large.
        share = 0.5 * (torch.erfc((scale - z) * math.sqrt(0.5)) - torch.erfc(0.5 * scale))
        centred = torch.exp(line) * torch.erf(z * math.sqrt(0.5))
        score: Values = centred - 2 * torch.exp(mean + 0.5 * scale**2) * share
        return score

    def sample_product(
        self, y: Values, mean: Values, variance: Values, num_samples: int, generator: Generator
    ) -> Values:
        """Draw from q̃ = N(μ + v(log r − μ)/(v+σ²), vσ²/(v+σ²)), minus μ."""
        total = variance + self.noise
        spread = torch.sqrt(variance * self.noise / total)
        drawn = standard_normal(num_samples, mean, generator)
        return variance * (self.to_line(y) - mean) / total + spread * drawn

    def draw(self, f: Draws, mean: Draws, random: np.random.RandomState) -> Draws:
        """Return draws of y given f, with numpy."""
        deviation = np.sqrt(self.noise.double().cpu().numpy())
        line = torch.from_numpy(f + deviation * random.standard_normal(f.shape))
        return self.from_line(line).numpy()


_SMALLEST_NOISE = 1e-8
"""Variance of log y: values known to four digits."""


def _log_predictive(line: Values, mean: Values, variance: Values, noise: Values) -> Values:
    return log_density(line, mean, variance + noise) - line


def _log_predictive_slopes(line: Values, mean: Values, variance: Values, noise: Values) -> Slopes:
    value, *slopes = log_predictive_and_slopes(line, mean, variance, noise)
    return value - line, *slopes


def _gibbs(line: Values, mean: Values, variance: Values, noise: Values) -> Values:
    return log_density(line, mean, noise) - 0.5 * variance / noise - line


def _gibbs_slopes(line: Values, mean: Values, variance: Values, noise: Values) -> Slopes:
    value, *slopes = gibbs_and_slopes(line, mean, variance, noise)
    return value - line, *slopes

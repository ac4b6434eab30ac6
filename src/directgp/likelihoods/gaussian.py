"""Gaussian noise: p(y given f) = N(y; f, σ²)."""

import math
from abc import abstractmethod
from typing import final

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from directgp.errors import refuse
from directgp.integration.contract import Derivatives, Integrator
from directgp.integration.trapezoid import TrapezoidSums
from directgp.likelihoods.base import ConjugateLikelihood, UnimodalInF, unconstrained
from directgp.likelihoods.capabilities import NOISE_ADVICE, ParameterText
from directgp.likelihoods.numeric import Draws
from directgp.likelihoods.rows import RowConstants
from directgp.numerics.autograd import Slopes, in_float64
from directgp.numerics.gaussian import log_density
from directgp.numerics.random import Generator, standard_normal
from directgp.numerics.special import softplus_inverse
from directgp.shapes import Row, Values

_LOG_ROOT = -0.5 * math.log(2 * math.pi)


_SUMS = TrapezoidSums(strip=math.pi, fixed_work=True)


class GaussianTruth(UnimodalInF):
    """Base of y = f + Gaussian noise of variance σ²: moments, quantiles and draws of y."""

    additive = True

    @property
    @override
    def integration(self) -> Integrator:
        return _SUMS

    @property
    @abstractmethod
    def noise(self) -> Tensor:
        """σ²."""

    @override
    def conditional_mean(self, f: Values) -> Values:
        return f

    @override
    def conditional_variance(self, f: Values) -> Values:
        return self.noise.expand(f.shape)

    @override
    def argmax(self, y: Values) -> Values:
        return y

    def draw(self, f: Draws, mean: Draws, random: np.random.RandomState) -> Draws:
        """Return draws of y given f, with numpy."""
        deviation = np.sqrt(self.noise.double().cpu().numpy())
        return np.asarray(mean + deviation * random.standard_normal(f.shape))

    def predictive_mean(self, mean: Values, variance: Values) -> Values:
        """μ."""
        return mean

    def predictive_mean_slopes(self, mean: Values, variance: Values) -> Slopes:
        """μ, 1 and 0."""
        return mean, mean.new_ones(()), mean.new_zeros(())

    def predictive_variance(self, mean: Values, variance: Values) -> Values:
        """v + σ²."""
        return variance + self.noise

    def predictive_deviation(self, variance: Values) -> Values:
        """√(v + σ²)."""
        return torch.sqrt(variance + self.noise)

    def predictive_median(self, mean: Values, variance: Values) -> Values:
        """μ."""
        return mean

    def predictive_cdf(self, y: Values, mean: Values, variance: Values) -> Values:
        """Φ((y − μ) / √(v + σ²))."""
        probability: Values = torch.special.ndtr((y - mean) / self.predictive_deviation(variance))
        return probability

    def predictive_quantile(self, level: Values, mean: Values, variance: Values) -> Values:
        """μ + √(v + σ²) Φ⁻¹(level)."""
        z: Values = torch.special.ndtri(level)
        return mean + self.predictive_deviation(variance) * z


class GaussianNoise(GaussianTruth):
    """Base of Gaussian noise with a learnt or given variance, and observed y."""

    @override
    def log_kernel(self, y: Values, f: Values) -> Values:
        return -0.5 * (y - f) ** 2 / self.noise

    @override
    def log_base(self, y: Values) -> Values:
        return (-0.5 * torch.log(2 * math.pi * self.noise)).expand(y.shape)

    @override
    def derivatives(self, y: Values, f: Values) -> Derivatives:
        noise = self.noise
        first = (y - f) / noise
        return Derivatives(-0.5 * (y - f) * first, first, (-1 / noise).expand(first.shape))

    def parameter_slopes(self, y: Values, f: Values) -> Slopes:
        """½((y − f)²/σ⁴ − 1/σ²) in σ²."""
        precision = 1 / self.noise
        return (0.5 * (((y - f) * precision) ** 2 - precision),)

    def log_predictive(self, y: Values, mean: Values, variance: Values) -> Values:
        """log N(y; μ, v + σ²)."""
        return in_float64(_log_predictive, log_predictive_and_slopes, y, mean, variance, self.noise)

    def expected_log_prob(self, y: Values, mean: Values, variance: Values) -> Values:
        """log N(y; μ, σ²) − v / (2σ²)."""
        return in_float64(_gibbs, gibbs_and_slopes, y, mean, variance, self.noise)

    def log_predictive_slopes(self, y: Values, mean: Values, variance: Values) -> Slopes:
        """log N(y; μ, v + σ²) and its slopes."""
        return log_predictive_and_slopes(y, mean, variance, self.noise.double())

    def expected_log_prob_slopes(self, y: Values, mean: Values, variance: Values) -> Slopes:
        """log N(y; μ, σ²) − v / (2σ²) and its slopes."""
        return gibbs_and_slopes(y, mean, variance, self.noise.double())

    def predictive_crps(self, y: Values, mean: Values, variance: Values) -> Values:
        """r(2Φ(z) − 1) + s(2φ(z) − 1/√π) with r = y − μ, s = √(v + σ²), z = r/s.

        r in place of s·z keeps the digits of the gradient in s where z is large.
        """
        residual = y - mean
        scale = torch.sqrt(variance + self.noise)
        z = residual / scale
        density = torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        flat = 2 * density - 1 / math.sqrt(math.pi)
        return residual * torch.erf(z / math.sqrt(2)) + scale * flat

    def sample_product(
        self, y: Values, mean: Values, variance: Values, num_samples: int, generator: Generator
    ) -> Values:
        """Draw from q̃ = N(μ + v(y−μ)/(v+σ²), vσ²/(v+σ²)), minus μ."""
        total = variance + self.noise
        spread = torch.sqrt(variance * self.noise / total)
        noise = standard_normal(num_samples, mean, generator)
        return variance * (y - mean) / total + spread * noise


@final
class Gaussian(GaussianNoise, ConjugateLikelihood):
    """Regression with noise variance σ².

    Parameters
    ----------
    noise : float or tensor
        The noise variance σ² to start from.

    Examples
    --------
    >>> import torch
    >>> Gaussian(noise=0.25).log_prob(torch.tensor([1.0]), torch.tensor([1.0]))
    tensor([-0.2258], grad_fn=<ToCopyBackward0>)
    """

    parameter_texts = (ParameterText("raw_noise", "The noise variance", NOISE_ADVICE, True),)

    def __init__(self, noise: float | Tensor = 0.1) -> None:
        super().__init__()
        self.raw_noise = unconstrained(noise, "noise of Gaussian")

    @property
    @override
    def noise(self) -> Tensor:
        return self._positive(self.raw_noise)

    @override
    def set_noise(self, noise: float) -> None:
        value = torch.as_tensor(noise, dtype=self.raw_noise.dtype)
        with torch.no_grad():
            self.raw_noise.copy_(softplus_inverse(value))

    def floors(self, deviation: float) -> dict[str, float]:
        """Return the smallest allowed value of positive parameters, by name."""
        return {"raw_noise": deviation * deviation}

    def description(self, unit: float) -> dict[str, float]:
        """Return the parameters to print in `summary()`."""
        return {"noise standard deviation": unit * float(self.noise.sqrt())}


@final
class GaussianKnownNoise(GaussianNoise):
    """Regression with a known noise variance σ_i² of each row, from `with_row_values`.

    Parameters
    ----------
    extra : float or tensor
        Variance to start from of noise that all rows have besides; None, the default, for no such
        noise.

    Examples
    --------
    >>> import torch
    >>> known = GaussianKnownNoise().with_row_values(torch.tensor([0.25, 1.0]))
    >>> known.log_prob(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 1.0]))
    tensor([-0.2258, -0.9189])
    """

    parameter_texts = (
        ParameterText(
            "raw_extra",
            "The noise variance besides the known ones",
            "The known variances explain all noise: leave out extra.",
            True,
        ),
    )
    rows = RowConstants("noise", required=True)

    def __init__(self, extra: float | Tensor | None = None) -> None:
        super().__init__()
        raw = None if extra is None else unconstrained(extra, "extra of GaussianKnownNoise")
        self.register_parameter("raw_extra", raw)

    @property
    def extra(self) -> Tensor | None:
        """The noise variance that all rows have besides."""
        raw = self._parameters["raw_extra"]
        return None if raw is None else self._positive(raw)

    @property
    @override
    def noise(self) -> Tensor:
        if not self.rows.present(self):
            who = "noise of GaussianKnownNoise"
            remedy = "Give noise=, or predict f without noise."
            refuse(who, "given for each row", "none", remedy)
        noise = self.rows.of(self)
        extra = self.extra
        return noise if extra is None else noise + extra

    def starting_latent(self, y: Row) -> Row:
        """Return the targets."""
        return y

    def floors(self, deviation: float) -> dict[str, float]:
        """Return the smallest allowed value of positive parameters, by name."""
        return {} if self.extra is None else {"raw_extra": deviation * deviation}

    @override
    def settings(self) -> dict[str, float]:
        extra = self.extra
        return {} if extra is None else {"extra": float(extra.detach())}

    def description(self, unit: float) -> dict[str, float]:
        """Return the parameters to print in `summary()`."""
        extra = self.extra
        if extra is None:
            return {}
        return {"noise standard deviation besides the known one": unit * float(extra.sqrt())}


def _log_predictive(y: Values, mean: Values, variance: Values, noise: Values) -> Values:
    return log_density(y, mean, variance + noise)


def log_predictive_and_slopes(y: Values, mean: Values, variance: Values, noise: Values) -> Slopes:
    """With t = v + σ² and r = y − μ: log N(r; 0, t), r/t, and ½(r²/t² − 1/t) in v and in σ²."""
    total = variance + noise
    residual = y - mean
    precision = total.reciprocal()
    pull = residual * precision
    square = total.log_().addcmul_(residual, pull)
    bend = precision.addcmul_(pull, pull, value=-1).mul_(-0.5)
    return torch.rsub(square, _LOG_ROOT, alpha=0.5), pull, bend, bend


def _gibbs(y: Values, mean: Values, variance: Values, noise: Values) -> Values:
    return log_density(y, mean, noise) - 0.5 * variance / noise


def gibbs_and_slopes(y: Values, mean: Values, variance: Values, noise: Values) -> Slopes:
    """With r = y − μ: −½(log 2πσ² + (r² + v)/σ²), r/σ², −1/(2σ²), and ½((r² + v)/σ⁴ − 1/σ²)."""
    precision = noise.reciprocal()
    residual = y - mean
    half = -0.5 * precision
    square = torch.addcmul(variance, residual, residual)
    value = torch.addcmul(torch.rsub(noise.log(), _LOG_ROOT, alpha=0.5), square, half)
    by_noise = torch.addcmul(half, square.mul_(half), precision, value=-1)
    return value, residual.mul_(precision), half, by_noise

"""Positive targets whose deviation is proportional to their mean: the gamma distribution."""

import math
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import gammainc
from torch import Tensor
from typing_extensions import override

from directgp.integration.contract import Derivatives
from directgp.integration.trapezoid import TrapezoidSums
from directgp.likelihoods.base import by_scipy, unconstrained
from directgp.likelihoods.capabilities import ParameterText
from directgp.likelihoods.numeric import Draws
from directgp.likelihoods.positive import PositiveTargets
from directgp.numerics.autograd import Slopes, in_float64
from directgp.numerics.special import exp_excess, log_minus_digamma, stirling, wright_omega
from directgp.shapes import Row, Values

_SMALLEST_SHAPE = 1e-3


@final
class Gamma(PositiveTargets):
    """p(r given f) = α^α r^{α−1} exp(−αf − αr e^{−f}) / Γ(α): mean e^f, deviation e^f/√α.

    r is y itself, or with a unit and an offset (unit·y + offset)/abs(unit).

    Parameters
    ----------
    shape : float or tensor
        α > 0 to start from; α = 1 is the exponential distribution.
    unit, offset : float
        The positive values are unit·y + offset. The estimators set them for scaled targets.

    Examples
    --------
    >>> import torch
    >>> Gamma(shape=1.0).log_prob(torch.tensor([3.0]), torch.tensor([0.0]))
    tensor([-3.], grad_fn=<ToCopyBackward0>)
    """

    # exp(−αr e^−f) decays to the left only while cos(Im f) > 0.
    integration = TrapezoidSums(strip=0.5 * math.pi, fixed_work=True)
    parameter_texts = (
        ParameterText(
            "raw_shape",
            "The shape of the gamma distribution",
            "Many targets are next to 0 compared with others; look at them.",
        ),
    )

    def __init__(self, shape: float | Tensor = 2.0, unit: float = 1.0, offset: float = 0.0) -> None:
        super().__init__(unit, offset)
        self.raw_shape = unconstrained(shape, "shape of Gamma")

    @property
    def shape(self) -> Tensor:
        """α."""
        return self._positive(self.raw_shape)

    @classmethod
    def from_targets(
        cls, y: Float[Tensor, " n"], unit: float = 1.0, offset: float = 0.0
    ) -> "Gamma":
        """A tenth of the variance of log r is noise, of about 1/α."""
        spread = float(cls(unit=unit, offset=offset).to_line(y.double()).var(correction=0))
        return cls(min(max(10 / max(spread, 1e-9), 0.5), 1e4), unit, offset)

    def floors(self, deviation: float) -> dict[str, float]:
        """Return the smallest allowed value of positive parameters, by name."""
        return {"raw_shape": _SMALLEST_SHAPE}

    def description(self, unit: float) -> dict[str, float]:
        """Return the parameters to print in `summary()`."""
        shape = float(self.shape)
        return {"shape": shape, "relative standard deviation": shape**-0.5}

    # With z = log r − f, log p = −α(e^z − 1 − z) + α log α − α − log Γ(α) − log r.

    @override
    def log_kernel(self, y: Values, f: Values) -> Values:
        return -self.shape * exp_excess(self.to_line(y) - f)

    @override
    def log_base(self, y: Values) -> Values:
        return stirling(self.shape) - self.to_line(y)

    @override
    def derivatives(self, y: Values, f: Values) -> Derivatives:
        z = self.to_line(y) - f
        shape = self.shape
        return Derivatives(-shape * exp_excess(z), shape * torch.expm1(z), -shape * torch.exp(z))

    def parameter_slopes(self, y: Values, f: Values) -> Slopes:
        """Log α − ψ(α) − (e^z − 1 − z) in α."""
        return (log_minus_digamma(self.shape) - exp_excess(self.to_line(y) - f),)

    def has_linear_slopes(self) -> bool:
        """Return whether the slopes are linear in f, ℓ and ℓ′."""
        return True

    def slopes_of_averages(self, y: Row, f: Row, value: Row, first: Row) -> Slopes:
        """Log α − ψ(α) + ℓ/α."""
        shape = self.shape
        return (log_minus_digamma(shape) + value / shape,)

    def product_mode(self, y: Values, mean: Values, variance: Values) -> Values:
        """δ = ω(log αv + z + αv) − αv at z = log r − μ, where ω + log ω = x (Wright's function)."""
        pull = self.shape * variance
        start = torch.log(pull) + self.to_line(y) - mean + pull
        return wright_omega(start, refinements=1) - pull

    def expected_log_prob(self, y: Values, mean: Values, variance: Values) -> Values:
        """`log_base` − α(e^x − 1 − x + v/2) at x = log r − μ + v/2."""
        line = self.to_line(y.double())
        return in_float64(_gibbs, _gibbs_and_slopes, line, mean, variance, self.shape)

    def expected_log_prob_slopes(self, y: Values, mean: Values, variance: Values) -> Slopes:
        """`expected_log_prob` and its slopes."""
        line = self.to_line(y.double())
        return _gibbs_and_slopes(line, mean, variance, self.shape.detach().double())

    @override
    def conditional_mean(self, f: Values) -> Values:
        return self.units.of_relative(torch.exp(f))

    @override
    def conditional_variance(self, f: Values) -> Values:
        return torch.exp(2 * f) / self.shape

    def predictive_mean(self, mean: Values, variance: Values) -> Values:
        """The y of r = exp(μ + v/2)."""
        return self.units.of_relative(torch.exp(mean + 0.5 * variance))

    def predictive_variance(self, mean: Values, variance: Values) -> Values:
        """exp(2μ + v)·(e^v − 1 + e^v/α)."""
        factor = torch.expm1(variance) + torch.exp(variance) / self.shape
        return torch.exp(2 * mean + variance) * factor

    def cdf(self, y: Values, f: Values) -> Values:
        """P(α, αr e^−f), the regularised incomplete gamma function."""
        shape = self.shape
        ratio = shape * self.units.relative(y).clamp(min=0.0) * torch.exp(-f)
        return self.units.ordered(by_scipy(gammainc, shape.expand(ratio.shape), ratio))

    def draw(self, f: Draws, mean: Draws, random: np.random.RandomState) -> Draws:
        """Return draws of y given f, with numpy."""
        shape = self.shape.double().cpu().numpy()
        r = torch.from_numpy(np.exp(f) * random.gamma(shape, 1 / shape, f.shape))
        return self.units.of_relative(r).numpy()


def _gibbs(line: Values, mean: Values, variance: Values, shape: Values) -> Values:
    x = line - mean + 0.5 * variance
    return stirling(shape) - line - shape * (exp_excess(x) + 0.5 * variance)


def _gibbs_and_slopes(line: Values, mean: Values, variance: Values, shape: Values) -> Slopes:
    """`_gibbs`, α(e^x − 1), −½αe^x, and log α − ψ(α) − (e^x − 1 − x + v/2) in α."""
    x = line - mean + 0.5 * variance
    excess = exp_excess(x) + 0.5 * variance
    growth = shape * torch.expm1(x)
    value = stirling(shape) - line - shape * excess
    return value, growth, -0.5 * (growth + shape), log_minus_digamma(shape) - excess

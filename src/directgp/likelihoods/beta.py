"""Proportions between 0 and 1: the beta distribution with a logistic mean."""

import math
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import betainc
from torch import Tensor
from torch.nn.functional import logsigmoid
from typing_extensions import override

from directgp.errors import NumericalError, require_all
from directgp.integration.contract import Derivatives
from directgp.integration.trapezoid import TrapezoidSums
from directgp.likelihoods.base import UnimodalInF, by_scipy, unconstrained
from directgp.likelihoods.capabilities import ParameterText
from directgp.likelihoods.numeric import Draws
from directgp.likelihoods.units import OriginalUnits
from directgp.numerics.autograd import Slopes
from directgp.numerics.special import log_gamma, trigamma
from directgp.shapes import Row, Targets, Values

_SMALLEST_PRECISION = 1e-3
_MAX_STEPS = 60
_TOLERANCE = 1e-12
_ADVICE = (
    "For zeros and ones, shrink n proportions by (y·(n − 1) + ½)/n (Smithson and Verkuilen, 2006); "
    "divide percentages by 100."
)


@final
class Beta(UnimodalInF):
    """Proportions t ~ Beta(φm, φ(1−m)) with mean m = 1/(1 + e^−f) and variance m(1−m)/(1+φ).

    It has one peak over f, with tails like e^−|f|, but it is not log-concave.

    Parameters
    ----------
    precision : float or tensor
        φ > 0 to start from.
    unit, offset : float
        The proportions are unit·y + offset. The estimators set them for scaled targets.

    Examples
    --------
    >>> import torch
    >>> Beta(precision=2.0).log_prob(torch.tensor([0.2]), torch.tensor([0.0])).abs() < 1e-6
    tensor([True])
    """

    latent_scale = "logit"
    # 1/Γ(φm) grows towards the poles of m at ±iπ.
    integration = TrapezoidSums(
        strip=0.5 * math.pi, log_strip=0.85 * math.pi, log_concave=False, fixed_work=True
    )
    units: OriginalUnits
    parameter_texts = (
        ParameterText(
            "raw_precision",
            "The precision of the proportions",
            "Nearly all targets are next to 0 or 1: classes may describe them better.",
        ),
    )

    def __init__(
        self, precision: float | Tensor = 10.0, unit: float = 1.0, offset: float = 0.0
    ) -> None:
        super().__init__()
        self.units = OriginalUnits.of("Beta", unit, offset)
        self.raw_precision = unconstrained(precision, "precision of Beta")

    @property
    def precision(self) -> Tensor:
        """φ."""
        return self._positive(self.raw_precision)

    @classmethod
    def from_targets(cls, y: Float[Tensor, " n"], unit: float = 1.0, offset: float = 0.0) -> "Beta":
        """φ as if a tenth of the variance of the proportions were noise."""
        t = y.double() * unit + offset
        mean = float(t.mean())
        spread = 0.1 * max(float(t.var(correction=0)), 1e-9)
        precision = mean * (1 - mean) / spread - 1
        return cls(min(max(precision, 1.0), 1e4), unit, offset)

    def floors(self, deviation: float) -> dict[str, float]:
        """Return the smallest allowed value of positive parameters, by name."""
        return {"raw_precision": _SMALLEST_PRECISION}

    def description(self, unit: float) -> dict[str, float]:
        """Return the parameters to print in `summary()`."""
        return {"precision": float(self.precision)}

    @override
    def check_targets(self, y: Targets) -> None:
        t = self.units.original(y.double())
        inside = (t > 0) & (t < 1)
        require_all(inside, t, "y of Beta", "between 0 and 1, ends excluded", _ADVICE)

    def rough_latent(self, y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Return rough values of f."""
        return self.to_line(y.double()).to(y)

    def starting_latent(self, y: Row) -> Row:
        """Return logits of the proportions."""
        return self.rough_latent(y)

    def to_line(self, y: Values) -> Values:
        """Log t − log(1 − t)."""
        t = self.units.original(y)
        return torch.log(t) - torch.log1p(-t)

    def from_line(self, x: Values) -> Values:
        """The y of t = 1/(1 + e^−x)."""
        return (torch.sigmoid(x) - self.units.offset) / self.units.unit

    def line_slope(self, x: Values) -> Values:
        """t(1 − t)/abs(unit)."""
        return torch.sigmoid(x) * torch.sigmoid(-x) / abs(self.units.unit)

    # With a = φm, b = φ(1−m) and L = log t − log(1−t), the part of log p that depends on f is
    # aL + log a + log b − log Γ(1+a) − log Γ(1+b): no term overflows where a or b underflows.

    @override
    def log_kernel(self, y: Values, f: Values) -> Values:
        precision = self.precision
        a = precision * torch.sigmoid(f)
        b = precision * torch.sigmoid(-f)
        ends = logsigmoid(f) + logsigmoid(-f) - log_gamma(1 + a) - log_gamma(1 + b)
        return a * self.to_line(y) + ends

    @override
    def log_base(self, y: Values) -> Values:
        t = self.units.original(y)
        precision = self.precision
        free = torch.lgamma(precision) + 2 * torch.log(precision) + math.log(abs(self.units.unit))
        return free + (precision - 1) * torch.log1p(-t) - torch.log(t)

    @override
    def value_and_slope(self, y: Values, f: Values) -> tuple[Values, Values]:
        """`log_kernel` and φm(1−m)(L − ψ(1+a) + ψ(1+b)) + 1 − 2m."""
        m, rest, pull, _ = self._pull(y, f)
        slope = self.precision * m * rest * pull + (rest - m)
        return self.log_kernel(y, f), slope

    @override
    def derivatives(self, y: Values, f: Values) -> Derivatives:
        m, rest, pull, (a, b) = self._pull(y, f)
        width = self.precision * m * rest
        bend = trigamma(1 + a) + trigamma(1 + b)
        first = width * pull + (rest - m)
        second = width * (rest - m) * pull - width * width * bend - 2 * m * rest
        return Derivatives(self.log_kernel(y, f), first, second)

    def _pull(self, y: Values, f: Values) -> tuple[Values, Values, Values, tuple[Values, Values]]:
        """m, 1 − m, L − ψ(1+a) + ψ(1+b), and a and b."""
        m = torch.sigmoid(f)
        rest = torch.sigmoid(-f)
        a = self.precision * m
        b = self.precision * rest
        return m, rest, self.to_line(y) - torch.digamma(1 + a) + torch.digamma(1 + b), (a, b)

    def parameter_slopes(self, y: Values, f: Values) -> Slopes:
        """ψ(1+φ) + 1/φ + m(log t − ψ(1+a)) + (1−m)(log(1−t) − ψ(1+b)) in φ."""
        t = self.units.original(y)
        precision = self.precision
        m = torch.sigmoid(f)
        rest = torch.sigmoid(-f)
        free = torch.digamma(1 + precision) + 1 / precision
        low = torch.log(t) - torch.digamma(1 + precision * m)
        high = torch.log1p(-t) - torch.digamma(1 + precision * rest)
        return (free + m * low + rest * high,)

    @override
    def argmax(self, y: Values) -> Values:
        """Solve ψ(φm) − ψ(φ(1−m)) = L, which rises in f and is larger than f in size.

        Newton's method for the asinh of both sides, inside a bracket from 0 to L.
        """
        target, precision = torch.broadcast_tensors(self.to_line(y), self.precision)
        lower = target.clamp(max=0.0)
        upper = target.clamp(min=0.0)
        f = target / (1 + 1 / precision)
        for _ in range(_MAX_STEPS):
            m = torch.sigmoid(f)
            rest = torch.sigmoid(-f)
            a = precision * m
            b = precision * rest
            # ψ(a) = ψ(1 + a) − 1/a.
            here = torch.digamma(1 + a) - torch.digamma(1 + b) + (1 / b - 1 / a)
            ends = trigamma(1 + a) + trigamma(1 + b)
            slope = a * rest * ends + rest / a + m / b
            excess = torch.asinh(here) - torch.asinh(target)
            step = excess * torch.sqrt(1 + here * here) / slope
            lower = torch.where(excess < 0, f, lower)
            upper = torch.where(excess > 0, f, upper)
            proposal = f - step
            inside = (proposal >= lower) & (proposal <= upper)
            f = torch.where(inside, proposal, 0.5 * (lower + upper))
            if not bool((step.abs() > _TOLERANCE * (1 + f.abs())).any()):
                return f
        raise NumericalError(
            f"The peak of Beta was not found in {_MAX_STEPS} steps. Check targets and precision."
        )

    @override
    def conditional_mean(self, f: Values) -> Values:
        return self.from_line(f)

    @override
    def conditional_variance(self, f: Values) -> Values:
        return torch.sigmoid(f) * torch.sigmoid(-f) / (1 + self.precision) / self.units.unit**2

    def cdf(self, y: Values, f: Values) -> Values:
        """I(t; φm, φ(1−m)), the regularised incomplete beta function."""
        a = self.precision * torch.sigmoid(f)
        b = self.precision * torch.sigmoid(-f)
        t = self.units.original(y).clamp(0.0, 1.0)
        return self.units.ordered(by_scipy(betainc, *torch.broadcast_tensors(a, b, t)))

    def draw(self, f: Draws, mean: Draws, random: np.random.RandomState) -> Draws:
        """Return draws of y given f, with numpy."""
        precision = self.precision.double().cpu().numpy()
        m = 1 / (1 + np.exp(-f))
        tiny = np.finfo(np.float64).tiny
        t = random.beta(np.maximum(precision * m, tiny), np.maximum(precision * (1 - m), tiny))
        return np.asarray((t - self.units.offset) / self.units.unit)

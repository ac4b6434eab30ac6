"""Student's t noise, whose log loss grows with the logarithm of a residual, not its square."""

import math
from abc import abstractmethod
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.errors import require
from directgp.integration.contract import Derivatives
from directgp.integration.gamma_mixture import GammaMixture
from directgp.likelihoods.base import UnimodalInF, unconstrained
from directgp.likelihoods.capabilities import NOISE_ADVICE, ParameterText
from directgp.likelihoods.numeric import Draws
from directgp.numerics.arrays import (
    Array,
    array_of,
    library_of,
    special_of,
    tensor_of,
    without_warnings,
)
from directgp.numerics.autograd import Slopes, in_float64
from directgp.numerics.log_square import expected_log_square, expected_log_square_slopes
from directgp.shapes import Values

_SMALLEST_DF = 0.1
_FINITE_VARIANCE = 2.1
"""Degrees of freedom with a mean and a variance of y, which is 21 times the squared scale."""

_QUARTILE = 0.6745
"""Upper quartile of a standard normal."""


class StudentTNoise(UnimodalInF):
    """Base of Student's t noise with learnt or given parameters."""

    integration = GammaMixture(fixed_work=True)
    additive = True

    @property
    @abstractmethod
    def df(self) -> Tensor:
        """ν."""

    @property
    @abstractmethod
    def scale(self) -> Tensor:
        """σ."""

    @override
    def log_kernel(self, y: Values, f: Values) -> Values:
        df = self.df
        return -0.5 * (df + 1) * torch.log1p(((y - f) / self.scale) ** 2 / df)

    @override
    def log_base(self, y: Values) -> Values:
        constant: Tensor = _log_constant(self.df, self.scale)
        return constant.expand(y.shape)

    @override
    def derivatives(self, y: Values, f: Values) -> Derivatives:
        df = self.df
        residual = y - f
        width = df * self.scale**2
        total = width + residual**2
        value = -0.5 * (df + 1) * torch.log1p(residual**2 / width)
        first = (df + 1) * residual / total
        return Derivatives(value, first, (df + 1) * (residual**2 - width) / total**2)

    def parameter_slopes(self, y: Values, f: Values) -> Slopes:
        """In ν and σ, with r = y − f, w = νσ² and c′ the slope of the constant.

        c′ − ½log(1 + r²/w) + ½(ν+1)r²/(ν(w + r²)), and ((ν+1)r²/(w + r²) − 1)/σ.
        """
        df = self.df
        scale = self.scale
        square = (y - f) ** 2
        width = df * scale**2
        pull = (df + 1) * square / (width + square)
        by_df = _constant_slope(df) + 0.5 * (pull / df - torch.log1p(square / width))
        return by_df, (pull - 1) / scale

    @override
    def conditional_mean(self, f: Values) -> Values:
        return torch.where(self.df > 1, f, torch.nan)

    @override
    def conditional_variance(self, f: Values) -> Values:
        df = self.df
        finite = self.scale**2 * df / torch.where(df > 2, df - 2, 1.0)
        return torch.where(df > 2, finite, torch.inf).expand(f.shape)

    @override
    def argmax(self, y: Values) -> Values:
        return y

    def draw(self, f: Draws, mean: Draws, random: np.random.RandomState) -> Draws:
        """Return draws of y given f, with numpy."""
        # The mean may not exist; f is the centre.
        df = self.df.double().cpu().numpy()
        scale = self.scale.double().cpu().numpy()
        return np.asarray(f + scale * random.standard_t(df, f.shape))

    def predictive_mean(self, mean: Values, variance: Values) -> Values:
        """μ, for ν > 1."""
        return self.conditional_mean(mean)

    def predictive_variance(self, mean: Values, variance: Values) -> Values:
        """v + σ²ν/(ν−2), infinite for ν ≤ 2."""
        return variance + self.conditional_variance(mean)

    def expected_log_prob(self, y: Values, mean: Values, variance: Values) -> Values:
        """log c − (ν+1)/2·(E_q[log(νσ² + (y−f)²)] − log νσ²), by one smooth integral."""
        return in_float64(_gibbs, _gibbs_and_slopes, y, mean, variance, self.df, self.scale)

    def expected_log_prob_slopes(self, y: Values, mean: Values, variance: Values) -> Slopes:
        """`expected_log_prob` and its slopes."""
        return _gibbs_and_slopes(y, mean, variance, self.df.detach(), self.scale.detach())

    def mixture_variance(self, t: Values) -> Values:
        """σ² e^{−t}: given the precision factor e^t, the noise is Gaussian."""
        return self.scale**2 * torch.exp(-t)

    def log_mixing(self, t: Values) -> Values:
        """Log density of t = log g, g ~ Gamma(ν/2, rate ν/2)."""
        half = 0.5 * self.df
        return half * (torch.log(half) + t - torch.exp(t)) - torch.lgamma(half)

    def tail_bounds(self, distance: Values, nats: float) -> Values:
        """Bounds of t, shape (2, ...), outside which Φ(−x/√(v + w(t)))·π(t) is e^−nats of its top.

        Left of −log(1 + x²/(νσ²)) the integrand falls, by (ν/2)(s − 1 + e^−s) at a distance s up to
        a factor √ν, and s − 1 + e^−s ≥ s²/(2 + s). On the right the Gamma factor dominates.
        """
        half = 0.5 * self.df
        rise = torch.log1p((distance / self.scale) ** 2 / self.df)
        share = (nats + 1 + 0.5 * torch.log1p(self.df)) / half
        lower = -rise - 0.5 * share - torch.sqrt(0.25 * share**2 + 2 * share)
        share = (nats + 5) / half
        upper = torch.minimum(torch.sqrt(2 * share), torch.log1p(share + 5))
        return torch.stack([lower, upper.expand(lower.shape)])

    def mixture_width(self) -> Tensor:
        """Width in t of the narrowest peak that the integrand can have, 1/√((ν+1)/2)."""
        return torch.rsqrt(0.5 * (self.df + 1))


def _log_constant(df: Array, scale: Array) -> Array:
    """Γ((ν+1)/2) / (Γ(ν/2)·√(πν)·σ), as its log."""
    half = 0.5 * df
    log = library_of(df).log
    special = special_of(df)
    ratio = special.gammaln(half + 0.5) - special.gammaln(half)
    return ratio - 0.5 * log(2 * math.pi * half) - log(scale)


def _constant_slope(df: Array) -> Array:
    """½(ψ((ν+1)/2) − ψ(ν/2) − 1/ν), the derivative of `_log_constant` in ν."""
    half = 0.5 * df
    special = special_of(df)
    return 0.5 * (special.digamma(half + 0.5) - special.digamma(half) - 0.5 / half)


def _gibbs(y: Values, mean: Values, variance: Values, df: Tensor, scale: Tensor) -> Values:
    width = df * scale**2
    log_ratio = expected_log_square(width, y - mean, variance) - torch.log(width)
    value: Values = _log_constant(df, scale) - 0.5 * (df + 1) * log_ratio
    return value


@without_warnings
def _gibbs_and_slopes(*numbers: Tensor) -> Slopes:
    """Compute `_gibbs`, and its slopes in mean, variance, ν and σ."""
    y, mean, variance, df, scale = map(array_of, numbers)
    width = df * scale * scale
    power = 0.5 * (df + 1)
    slopes = expected_log_square_slopes(width, y - mean, variance)
    log_mean, by_width, by_mean, by_variance = slopes
    log_ratio = log_mean - library_of(width).log(width)
    # The slope in log w: −(ν+1)/2 of the share of w in w + x².
    pull = power * (1 - width * by_width)
    by_df = _constant_slope(df) - 0.5 * log_ratio + pull / df
    value = _log_constant(df, scale) - power * log_ratio
    columns = value, power * by_mean, -power * by_variance, by_df, (2 * pull - 1) / scale
    return tuple(map(tensor_of, columns))


@final
class StudentT(StudentTNoise):
    """p(y given f) = t_ν((y−f)/σ)/σ; robust regression, not log-concave in f.

    Parameters
    ----------
    df : float or tensor
        Degrees of freedom ν > 0 to start from.
    scale : float or tensor
        σ > 0 to start from.
    min_df : float
        Smallest ν that training allows. y has a mean for ν > 1 and a variance for ν > 2; the
        likelihood "student_t" of the estimators has 2.1.

    Examples
    --------
    >>> import torch
    >>> StudentT(df=4.0, scale=0.3).log_prob(torch.tensor([3e4]), torch.tensor([0.0]))
    tensor([-53.8757], grad_fn=<ToCopyBackward0>)
    """

    parameter_texts = (
        ParameterText("raw_scale", "The scale of the Student-t noise", NOISE_ADVICE, True),
        ParameterText(
            "raw_df",
            "The number of degrees of freedom of the Student-t noise",
            "The tails are heavier still: a few targets lie extremely far from the others. Look at "
            "them. StudentT(min_df=...) allows a smaller value; up to 2 y has no variance, up to 1 "
            "no mean.",
        ),
    )

    def __init__(
        self,
        df: float | Tensor = 4.0,
        scale: float | Tensor = 0.3,
        min_df: float = _SMALLEST_DF,
    ) -> None:
        super().__init__()
        finite = 0 < min_df < math.inf
        require(finite, "min_df of StudentT", "positive and finite", min_df)
        self.min_df = min_df
        self.raw_df = unconstrained(df, "df of StudentT")
        self.raw_scale = unconstrained(scale, "scale of StudentT")

    @property
    @override
    def df(self) -> Tensor:
        return self._positive(self.raw_df)

    @property
    @override
    def scale(self) -> Tensor:
        return self._positive(self.raw_scale)

    @classmethod
    def from_targets(
        cls, y: Float[Tensor, " n"], unit: float = 1.0, offset: float = 0.0
    ) -> "StudentT":
        """The scale starts at a tenth of the variance of the bulk of the targets; ν ≥ 2.1."""
        spread = float((y - y.median()).abs().median()) / _QUARTILE
        noise = 0.1 * spread**2 if spread > 0 else 0.1 * max(float(y.var(correction=0)), 1e-6)
        return cls(df=4.0, scale=noise**0.5, min_df=_FINITE_VARIANCE)

    def floors(self, deviation: float) -> dict[str, float]:
        """Return the smallest allowed value of positive parameters, by name."""
        return {"raw_scale": deviation, "raw_df": self.min_df}

    @override
    def settings(self) -> dict[str, float]:
        return {"min_df": self.min_df}

    def description(self, unit: float) -> dict[str, float]:
        """Return the parameters to print in `summary()`."""
        return {"noise scale": unit * float(self.scale), "degrees of freedom": float(self.df)}

"""Two labels, y ∈ {0, 1}: p(y given f) = g((2y−1)f) for a symmetric link g."""

import math
from abc import abstractmethod
from typing import final

import numpy as np
import torch
from torch.nn.functional import logsigmoid
from typing_extensions import override

from directgp.errors import require_all
from directgp.integration.contract import Derivatives
from directgp.integration.trapezoid import TrapezoidSums
from directgp.likelihoods.base import UnimodalInF
from directgp.likelihoods.numeric import Draws
from directgp.numerics.autograd import Slopes, in_float64
from directgp.numerics.fixed_sizes import recording
from directgp.numerics.random import Generator, sample_above, standard_normal
from directgp.numerics.special import log_ndtr, log_ndtr_and_slope, log_ndtr_derivatives, sigmoids
from directgp.shapes import Targets, Values

_ROOT = 1 / math.sqrt(2 * math.pi)


def _sign(y: Values) -> Values:
    """Return 2y − 1, in one operation."""
    return torch.rsub(y, -1.0, alpha=-2.0)


class Bernoulli(UnimodalInF):
    """Base of the likelihoods of labels with either link."""

    integration = TrapezoidSums(strip=math.pi, fixed_work=True)
    task = "classification"

    @abstractmethod
    def link_derivatives(self, x: Values) -> Derivatives:
        """log g and its first two derivatives."""

    @override
    def derivatives(self, y: Values, f: Values) -> Derivatives:
        sign = _sign(y)
        value, slope, second = self.link_derivatives(sign * f)
        return Derivatives(value, slope.mul_(sign), second)

    @override
    def conditional_variance(self, f: Values) -> Values:
        return self.conditional_mean(f) * self.conditional_mean(-f)

    @override
    def check_targets(self, y: Targets) -> None:
        labels = (y == 0) | (y == 1)
        name = type(self).__name__
        require_all(labels, y, f"y of {name}", "a label, 0 or 1", "Encode the two classes so.")

    @override
    def argmax(self, y: Values) -> Values:
        return _sign(y) * torch.inf

    def draw(self, f: Draws, mean: Draws, random: np.random.RandomState) -> Draws:
        """Return draws of y given f, with numpy."""
        return (random.random_sample(f.shape) < mean).astype(np.float64)

    def complement(self, y: Values) -> Values:
        """1 − y."""
        return 1 - y


@final
class Probit(Bernoulli):
    """p(y given f) = Φ((2y−1)f).

    Examples
    --------
    >>> import torch
    >>> Probit().log_prob(torch.tensor([1.0, 0.0]), torch.tensor([-20.0, 0.0]))
    tensor([-203.9172,   -0.6931])
    """

    @override
    def log_kernel(self, y: Values, f: Values) -> Values:
        return log_ndtr(_sign(y) * f)

    @override
    def link_derivatives(self, x: Values) -> Derivatives:
        return Derivatives(*log_ndtr_derivatives(x))

    @override
    def conditional_mean(self, f: Values) -> Values:
        probability: Values = torch.special.ndtr(f)
        return probability

    def log_predictive(self, y: Values, mean: Values, variance: Values) -> Values:
        """log Φ((2y−1)μ / √(1+v))."""
        return in_float64(_log_probit, self.log_predictive_slopes, y, mean, variance)

    def log_predictive_slopes(self, y: Values, mean: Values, variance: Values) -> Slopes:
        """With r = 1/√(1+v), s = 2y − 1 and z = sμr: log Φ(z), sλ(z)r and −½zλ(z)r²."""
        sign = _sign(y)
        scale = (1 + variance).rsqrt_()
        z = (sign * mean).mul_(scale)
        value, slope = log_ndtr_and_slope(z)
        slope.mul_(scale)
        return value, slope * sign, z.mul_(scale).mul_(slope).mul_(-0.5)

    def predictive_mean(self, mean: Values, variance: Values) -> Values:
        """Φ(μ / √(1+v))."""
        return self.conditional_mean(mean / torch.sqrt(1 + variance))

    def predictive_mean_slopes(self, mean: Values, variance: Values) -> Slopes:
        """With r = 1/√(1+v) and z = μr: Φ(z), φ(z)r and −½zφ(z)r²."""
        scale = (1 + variance).rsqrt_()
        z = mean * scale
        slope = torch.exp(-0.5 * z * z).mul_(scale).mul_(_ROOT)
        return self.conditional_mean(z), slope, z.mul_(scale).mul_(slope).mul_(-0.5)

    def predictive_variance(self, mean: Values, variance: Values) -> Values:
        """p(1−p) with p the predictive mean."""
        return self.predictive_mean(mean, variance) * self.predictive_mean(-mean, variance)

    def sample_product(
        self, y: Values, mean: Values, variance: Values, num_samples: int, generator: Generator
    ) -> Values:
        """Draw from q̃, an extended skew-normal, minus μ.

        With f + ε = μ + z, ε ~ N(0, 1): the label means that (2y−1)(μ + z) > 0, so z ~ N(0, 1+v)
        truncated to that side, and f − μ given z ~ N(vz/(1+v), v/(1+v)).
        """
        scale = torch.sqrt(1 + variance)
        shrink = variance / (1 + variance)
        sign = _sign(y)
        lower = (-sign * mean / scale).expand(num_samples, *mean.shape)
        z = sign * scale * sample_above(lower, generator)
        return shrink * z + torch.sqrt(shrink) * standard_normal(num_samples, mean, generator)


def _log_probit(y: Values, mean: Values, variance: Values) -> Values:
    return log_ndtr(_sign(y) * mean * torch.rsqrt(1 + variance))


@final
class Logistic(Bernoulli):
    """p(y given f) = 1 / (1 + exp(−(2y−1)f)).

    Examples
    --------
    >>> import torch
    >>> Logistic().log_prob(torch.tensor([1.0, 0.0]), torch.tensor([-800.0, 0.0]))
    tensor([-8.0000e+02, -6.9315e-01])
    """

    @override
    def log_kernel(self, y: Values, f: Values) -> Values:
        return logsigmoid(_sign(y) * f)

    @override
    def link_derivatives(self, x: Values) -> Derivatives:
        if x.is_cuda or recording():
            # Fewer operations, each of which is slower on a CPU.
            failure = torch.sigmoid(-x)
            return Derivatives(logsigmoid(x), failure, torch.sigmoid(x).mul_(failure).neg_())
        success, failure, rest = sigmoids(x)
        value = torch.clamp(x, max=0.0).sub_(rest)
        return Derivatives(value, failure, success.mul_(failure).neg_())

    @override
    def conditional_mean(self, f: Values) -> Values:
        return torch.sigmoid(f)

"""Ordered classes: thresholds cut the line of f plus standard normal noise."""

import math
from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import override

from directgp.errors import require, require_all
from directgp.integration.contract import Derivatives
from directgp.integration.trapezoid import TrapezoidSums
from directgp.likelihoods.base import UnimodalInF, unconstrained
from directgp.likelihoods.numeric import Draws
from directgp.numerics.autograd import Slopes, in_float64
from directgp.numerics.intervals import ENDLESS, interval_slopes, log_ndtr_between
from directgp.numerics.random import Generator, sample_between, standard_normal
from directgp.numerics.roots import rounded_down
from directgp.shapes import Targets, Values

_SMALLEST_GAP = 1e-6


@final
class OrderedProbit(UnimodalInF):
    """p(k given f) = Φ(b_{k+1} − f) − Φ(b_k − f) for classes k = 0, …, K − 1 in order.

    b_0 = −∞ and b_K = ∞. The parameters are the first threshold b_1 and the gaps between the
    others; with K = 2 and b_1 = 0 it is the probit likelihood.

    Parameters
    ----------
    num_classes : int
        K ≥ 2.
    thresholds : sequence of float or tensor
        b_1 < … < b_{K−1} to start from; by default those of equally frequent classes.

    Examples
    --------
    >>> import torch
    >>> marks = OrderedProbit(thresholds=[-1.0, 1.0])
    >>> marks.log_prob(torch.tensor([0, 1, 2]), torch.zeros(3)).exp()
    tensor([0.1587, 0.6827, 0.1587], grad_fn=<ExpBackward0>)
    """

    integration = TrapezoidSums(strip=math.pi)
    task = "classification"

    def __init__(
        self, num_classes: int | float = 3, thresholds: Sequence[float | Tensor] | None = None
    ) -> None:
        super().__init__()
        if thresholds is None:
            thresholds = _equal_classes(num_classes)
        edges = [torch.as_tensor(edge, dtype=torch.float64) for edge in thresholds]
        who = "thresholds of OrderedProbit"
        require(len(edges) > 0, who, "one or more", "none")
        self.num_classes = len(edges) + 1
        require_all(torch.isfinite(edges[0]).reshape(-1), edges[0].reshape(-1), who, "finite")
        self.first = nn.Parameter(edges[0].detach().clone())
        for k in range(1, len(edges)):
            gap = unconstrained(edges[k] - edges[k - 1], f"gap {k} between {who}")
            self.register_parameter(f"raw_gap_{k}", gap)

    @property
    def thresholds(self) -> tuple[Tensor, ...]:
        """b_1, …, b_{K−1}."""
        edge, *gaps = self._constants()
        edges = [edge]
        for gap in gaps:
            edges.append(edges[-1] + gap)
        return tuple(edges)

    @classmethod
    def from_targets(
        cls, y: Float[Tensor, " n"], unit: float = 1.0, offset: float = 0.0
    ) -> "OrderedProbit":
        """Return the likelihood of as many classes as the labels have."""
        return cls.from_labels(y, max(2, int(y.max()) + 1 if len(y) else 2))

    @classmethod
    def from_labels(cls, y: Float[Tensor, " n"], number: int) -> "OrderedProbit":
        """Thresholds at the frequencies of the classes, for f of variance 1."""
        counts = torch.bincount(y.long().cpu(), minlength=number) + 0.5
        shares = (counts / counts.sum()).cumsum(0)[:-1]
        return cls(number, (2**0.5 * torch.special.ndtri(shares)).tolist())

    def floors(self, deviation: float) -> dict[str, float]:
        """Return the smallest allowed value of positive parameters, by name."""
        return {f"raw_gap_{k}": _SMALLEST_GAP for k in range(1, self.num_classes - 1)}

    @override
    def settings(self) -> dict[str, float]:
        return {"num_classes": float(self.num_classes)}

    def description(self, unit: float) -> dict[str, float]:
        """Return the parameters to print in `summary()`."""
        return {f"threshold {k}": float(b) for k, b in enumerate(self.thresholds, 1)}

    @override
    def check_targets(self, y: Targets) -> None:
        classes = (y >= 0) & (y < self.num_classes) & (y == y.double().floor())
        allowed = f"a class, 0 to {self.num_classes - 1}"
        require_all(classes, y, "y of OrderedProbit", allowed, "Encode the classes in order.")

    def _constants(self) -> tuple[Tensor, ...]:
        """b_1 and the gaps, for the examples taken."""
        gaps = (self.get_parameter(f"raw_gap_{k}") for k in range(1, self.num_classes - 1))
        return self._view.of(self.first), *(self._positive(raw) for raw in gaps)

    @override
    def log_kernel(self, y: Values, f: Values) -> Values:
        lower, upper = _edges(y, *self._constants())
        return log_ndtr_between(lower - f, upper - f)

    @override
    def derivatives(self, y: Values, f: Values) -> Derivatives:
        lower, upper = _edges(y, *self._constants())
        slopes = interval_slopes(lower - f, upper - f)
        return Derivatives(slopes.value, slopes.mean, slopes.excess)

    def parameter_slopes(self, y: Values, f: Values) -> Slopes:
        """Sum the slopes in the thresholds around y over the thresholds that a parameter moves."""
        lower, upper = _edges(y, *self._constants())
        slopes = interval_slopes(lower - f, upper - f)
        return self._by_constants(y, slopes.by_lower, slopes.by_upper)

    def _by_constants(self, y: Values, by_lower: Values, by_upper: Values) -> Slopes:
        """Return slopes in b_1 and the gaps: threshold k contains the gaps 1 to k − 1.

        The thresholds around y are y and y + 1.
        """
        return tuple(
            torch.where(y > k, by_lower, 0.0) + torch.where(y >= k, by_upper, 0.0)
            for k in range(self.num_classes - 1)
        )

    @override
    def argmax(self, y: Values) -> Values:
        lower, upper = _edges(y, *self._constants())
        ends = torch.where(lower < -0.1 * ENDLESS, -torch.inf, torch.inf)
        middle = 0.5 * (lower + upper)
        return torch.where(middle.abs() < 0.1 * ENDLESS, middle, ends)

    def log_predictive(self, y: Values, mean: Values, variance: Values) -> Values:
        """log(Φ((b_{y+1} − μ)/s) − Φ((b_y − μ)/s)) with s² = 1 + v."""
        return in_float64(_log_predictive, self._slopes, y, mean, variance, *self._constants())

    def log_predictive_slopes(self, y: Values, mean: Values, variance: Values) -> Slopes:
        """`log_predictive` and its slopes."""
        constants = (value.detach().double() for value in self._constants())
        return self._slopes(y, mean, variance, *constants)

    def _slopes(self, y: Values, mean: Values, variance: Values, *constants: Values) -> Slopes:
        lower, upper = _edges(y, *constants)
        scale = torch.rsqrt(1 + variance)
        slopes = interval_slopes((lower - mean) * scale, (upper - mean) * scale)
        by_variance = 0.5 * slopes.scale_slope * scale * scale
        by_constants = self._by_constants(y, slopes.by_lower * scale, slopes.by_upper * scale)
        return slopes.value, slopes.mean * scale, by_variance, *by_constants

    def log_class_probabilities(self, mean: Values, variance: Values) -> Values:
        """log P(Y = k) of every class, shape (K, ..., n); differentiable."""
        classes = (torch.full_like(mean, float(k)) for k in range(self.num_classes))
        return torch.stack([self.log_predictive(y, mean, variance) for y in classes])

    def class_probabilities(self, f: Values) -> Values:
        """Return p(k given f) of each class, shape (K, ...)."""
        below = torch.stack([torch.special.ndtr(b - f) for b in self.thresholds])
        above = torch.special.ndtr(f - self.thresholds[-1])
        return torch.cat([below[:1], below.diff(dim=0), above[None]])

    @override
    def conditional_mean(self, f: Values) -> Values:
        above: Values = sum(torch.special.ndtr(f - b) for b in self.thresholds)
        return above

    @override
    def conditional_variance(self, f: Values) -> Values:
        return self._variance(f, torch.zeros_like(f))

    def predictive_mean(self, mean: Values, variance: Values) -> Values:
        """Σ_k Φ((μ − b_k)/√(1+v)), the mean number of the class."""
        scale = torch.rsqrt(1 + variance)
        above: Values = sum(torch.special.ndtr((mean - b) * scale) for b in self.thresholds)
        return above

    def predictive_variance(self, mean: Values, variance: Values) -> Values:
        """Σ_k P(Y = k)(k − E y)²."""
        return self._variance(mean, variance)

    def _variance(self, mean: Values, variance: Values) -> Values:
        expected = self.predictive_mean(mean, variance)
        total = torch.zeros_like(mean)
        for k in range(self.num_classes):
            chance = torch.exp(
                _log_predictive(torch.full_like(mean, float(k)), mean, variance, *self._constants())
            )
            total = total + chance * (k - expected).square()
        return total

    def predictive_cdf(self, y: Values, mean: Values, variance: Values) -> Values:
        """Φ((b_{k+1} − μ)/√(1+v)) with k the whole part of y."""
        scale = torch.rsqrt(1 + variance)
        probability = (y >= self.num_classes - 1).to(mean)
        for k, b in enumerate(self.thresholds):
            below = torch.special.ndtr((b - mean) * scale)
            probability = torch.where((y >= k) & (y < k + 1), below, probability)
        return probability

    def predictive_quantile(self, level: Values, mean: Values, variance: Values) -> Values:
        """The number of classes k with P(Y ≤ k) below the level."""
        scale = torch.rsqrt(1 + variance)
        reached = rounded_down(level)
        below = (torch.special.ndtr((b - mean) * scale) < reached for b in self.thresholds)
        return torch.stack([mask.double() for mask in below]).sum(0)

    def predictive_crps(self, y: Values, mean: Values, variance: Values) -> Values:
        """Σ_k (P(Y ≤ k) − 1{y ≤ k})², the ranked probability score."""
        scale = torch.rsqrt(1 + variance)
        score = torch.zeros_like(mean)
        for k, b in enumerate(self.thresholds):
            side = torch.where(y <= k, -1.0, 1.0)
            score = score + torch.special.ndtr(side * (b - mean) * scale).square()
        return score

    def sample_product(
        self, y: Values, mean: Values, variance: Values, num_samples: int, generator: Generator
    ) -> Values:
        """Draw from q̃, minus μ: z ~ N(0, 1+v) between the thresholds of y, less μ, then f."""
        lower, upper = _edges(y, *self._constants())
        scale = torch.sqrt(1 + variance)
        shrink = variance / (1 + variance)
        shape = (num_samples, *mean.shape)
        low, high = (((edge - mean) / scale).expand(shape) for edge in (lower, upper))
        z = scale * sample_between(low, high, generator)
        return shrink * z + torch.sqrt(shrink) * standard_normal(num_samples, mean, generator)

    def draw(self, f: Draws, mean: Draws, random: np.random.RandomState) -> Draws:
        """Return draws of y given f, with numpy."""
        noisy = f + random.standard_normal(f.shape)
        edges = np.array([float(b) for b in self.thresholds])
        return np.searchsorted(edges, noisy).astype(np.float64)


def _edges(y: Values, first: Values, *gaps: Values) -> tuple[Values, Values]:
    """Return the thresholds below and above class y."""
    # NaN stays NaN.
    lower = 0 * (y + first) - ENDLESS
    upper = lower + 2 * ENDLESS
    edge = first
    for k, gap in enumerate((torch.zeros_like(first), *gaps)):
        edge = edge + gap
        lower = torch.where(y > k, edge, lower)
        upper = torch.where(y == k, edge, upper)
    return lower, upper


def _log_predictive(y: Values, mean: Values, variance: Values, *constants: Values) -> Values:
    lower, upper = _edges(y, *constants)
    scale = torch.rsqrt(1 + variance)
    return log_ndtr_between((lower - mean) * scale, (upper - mean) * scale)


def _equal_classes(number: int | float) -> list[float]:
    who = "num_classes of OrderedProbit"
    whole = number == int(number)
    require(whole and number >= 2, who, "a whole number of at least 2", number)
    shares = torch.arange(1, int(number), dtype=torch.float64) / number
    thresholds: list[float] = (2**0.5 * torch.special.ndtri(shares)).tolist()
    return thresholds

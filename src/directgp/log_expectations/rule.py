"""Define `Rule`, the estimates a rule returns, and how their gradients join the graph."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd import Function

from directgp.errors import require
from directgp.likelihoods.base import Likelihood
from directgp.numerics.autograd import first_order
from directgp.numerics.random import fresh_generator
from directgp.numerics.special import log1mexp
from directgp.shapes import BatchedRow, Points, Row, Targets, Values

Schedule = int | float | Callable[[int], int | float]
"""A number, or a function of the training step."""


@dataclass(frozen=True)
class Moment:
    """When a rule is asked: at which training step, with which source of randomness."""

    step: int = 0
    """Training step, read by schedules."""

    generator: torch.Generator | None = None
    """Source of every random number of the rule; never None for a rule that draws."""


class Rule(ABC):
    """A way to get log E_q[p(y given f)] for q(f) = N(mean, variance), and its gradient.

    The returned tensor's value estimates the log expectation; its backward is the rule's gradient
    estimate with respect to mean, variance and the likelihood's parameters. Whatever the dtype of
    the arguments, the integral is computed in float64 and handed back in the dtype of the mean.
    """

    deterministic: ClassVar[bool]
    """The same arguments give the same numbers, right to the rule's tolerance."""

    unbiased_gradient: ClassVar[bool]
    """The expected gradient is the gradient of log E_q[p(y given f)]."""

    @property
    def smooth(self) -> bool:
        """Whether the gradient is that of the value, with the random numbers held."""
        return self.deterministic

    def check(self, likelihood: Likelihood) -> None:  # noqa: B027
        """Raise `UnsupportedError` if the likelihood lacks a capability that the rule needs."""

    def fixed_work(self, likelihood: Likelihood) -> bool:
        """Whether the rule does the same operations for all numbers, as a CUDA graph needs."""
        return False

    def with_num_samples(self, num_samples: int) -> "Rule":
        """Return this rule with the number of samples, if it draws any."""
        return self

    @final
    def __call__(
        self,
        likelihood: Likelihood,
        y: Targets,
        mean: Values,
        variance: Values,
        *,
        generator: torch.Generator | None = None,
        step: int = 0,
    ) -> Values:
        """log E_q[p(y given f)] for each example; shapes broadcast, targets are not checked."""
        if generator is None and not self.deterministic:
            generator = fresh_generator(mean.device)
        moment = Moment(step, generator)
        return self._evaluate(likelihood, *of_one_shape(y, mean, variance), moment).to(mean.dtype)

    @abstractmethod
    def _evaluate(
        self,
        likelihood: Likelihood,
        y: BatchedRow,
        mean: BatchedRow,
        variance: BatchedRow,
        moment: Moment,
    ) -> BatchedRow:
        """`__call__` on floating tensors of one shape; the rule sees to float64."""


def of_one_shape(y: Targets, mean: Values, variance: Values) -> tuple[Values, Values, Values]:
    """Floating targets and marginals, broadcast to one shape; themselves where they are that.

    What is not done here is not part of a graph either.
    """
    target = y if y.is_floating_point() else y.double()
    if target.shape == mean.shape == variance.shape:
        return target, mean, variance
    target, mean, variance = torch.broadcast_tensors(target, mean, variance)
    return target, mean, variance


def at_step(schedule: Schedule, step: int) -> int | float:
    """The value of a schedule at a training step."""
    return schedule(step) if callable(schedule) else schedule


def check_num_samples(num_samples: int | float) -> int:
    """A number of samples, refused below 1."""
    require(num_samples >= 1, "num_samples", "at least 1", num_samples)
    return int(num_samples)


@dataclass(frozen=True)
class Estimate:
    """log E_q[p] and its derivatives, one of each per example.

    Only the parameter term is part of a graph, and stays so whatever is done with the estimate.
    """

    value: Row
    """log E_q[p(y given f)]."""

    mean_slope: Row
    """Its derivative in the mean."""

    variance_slope: Row
    """Its derivative in the variance."""

    parameter_term: Row | None = None
    """E_q̃[log p(y given f)], whose graph leads to the likelihood's parameters, where asked for."""

    def complement(self) -> "Estimate":
        """log(1 − E_q[p]) from log E_q[p]."""
        return self.through(log1mexp(-self.value), -1 / torch.expm1(-self.value))

    def through(self, value: Row, factor: Row) -> "Estimate":
        """An estimate of a function of the value, with the derivative of that function."""
        with torch.enable_grad():
            columns = [factor * column for column in self._columns()[1:]]
        return Estimate(value, *columns)

    def otherwise(self, mask: Bool[Tensor, " n"], other: "Estimate") -> "Estimate":
        """This estimate where the mask holds, the other one elsewhere."""
        pairs = zip(self._columns(), other._columns(), strict=True)
        with torch.enable_grad():
            return Estimate(*(torch.where(mask, a, b) for a, b in pairs))

    @staticmethod
    def join(parts: "Iterable[Estimate]") -> "Estimate":
        """One estimate from those of successive examples."""
        one, *more = parts
        if not more:
            return one
        columns = zip(*(estimate._columns() for estimate in (one, *more)), strict=True)
        with torch.enable_grad():
            return Estimate(*(torch.cat(column) for column in columns))

    @staticmethod
    def gather(parts: "list[tuple[Int[Tensor, ' _'], Estimate]]") -> "Estimate":
        """One estimate from those of parts of the examples, given with their indices."""
        index = torch.cat([index for index, _ in parts])
        order = torch.empty_like(index)
        order[index] = torch.arange(len(index), device=index.device)
        columns = zip(*(estimate._columns() for _, estimate in parts), strict=True)
        with torch.enable_grad():
            return Estimate(*(torch.cat(column)[order] for column in columns))

    def _columns(self) -> list[Row]:
        columns = [self.value, self.mean_slope, self.variance_slope]
        return columns if self.parameter_term is None else [*columns, self.parameter_term]


def without_overflow(weights: Points, first: Points, second: Points) -> tuple[Points, Points]:
    """Slopes at points of these weights, 0 where a point so far out that they overflow has none."""
    # On a device the question would cost more than the answer saves.
    if not second.is_cuda and math.isfinite(second.sum()):
        return first, second
    weightless = weights == 0
    return first.masked_fill(weightless, 0.0), second.masked_fill(weightless, 0.0)


def parameter_term(likelihood: Likelihood, y: Row, f: Points, weights: Points) -> Row | None:
    """Σ_k w_k log p(y given f_k), for its gradient in the likelihood's parameters, if asked for.

    Fisher's identity: ∂_θ log E_q[p] = E_q̃[∂_θ log p(y given f)], with f_k and w_k standing for q̃.
    """
    if not likelihood.trainable:
        return None
    with torch.enable_grad():
        kernel = (weights * likelihood.log_kernel(y, f)).sum(0)
        return kernel + weights.sum(0) * likelihood.log_base(y)


_CPU_ELEMENTS = 40_000
"""Arrays of some 320 KB, which stay in a near cache and are not fetched from the system anew."""

_DEVICE_ELEMENTS = 1 << 27

_CPU_EXAMPLES = 8192
"""More examples than this gain nothing, however few points each has."""


def rows_for(points: int, device: torch.device) -> int:
    """Examples at a time for a computation with this many points for each."""
    if device.type != "cpu":
        return max(1, _DEVICE_ELEMENTS // points)
    return min(max(256, _CPU_ELEMENTS // points), _CPU_EXAMPLES)


def row_blocks(
    num_rows: int, points: int, device: torch.device
) -> list[tuple[slice, Int[Tensor, " r"]]]:
    """Successive blocks of examples, as a slice and as indices."""
    size = rows_for(points, device)
    index = torch.arange(num_rows, device=device)
    slices = [slice(start, start + size) for start in range(0, max(num_rows, 1), size)]
    return [(block, index[block]) for block in slices]


Estimator = Callable[[Likelihood, Row, Row, Row], Estimate]
"""Likelihood, y, mean, variance of a flat batch in float64 → estimate, outside of any graph."""


def evaluate(
    estimator: Estimator,
    likelihood: Likelihood,
    y: Values,
    mean: Values,
    variance: Values,
    points: int = 1,
) -> Values:
    """The estimated values, with the estimated slopes as their gradients, in the mean's dtype.

    y, mean and variance are of one shape (..., n) and any dtype. Examples are taken on in blocks,
    fewer at a time the more points the estimator has for each.
    """
    if not torch.is_grad_enabled():
        likelihood = likelihood.frozen()
    with torch.no_grad():
        estimate = _in_blocks(estimator, likelihood, y, mean, variance, points)
    apply: Callable[..., Tensor] = _Attach.apply
    return apply(estimate, mean, variance, *likelihood.learned())


def _in_blocks(
    estimator: Estimator,
    likelihood: Likelihood,
    y: Values,
    mean: Values,
    variance: Values,
    points: int,
) -> Estimate:
    rows = [tensor.reshape(-1).double() for tensor in (y, mean, variance)]
    flat = likelihood if mean.dim() == 1 else likelihood.take(torch.ones_like(y).bool())
    if len(rows[0]) <= rows_for(points, mean.device):
        return estimator(flat, *rows)
    return Estimate.join(
        estimator(flat.take(index), *(row[block] for row in rows))
        for block, index in row_blocks(len(rows[0]), points, mean.device)
    )


class _Attach(Function):
    """The value of an estimate, with its slopes as derivatives; a second derivative is refused."""

    @staticmethod
    def forward(
        ctx: Any, estimate: Estimate, mean: Tensor, variance: Tensor, *parameters: Tensor
    ) -> Tensor:
        ctx.term, ctx.parameters = estimate.parameter_term, parameters
        slopes = estimate.mean_slope, estimate.variance_slope
        ctx.slopes = [slope.to(mean.dtype) for slope in slopes]
        return estimate.value.reshape(mean.shape).to(mean.dtype, copy=True)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        term, parameters, row = ctx.term, ctx.parameters, grad.reshape(-1)
        if term is None or not parameters:
            shares: tuple[Tensor | None, ...] = (None,) * len(parameters)
        else:
            shares = torch.autograd.grad(
                term, parameters, row.double(), retain_graph=True, allow_unused=True
            )
        return None, *((row * slope).reshape(grad.shape) for slope in ctx.slopes), *shares


# With S = (f−μ)/v and P = ℓ′(f), E_q̃[S] = E_q̃[P] and E_q̃[S² − 1/v] = E_q̃[S·P] = E_q̃[P² + ℓ″].
# So for any weight w that does not depend on f, g = w·S + (1−w)·P gives
#
# ∂_μ log E_q[p] = E_q̃[g],   ∂_v log E_q[p] = ½E_q̃[g² − w²/v + (1−w)²·ℓ″].
#
# w = 1 is the paper's score form, w = 0 the pathwise form; for a Gaussian likelihood of curvature
# h = −ℓ″ the weight vh/(1+vh) makes g a constant.


def balanced_weight(curvature: Values, variance: Values) -> Values:
    """w = vh/(1+vh), which balances score and pathwise form for curvature h = −ℓ″ ≥ 0."""
    gain = variance * curvature
    return gain / (1 + gain)


def mixed_slopes(
    delta: Float[Tensor, "k ..."],
    first: Float[Tensor, "k ..."],
    second: Float[Tensor, "k ..."],
    variance: Values,
    weight: Values,
) -> tuple[Float[Tensor, "k ..."], Float[Tensor, "k ..."]]:
    """Slopes in mean and variance at each point f = μ + δ, whose averages over q̃ are exact."""
    rest = 1 - weight
    slope = torch.addcmul(rest * first, weight / variance, delta)
    bend = torch.addcmul(slope * slope, rest * rest, second)
    return slope, 0.5 * (bend - weight * weight / variance)

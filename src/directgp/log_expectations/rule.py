"""Define `Rule`, `ClosedForm`, and how the estimates of a rule become tensors with gradients."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd import Function
from typing_extensions import override

from directgp.errors import UnsupportedError, require
from directgp.likelihoods.base import ClosedFormLogPredictive, Likelihood
from directgp.numerics.autograd import Slopes, first_order
from directgp.numerics.fixed_sizes import recording
from directgp.numerics.random import fresh_generator
from directgp.shapes import BatchedRow, LatentPoints, Row, Targets, Values

Schedule = int | float | Callable[[int], int | float]
"""A number, or a function of the training step."""


Rows = tuple[Values, Values, Values]
"""Targets, means and variances: floating tensors of one shape.

With P latents targets have shape (..., n), and means and variances (..., P, n)."""


class Context(NamedTuple):
    """Training step, which schedules read, and random generator of one evaluation of a rule."""

    step: int = 0
    generator: torch.Generator | None = None
    """Never None for a rule that draws."""


class Rule(ABC):
    """Base of the methods for log E_q[p(y given f)], q(f) = N(mean, variance), and its gradient.

    The returned tensor's value estimates the log expectation; its backward is the rule's gradient
    estimate with respect to mean, variance and the likelihood's parameters. Whatever the dtype of
    the arguments, the integral is computed in float64 and handed back in the dtype of the mean.
    """

    deterministic: ClassVar[bool]
    """Whether the same arguments give the same numbers, within the rule's tolerance."""

    unbiased_gradient: ClassVar[bool]
    """Whether the expected gradient is the gradient of log E_q[p(y given f)]."""

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
        """Return log E_q[p(y given f)] of each example; shapes broadcast, y is not checked."""
        if generator is None and not self.deterministic:
            generator = fresh_generator(mean.device)
        rows = of_one_shape(y, mean, variance, likelihood.num_latent)
        return self._evaluate(likelihood, rows, Context(step, generator)).to(mean.dtype)

    @abstractmethod
    def _evaluate(self, likelihood: Likelihood, rows: Rows, context: Context) -> Values:
        """Implement `__call__`; the rule converts to float64."""

    def slopes(self, likelihood: Likelihood, rows: Rows) -> Slopes | None:
        """Return value and slopes without a graph, as the likelihood does, or None."""
        return None


@final
@dataclass(frozen=True)
class ClosedForm(Rule):
    """log E_q[p(y given f)] by the likelihood's own formula (Gaussian, probit)."""

    deterministic = True
    unbiased_gradient = True

    @override
    def _evaluate(self, likelihood: Likelihood, rows: Rows, context: Context) -> Values:
        self.check(likelihood)
        formula: Any = likelihood
        value: Values = formula.log_predictive(*rows)
        return value

    @override
    def slopes(self, likelihood: Likelihood, rows: Rows) -> Slopes | None:
        return likelihood.log_predictive_slopes(*(row.double() for row in rows))

    @override
    def check(self, likelihood: Likelihood) -> None:
        if not isinstance(likelihood, ClosedFormLogPredictive):
            raise UnsupportedError(
                f"ClosedForm needs a likelihood with a closed-form log predictive. Got "
                f"{type(likelihood).__name__}. Use Quadrature (right to 1e-9), BiasedMonteCarlo "
                f"or ProductSampling."
            )

    @override
    def fixed_work(self, likelihood: Likelihood) -> bool:
        return True


def of_one_shape(y: Targets, mean: Values, variance: Values, num_latent: int = 1) -> Rows:
    """Return floating targets and marginals, broadcast to one shape.

    Tensors that already have that shape are returned as they are, so that no node joins the graph.
    """
    target = y if y.is_floating_point() else y.double()
    if num_latent > 1:
        shape = tuple(mean.shape)
        fits = len(shape) >= 2 and shape[-2] == num_latent and variance.shape == mean.shape
        allowed = f"of one shape (..., {num_latent}, n), with an axis of latents"
        require(fits, "mean and variance of f", allowed, f"{shape} and {tuple(variance.shape)}")
        return target.expand(*shape[:-2], shape[-1]), mean, variance
    if target.shape == mean.shape == variance.shape:
        return target, mean, variance
    target, mean, variance = torch.broadcast_tensors(target, mean, variance)
    return target, mean, variance


def at_step(schedule: Schedule, step: int) -> int | float:
    """Return the value of a schedule at a training step."""
    return schedule(step) if callable(schedule) else schedule


def check_num_samples(num_samples: int | float) -> int:
    """Return the number of samples; raise `InvalidInputError` below 1."""
    require(num_samples >= 1, "num_samples", "at least 1", num_samples)
    return int(num_samples)


SomeExamples = TypeVar("SomeExamples", bound="FlatExamples")


class FlatExamples(NamedTuple):
    """Targets and their q(f) = N(mean, variance), as flat float64 tensors outside any graph.

    With P latents mean and variance have shape (P, n).
    """

    likelihood: Likelihood
    y: Row
    mean: BatchedRow
    variance: BatchedRow

    def take(self: SomeExamples, index: Int[Tensor, " r"]) -> SomeExamples:
        """Return some of the examples."""
        likelihood, *columns = self
        some = (column.index_select(column.dim() - 1, index) for column in columns)
        return type(self)(likelihood.take(index), *some)


@dataclass(frozen=True)
class Estimate:
    """log E_q[p] of each example, and its derivatives in the mean and the variance of q."""

    value: Row
    mean_slope: BatchedRow
    variance_slope: BatchedRow
    parameters: Slopes = ()
    """`Likelihood.average_slopes`."""

    @property
    def columns(self) -> Slopes:
        """Value and slopes in one tuple."""
        return self.value, self.mean_slope, self.variance_slope, *self.parameters

    @staticmethod
    def of(columns: "Iterable[Tensor]") -> "Estimate":
        """Return the estimate with these `columns`, which may have a graph."""
        with torch.enable_grad():
            value, mean_slope, variance_slope, *parameters = columns
        return Estimate(value, mean_slope, variance_slope, tuple(parameters))

    def complement(self) -> "Estimate":
        """Return the estimate of log(1 − E_q[p]), where E_q[p] is not near 1."""
        chance = torch.exp(self.value)
        return self.transformed(torch.log1p(-chance), chance / (chance - 1))

    def transformed(self, value: Row, factor: Row) -> "Estimate":
        """Return the estimate of a function of the value, given its value and derivative."""
        return Estimate.of(value if each is self.value else factor * each for each in self.columns)

    def where(self, mask: Bool[Tensor, " n"], other: "Estimate") -> "Estimate":
        """Return this estimate where the mask holds, the other one elsewhere."""
        pairs = zip(self.columns, other.columns, strict=True)
        return Estimate.of(torch.where(mask, a, b) for a, b in pairs)

    @staticmethod
    def join(parts: "Iterable[Estimate]") -> "Estimate":
        """Concatenate the estimates of successive examples."""
        one, *more = parts
        if not more:
            return one
        columns = zip(*(estimate.columns for estimate in (one, *more)), strict=True)
        return Estimate.of(torch.cat(column, -1) for column in columns)


def gather(parts: "list[tuple[Int[Tensor, ' _'], Slopes]]") -> Slopes:
    """Combine the columns of parts of the examples, given with their indices."""
    index = torch.cat([index for index, _ in parts])
    with torch.enable_grad():
        joined = (torch.cat(each, -1) for each in zip(*(part for _, part in parts), strict=True))
        return tuple(torch.empty_like(each).index_copy(-1, index, each) for each in joined)


def without_overflow(
    weights: LatentPoints, first: LatentPoints, second: LatentPoints
) -> tuple[LatentPoints, LatentPoints]:
    """Replace slopes by 0 at points of weight 0, where they may overflow."""
    # On a GPU this check would wait for the device, which costs more than it saves.
    if not (second.is_cuda or recording()) and math.isfinite(second.sum()):
        return first, second
    weightless = weights == 0
    return first.masked_fill(weightless, 0.0), second.masked_fill(weightless, 0.0)


_CPU_ELEMENTS = 80_000
"""Elements of an array, 640 KB: it stays in the cache and is not allocated anew."""

_DEVICE_ELEMENTS = 1 << 27

_CPU_EXAMPLES = 8192
"""Examples of a block; more gain nothing, however few points each has."""


def rows_for(points: int, device: torch.device) -> int:
    """Return the block size for examples with this many points each."""
    if device.type != "cpu":
        return max(1, _DEVICE_ELEMENTS // points)
    return min(max(256, _CPU_ELEMENTS // points), _CPU_EXAMPLES)


def row_blocks(
    num_rows: int, points: int, device: torch.device
) -> list[tuple[slice, Int[Tensor, " r"]]]:
    """Return successive blocks of examples, each as a slice and as indices."""
    size = rows_for(points, device)
    index = torch.arange(num_rows, device=device)
    slices = [slice(start, start + size) for start in range(0, max(num_rows, 1), size)]
    return [(block, index[block]) for block in slices]


Estimator = Callable[[FlatExamples], Estimate]


def estimate_rows(points: int, estimator: Estimator, likelihood: Likelihood, rows: Rows) -> Slopes:
    """Return the columns of the estimate for examples of any shape and dtype, in float64.

    `points`, the number of points of the estimator for each example, sets the block size.
    """
    shape, number, device = rows[0].shape, rows[0].numel(), rows[0].device
    with torch.no_grad():
        wide = [tensor.detach().double() for tensor in rows]
        if len(shape) != 1:
            wide, likelihood = [_flat(row, shape) for row in wide], likelihood.take(shape)
        if number <= rows_for(points, device):
            estimate = estimator(FlatExamples(likelihood, *wide))
        else:
            estimate = Estimate.join(
                estimator(FlatExamples(likelihood.take(index), *(row[..., block] for row in wide)))
                for block, index in row_blocks(number, points, device)
            )
    if len(shape) == 1:
        return estimate.columns
    with torch.enable_grad():
        return tuple(_unflat(column, shape) for column in estimate.columns)


def _flat(row: Values, shape: torch.Size) -> BatchedRow:
    """Return examples of this shape along one axis, after that of the latents if there is one."""
    return row.reshape(-1) if row.shape == shape else row.movedim(-2, 0).flatten(1)


def _unflat(column: BatchedRow, shape: torch.Size) -> Values:
    """Undo `_flat`."""
    if column.dim() == 1:
        return column.reshape(shape)
    return column.reshape(len(column), *shape).movedim(0, -2)


def per_latent(values: Values, like: Values) -> Values:
    """Return one value for each example with an axis of latents, if `like` has one more axis."""
    return values if values.dim() == like.dim() else values.unsqueeze(-2)


def evaluate(points: int, estimator: Estimator, likelihood: Likelihood, rows: Rows) -> Values:
    """Return the values of `estimate_rows`, with its slopes as gradients, in the mean's dtype."""
    if not torch.is_grad_enabled():
        likelihood = likelihood.frozen()
    slopes = estimate_rows(points, estimator, likelihood, rows)
    apply: Callable[..., Tensor] = _Attach.apply
    return apply(slopes, likelihood, *rows[1:], *likelihood.learned())


class _Attach(Function):
    """The value of an estimate, with its slopes as first derivatives; there are no second ones."""

    @staticmethod
    def forward(
        ctx: Any, slopes: Slopes, likelihood: Likelihood, mean: Tensor, *others: Tensor
    ) -> Tensor:
        ctx.likelihood, ctx.parameters = likelihood, slopes[3:]
        ctx.slopes = [slope.to(mean.dtype) for slope in slopes[1:3]]
        return slopes[0].to(mean.dtype, copy=True)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        shares = ctx.likelihood.parameter_gradient(ctx.parameters, grad.double())
        products = (per_latent(grad, slope) * slope for slope in ctx.slopes)
        return None, None, *products, *shares


# With S = (f−μ)/v and P = ℓ′(f), E_q̃[S] = E_q̃[P] and E_q̃[S² − 1/v] = E_q̃[S·P] = E_q̃[P² + ℓ″].
# So for any weight w that does not depend on f, g = w·S + (1−w)·P gives
#
# ∂_μ log E_q[p] = E_q̃[g],   ∂_v log E_q[p] = ½E_q̃[g² − w²/v + (1−w)²·ℓ″].
#
# w = 1 is the paper's score form, w = 0 the pathwise form; for a Gaussian likelihood of curvature
# h = −ℓ″ the weight vh/(1+vh) makes g a constant.


AnyPoints = Float[Tensor, "k ..."]


def balanced_weight(curvature: Values, variance: Values) -> Values:
    """Return w = vh/(1+vh), which balances score and pathwise form for curvature h = −ℓ″ ≥ 0."""
    gain = variance * curvature
    return gain / (1 + gain)


def mixed_slopes(
    delta: AnyPoints, first: AnyPoints, second: AnyPoints, variance: Values, weight: Values
) -> tuple[AnyPoints, AnyPoints]:
    """Return the slopes in mean and variance at f = μ + δ, whose averages over q̃ are exact."""
    rest = 1 - weight
    slope = torch.addcmul(rest * first, weight / variance, delta)
    bend = torch.addcmul(slope * slope, rest * rest, second)
    return slope, 0.5 * (bend - weight * weight / variance)

"""Define `Likelihood` and the optional capabilities that rules and losses use."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Num
from torch import Tensor, nn
from typing_extensions import override

from directgp.errors import UnsupportedError, refuse, require, require_all
from directgp.numerics.autograd import Slopes
from directgp.numerics.random import Generator
from directgp.numerics.special import softplus, softplus_inverse
from directgp.registry import ROW_CONSTANTS, Task
from directgp.shapes import LatentPoints, Latents, Points, Row, Targets, Values

SomeLikelihood = TypeVar("SomeLikelihood", bound="Likelihood")
SomeInUnits = TypeVar("SomeInUnits", bound="OriginalUnits")
Draws = Float64[np.ndarray, "..."]


class Derivatives(NamedTuple):
    """ℓ up to the part free of f, and the derivatives ℓ′, ℓ″ of log p(y given f) in f."""

    value: Values
    first: Values
    second: Values


class ParameterText(NamedTuple):
    """Texts about a trained parameter, for the warning that it ended at its floor."""

    parameter: str
    subject: str
    """Its names in the module and in a sentence: "raw_noise", "The noise variance"."""

    advice: str
    is_noise: bool = False
    """Whether the variance of f can take its place, so that a direct loss may drive it to 0."""


NOISE_ADVICE = (
    "Intervals may be too narrow away from the training rows; compare with objective='elbo' on "
    "rows that were not trained on."
)


class Likelihood(nn.Module, ABC):
    """p(y given f) for one or several latent values f per example.

    log p(y given f) = `log_kernel` (y, f) + `log_base` (y). Formulas are written for float64 and
    y of floating dtype; shapes broadcast, so that f may carry leading axes of nodes or samples.
    With P = `num_latent` > 1, f has shape (..., P, n) and y (..., n); `derivatives` returns the
    value of shape (..., n), and ∂ℓ/∂f_p and ∂²ℓ/∂f_p² of shape (..., P, n).
    """

    row_argument: ClassVar[str | None] = None
    """The constant of each row that p(y given f) depends on, a name in `ROW_CONSTANTS`."""

    row_buffer: ClassVar[str] = "row_values"
    """The buffer that holds it, or None while the likelihood is for no rows in particular."""

    row_required: ClassVar[bool] = False
    """Whether training needs it; else a likelihood without row values has a default."""

    proportional_to_exposure: ClassVar[bool] = True
    """Whether the mean of y is proportional to the exposure; only then "auto" tries it with one."""

    _taken: tuple[Tensor | torch.Size, ...] = ()
    _frozen: bool = False

    num_latent: int = 1
    """Number of latent values of an example, which are independent under q."""

    shared_latents: ClassVar[bool] = True
    """Whether several latents have one kernel and one set of inducing inputs, by default."""

    log_variances: ClassVar[tuple[int, ...]] = ()
    """Which latents are the log of a variance of y, and shift where the unit of y changes."""

    log_concave: ClassVar[bool]
    """Whether log p(y given f) is concave in f for every y."""

    analytic: ClassVar[bool] = False
    """Whether p(y given f) has one peak over f and is analytic in `strip`, where it is not concave:
    then trapezoid sums serve it, too."""

    smooth: ClassVar[bool] = True
    """Whether log p(y given f) has a derivative in f, which Monte Carlo rules need."""

    task: ClassVar[Task] = "regression"
    """The kind of target: real numbers, two labels, or counts."""

    latent_scale: ClassVar[str] = ""
    """What f is on the scale of, such as "log"; models of one scale can start from each other."""

    censored: ClassVar[bool] = False
    """Whether y may be a limit of the value, so that y is nothing to compare predictions with."""

    rough_start: ClassVar[bool] = False
    """Whether training starts from `rough_latent`; a Gaussian likelihood needs no start."""

    additive: ClassVar[bool] = False
    """Whether y is f plus noise around 0, so that E[y] is the mean of f where it exists."""

    gaussian: ClassVar[bool] = False
    """Whether p(y given f) is Gaussian, so that p(y) is, too."""

    parameter_texts: ClassVar[tuple[ParameterText, ...]] = ()

    growth: ClassVar[float] = 0.0
    """c where log p(y given f) falls as −e^{cf} to the right: the mass of q·abs(log p) then lies c
    variances to the right of that of q."""

    fixed_work: ClassVar[bool] = True
    """Whether its methods do the same operations for all numbers, as a CUDA graph needs."""

    @property
    def strip(self) -> float:
        """Half-width in Im f of the strip about the real line where p(y given f) is analytic.

        And bounded; it sets the step of a quadrature (Trefethen and Weideman, SIAM Review 56,
        2014). A family may have a class attribute instead.
        """
        return math.pi

    @property
    def latent_offset(self) -> float:
        """Return what is added to f where it is reported, for units that f does not have."""
        return 0.0

    @property
    def log_strip(self) -> float:
        """The same for log p(y given f), which sets the step for E_q[log p]."""
        return self.strip

    @property
    def bends_at_zero(self) -> bool:
        """Whether the nearest singularities of p(y given f) are those of log(1 + e^f), at ±iπ.

        Over a wide q its nodes then have to be dense only near f = 0.
        """
        return False

    def widened(self, strip: float, lower: Values) -> Values | float:
        """Return the half-width of one of these strips where Re f is at least `lower`."""
        return strip

    def __init__(self) -> None:
        super().__init__()
        if self.row_argument is not None:
            # Row values are data, and not saved with the likelihood.
            self.register_buffer(self.row_buffer, None, persistent=False)

    @abstractmethod
    def log_kernel(self, y: Values, f: Values) -> Values:
        """Return the part of log p(y given f) that depends on f; differentiable."""

    @abstractmethod
    def derivatives(self, y: Values, f: Values) -> Derivatives:
        """Return `log_kernel` and the first two derivatives in f, without a graph."""

    def value_and_slope(self, y: Values, f: Values) -> tuple[Values, Values]:
        """Return `log_kernel` and its first derivative in f, without a graph."""
        value, first, _ = self.derivatives(y, f)
        return value, first

    @abstractmethod
    def conditional_mean(self, f: Values) -> Values:
        """Return E[y given f]."""

    @abstractmethod
    def conditional_variance(self, f: Values) -> Values:
        """Return Var[y given f]."""

    @abstractmethod
    def check_targets(self, y: Targets) -> None:
        """Raise `InvalidInputError` for targets outside the support, with value and index."""

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise `InvalidInputError` if parameters or row values do not broadcast to this shape.

        A likelihood made by `take` was checked before.
        """
        if self._taken:
            return
        name = type(self).__name__
        for key, value in (*self.named_parameters(), *self.named_buffers()):
            fits = broadcast_shape(value.shape, shape) == shape
            wanted = f"of a shape that broadcasts to that of the examples, {tuple(shape)}"
            require(fits, f"{key} of {name}", wanted, tuple(value.shape))

    @classmethod
    def from_targets(
        cls: type[SomeLikelihood], y: Float[Tensor, " n"], unit: float = 1.0, offset: float = 0.0
    ) -> SomeLikelihood:
        """Return the likelihood that training on these targets starts from.

        They are y = (t − offset)/unit of the user's values t; most families need not know that.
        """
        return cls()

    def in_units(self: SomeLikelihood, unit: float, offset: float) -> SomeLikelihood:
        """Return this likelihood for targets y = (t − offset)/unit, sharing its parameters."""
        return self

    def observed_range(self, y: Values) -> tuple[Values, Values]:
        """Return values between which the quantity behind y is known to lie, such as y and y."""
        return (y - 1, y) if self.task == "count" else (y, y)

    def largest_target(self) -> Tensor | None:
        """Return the largest possible y of each row, if there is one."""
        return None

    @classmethod
    def suits(cls, y: Float[Tensor, " n"]) -> bool:
        """Return whether ``likelihood="auto"`` should try it for these targets; cheap."""
        return True

    def rough_latent(self, y: Float[Tensor, " n"]) -> Float[Tensor, " n"] | None:
        """Return rough values of f, from which a prior starts, if the targets give some."""
        if self.task == "count":
            return torch.log(y + 0.5)
        return y if self.task == "regression" else None

    def latent_starts(self, y: Row) -> tuple[tuple[float, float], ...]:
        """Return prior mean and variance that each of several latents starts from; none: as one."""
        return ()

    def floors(self, deviation: float) -> dict[str, float]:
        """Return the smallest allowed value of positive parameters, by name.

        Noise is bounded by `deviation`, a small part of the spread of the targets.
        """
        return {}

    def settings(self) -> dict[str, float]:
        """Return the constructor arguments that are not trained, finite, for model files."""
        return {}

    def description(self, unit: float) -> dict[str, float]:
        """Return the parameters to print in `summary()`, for targets that were divided by unit."""
        return {}

    @torch.no_grad()
    def sample(self, f: Values, random: np.random.RandomState) -> Draws:
        """Return one draw of y for each f, of the same shape."""
        latent = f.detach().double()
        mean = self.conditional_mean(latent).detach().cpu().numpy()
        return self._draw(latent.cpu().numpy(), mean, random)

    def _draw(self, f: Draws, mean: Draws, random: np.random.RandomState) -> Draws:
        """Return draws of y given f, whose conditional mean is given, too."""
        raise UnsupportedError(
            f"{type(self).__name__} cannot draw y. Use a likelihood of directgp, or draw f and "
            "then y from it."
        )

    def without_exposure(self: SomeLikelihood) -> SomeLikelihood:
        """Return this likelihood, sharing its parameters, for exposures of 1."""
        return self.without_row_values()

    def with_row_values(self: SomeLikelihood, values: Num[Tensor, "..."] | None) -> SomeLikelihood:
        """Return this likelihood for row constants of shape (..., n), sharing its parameters.

        They are in the units in which the likelihood has y. None returns the likelihood itself.
        """
        if values is None:
            return self
        name = type(self).__name__
        if self.row_argument is None:
            raise UnsupportedError(
                f"{name} has no constant of each row. Leave out {' and '.join(ROW_CONSTANTS)}."
            )
        constant = ROW_CONSTANTS[self.row_argument]
        valid = constant.valid(values)
        require_all(valid, values, f"{constant.name} of {name}", constant.allowed)
        return self._with_row_buffer(self._stored_row_values(values.double()))

    def without_row_values(self: SomeLikelihood) -> SomeLikelihood:
        """Return this likelihood, sharing its parameters, for no rows in particular."""
        return self._with_row_buffer(None)

    @property
    def has_row_values(self) -> bool:
        """Whether the likelihood is for certain rows of the data."""
        return self._buffers.get(self.row_buffer) is not None

    def _stored_row_values(self, values: Tensor) -> Tensor:
        """Return what the buffer holds for these row values, in float64."""
        return values

    def _row_values(self) -> Tensor:
        """Return what the buffer holds, for the examples taken; raise if there is nothing."""
        stored = self._buffers.get(self.row_buffer)
        if stored is None:
            who, remedy = f"{self.row_argument} of {type(self).__name__}", self.row_argument
            refuse(who, "given for each row", "none", f"Give {remedy}=.")
        return self._per_example(stored)

    def _with_row_buffer(self: SomeLikelihood, stored: Tensor | None) -> SomeLikelihood:
        if self.row_argument is None:
            return self
        twin = copy.copy(self)
        twin._buffers = {**self._buffers, self.row_buffer: stored}
        return twin

    def log_base(self, y: Values) -> Values:
        """Return the part of log p(y given f) free of f, which is costly and constant."""
        return torch.zeros_like(y)

    def log_prob(self, y: Num[Tensor, "..."], f: Values) -> Values:
        """Return log p(y given f), computed in float64, in the dtype of f."""
        wide = y.double()
        return (self.log_kernel(wide, f.double()) + self.log_base(wide)).to(f.dtype)

    def take(self: SomeLikelihood, index: Tensor | torch.Size) -> SomeLikelihood:
        """Return this likelihood for some of the examples, sharing its parameters.

        A boolean mask over (..., n) selects and flattens, and that shape flattens; integers index
        flat examples.
        """
        constants = (*self._parameters.values(), *self._buffers.values())
        if all(constant is None or constant.numel() == 1 for constant in constants):
            return self
        twin = copy.copy(self)
        twin._taken = (*self._taken, index)
        return twin

    def for_rows(self: SomeLikelihood, index: Int[Tensor, " r"]) -> SomeLikelihood:
        """Return this likelihood for some rows of the data, sharing its parameters."""
        stored = self._buffers.get(self.row_buffer)
        return self if stored is None else self._with_row_buffer(stored[..., index])

    def _positive(self, raw: Tensor) -> Tensor:
        """Return log(1 + e^ρ), the positive value of a raw parameter ρ, for the examples taken."""
        return self._per_example(softplus(raw))

    def _per_example(self, value: Tensor) -> Tensor:
        """Return a constant that broadcasts with (..., n) for the examples taken."""
        for index in self._taken:
            if value.numel() == 1:
                break
            if isinstance(index, torch.Size):
                value = value.expand(index).reshape(-1)
            else:
                wide = value.expand(index.shape) if index.dtype == torch.bool else value
                value = wide[index]
        return value

    def frozen(self: SomeLikelihood) -> SomeLikelihood:
        """Return this likelihood with the same parameters, which get no gradients."""
        twin = copy.copy(self)
        twin._frozen = True
        return twin

    def repeated(self: SomeLikelihood, number: int) -> SomeLikelihood:
        """Return a batch of this likelihood, with parameters of shape (number, 1)."""
        twin = copy.deepcopy(self)
        for name, parameter in self.named_parameters(recurse=False):
            many = parameter.detach().reshape(1, 1).repeat(number, 1)
            setattr(twin, name, nn.Parameter(many, parameter.requires_grad))
        return twin

    def member(self: SomeLikelihood, index: int, like: SomeLikelihood) -> SomeLikelihood:
        """Return one likelihood of a batch made by `repeated`, shaped like `like`."""
        twin = copy.deepcopy(like)
        with torch.no_grad():
            batch = dict(self.named_parameters(recurse=False))
            for name, parameter in twin.named_parameters(recurse=False):
                parameter.copy_(batch[name][index].reshape(parameter.shape))
        return twin

    def learned(self) -> list[Tensor]:
        """Return the parameters and other constants that need a gradient."""
        if self._frozen:
            return []
        # `parameters()` is slow.
        own: Iterable[Tensor | None] = (*self._parameters.values(), *self._buffers.values())
        found = (*self.parameters(), *self.buffers()) if self._modules else own
        return [each for each in found if each is not None and each.requires_grad]

    # Slopes without a graph, or None where they need one. Those in the constants are in
    # θ = log(1 + e^ρ) for every parameter ρ whose name starts with "raw_", else in the parameter or
    # buffer itself.

    def parameter_slopes(self, y: Values, f: Values) -> Slopes | None:
        """Return the derivatives of log p(y given f) in the constants."""
        return None

    def log_predictive_slopes(self, y: Values, mean: Values, variance: Values) -> Slopes | None:
        """Return log E_q[p(y given f)], and slopes in mean, variance and constants, in float64."""
        return None

    def expected_log_prob_slopes(self, y: Values, mean: Values, variance: Values) -> Slopes | None:
        """Return E_q[log p(y given f)], and slopes in mean, variance and constants, in float64."""
        return None

    def predictive_mean_slopes(self, mean: Values, variance: Values) -> Slopes | None:
        """Return E[y], and slopes in mean and variance."""
        return None

    def has_linear_slopes(self) -> bool:
        """Return whether `parameter_slopes` is linear in f, ℓ and ℓ′."""
        return False

    def slopes_of_averages(self, y: Row, f: Row, value: Row, first: Row) -> Slopes:
        """Return `average_slopes` given averages of f, ℓ and ℓ′, where it is linear in them."""
        raise NotImplementedError

    def average_slopes(self, y: Row, f: LatentPoints, weights: Points) -> Slopes:
        """Return Σ_k w_k `parameter_slopes` (y, f_k); () if no constant needs a gradient.

        Without `parameter_slopes` it is Σ_k w_k log p(y given f_k), with a graph. By Fisher's
        identity ∂_θ log E_q[p] = E_q̃[∂_θ log p(y given f)], with f_k and w_k standing for q̃.
        """
        if not self.trainable:
            return ()
        slopes = self.parameter_slopes(y, f)
        if slopes is not None:
            return tuple((weights * slope).sum(0) for slope in slopes)
        with torch.enable_grad():
            kernel = (weights * self.log_kernel(y, f)).sum(0)
            term = kernel + weights.sum(0) * self.log_base(y)
        return (term,) if term.requires_grad else ()

    def parameter_gradient(self, slopes: Slopes, grad: Values | float) -> tuple[Tensor, ...]:
        """Return Σ_i grad_i·∂value_i/∂ρ for each learned ρ, given `average_slopes`."""
        learned = self.learned()
        if not learned or not slopes:
            return tuple(torch.zeros_like(each) for each in learned)
        if slopes[0].requires_grad:
            seed = grad * torch.ones_like(slopes[0])
            options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
            return torch.autograd.grad(slopes[0], learned, seed, **options)
        constants = (*self._parameters.items(), *self._buffers.items())
        return tuple(
            _chain(slope, grad, constant, name.startswith("raw_"))
            for slope, (name, constant) in zip(slopes, constants, strict=False)
            if constant is not None and constant.requires_grad
        )

    @property
    def trainable(self) -> bool:
        """Whether any parameter or constant needs a gradient."""
        return bool(self.learned())


def _chain(slopes: Values, grad: Values | float, constant: Tensor, raw: bool) -> Tensor:
    """Return the gradient in a raw parameter ρ from slopes in log(1 + e^ρ), or in a constant."""
    if constant.dim():
        total = (grad * slopes).sum_to_size(constant.shape)
    elif isinstance(grad, Tensor):
        total = (grad * slopes).sum()
    else:
        # `sum_to_size` is slow.
        total = slopes.sum().mul_(grad)
    if total.dtype != constant.dtype:
        total = total.to(constant.dtype)
    return total * torch.sigmoid(constant) if raw else total


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape to which these broadcast, or None."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


_ROUNDING = 2e-11
"""Relative rounding error of a distribution function."""


def rounded_down(level: Values) -> Values:
    """Lower a level by the rounding of the distribution function, so that it is reached in a tie.

    Ties are common: a fair coin has P(Y ≤ 0) = ½, and its median is 0.
    """
    return level - _ROUNDING * torch.minimum(level, 1 - level)


def by_scipy(function: Callable[..., Any], *arguments: Tensor) -> Tensor:
    """Apply a function of `scipy.special` to tensors of any device; not differentiable."""
    arrays = (argument.detach().cpu().numpy() for argument in arguments)
    return torch.as_tensor(function(*arrays)).to(arguments[-1])


def check_finite(y: Targets, who: str) -> None:
    """Raise `InvalidInputError` for NaN and infinite targets."""
    require_all(torch.isfinite(y), y, f"y of {who}", "finite", "Drop or impute the missing rows.")


@runtime_checkable
class ClosedFormLogPredictive(Protocol):
    """log E_q[p(y given f)] for q(f) = N(mean, variance) is a formula."""

    def log_predictive(self, y: Values, mean: Values, variance: Values) -> Values:
        """log E_q[p(y given f)], computed in float64 and returned in the dtype of the mean."""


@runtime_checkable
class ClosedFormGibbs(Protocol):
    """E_q[log p(y given f)] is a formula, or an integral smoother than the one over f."""

    def expected_log_prob(self, y: Values, mean: Values, variance: Values) -> Values:
        """E_q[log p(y given f)], computed in float64 and returned in the dtype of the mean."""


@runtime_checkable
class ReducedIntegral(Protocol):
    """Integrals over several latents are, without approximation, integrals over one variable."""

    def integrate_density(self, y: Row, mean: Latents, variance: Latents) -> Slopes:
        """log E_q[p(y given f)], and slopes in means, variances and constants, in float64."""

    def integrate_log_density(self, y: Row, mean: Latents, variance: Latents) -> Slopes:
        """E_q[log p(y given f)], and slopes in means, variances and constants, in float64."""


@cache
def _kind_has(kind: type, capability: type) -> bool:
    return issubclass(kind, capability)


def has(likelihood: Likelihood, capability: type) -> bool:
    """Return `isinstance(likelihood, capability)`, which is slow for a protocol, from a cache."""
    return _kind_has(type(likelihood), capability)


@runtime_checkable
class ClosedFormMoments(Protocol):
    """Mean and variance of y under q(f) = N(mean, variance) are formulas."""

    def predictive_mean(self, mean: Values, variance: Values) -> Values:
        """E[y]."""

    def predictive_variance(self, mean: Values, variance: Values) -> Values:
        """Var[y]."""


@runtime_checkable
class ClosedFormMedian(Protocol):
    """The median of y under q(f) = N(mean, variance) is a formula."""

    def predictive_median(self, mean: Values, variance: Values) -> Values:
        """The y with P(Y ≤ y) = ½."""


@runtime_checkable
class ClosedFormQuantiles(Protocol):
    """P(Y ≤ y) under q(f) = N(mean, variance) and its inverse in y are formulas."""

    def predictive_cdf(self, y: Values, mean: Values, variance: Values) -> Values:
        """P(Y ≤ y)."""

    def predictive_quantile(self, level: Values, mean: Values, variance: Values) -> Values:
        """The y with P(Y ≤ y) = level."""


@runtime_checkable
class ClosedFormCRPS(Protocol):
    """The continuous ranked probability score under q(f) = N(mean, variance) is a formula."""

    def predictive_crps(self, y: Values, mean: Values, variance: Values) -> Values:
        """∫ (P(Y ≤ t) − 1{y ≤ t})² dt."""


@runtime_checkable
class ConditionalCDF(Protocol):
    """A continuous family with one peak over f and a formula for P(Y ≤ y given f)."""

    def conditional_cdf(self, y: Values, f: Values) -> Values:
        """P(Y ≤ y given f) for any y, monotone in f; not differentiable."""

    def argmax(self, y: Values) -> Values:
        """The f that maximises p(y given f), near which P(Y ≤ y given f) falls or rises."""

    def to_line(self, y: Values) -> Values:
        """Map the support to the real line, such as log y; NaN or infinite outside of it."""

    def from_line(self, x: Values) -> Values:
        """The inverse of `to_line`, increasing or decreasing."""

    def line_slope(self, x: Values) -> Values:
        """The size of the derivative of `from_line`."""


@runtime_checkable
class Binary(Protocol):
    """Two labels: p(1 given f) + p(0 given f) = 1."""

    def complement(self, y: Values) -> Values:
        """Return the other label."""


@runtime_checkable
class Classes(Protocol):
    """Labels 0, …, K − 1 of any number of classes."""

    num_classes: int

    def log_class_probabilities(self, mean: Values, variance: Values) -> Values:
        """log P(Y = k) of every class under q, of shape (K, n), in float64."""


@runtime_checkable
class SymmetricLink(Protocol):
    """p(y given f) = g((2y−1)f) for y ∈ {0, 1}, normalised, and log g rises to 0."""

    strip: float

    def link_derivatives(self, x: Values) -> Derivatives:
        """log g and its first two derivatives."""


@runtime_checkable
class ClosedFormMode(Protocol):
    """The mode of q(f)·p(y given f) is a formula."""

    def product_mode(self, y: Values, mean: Values, variance: Values) -> Values:
        """Mode of q(f)·p(y given f), as its distance from the mean."""


@runtime_checkable
class ExactProductSampler(Protocol):
    """q̃(f) ∝ q(f)·p(y given f) has a sampler without rejection."""

    def sample_product(
        self, y: Values, mean: Values, variance: Values, num_samples: int, generator: Generator
    ) -> Values:
        """Draw from q̃; return the draws minus the mean, shape (k, ..., n)."""


@runtime_checkable
class NearlyCertain(Protocol):
    """p(y given f) may be so near to 1 that log E_q[p] needs the digits of 1 − p."""

    def doubt(self, y: Values, f: Values) -> tuple[Values, Values]:
        """Return the log of 1 − p or a bound of it, 0 where it is not small, and its slope in f."""


@runtime_checkable
class Arrivals(Protocol):
    """Counts of events: Y ≤ y given f exactly when Λ, the arrival of event y + 1, exceeds e·λ(f).

    The distribution of Λ does not depend on f.
    """

    def log_arrival(self, y: Values, delta: Values) -> Derivatives:
        """Log density of log Λ at log(y+1) + δ, less its top at δ = 0, and its δ-derivatives."""

    def log_rate_slope(self, f: Values) -> Values:
        """Return the log of the derivative of the mean count in f."""


def unconstrained(value: float | Tensor, who: str) -> nn.Parameter:
    """Return the raw parameter ρ with log(1 + e^ρ) = value, in float64.

    A tensor of shape (..., 1) gives one parameter for each member of a batch of models.
    """
    tensor = torch.as_tensor(value, dtype=torch.float64).detach().clone()
    allowed = torch.isfinite(tensor) & (tensor > 0)
    require_all(allowed.reshape(-1), tensor.reshape(-1), who, "positive and finite")
    return nn.Parameter(softplus_inverse(tensor))


class ConjugateLikelihood(Likelihood):
    """Gaussian noise of one trainable variance σ², for which q(u) has a closed form."""

    @property
    @abstractmethod
    def noise(self) -> Tensor:
        """σ²."""

    @abstractmethod
    def set_noise(self, noise: float) -> None:
        """Set σ²."""


class UnimodalInF(Likelihood):
    """Base of likelihoods that rise in f up to `argmax` and then fall."""

    @abstractmethod
    def argmax(self, y: Values) -> Values:
        """Return the f that maximises p(y given f); infinite where the supremum is a limit."""

    def log_max(self, y: Values) -> Values:
        """Return sup over f of log p(y given f); a limit at infinity counts as log 1."""
        peak = self.argmax(y)
        attained = torch.isfinite(peak)
        top = self.log_kernel(y, torch.where(attained, peak, 0.0)) + self.log_base(y)
        return torch.where(attained, top, 0.0)

    def log_max_between(self, y: Values, lower: Values, upper: Values) -> Values:
        """Return the maximum of log p(y given f) over lower ≤ f ≤ upper."""
        nearest = torch.minimum(torch.maximum(self.argmax(y), lower), upper)
        return self.log_kernel(y, nearest) + self.log_base(y)


class ScaleMixture(Likelihood):
    """Base of p(y given f) = ∫ N(y; f, w(t)) e^{log_mixing(t)} dt with a smooth density over t."""

    @abstractmethod
    def mixture_variance(self, t: Values) -> Values:
        """Return w(t), the variance of component t."""

    @abstractmethod
    def log_mixing(self, t: Values) -> Values:
        """Return the log density of t."""

    @abstractmethod
    def tail_bounds(self, distance: Values, nats: float) -> Values:
        """Return bounds outside which Φ(−x/√(v + w(t)))·π(t) is below e^−nats of its maximum."""

    @abstractmethod
    def mixture_width(self) -> Values:
        """Return the width in t of the narrowest peak of these integrands."""


class OriginalUnits(Likelihood):
    """Base of likelihoods that need the user's values t = unit·y + offset of scaled targets y.

    They are positive, lie between 0 and 1, or have limits. Densities, moments, quantiles and draws
    are those of y. The density of y is |unit| times that of t.
    """

    rough_start = True

    def __init__(self, unit: float = 1.0, offset: float = 0.0) -> None:
        super().__init__()
        who = type(self).__name__
        usable = math.isfinite(unit) and unit != 0
        require(usable, f"unit of {who}", "finite and not 0", unit)
        require(math.isfinite(offset), f"offset of {who}", "finite", offset)
        self.unit, self.offset = float(unit), float(offset)

    @override
    def in_units(self: SomeInUnits, unit: float, offset: float) -> SomeInUnits:
        twin = copy.copy(self)
        twin.unit, twin.offset = float(unit), float(offset)
        return twin

    @override
    def settings(self) -> dict[str, float]:
        return {"unit": self.unit, "offset": self.offset}

    def _original(self, y: Values) -> Values:
        """t."""
        return y * self.unit + self.offset

    def _ordered(self, probability: Values) -> Values:
        """Return P(Y ≤ y), given P(T ≤ t); the same map takes a level of y to one of t."""
        return probability if self.unit > 0 else 1 - probability


class ZeroInflation(Likelihood):
    """Base of p(0) = π + (1−π) p₀(0) and p(y) = (1−π) p₀(y) for y > 0, with ω = π/(1−π)."""

    @property
    @abstractmethod
    def base(self) -> Any:
        """The log-concave likelihood p₀, which shares its constants with this one."""

    @property
    @abstractmethod
    def zero_odds(self) -> Tensor:
        """ω, the first parameter."""

    @abstractmethod
    def inflate(self, y: Values, value: Values) -> tuple[Values, Values, Values]:
        """Return log p, or log E[p], from log p₀, or log E[p₀], and its slopes in that and in ω."""

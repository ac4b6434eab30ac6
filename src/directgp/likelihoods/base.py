"""Define `Likelihood`, the contract of p(y given f), and abstract families."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Int, Num
from torch import Tensor, nn

from directgp.errors import UnsupportedError, require, require_all
from directgp.integration.adaptive import Adaptive
from directgp.integration.contract import Derivatives, Integrator, has
from directgp.integration.latents import LatentGrid
from directgp.likelihoods.capabilities import ConditionalCDF, ConditionalDraws, ShapeChecked
from directgp.likelihoods.numeric import (
    Draws,
    derivatives_by_autograd,
    draws_by_cdf,
    moments_given,
)
from directgp.likelihoods.rows import ExampleView, RowConstants
from directgp.likelihoods.units import Units
from directgp.numerics.special import softplus, softplus_inverse
from directgp.registry import Task
from directgp.shapes import Targets, Values

SomeLikelihood = TypeVar("SomeLikelihood", bound="Likelihood")


class Likelihood(nn.Module, ABC):
    """p(y given f) for one or several latent values f per example.

    log p(y given f) = `log_kernel` (y, f) + `log_base` (y). Formulas are written for float64 and
    y of floating dtype; shapes broadcast, so that f may carry leading axes of nodes or samples.
    With P = `num_latent` > 1, f has shape (..., P, n) and y (..., n); `derivatives` returns the
    value of shape (..., n), and ∂ℓ/∂f_p and ∂²ℓ/∂f_p² of shape (..., P, n).

    A family also has three parts, `integration`, `rows` and `units`, and may have methods that
    `directgp.likelihoods.capabilities` and `directgp.likelihoods.starts` name.
    """

    task: ClassVar[Task] = "regression"
    """The kind of target: real numbers, labels, or counts."""

    num_latent: int = 1
    """Number of latent values of an example, which are independent under q."""

    latent_scale: ClassVar[str] = ""
    """Scale of f, such as "log"; models of one scale can start from each other."""

    additive: ClassVar[bool] = False
    """Whether y is f plus noise around 0, so that E[y] is the mean of f where it exists."""

    rows: ClassVar[RowConstants] = RowConstants()
    """The constant of each row that p(y given f) depends on."""

    units: Units = Units()
    """How latents and densities follow the units of the targets."""

    _view: ExampleView = ExampleView()

    def __init__(self) -> None:
        super().__init__()
        self.rows.register(self)

    @property
    def integration(self) -> Integrator:
        """How integrals over q(f) are computed; a family may have a class attribute instead.

        By default quadrature searches for peaks and kinks.
        """
        return Adaptive() if self.num_latent == 1 else LatentGrid()

    @abstractmethod
    def log_kernel(self, y: Values, f: Values) -> Values:
        """Return the part of log p(y given f) that depends on f; differentiable."""

    def log_base(self, y: Values) -> Values:
        """Return the part of log p(y given f) free of f, which is costly and constant."""
        return torch.zeros_like(y)

    def log_prob(self, y: Num[Tensor, "..."], f: Values) -> Values:
        """Return log p(y given f), computed in float64, in the dtype of f."""
        wide = y.double()
        return (self.log_kernel(wide, f.double()) + self.log_base(wide)).to(f.dtype)

    def derivatives(self, y: Values, f: Values) -> Derivatives:
        """Return `log_kernel` and the first two derivatives in f, without a graph.

        By default autograd finds them.
        """
        return Derivatives(*derivatives_by_autograd(self.log_kernel, y, f, self.num_latent, 2))

    def value_and_slope(self, y: Values, f: Values) -> tuple[Values, Values]:
        """Return `log_kernel` and its first derivative in f, without a graph."""
        if type(self).derivatives is Likelihood.derivatives:
            value, first = derivatives_by_autograd(self.log_kernel, y, f, self.num_latent, 1)
        else:
            value, first, _ = self.derivatives(y, f)
        return value, first

    def conditional_mean(self, f: Values) -> Values:
        """Return E[y given f].

        By default it is f for additive noise and p(1 given f) for labels; else it is computed from
        `cdf`, or from draws, and has no gradient.
        """
        if self.additive:
            return f
        if self.task == "classification":
            return torch.exp(self.log_prob(torch.ones_like(f), f))
        return _moments(self, f)[0]

    def conditional_variance(self, f: Values) -> Values:
        """Return Var[y given f]; by default as in `conditional_mean`."""
        if self.task == "classification":
            mean = self.conditional_mean(f)
            return mean * (1 - mean)
        return _moments(self, f)[1]

    @torch.no_grad()
    def sample(self, f: Values, random: np.random.RandomState) -> Draws:
        """Return one draw of y for each f, of the same shape.

        By default a label is drawn by p(1 given f), and other targets by the inverse of `cdf`.
        """
        latent = f.detach().double()
        family: Any = self
        draws = has(self, ConditionalDraws)
        if not draws and has(self, ConditionalCDF):
            return draws_by_cdf(self, latent, random)
        mean = self.conditional_mean(latent).detach().cpu().numpy()
        if draws:
            drawn: Draws = family.draw(latent.cpu().numpy(), mean, random)
            return drawn
        if self.task == "classification" and self.num_latent == 1:
            return (random.random_sample(mean.shape) < mean).astype(np.float64)
        raise UnsupportedError(
            f"{type(self).__name__} cannot draw y. Give it cdf(y, f), or sample(f, random)."
        )

    def check_targets(self, y: Targets) -> None:
        """Raise `InvalidInputError` for targets outside the support, with value and index.

        By default they are finite, labels are 0 or 1, and counts are whole numbers from 0.
        """
        name = type(self).__name__
        check_finite(y, name)
        if self.task == "classification":
            require_all((y == 0) | (y == 1), y, f"y of {name}", "a label, 0 or 1")
        if self.task == "count":
            require_all((y >= 0) & (y % 1 == 0), y, f"y of {name}", "a count, 0, 1, 2, …")

    def settings(self) -> dict[str, float]:
        """Return the constructor arguments that are not trained, finite, for model files."""
        return self.units.settings()

    def with_row_values(self: SomeLikelihood, values: Num[Tensor, "..."] | None) -> SomeLikelihood:
        """Return this likelihood for row constants of shape (..., n), sharing its parameters.

        They are in the units in which the likelihood has y. None returns the likelihood itself.
        """
        return self.rows.given(self, values)

    def for_rows(self: SomeLikelihood, index: Int[Tensor, " r"]) -> SomeLikelihood:
        """Return this likelihood for these rows of the data, sharing its parameters."""
        return self.rows.subset(self, index)

    def take(self: SomeLikelihood, index: Tensor | torch.Size) -> SomeLikelihood:
        """Return this likelihood for the examples of an index, sharing its parameters.

        A boolean mask over (..., n) selects and flattens, and that shape flattens; integers index
        flat examples.
        """
        constants = (*self._parameters.values(), *self._buffers.values())
        if all(constant is None or constant.numel() == 1 for constant in constants):
            return self
        twin = copy.copy(self)
        twin._view = ExampleView((*self._view.taken, index), self._view.frozen)
        return twin

    def frozen(self: SomeLikelihood) -> SomeLikelihood:
        """Return this likelihood with the same parameters, which get no gradients."""
        twin = copy.copy(self)
        twin._view = ExampleView(self._view.taken, True)
        return twin

    def learned(self) -> list[Tensor]:
        """Return the parameters and other constants that need a gradient."""
        if self._view.frozen:
            return []
        # `parameters()` is slow.
        flat: Iterable[Tensor | None] = (*self._parameters.values(), *self._buffers.values())
        constants = (*self.parameters(), *self.buffers()) if self._modules else flat
        return [value for value in constants if value is not None and value.requires_grad]

    def _positive(self, raw: Tensor) -> Tensor:
        """Return log(1 + e^ρ), the positive value of a raw parameter ρ, for the examples taken."""
        return self._view.of(softplus(raw))


def _moments(likelihood: Likelihood, f: Values) -> tuple[Values, Values]:
    """Return mean and variance of y given f, of `cdf` or of draws."""
    by_cdf = has(likelihood, ConditionalCDF)
    # Draws of the base class need the mean itself.
    if not by_cdf and type(likelihood).sample is Likelihood.sample:
        raise UnsupportedError(
            f"Mean and variance of y need cdf(y, f), sample(f, random), or conditional_mean(f) "
            f"and conditional_variance(f). {type(likelihood).__name__} has none. Give it one of "
            "them."
        )
    mean, variance = moments_given(likelihood, f, by_cdf)
    return mean.to(f), variance.to(f)


def can_draw(likelihood: Likelihood) -> bool:
    """Return whether the family has a method that draws y; `cdf` serves as well."""
    draws = type(likelihood).sample is not Likelihood.sample or has(likelihood, ConditionalDraws)
    return draws or has(likelihood, ConditionalCDF)


def check_shape(likelihood: Likelihood, shape: tuple[int, ...]) -> None:
    """Raise `InvalidInputError` if parameters or row values do not broadcast to this shape.

    A likelihood made by `take` was checked before. A family may have a check of its own.
    """
    if likelihood._view.taken:
        return
    if has(likelihood, ShapeChecked):
        cast(ShapeChecked, likelihood).check_shape(shape)
        return
    name = type(likelihood).__name__
    for key, value in (*likelihood.named_parameters(), *likelihood.named_buffers()):
        fits = broadcast_shape(value.shape, shape) == shape
        wanted = f"of a shape that broadcasts to that of the examples, {tuple(shape)}"
        require(fits, f"{key} of {name}", wanted, tuple(value.shape))


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape to which these broadcast, or None."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def by_scipy(function: Callable[..., Any], *arguments: Tensor) -> Tensor:
    """Apply a function of `scipy.special` to tensors of any device; not differentiable."""
    arrays = (argument.detach().cpu().numpy() for argument in arguments)
    return torch.as_tensor(function(*arrays)).to(arguments[-1])


def check_finite(y: Targets, who: str) -> None:
    """Raise `InvalidInputError` for NaN and infinite targets."""
    require_all(torch.isfinite(y), y, f"y of {who}", "finite", "Drop or impute the missing rows.")


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

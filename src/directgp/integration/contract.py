"""Define what integrals are about: a density and its capabilities, estimates, integrators."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from directgp.errors import UnsupportedError
from directgp.numerics.autograd import Slopes
from directgp.shapes import BatchedRow, Latents, Row, Values


class Derivatives(NamedTuple):
    """ℓ up to the part free of f, and the derivatives ℓ′, ℓ″ of log p(y given f) in f."""

    value: Values
    first: Values
    second: Values


SomeDensity = TypeVar("SomeDensity", bound="Density")


@runtime_checkable
class Density(Protocol):
    """p(y given f) as a function of f: log p(y given f) = `log_kernel` (y, f) + `log_base` (y)."""

    num_latent: int
    """Number of latent values of an example."""

    @property
    def integration(self) -> "Integrator":
        """How integrals over q(f) are computed."""

    def log_kernel(self, y: Values, f: Values) -> Values:
        """Return the part of log p(y given f) that depends on f."""

    def log_base(self, y: Values) -> Values:
        """Return the part of log p(y given f) free of f."""

    def log_prob(self, y: Values, f: Values) -> Values:
        """Return log p(y given f)."""

    def derivatives(self, y: Values, f: Values) -> Derivatives:
        """Return `log_kernel` and the first two derivatives in f, without a graph."""

    def value_and_slope(self, y: Values, f: Values) -> tuple[Values, Values]:
        """Return `log_kernel` and its first derivative in f, without a graph."""

    def take(self: SomeDensity, index: Tensor | torch.Size) -> SomeDensity:
        """Return the density of the examples of these indices."""

    def frozen(self: SomeDensity) -> SomeDensity:
        """Return this density with parameters that get no gradients."""

    def learned(self) -> list[Tensor]:
        """Return the parameters and other constants that need a gradient."""


SomeExamples = TypeVar("SomeExamples", bound="FlatExamples")


class FlatExamples(NamedTuple):
    """Targets and their q(f) = N(mean, variance), as flat float64 tensors outside any graph.

    With P latents mean and variance have shape (P, n).
    """

    likelihood: Density
    y: Row
    mean: BatchedRow
    variance: BatchedRow

    def take(self: SomeExamples, index: Int[Tensor, " r"]) -> SomeExamples:
        """Return the examples of these indices."""
        likelihood, *columns = self
        subset = (column.index_select(column.dim() - 1, index) for column in columns)
        return type(self)(likelihood.take(index), *subset)


@dataclass(frozen=True)
class Estimate:
    """An integral of each example, and its derivatives in the mean and the variance of q."""

    value: Row
    """log E_q[p], or E_q[log p]."""

    mean_slope: BatchedRow
    """The derivative in the mean."""

    variance_slope: BatchedRow
    """The derivative in the variance."""

    parameters: Slopes = ()
    """`directgp.integration.evaluate.average_slopes`."""

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
        return Estimate.of(
            value if column is self.value else factor * column for column in self.columns
        )

    def where(self, mask: Bool[Tensor, " n"], otherwise: "Estimate") -> "Estimate":
        """Return this estimate where the mask holds, the other one elsewhere."""
        pairs = zip(self.columns, otherwise.columns, strict=True)
        return Estimate.of(torch.where(mask, a, b) for a, b in pairs)

    @staticmethod
    def join(parts: "Iterable[Estimate]") -> "Estimate":
        """Concatenate the estimates of successive examples."""
        first, *rest = parts
        if not rest:
            return first
        columns = zip(*(estimate.columns for estimate in (first, *rest)), strict=True)
        return Estimate.of(torch.cat(column, -1) for column in columns)


Estimator = Callable[[FlatExamples], Estimate]


class IntegrationMethod(NamedTuple):
    """A way to compute one integral of many examples."""

    points: int
    """Number of points of an example, which sets the size of a block of examples."""

    estimate: Estimator
    """Compute the integral of a block, outside any graph."""

    fixed_work: bool = False
    """Whether the operations are the same for all numbers, as a CUDA graph needs."""


class Nodes(NamedTuple):
    """The nodes of log E_q[p] that the user asks for."""

    number: int | Literal["auto"] = "auto"
    """Nodes for each example; "auto" takes as many as 1e-10 needs."""

    kind: Literal["trapezoid", "gauss_hermite"] = "trapezoid"
    """Equal steps over the effective support, or Gauss–Hermite nodes fitted to the peak."""


NEEDED_NODES = Nodes()
"""As many equal steps as are needed."""


@dataclass(frozen=True)
class Integrator(ABC):
    """Method for log E_q[p(y given f)] and E_q[log p(y given f)] of a density.

    A likelihood has one, its `integration`, which also describes the shape of p(y given f) over f
    to rules that sample.

    Parameters
    ----------
    strip : float
        Half-width in Im f of the strip about the real line where p(y given f) is analytic and
        bounded; it sets the step of a trapezoid sum (Trefethen and Weideman, SIAM Review 56, 2014).
    log_concave : bool
        Whether log p(y given f) is smooth and concave in f for every y.
    smooth : bool
        Whether log p(y given f) has a derivative in f, which Monte Carlo rules need.
    fixed_work : bool
        Whether the methods of the likelihood do the same operations for all numbers, as a CUDA
        graph needs.
    """

    strip: float = math.pi
    log_concave: bool = False
    smooth: bool = True
    fixed_work: bool = False

    @property
    def summable(self) -> bool:
        """Whether the integrals are sums over nodes that the claims about p determine."""
        return False

    def strip_right_of(self, density: Density, lower: Values) -> Values | float:
        """Return the half-width of the strip where Re f is at least `lower`."""
        return self.strip

    @abstractmethod
    def of_density(self, density: Density, nodes: Nodes = NEEDED_NODES) -> IntegrationMethod:
        """Return the method for log E_q[p(y given f)]."""

    @abstractmethod
    def of_log_density(self, density: Density, nats: float) -> IntegrationMethod:
        """Return the method for E_q[log p(y given f)], with an error of e^−nats."""


def log_expectations_of(examples: FlatExamples) -> Estimate:
    """Return log E_q[p(y given f)] of flat examples, as their density integrates it."""
    density = examples.likelihood
    return density.integration.of_density(density).estimate(examples)


def require_needed_nodes(density: Density, nodes: Nodes, needs: str) -> None:
    """Raise `UnsupportedError` if the user chose nodes, which need another likelihood."""
    if nodes != NEEDED_NODES:
        raise UnsupportedError(
            f"Quadrature with nodes of your choice needs a likelihood {needs}. Got "
            f"{type(density).__name__}. Use Quadrature()."
        )


# Capabilities: what a density may have besides the contract, as protocols that integrators ask for.

_ANSWERS: dict[tuple[type, type], bool] = {}


def has(instance: object, capability: type) -> bool:
    """Return `isinstance(instance, capability)`, which is slow for a protocol, from a table.

    The answer for the first instance of a class is that for all of them.
    """
    key = type(instance), capability
    answer = _ANSWERS.get(key)
    if answer is None:
        answer = _ANSWERS[key] = isinstance(instance, capability)
    return answer


# Slopes without a graph. Those in the constants are in θ = log(1 + e^ρ) for every parameter ρ whose
# name starts with "raw_", else in the parameter or buffer itself.


@runtime_checkable
class ParameterSlopes(Protocol):
    """The derivatives of log p(y given f) in the constants are formulas."""

    def parameter_slopes(self, y: Values, f: Values) -> Slopes | None:
        """Return the derivatives, or None where they need a graph."""


@runtime_checkable
class LinearSlopes(Protocol):
    """The derivatives in the constants are linear in f, ℓ and ℓ′."""

    def has_linear_slopes(self) -> bool:
        """Return whether they are, for the constants as they are."""

    def slopes_of_averages(self, y: Row, f: Row, value: Row, first: Row) -> Slopes:
        """Return the averages of the derivatives, given those of f, ℓ and ℓ′."""


@runtime_checkable
class ClosedFormGibbs(Protocol):
    """E_q[log p(y given f)] is a formula, or an integral smoother than the one over f."""

    def expected_log_prob(self, y: Values, mean: Values, variance: Values) -> Values:
        """E_q[log p(y given f)], computed in float64 and returned in the dtype of the mean."""


@runtime_checkable
class GibbsSlopes(Protocol):
    """The derivatives of E_q[log p(y given f)] are formulas."""

    def expected_log_prob_slopes(self, y: Values, mean: Values, variance: Values) -> Slopes:
        """E_q[log p(y given f)], and slopes in mean, variance and constants, in float64."""


@runtime_checkable
class OnePeak(Protocol):
    """p(y given f) rises in f up to one peak and then falls."""

    def argmax(self, y: Values) -> Values:
        """Return the f that maximises p(y given f); infinite where the supremum is a limit."""

    def log_max(self, y: Values) -> Values:
        """Return sup over f of log p(y given f)."""

    def log_max_between(self, y: Values, lower: Values, upper: Values) -> Values:
        """Return the maximum of log p(y given f) over lower ≤ f ≤ upper."""


@runtime_checkable
class ClosedFormMode(Protocol):
    """The mode of q(f)·p(y given f) is a formula."""

    def product_mode(self, y: Values, mean: Values, variance: Values) -> Values:
        """Mode of q(f)·p(y given f), as its distance from the mean."""


@runtime_checkable
class NearlyCertain(Protocol):
    """p(y given f) may be so near to 1 that log E_q[p] needs the digits of 1 − p."""

    def doubt(self, y: Values, f: Values) -> tuple[Values, Values]:
        """Return the log of 1 − p or a bound of it, 0 where it is not small, and its slope in f."""


@runtime_checkable
class Binary(Protocol):
    """Two labels: p(1 given f) + p(0 given f) = 1."""

    def complement(self, y: Values) -> Values:
        """Return the other label."""


@runtime_checkable
class SymmetricLink(Protocol):
    """p(y given f) = g((2y−1)f) for y ∈ {0, 1}, normalised, and log g rises to 0."""

    def link_derivatives(self, x: Values) -> Derivatives:
        """log g and its first two derivatives."""


@runtime_checkable
class ReducedDensity(Protocol):
    """Integrals over several latents are, without approximation, integrals over one variable."""

    def integrate_density(self, y: Row, mean: Latents, variance: Latents) -> Slopes:
        """log E_q[p(y given f)], and slopes in means, variances and constants, in float64."""

    def integrate_log_density(self, y: Row, mean: Latents, variance: Latents) -> Slopes:
        """E_q[log p(y given f)], and slopes in means, variances and constants, in float64."""


@runtime_checkable
class GammaPrecision(Protocol):
    """y is f plus Gaussian noise of variance σ²/g, with g ~ Gamma(ν/2, rate ν/2)."""

    @property
    def df(self) -> Tensor:
        """ν."""

    @property
    def scale(self) -> Tensor:
        """σ."""


@runtime_checkable
class ExtraZeros(Protocol):
    """p(0) = π + (1−π) p₀(0) and p(y) = (1−π) p₀(y) for y > 0, with ω = π/(1−π)."""

    @property
    def base(self) -> Any:
        """The log-concave likelihood p₀, which shares its constants with this one."""

    @property
    def zero_odds(self) -> Tensor:
        """ω, the first parameter."""

    def inflate(self, y: Values, value: Values) -> tuple[Values, Values, Values]:
        """Return log p, or log E[p], from log p₀, or log E[p₀], and its slopes in that and in ω."""

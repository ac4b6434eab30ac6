"""Define what an integral is about: a density, examples of it, an estimate, an integrator."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from directgp.errors import UnsupportedError
from directgp.numerics.autograd import Slopes
from directgp.shapes import BatchedRow, Row, Values


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
    """`directgp.integration.parameters.average_slopes`."""

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


class Method(NamedTuple):
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
    def of_density(self, density: Density, nodes: Nodes = NEEDED_NODES) -> Method:
        """Return the method for log E_q[p(y given f)]."""

    @abstractmethod
    def of_log_density(self, density: Density, nats: float) -> Method:
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

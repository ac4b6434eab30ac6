"""Define what densities may have besides the contract, as protocols that integrators ask for."""

from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from directgp.integration.contract import Derivatives
from directgp.numerics.autograd import Slopes
from directgp.shapes import Latents, Row, Values

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

"""Define `Rule`, the base of the methods for log E_q[p], and the rules that do not draw."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, cast, final

import torch
from typing_extensions import override

from directgp.errors import UnsupportedError, refuse, require
from directgp.integration.contract import IntegrationMethod, Nodes, has
from directgp.integration.evaluate import Rows, estimate_rows, evaluate, of_one_shape
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import ClosedFormLogPredictive, LogPredictiveSlopes
from directgp.numerics.autograd import Slopes
from directgp.numerics.random import fresh_generator
from directgp.shapes import Targets, Values

Schedule = int | float | Callable[[int], int | float]
"""A number, or a function of the training step."""


class Context(NamedTuple):
    """State of training that one evaluation of a rule depends on."""

    step: int = 0
    """Training step, which schedules read."""

    generator: torch.Generator | None = None
    """Source of random numbers, never None for a rule that draws."""


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
    """log E_q[p(y given f)] by the likelihood's formula, `log_predictive`."""

    deterministic = True
    unbiased_gradient = True

    @override
    def _evaluate(self, likelihood: Likelihood, rows: Rows, context: Context) -> Values:
        self.check(likelihood)
        return cast(ClosedFormLogPredictive, likelihood).log_predictive(*rows)

    @override
    def slopes(self, likelihood: Likelihood, rows: Rows) -> Slopes | None:
        if not has(likelihood, LogPredictiveSlopes):
            return None
        wide = (row.double() for row in rows)
        return cast(LogPredictiveSlopes, likelihood).log_predictive_slopes(*wide)

    @override
    def check(self, likelihood: Likelihood) -> None:
        if not has(likelihood, ClosedFormLogPredictive):
            raise UnsupportedError(
                f"ClosedForm needs a likelihood with a closed-form log predictive. Got "
                f"{type(likelihood).__name__}. Use Quadrature (right to 1e-9), BiasedMonteCarlo "
                f"or ProductSampling."
            )

    @override
    def fixed_work(self, likelihood: Likelihood) -> bool:
        return True


def at_step(schedule: Schedule, step: int) -> int | float:
    """Return the value of a schedule at a training step."""
    return schedule(step) if callable(schedule) else schedule


def check_num_samples(num_samples: int | float) -> int:
    """Return the number of samples; raise `InvalidInputError` below 1."""
    require(num_samples >= 1, "num_samples", "at least 1", num_samples)
    return int(num_samples)


@final
@dataclass(frozen=True)
class Quadrature(Rule):
    """log E_q[p(y given f)] by the integrator of the likelihood, to 1e-9.

    Most likelihoods have trapezoid sums over nodes laid on q̃ ∝ q·p, in log space.

    Parameters
    ----------
    num_nodes : int or "auto"
        Nodes for each example; "auto" takes as many as 1e-10 needs, more where q̃ is wide.
    nodes : {"trapezoid", "gauss_hermite"}
        Equal steps over the effective support, or Gauss–Hermite nodes fitted to the peak.
    """

    num_nodes: int | Literal["auto"] = "auto"
    nodes: Literal["trapezoid", "gauss_hermite"] = "trapezoid"

    deterministic = True
    unbiased_gradient = True

    def __post_init__(self) -> None:
        """Raise `InvalidInputError` for an unknown kind or number of nodes."""
        number = self.num_nodes
        kinds = ("trapezoid", "gauss_hermite")
        if number != "auto" and not (isinstance(number, int) and number >= 2):
            refuse("num_nodes of Quadrature", "'auto' or at least 2", repr(number))
        if self.nodes not in kinds:
            refuse("nodes of Quadrature", f"one of {kinds}", repr(self.nodes))

    @override
    def fixed_work(self, likelihood: Likelihood) -> bool:
        fixed = likelihood.integration.fixed_work and self == Quadrature()
        return fixed and self._method(likelihood).fixed_work

    @override
    def _evaluate(self, likelihood: Likelihood, rows: Rows, context: Context) -> Values:
        return evaluate(self._method(likelihood), likelihood, rows)

    @override
    def slopes(self, likelihood: Likelihood, rows: Rows) -> Slopes:
        return estimate_rows(self._method(likelihood), likelihood, rows)

    def _method(self, likelihood: Likelihood) -> IntegrationMethod:
        nodes = Nodes(self.num_nodes, self.nodes)
        return likelihood.integration.of_density(likelihood, nodes)

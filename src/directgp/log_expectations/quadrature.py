"""Quadrature: log E_q[p] as the likelihood integrates it."""

from dataclasses import dataclass
from typing import Literal, final

from typing_extensions import override

from directgp.errors import refuse
from directgp.integration.contract import Method, Nodes
from directgp.integration.evaluate import Rows, estimate_rows, evaluate
from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.rule import Context, Rule
from directgp.numerics.autograd import Slopes
from directgp.shapes import Values


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

    def _method(self, likelihood: Likelihood) -> Method:
        nodes = Nodes(self.num_nodes, self.nodes)
        return likelihood.integration.of_density(likelihood, nodes)

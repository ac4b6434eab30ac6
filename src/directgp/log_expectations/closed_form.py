"""The rule for likelihoods whose log predictive is a formula."""

from dataclasses import dataclass
from typing import final

from typing_extensions import override

from directgp.errors import UnsupportedError
from directgp.likelihoods.base import ClosedFormLogPredictive, Likelihood
from directgp.log_expectations.rule import Moment, Rule
from directgp.shapes import Values


@final
@dataclass(frozen=True)
class ClosedForm(Rule):
    """log E_q[p(y given f)] by the likelihood's own formula (Gaussian, probit)."""

    deterministic = True
    unbiased_gradient = True

    @override
    def _evaluate(
        self, likelihood: Likelihood, y: Values, mean: Values, variance: Values, moment: Moment
    ) -> Values:
        return _with_formula(likelihood).log_predictive(y, mean, variance)

    @override
    def check(self, likelihood: Likelihood) -> None:
        _with_formula(likelihood)

    @override
    def fixed_work(self, likelihood: Likelihood) -> bool:
        return True


def _with_formula(likelihood: Likelihood) -> ClosedFormLogPredictive:
    """Return the likelihood; raise `UnsupportedError` if it has no closed form."""
    if isinstance(likelihood, ClosedFormLogPredictive):
        return likelihood
    raise UnsupportedError(
        f"ClosedForm needs a likelihood with a closed-form log predictive. Got "
        f"{type(likelihood).__name__}. Use Quadrature (right to 1e-9), BiasedMonteCarlo or "
        f"ProductSampling."
    )

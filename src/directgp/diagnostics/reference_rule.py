"""The rule that the others are judged by."""

from directgp.likelihoods import Likelihood
from directgp.likelihoods.capabilities import ClosedFormLogPredictive
from directgp.log_expectations import ClosedForm, Quadrature, Rule


def reference_rule(likelihood: Likelihood) -> Rule:
    """Choose the closed form where there is one, quadrature elsewhere."""
    return ClosedForm() if isinstance(likelihood, ClosedFormLogPredictive) else Quadrature()

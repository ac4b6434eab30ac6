"""Rules for log E_q[p(y given f)] and its gradient, one file each."""

from directgp.integration.contract import FlatExamples
from directgp.log_expectations.api import resolve_rule
from directgp.log_expectations.monte_carlo import BiasedMonteCarlo
from directgp.log_expectations.product_sampling import ProductSampling
from directgp.log_expectations.rule import ClosedForm, Quadrature, Rule, at_step
from directgp.log_expectations.samplers import draw_as_paper, proposals_per_draw

__all__ = [
    "BiasedMonteCarlo",
    "ClosedForm",
    "FlatExamples",
    "ProductSampling",
    "Quadrature",
    "Rule",
    "at_step",
    "draw_as_paper",
    "proposals_per_draw",
    "resolve_rule",
]

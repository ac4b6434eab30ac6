"""Rules for log E_q[p(y given f)] and its gradient, one file each."""

from directgp.log_expectations.monte_carlo import BiasedMonteCarlo
from directgp.log_expectations.product_sampling import ProductSampling
from directgp.log_expectations.quadrature import Quadrature
from directgp.log_expectations.rule import ClosedForm, Rule

__all__ = ["BiasedMonteCarlo", "ClosedForm", "ProductSampling", "Quadrature", "Rule"]

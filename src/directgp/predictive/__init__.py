"""The distribution of y at new inputs, given the marginals q(f) = N(μ, v)."""

from directgp.predictive.crps import predictive_crps
from directgp.predictive.density import predictive_log_density
from directgp.predictive.moments import predictive_mean, predictive_variance
from directgp.predictive.quantiles import (
    predictive_cdf,
    predictive_interval,
    predictive_quantiles,
)

__all__ = [
    "predictive_cdf",
    "predictive_crps",
    "predictive_interval",
    "predictive_log_density",
    "predictive_mean",
    "predictive_quantiles",
    "predictive_variance",
]

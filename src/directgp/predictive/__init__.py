"""The distribution of y at new inputs, given the marginals q(f) = N(μ, v)."""

from directgp.predictive.api import (
    predictive_cdf,
    predictive_crps,
    predictive_interval,
    predictive_log_density,
    predictive_quantiles,
)
from directgp.predictive.moments import predictive_mean, predictive_variance

__all__ = [
    "predictive_cdf",
    "predictive_crps",
    "predictive_interval",
    "predictive_log_density",
    "predictive_mean",
    "predictive_quantiles",
    "predictive_variance",
]

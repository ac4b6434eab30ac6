"""Smallest values of noise parameters, relative to the spread of the targets.

Joint log-loss training may drive the Gaussian noise towards 0 and let the variance of f carry it.
The floor keeps the noise a number; a result says when it was reached.
"""

import torch
from jaxtyping import Num
from torch import Tensor

from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.gaussian import Gaussian
from directgp.likelihoods.student_t import StudentT
from directgp.numerics.softplus import softplus_inverse

_RELATIVE_VARIANCE = 1e-6
_SMALLEST_DF = 0.1


def floors(likelihood: Likelihood, y: Num[Tensor, " n"]) -> dict[str, float]:
    """The floor of each raw parameter that has one, by name."""
    if not isinstance(likelihood, Gaussian | StudentT):
        return {}
    variance = torch.tensor(_RELATIVE_VARIANCE * _spread(y) ** 2, dtype=torch.float64)
    if isinstance(likelihood, Gaussian):
        return {"likelihood.raw_noise": float(softplus_inverse(variance))}
    df = torch.tensor(_SMALLEST_DF, dtype=torch.float64)
    return {
        "likelihood.raw_scale": float(softplus_inverse(variance.sqrt())),
        "likelihood.raw_df": float(softplus_inverse(df)),
    }


def _spread(y: Num[Tensor, " n"]) -> float:
    """Interquartile range over that of a standard normal, which outliers do not move."""
    wide = y.double()
    ordered = wide.sort().values
    lower, upper = ordered[len(y) // 4], ordered[(3 * len(y)) // 4]
    for spread in ((upper - lower) / 1.349, wide.std(correction=0), wide.abs().max()):
        if float(spread) > 0:
            return float(spread)
    return 1.0

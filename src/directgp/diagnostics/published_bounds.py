"""Bounds of φ, φ′ and φ″ as the paper prints them in its table 1."""

import math

import torch
from jaxtyping import Num
from torch import Tensor

from directgp.diagnostics.bounds import DerivativeBounds, Values
from directgp.errors import UnsupportedError
from directgp.likelihoods import Gaussian, Likelihood, Logistic, Probit, StudentT
from directgp.likelihoods.poisson import PoissonExp, PoissonSoftplus


@torch.no_grad()
def paper_bounds(likelihood: Likelihood, y: Num[Tensor, "..."]) -> DerivativeBounds:
    """Compute the published B, [b′, B′] and [b″, B″] for each target.

    Parameters
    ----------
    likelihood : Likelihood
        One of the six of the paper's table 1.
    y : tensor
        Targets (..., n). Only the exponential link's bounds depend on them.

    Raises
    ------
    UnsupportedError
        Where the paper gives no bound: use `tight_bounds`.
    """
    likelihood.check_targets(y)
    y = y.double()
    match likelihood:
        case Logistic():
            return _symmetric(y, 1.0, 1 / 4, 1 / 4)
        case Probit():
            return _symmetric(
                y, 1.0, 1 / math.sqrt(2 * math.pi), 1 / math.sqrt(2 * math.pi * math.e)
            )
        case Gaussian():
            return _gaussian(likelihood, y)
        case StudentT():
            return _student_t(likelihood, y)
        case PoissonExp():
            one = torch.ones_like(y)
            return DerivativeBounds(one, -y - 1, y, -y - 1 / 4, 2 * y**2 + 3 * y + 2)
        case PoissonSoftplus(log_exposure=None):
            return _symmetric(y, 1.0, 1.0, 2.25)
    raise UnsupportedError(
        f"paper_bounds knows the six likelihoods of the paper's table 1, softplus counts without "
        f"exposure. Got {type(likelihood).__name__}. Use tight_bounds."
    )


def _symmetric(y: Values, density: float, slope: float, curvature: float) -> DerivativeBounds:
    """Give every target the same ± bounds."""
    one = torch.ones_like(y)
    return DerivativeBounds(
        density * one, -slope * one, slope * one, -curvature * one, curvature * one
    )


def _gaussian(likelihood: Gaussian, y: Values) -> DerivativeBounds:
    c = torch.exp(likelihood.log_base(y))
    variance = likelihood.noise
    slope = c / torch.sqrt(math.e * variance)
    return DerivativeBounds(c, -slope, slope, -c / variance, 2 * c / (variance * math.exp(3 / 2)))


def _student_t(likelihood: StudentT, y: Values) -> DerivativeBounds:
    c = torch.exp(likelihood.log_base(y))
    df, scale = likelihood.df, likelihood.scale
    factor = c * (df + 1) / df
    slope = factor / scale * torch.sqrt(df / (df + 2)) / ((df + 3) / (df + 2)) ** ((df + 3) / 2)
    curvature = 2 * factor / scale**2 * ((df + 2) / (df + 5)) ** ((df + 5) / 2)
    return DerivativeBounds(c, -slope, slope, -factor / scale**2, curvature)

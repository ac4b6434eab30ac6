"""The curvature of the log losses in the mean of f, from their slopes."""

import torch
from jaxtyping import Float, Num
from torch import Tensor

from directgp.likelihoods.base import Likelihood
from directgp.objectives.log_losses import GibbsLoss, LogLoss
from directgp.shapes import Marginals


def mean_curvature(
    likelihood: Likelihood, y: Num[Tensor, "*#batch n"], marginals: Marginals, gibbs: bool
) -> Float[Tensor, "*batch n"]:
    """∂²loss/∂μ², or 0 where that is negative.

    A Gaussian average satisfies ∂_v = ½∂²_μ. So the curvature of the Gibbs loss is 2 ∂_v loss, and
    that of the log loss 2 ∂_v loss + (∂_μ loss)².
    """
    mean = marginals.mean.detach().requires_grad_()
    variance = marginals.variance.detach().requires_grad_()
    loss = GibbsLoss() if gibbs else LogLoss()
    with torch.enable_grad():
        total = loss(likelihood.frozen(), y, Marginals(mean, variance)).sum()
    slope, variance_slope = torch.autograd.grad(total, (mean, variance))
    curvature = 2 * variance_slope if gibbs else 2 * variance_slope + slope**2
    return curvature.clamp(min=0.0)

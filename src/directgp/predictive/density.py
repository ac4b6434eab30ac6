"""log p(y) at new inputs."""

from jaxtyping import Float, Num
from torch import Tensor

from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.evaluate import resolve_rule
from directgp.predictive.checks import wide_marginals, wide_targets
from directgp.shapes import Marginals


def predictive_log_density(
    likelihood: Likelihood, y: Num[Tensor, "..."], marginals: Marginals
) -> Float[Tensor, "..."]:
    """Compute log p(y) = log E_q[p(y given f)], by formula or quadrature.

    Parameters
    ----------
    likelihood
        p(y given f).
    y
        Targets in the support of the likelihood; the shape broadcasts with ``(..., n)``.
    marginals
        q(f).

    Returns
    -------
    log_density
        Shape ``(..., n)``, dtype of the mean; differentiable.

    Examples
    --------
    >>> import torch
    >>> from directgp.likelihoods import Poisson
    >>> marginals = Marginals(torch.tensor([0.5]), torch.tensor([0.3]))
    >>> predictive_log_density(Poisson(), torch.tensor([300]), marginals)
    tensor([-50.6238])
    """
    who = "predictive_log_density"
    mean, variance = wide_marginals(who, marginals)
    wide = wide_targets(who, y, mean)
    likelihood.check_targets(y)
    value = resolve_rule("auto", likelihood)(likelihood, wide, mean, variance)
    return value.to(marginals.mean.dtype)

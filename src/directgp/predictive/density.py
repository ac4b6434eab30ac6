"""log p(y) at new inputs."""

from jaxtyping import Float, Num
from torch import Tensor

from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import ClosedFormLogPredictive
from directgp.log_expectations.base import Rule
from directgp.log_expectations.closed_form import ClosedForm
from directgp.log_expectations.quadrature import Quadrature
from directgp.predictive.checks import wide_marginals, wide_targets
from directgp.shapes import Marginals


def predictive_log_density(
    likelihood: Likelihood, y: Num[Tensor, "..."], marginals: Marginals
) -> Float[Tensor, "..."]:
    """Compute log p(y) = log E_q[p(y given f)], by formula or to rounding by quadrature.

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
    tensor([-50.5755])
    """
    mean, variance = wide_marginals(marginals)
    wide = wide_targets(y, mean)
    likelihood.check_targets(y)
    return exact_rule(likelihood)(likelihood, wide, mean, variance).to(marginals.mean.dtype)


def exact_rule(likelihood: Likelihood) -> Rule:
    """The formula where there is one, else quadrature."""
    return ClosedForm() if isinstance(likelihood, ClosedFormLogPredictive) else Quadrature()

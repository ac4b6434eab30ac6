"""Mean and variance of y at new inputs."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import Binary, ClosedFormMoments
from directgp.log_expectations.evaluate import resolve_rule
from directgp.log_expectations.nodes import step_for
from directgp.predictive.batches import integrate_in_batches
from directgp.predictive.checks import wide_marginals
from directgp.predictive.normal_average import normal_average
from directgp.predictive.steps import DROP
from directgp.shapes import Marginals

Values = Float[Tensor, "..."]

_REACH = 18.0
"""Standard deviations of q to either side; E_q[e^f] with v = 100 peaks 10 of them from μ."""


def predictive_mean(likelihood: Likelihood, marginals: Marginals) -> Float[Tensor, "..."]:
    """Compute E[y] = E_q[E[y given f]].

    Shape ``(..., n)``, dtype of the mean; differentiable. NaN where the likelihood has no mean.

    Examples
    --------
    >>> import torch
    >>> from directgp.likelihoods import Logistic
    >>> predictive_mean(Logistic(), Marginals(torch.tensor([2.0]), torch.tensor([4.0])))
    tensor([0.7752])
    """
    mean, variance = wide_marginals("predictive_mean", marginals)
    if isinstance(likelihood, ClosedFormMoments):
        value = likelihood.predictive_mean(mean, variance)
    elif isinstance(likelihood, Binary):
        value = label_probability(likelihood, 1.0, mean, variance)
    else:
        value = _integrate(_expected, likelihood, mean, variance)
    return value.to(marginals.mean.dtype)


def predictive_variance(likelihood: Likelihood, marginals: Marginals) -> Float[Tensor, "..."]:
    """Compute Var[y] = E_q[Var[y given f]] + Var_q[E[y given f]].

    Shape ``(..., n)``, dtype of the mean; differentiable. Infinite where the likelihood's is.

    Examples
    --------
    >>> import torch
    >>> from directgp.likelihoods import Gaussian
    >>> marginals = Marginals(torch.tensor([0.0]), torch.tensor([0.75]))
    >>> round(predictive_variance(Gaussian(noise=0.25), marginals).item(), 6)
    1.0
    """
    mean, variance = wide_marginals("predictive_variance", marginals)
    if isinstance(likelihood, ClosedFormMoments):
        value = likelihood.predictive_variance(mean, variance)
    elif isinstance(likelihood, Binary):
        zero, one = (label_probability(likelihood, y, mean, variance) for y in (0.0, 1.0))
        value = zero * one
    else:
        value = _integrate(_spread, likelihood, mean, variance)
    return value.to(marginals.mean.dtype)


def label_probability(
    likelihood: Likelihood, label: float, mean: Values, variance: Values
) -> Values:
    """P(Y = label) for a likelihood of two labels, with all its digits also where it is tiny."""
    y = torch.full_like(mean, label)
    return torch.exp(resolve_rule("auto", likelihood)(likelihood, y, mean, variance))


def _integrate(
    integral: Callable[..., Values], likelihood: Likelihood, mean: Values, variance: Values
) -> Values:
    """An integral over q for each example, of a function analytic in the likelihood's strip."""
    deviation = torch.sqrt(variance.detach())
    needed = 2 * _REACH * deviation / step_for(deviation, likelihood.strip, DROP)
    return integrate_in_batches(integral, likelihood, needed, mean, variance)


def _expected(number: int, likelihood: Likelihood, mean: Values, variance: Values) -> Values:
    """E_q[E[y given f]]."""
    return normal_average(likelihood.conditional_mean, mean, variance, number, _REACH)


def _spread(number: int, likelihood: Likelihood, mean: Values, variance: Values) -> Values:
    """E_q[Var[y given f] + (E[y given f] − E y)²], which does not cancel."""
    expected = _expected(number, likelihood, mean, variance)

    def square(f: Values) -> Values:
        return likelihood.conditional_variance(f) + (likelihood.conditional_mean(f) - expected) ** 2

    return normal_average(square, mean, variance, number, _REACH)

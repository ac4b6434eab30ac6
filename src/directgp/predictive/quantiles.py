"""P(Y ≤ y), its inverse, and central intervals, at new inputs."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Num
from torch import Tensor

from directgp.errors import UnsupportedError
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import Binary, ClosedFormQuantiles, ScaleMixture
from directgp.likelihoods.counts import CountLikelihood
from directgp.predictive.checks import (
    check_coverage,
    wide_levels,
    wide_marginals,
    wide_targets,
)
from directgp.predictive.counts import CountDistribution
from directgp.predictive.distribution import Distribution, FormulaDistribution, LabelDistribution
from directgp.predictive.mixture import MixtureDistribution
from directgp.shapes import Marginals

Values = Float[Tensor, "..."]


@torch.no_grad()
def predictive_cdf(
    likelihood: Likelihood, y: Num[Tensor, "..."], marginals: Marginals
) -> Float[Tensor, "..."]:
    """Compute P(Y ≤ y) = E_q[P(Y ≤ y given f)].

    Parameters
    ----------
    likelihood
        p(y given f).
    y
        Any finite numbers, in the support or not; the shape broadcasts with ``(..., n)``.
    marginals
        q(f).

    Returns
    -------
    probability
        Shape ``(..., n)``, dtype of the mean; right to 1e-10, without gradient.

    Examples
    --------
    >>> import torch
    >>> from directgp.likelihoods import Probit
    >>> marginals = Marginals(torch.tensor([0.0]), torch.tensor([3.0]))
    >>> predictive_cdf(Probit(), torch.tensor([0]), marginals)
    tensor([0.5000])
    """
    mean, variance = wide_marginals("predictive_cdf", marginals)
    wide = wide_targets("predictive_cdf", y, mean)
    return distribution_of(likelihood, mean, variance).cdf(wide).to(marginals.mean.dtype)


@torch.no_grad()
def predictive_quantiles(
    likelihood: Likelihood, marginals: Marginals, levels: Sequence[float] | Float[Tensor, "..."]
) -> Float[Tensor, "k ..."]:
    """Find the smallest y with P(Y ≤ y) ≥ level, for each level and example.

    Parameters
    ----------
    likelihood
        p(y given f).
    marginals
        q(f).
    levels
        Probabilities between 0 and 1, ends excluded.

    Returns
    -------
    quantiles
        Shape ``(k, ..., n)``, dtype of the mean, without gradient. Counts and labels are whole
        numbers, exact as far as the dtype has them (to 2²⁴ in float32, 2⁵³ in float64).

    Examples
    --------
    >>> import torch
    >>> from directgp.likelihoods import Poisson
    >>> marginals = Marginals(torch.tensor([0.0, 7.0]), torch.tensor([0.5, 4.0]))
    >>> predictive_quantiles(Poisson(), marginals, [0.5, 0.9])
    tensor([[1.0000e+00, 1.0970e+03],
            [3.0000e+00, 1.4230e+04]])
    """
    mean, variance = wide_marginals("predictive_quantiles", marginals)
    level = wide_levels("predictive_quantiles", levels, mean)
    return distribution_of(likelihood, mean, variance).quantile(level).to(marginals.mean.dtype)


def predictive_interval(
    likelihood: Likelihood, marginals: Marginals, coverage: float
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """Find the central interval: as much probability, (1 − coverage)/2, below as above.

    For counts and labels the interval, ends included, holds at least `coverage`.

    Examples
    --------
    >>> import torch
    >>> from directgp.likelihoods import Gaussian
    >>> marginals = Marginals(torch.tensor([1.0]), torch.tensor([0.75]))
    >>> predictive_interval(Gaussian(noise=0.25), marginals, 0.95)
    (tensor([-0.9600]), tensor([2.9600]))
    """
    check_coverage("predictive_interval", coverage)
    tail = 0.5 * (1 - coverage)
    lower, upper = predictive_quantiles(likelihood, marginals, [tail, 1 - tail])
    return lower, upper


def distribution_of(likelihood: Likelihood, mean: Values, variance: Values) -> Distribution:
    """The distribution of y, by what the likelihood can do; parameters ask for no gradient."""
    likelihood = likelihood.frozen()
    if isinstance(likelihood, ClosedFormQuantiles):
        return FormulaDistribution(likelihood, mean, variance)
    if isinstance(likelihood, Binary):
        return LabelDistribution(likelihood, mean, variance)
    if isinstance(likelihood, CountLikelihood):
        return CountDistribution(likelihood, mean, variance)
    if isinstance(likelihood, ScaleMixture):
        return MixtureDistribution(likelihood, mean, variance)
    raise UnsupportedError(
        f"Quantiles need a likelihood of labels or counts, one with formulas, or a scale mixture "
        f"of Gaussians. Got {type(likelihood).__name__}. Give it the methods of "
        f"ClosedFormQuantiles."
    )

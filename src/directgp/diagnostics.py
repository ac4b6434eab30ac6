"""Check that the methods of a likelihood agree with each other."""

import math

import numpy as np
import torch
from jaxtyping import Num
from torch import Tensor

from directgp.errors import InvalidInputError, require
from directgp.integration.contract import has
from directgp.likelihoods.base import Likelihood, can_draw
from directgp.likelihoods.capabilities import ConditionalCDF, has_two_labels
from directgp.likelihoods.numeric import (
    checked_cdf,
    checked_draws,
    derivatives_by_autograd,
    moments_given,
    quantiles_given,
)
from directgp.log_expectations.api import check_own
from directgp.shapes import Row

__all__ = ["check_likelihood"]

_SLACK = 1e-6
"""Largest difference between two computations of the same number."""

_SUMMED_SLACK = 5e-4
"""Largest difference of a moment of counts from its sum, which interpolates between far counts."""

_CHANCE = 5.0
"""Standard errors by which draws may differ from probabilities."""

_LEVELS = (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)
"""Quantiles of y between which the density is compared with `cdf`."""

_NODES = 32
"""Gauss–Legendre nodes between two of them."""

_DRAWS = 4000


@torch.no_grad()
def check_likelihood(
    likelihood: Likelihood, y: Num[Tensor, " n"], f: Num[Tensor, " k"] | None = None
) -> dict[str, float]:
    """Check that the methods of a likelihood of your own agree with each other.

    Parameters
    ----------
    likelihood : Likelihood
        Of one latent value.
    y : tensor of shape (n,)
        Possible targets, in the units in which the likelihood has them.
    f : tensor of shape (k,)
        Latent values at which it is checked; −1, 0 and 1 by default.

    Returns
    -------
    dict
        The largest difference found by each check: "derivatives" from those of autograd, "density"
        from that of `cdf`, "draws" from probabilities in standard errors, "mean" and "variance"
        from those of `cdf`. A check for which the likelihood lacks a method is left out.

    Raises
    ------
    InvalidInputError
        Two methods disagree, or log p(y given f) is not as ``log_concave`` and ``strip`` say.

    Examples
    --------
    >>> import torch
    >>> from directgp.diagnostics import check_likelihood
    >>> from directgp.likelihoods import Gamma
    >>> differences = check_likelihood(Gamma(), torch.tensor([0.5, 2.0]))
    >>> sorted(differences)
    ['density', 'derivatives', 'draws', 'mean', 'variance']
    """
    one = likelihood.num_latent == 1
    require(one, "likelihood of check_likelihood", "of one latent value", likelihood.num_latent)
    likelihood.check_targets(y)
    check_own(likelihood, y)
    targets = y.double()
    latent = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64) if f is None else f.double()
    at = latent[:, None].expand(-1, len(targets))
    by_hand = likelihood.derivatives(targets, at)
    by_autograd = derivatives_by_autograd(likelihood.log_kernel, targets, at, 1, 2)
    differences = {"derivatives": max(map(_difference, by_hand, by_autograd))}
    if has_two_labels(likelihood):
        labels = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
        differences["density"] = _difference(likelihood.log_prob(labels, latent).exp().sum(0), 1.0)
    elif has(likelihood, ConditionalCDF):
        differences["density"] = _density_error(likelihood, latent)
        mean, variance = moments_given(likelihood, latent, by_cdf=True)
        differences["mean"] = _difference(likelihood.conditional_mean(latent), mean)
        differences["variance"] = _difference(likelihood.conditional_variance(latent), variance)
    summed = ("mean", "variance") if likelihood.task == "count" else ()
    wrong = [
        f"{key} by {value:.1e}"
        for key, value in differences.items()
        if not value < (_SUMMED_SLACK if key in summed else _SLACK)
    ]
    if can_draw(likelihood) and has(likelihood, ConditionalCDF):
        standard_errors = differences["draws"] = _draws_error(likelihood, latent)
        if not standard_errors < _CHANCE:
            wrong.append(f"draws by {standard_errors:.1f} standard errors")
    if wrong:
        raise InvalidInputError(
            f"Methods of {type(likelihood).__name__} must agree (derivatives with log_kernel, the "
            f"others with cdf). Got differences of {', '.join(wrong)}."
        )
    return differences


def _difference(values: Tensor, reference: Tensor | float) -> float:
    """Return the largest difference, relative to 1 and the numbers; NaN and infinities agree."""
    expected = torch.as_tensor(reference, dtype=values.dtype).expand(values.shape)
    both = torch.isfinite(values) & torch.isfinite(expected)
    gap = (values - expected).abs() / (1 + expected.abs())
    alike = (values == expected) | (torch.isnan(values) & torch.isnan(expected))
    return float(torch.where(both, gap, torch.where(alike, 0.0, math.inf)).max())


def _density_error(likelihood: Likelihood, f: Row) -> float:
    """Return the largest difference of integrals of p(y given f), or sums, from those of `cdf`."""
    levels = torch.tensor(_LEVELS, dtype=f.dtype)[:, None].expand(-1, len(f))
    ends = quantiles_given(likelihood, levels, f.expand(levels.shape))
    if likelihood.task == "count":
        below = checked_cdf(likelihood, (ends - 1).clamp(min=0.0), f)
        mass = checked_cdf(likelihood, ends, f) - torch.where(ends > 0, below, 0.0)
        return _difference(likelihood.log_prob(ends, f).exp(), mass)
    nodes, weights = (
        torch.as_tensor(column)[:, None, None] for column in np.polynomial.legendre.leggauss(_NODES)
    )
    half = 0.5 * ends.diff(dim=0)
    y = ends[:-1] + half * (1 + nodes)
    total = (weights * half * likelihood.log_prob(y, f.expand(y.shape)).exp()).sum(0)
    return _difference(total, checked_cdf(likelihood, ends, f.expand(ends.shape)).diff(dim=0))


def _draws_error(likelihood: Likelihood, f: Row) -> float:
    """Return the largest distance of shares of draws from `cdf`, in standard errors."""
    drawn = checked_draws(likelihood, f.expand(_DRAWS, -1), np.random.RandomState(0))
    worst = 0.0
    for level in _LEVELS:
        ends = quantiles_given(likelihood, torch.full_like(f, level), f)
        chance = checked_cdf(likelihood, ends, f)
        share = (torch.as_tensor(drawn) <= ends).double().mean(0)
        error = torch.sqrt(chance * (1 - chance) / _DRAWS).clamp(min=1 / _DRAWS)
        worst = max(worst, float(((share - chance).abs() / error).max()))
    return worst

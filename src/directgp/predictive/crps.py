"""The continuous ranked probability score of predictive distributions."""

import numpy as np
import torch
from jaxtyping import Float, Num
from torch import Tensor

from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import Binary, ClosedFormCRPS
from directgp.likelihoods.counts import CountLikelihood
from directgp.predictive.moments import predictive_mean
from directgp.predictive.quantiles import predictive_cdf, predictive_quantiles
from directgp.shapes import Marginals

Row = Float[Tensor, " n"]

_TAIL = 1e-5
"""Probability beyond which a tail is left out: it enters the score squared."""

_MOST_COUNTS = 256
"""Counts on either side of y that are looked at; the others lie between two of them."""

_NODES = 64
"""Of Gauss and Legendre, on either side of y."""


@torch.no_grad()
def predictive_crps(likelihood: Likelihood, y: Num[Tensor, " n"], marginals: Marginals) -> Row:
    """∫ (P(Y ≤ t) − 1{y ≤ t})² dt for each example, in the units of y: the smaller the better.

    For labels it is Brier's score, (P(Y = 1) − y)². By formula, or right to 1e-6 relative; where
    counts may differ by hundreds, to 2e-3.

    Examples
    --------
    >>> import torch
    >>> from directgp.likelihoods import Poisson
    >>> q = Marginals(torch.tensor([0.0]), torch.tensor([0.1]))
    >>> [round(float(predictive_crps(Poisson(), torch.tensor([y]), q)), 4) for y in (1, 10)]
    [0.2254, 8.3863]
    """
    target = y.to(marginals.mean)
    if isinstance(likelihood, ClosedFormCRPS):
        return likelihood.predictive_crps(target, marginals.mean, marginals.variance)
    if isinstance(likelihood, Binary):
        return (predictive_mean(likelihood, marginals) - target).square()
    low, high = predictive_quantiles(likelihood, marginals, [_TAIL, 1 - _TAIL])
    if isinstance(likelihood, CountLikelihood):
        below = _counted(likelihood, marginals, torch.minimum(low, target), target - 1, upper=False)
        above = _counted(likelihood, marginals, target, torch.maximum(high, target), upper=True)
    else:
        below = _integrated(likelihood, marginals, torch.minimum(low, target), target, upper=False)
        above = _integrated(likelihood, marginals, target, torch.maximum(high, target), upper=True)
    return below + above


def _counted(
    likelihood: Likelihood, marginals: Marginals, first: Row, last: Row, *, upper: bool
) -> Row:
    """Σ P(Y ≤ k)² from the first to the last k, or Σ P(Y > k)²; trapezoids where there are many."""
    number = (last - first + 1).clamp(min=0)
    nodes = int(number.max().clamp(max=_MOST_COUNTS))
    if nodes == 0:
        return torch.zeros_like(first)
    steps = torch.arange(nodes, dtype=first.dtype, device=first.device)[:, None]
    # Equal steps of √k: a count varies on the scale of √k at least.
    roots = torch.lerp(first.sqrt(), last.clamp(min=0).sqrt(), steps / max(1, nodes - 1))
    k = torch.where(number <= nodes, first + steps, roots.square().round())
    inside = k <= last
    squares = _squares(likelihood, marginals, torch.where(inside, k, first), upper)
    # A count stands for itself and for half of those between it and its neighbours.
    gaps = torch.where(inside[1:], k.diff(dim=0), 1.0)
    weights = torch.ones_like(k)
    weights[1:] += (gaps - 1) / 2
    weights[:-1] += (gaps - 1) / 2
    return torch.where(inside, weights * squares, 0.0).sum(0)


def _integrated(
    likelihood: Likelihood, marginals: Marginals, start: Row, end: Row, *, upper: bool
) -> Row:
    """∫ P(Y ≤ t)² dt, or ∫ P(Y > t)² dt, over u with t = centre + scale·sinh(u)."""
    low, centre, high = predictive_quantiles(likelihood, marginals, [0.25, 0.5, 0.75])
    scale = high - low
    x, weight = (
        torch.as_tensor(each).to(start) for each in np.polynomial.legendre.leggauss(_NODES)
    )
    first, last = (torch.asinh((t - centre) / scale) for t in (start, end))
    u = first + 0.5 * (x[:, None] + 1) * (last - first)
    squares = _squares(likelihood, marginals, centre + scale * torch.sinh(u), upper)
    slope = 0.5 * (last - first) * scale * torch.cosh(u)
    total: Row = (weight[:, None] * squares * slope).sum(0)
    return total


def _squares(
    likelihood: Likelihood, marginals: Marginals, t: Float[Tensor, "k n"], upper: bool
) -> Float[Tensor, "k n"]:
    many = Marginals(marginals.mean.expand_as(t), marginals.variance.expand_as(t))
    probability = predictive_cdf(likelihood, t, many)
    return (1 - probability if upper else probability).square()

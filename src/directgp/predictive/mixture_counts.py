"""Sum Σ (P(Y ≤ k) − 1{y ≤ k})² over the counts k, for a mixture of models of counts.

The first counts are summed by their probabilities, which cost less than tails; beyond the quantiles
of a component nothing of it is computed.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor

from directgp.likelihoods.numeric import sum_counts
from directgp.predictive.component import Component, each_quantiles
from directgp.predictive.mixture_crps import TAIL
from directgp.shapes import Row

_ENDS = TAIL, 1 - TAIL
"""Levels of the first and the last count."""

_LEVELS = (TAIL, 0.001, 0.05, 0.5, 0.95, 0.999, 1 - TAIL)
"""Levels of the counts between which sums have gaps."""

_FIRST_COUNTS = 1000
"""Number of counts from the lowest quantile on whose probabilities are summed."""

_MAX_COUNTS = 128
"""Largest number of counts of an interval that are evaluated; the rest is interpolated."""

_ROWS = 50
"""Examples at a time."""


def count_probabilities(
    components: Sequence[Component], rows: Int[Tensor, " r"], first: Row, number: int
) -> Float[Tensor, "k r"]:
    """Return the probabilities of as many counts from the first on, for some examples."""
    counts = first + torch.arange(number).to(first)[:, None]
    total = torch.zeros_like(counts)
    for component in components:
        total = total + component.weight * component.chances(rows, counts)
    return total


def counted_score(components: Sequence[Component], y: Row) -> Row:
    """Sum P(Y ≤ k)² over counts below y and P(Y > k)² from y on."""
    score = torch.empty_like(y)
    quantiles = each_quantiles(components, _ENDS)
    number = quantiles[:, 1].amax(0) - quantiles[:, 0].amin(0)
    if bool((number >= _FIRST_COUNTS).any()):
        quantiles = each_quantiles(components, _LEVELS)
    # Examples with similar numbers of counts at a time.
    for rows in number.argsort().split(_ROWS):
        score[rows] = _score(components, rows, quantiles[..., rows], y[rows])
    return score


def _score(
    components: Sequence[Component],
    rows: Int[Tensor, " r"],
    quantiles: Float[Tensor, "c k r"],
    y: Row,
) -> Row:
    """Return the score of some examples, with gaps between the quantiles of all components."""
    low, high = quantiles[:, 0].amin(0), quantiles[:, -1].amax(0)
    number = int((high - low).max().clamp(max=_FIRST_COUNTS - 1)) + 1
    counts = low + torch.arange(number).to(low)[:, None]
    below = count_probabilities(components, rows, low, number).cumsum(0).clamp(max=1.0)
    squares = torch.where(counts < y, below, 1 - below).square()
    score = torch.where(counts <= high, squares, 0.0).sum(0)
    # The probability beyond the quantiles is nothing: each count between them and y adds 1.
    score = score + torch.maximum(low - y, y - 1 - high).clamp(min=0.0)
    ends = torch.cat([quantiles.flatten(0, 1), y[None]]).sort(0).values
    ends = ends.clamp(min=low + number, max=high + 1)
    for first, after in pairwise(ends):
        for above in (False, True):
            chosen = ((first >= y) == above).logical_and(after > first).nonzero()[:, 0]
            if not len(chosen):
                continue
            between = quantiles[:, [0, -1]][..., chosen]

            def squared(
                k: Tensor,
                chosen: Tensor = chosen,
                above: bool = above,
                between: Tensor = between,
            ) -> Tensor:
                return _tail(components, rows[chosen], k, above, between).square()

            score[chosen] += sum_counts(squared, first[chosen], after[chosen] - 1, _MAX_COUNTS)
    return score


def _tail(
    components: Sequence[Component],
    rows: Int[Tensor, " r"],
    k: Float[Tensor, "*c r"],
    above: bool,
    ends: Float[Tensor, "c 2 r"],
) -> Float[Tensor, "*c r"]:
    """Return P(Y > k) or P(Y ≤ k); a component has no probability beyond its ends."""
    index = rows.expand(k.shape)
    total = torch.zeros_like(k)
    for component, (low, high) in zip(components, ends, strict=True):
        inside = (k >= low) & (k < high)
        value = ((k < low) == above).to(k)
        if bool(inside.any()):
            value[inside] = component.probability(index[inside], k[inside], above)
        total = total + component.weight * value
    return total

"""The smallest count whose probability of not being exceeded reaches a level."""

from collections.abc import Callable
from itertools import count

import torch
from jaxtyping import Float
from torch import Tensor

Values = Float[Tensor, "..."]

LARGEST = 1e300
"""Counts from here on are called infinite."""

_GROWTH = 4.0


def smallest_count(cdf: Callable[[Values], Values], level: Values, guess: Values) -> Values:
    """The smallest k = 0, 1, 2, … with cdf(k) ≥ level.

    A bracket of a count below and a count at or above the answer shrinks to neighbours. Probits of
    the distribution function are nearly linear in log(k + 2), so that interpolation between the
    ends finds the place; every third step halves the bracket. Above 2⁵³ neighbours are
    neighbouring numbers of float64.
    """
    lower, below, upper, above = _bracket(cdf, level, guess)
    target = torch.special.ndtri(level)
    for step in count():
        gap = (upper * torch.finfo(upper.dtype).eps).clamp(min=1.0)
        if not bool((upper - lower > gap).any()):
            return torch.where(upper < LARGEST, upper, torch.inf)
        share = (target - below) / (above - below)
        usable = torch.isfinite(share) & (step % 3 < 2)
        proposal = _between(lower, upper, torch.where(usable, share, 0.5))
        middle = torch.minimum(torch.maximum(proposal, lower + gap), upper - gap)
        middle = torch.where(upper - lower > gap, middle, upper)
        value = cdf(middle)
        reached = value >= level
        probit = torch.special.ndtri(value)
        lower, below = torch.where(reached, lower, middle), torch.where(reached, below, probit)
        upper, above = torch.where(reached, middle, upper), torch.where(reached, probit, above)
    raise AssertionError("a loop over count() does not end")


def _bracket(
    cdf: Callable[[Values], Values], level: Values, guess: Values
) -> tuple[Values, Values, Values, Values]:
    """A count below the level and one that reaches it, each with its probit."""
    lower, below = torch.full_like(guess, -1.0), torch.full_like(guess, -torch.inf)
    upper = guess
    while True:
        value = cdf(upper)
        above = torch.special.ndtri(value)
        short = (value < level) & (upper < LARGEST)
        if not bool(short.any()):
            return lower, below, upper, above
        lower, below = torch.where(short, upper, lower), torch.where(short, above, below)
        further = (_GROWTH * (upper + 1)).clamp(max=LARGEST)
        upper = torch.where(short, further, upper)


def _between(lower: Values, upper: Values, share: Values) -> Values:
    """The whole number at that share of the way, on the scale of log(k + 2)."""
    return torch.floor(torch.exp(torch.lerp(torch.log(lower + 2), torch.log(upper + 2), share)) - 2)

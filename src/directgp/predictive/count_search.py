"""The smallest count whose probability of not being exceeded reaches a level."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Row = Float[Tensor, " n"]

CountCdf = Callable[[Int[Tensor, " r"], Float[Tensor, " r"]], Float[Tensor, " r"]]
"""P(Y ≤ k) for some examples, by index, and a count for each."""

LARGEST = 1e300
"""Counts from here on are called infinite."""

_GROWTH = 4.0
"""Factor by which the upper end of a bracket moves out."""

_HALVE_EVERY = 4
"""Of so many steps one halves the bracket, whatever interpolation says."""

_TINY = 1e-300
"""The least offset of a count that falls short."""


@dataclass
class Bracket:
    """Whole numbers below and at or above the answer, with probit(cdf) − probit(level) at both."""

    lower: Row
    upper: Row
    below: Row
    above: Row
    reached: Bool[Tensor, " n"]
    """Whether the last place tried became the upper end."""

    def open(self) -> Int[Tensor, " r"]:
        """The examples whose ends are not yet neighbours."""
        return torch.nonzero(self.upper - self.lower > _neighbours(self.upper)).squeeze(-1)

    def inner(self, index: Int[Tensor, " r"], halve: bool) -> Float[Tensor, " r"]:
        """Whole numbers inside, on the scale of log(k + 2), in which probits are nearly linear.

        By interpolation where both offsets are finite, else in the middle.
        """
        lower, upper = self.lower[index], self.upper[index]
        share = self.below[index] / (self.below[index] - self.above[index])
        share = torch.where(torch.isfinite(share) & (not halve), share, 0.5)
        place = torch.exp(torch.lerp(torch.log(lower + 2), torch.log(upper + 2), share)) - 2
        gap = (0.25 * _neighbours(upper)).clamp(min=1.0)
        return torch.minimum(torch.maximum(torch.floor(place), lower + gap), upper - gap)

    def split(
        self, index: Int[Tensor, " r"], place: Float[Tensor, " r"], offset: Float[Tensor, " r"]
    ) -> None:
        """Keep the part that holds the answer, given the offset at a place inside.

        The offset of an end that stays for the second time is halved, so that interpolation moves
        it (the Illinois rule).
        """
        reached = offset >= 0
        again = torch.where(reached == self.reached[index], 0.5, 1.0)
        self.lower[index] = torch.where(reached, self.lower[index], place)
        self.upper[index] = torch.where(reached, place, self.upper[index])
        self.below[index] = torch.where(reached, again * self.below[index], offset)
        self.above[index] = torch.where(reached, offset, again * self.above[index])
        self.reached[index] = reached


def smallest_count(cdf: CountCdf, level: Row, guess: Row) -> Row:
    """The smallest k = 0, 1, 2, … with cdf(k) ≥ level, from a guess of it."""
    target = torch.special.ndtri(level)

    def offset(index: Tensor, k: Tensor) -> Tensor:
        value = cdf(index, k)
        far = torch.special.ndtri(value) - target[index]
        short = value < level[index]
        return torch.where(short, far.clamp(max=-_TINY), far.clamp(min=0.0))

    bracket = _enclose(offset, guess)
    for step in count():
        index = bracket.open()
        if len(index) == 0:
            break
        place = bracket.inner(index, halve=step % _HALVE_EVERY == _HALVE_EVERY - 1)
        bracket.split(index, place, offset(index, place))
    return torch.where(bracket.upper < LARGEST, bracket.upper, torch.inf)


def _enclose(offset: CountCdf, guess: Row) -> Bracket:
    """A bracket about the answer, whose upper end moves out from the guess until it is reached."""
    lower, upper = torch.full_like(guess, -1.0), guess.clone()
    below = torch.full_like(guess, -torch.inf)
    above = offset(torch.arange(len(guess), device=guess.device), guess)
    while len(short := torch.nonzero((above < 0) & (upper < LARGEST)).squeeze(-1)):
        lower[short], below[short] = upper[short], above[short]
        upper[short] = (_GROWTH * (upper[short] + 1)).clamp(max=LARGEST)
        above[short] = offset(short, upper[short])
    reached = above >= 0
    return Bracket(torch.where(reached, lower, upper), upper, below, above, reached)


def _neighbours(k: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The distance of neighbours: 1, or above 2⁵⁰ the least that float64 tells apart with ease."""
    return (4 * torch.finfo(k.dtype).eps * k).clamp(min=1.0)

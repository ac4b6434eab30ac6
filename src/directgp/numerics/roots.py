"""Invert distribution functions: roots of increasing functions, and smallest counts."""

from collections.abc import Callable
from itertools import count
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from directgp.errors import NumericalError
from directgp.shapes import Row, Values

Offset = Callable[[Int[Tensor, " r"], Float[Tensor, " r"]], Float[Tensor, " r"]]
"""Indices of examples and a number for each → an increasing function of it."""

OUTSIDE = 40.0
"""Finite value that replaces the probit of a probability of 0 or 1."""

MAX_STEPS = 60
"""Largest number of steps of a search for a root."""

_INTERPOLATED = 20
"""Steps after which an interval is halved."""

TOLERANCE = 1e-12
"""Error of a root x, relative to 1 + |x|."""

_ROUNDING = 2e-11
"""Relative rounding error of a distribution function."""


def rounded_down(level: Values) -> Values:
    """Lower a level by the rounding of the distribution function, so that it is reached in a tie.

    Ties are common: a fair coin has P(Y ≤ 0) = ½, and its median is 0.
    """
    return level - _ROUNDING * torch.minimum(level, 1 - level)


def increasing_root(offset: Offset, start: Row, step: Row, farthest: float) -> Row:
    """Find x with offset(index, x) = 0 for increasing functions; ±farthest where there is none.

    The result is NaN where the function is NaN. The bracket grows from the start by doubled steps;
    then Chandrupatla's method: inverse quadratic interpolation where it is safe, else halving
    (Advances in Engineering Software 28, 1997).
    """
    every = torch.arange(len(start), device=start.device)
    lower = (start - step).clamp(min=-farthest)
    upper = (start + step).clamp(max=farthest)
    below = offset(every, lower)
    above = offset(every, upper)
    while True:
        low = torch.nonzero((below > 0) & (lower > -farthest)).squeeze(-1)
        high = torch.nonzero((above < 0) & (upper < farthest)).squeeze(-1)
        if not len(low) + len(high):
            break
        step = 2 * step
        upper[low] = lower[low]
        above[low] = below[low]
        lower[low] = (lower[low] - step[low]).clamp(min=-farthest)
        below[low] = offset(low, lower[low])
        lower[high] = upper[high]
        below[high] = above[high]
        upper[high] = (upper[high] + step[high]).clamp(max=farthest)
        above[high] = offset(high, upper[high])
    ends = torch.where(below > 0, lower, upper)
    bracketed = (below <= 0) & (above >= 0)

    def tolerance(_: Tensor, x: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        return TOLERANCE * (1 + x.abs())

    share = torch.full_like(upper, 0.5)
    bracket = Bracket(lower, upper, below, above)
    x1, x2, f1, f2 = _narrowed(offset, bracket, bracketed, share, tolerance, MAX_STEPS)
    best = torch.where(f1.abs() < f2.abs(), x1, x2)
    undefined = f1.isnan() | f2.isnan()
    return torch.where(undefined, torch.nan, torch.where(bracketed, best, ends))


class Bracket(NamedTuple):
    """Two ends for each example, and the values of the function there."""

    first: Row
    """One end, for counts the lower one."""

    second: Row
    """The other end."""

    at_first: Row
    """Value at the first end."""

    at_second: Row
    """Value at the second end."""


Tolerance = Callable[[Int[Tensor, " r"], Row, Row, Row], Row]
"""Indices, x, size of a bracket and rise of the function over it → the largest error of a root."""


def _narrowed(
    offset: Offset,
    bracket: Bracket,
    bracketed: Bool[Tensor, " n"],
    share: Row,
    tolerance: Tolerance,
    most: int,
) -> tuple[Row, Row, Row, Row]:
    """Narrow brackets by Chandrupatla's method: the last two ends, and the function there.

    The first step takes this share of the way from the second to the first end.
    """
    x2, x1, f2, f1 = bracket
    active = torch.nonzero(bracketed).squeeze(-1)
    for number in range(most):
        if not len(active):
            return x1, x2, f1, f2
        a1 = x1[active]
        a2 = x2[active]
        b1 = f1[active]
        b2 = f2[active]
        x = torch.lerp(a1, a2, share[active])
        f = offset(active, x)
        same = torch.sign(f) == torch.sign(b1)
        a3 = torch.where(same, a1, a2)
        b3 = torch.where(same, b1, b2)
        a2 = torch.where(same, a2, a1)
        b2 = torch.where(same, b2, b1)
        x1[active] = x
        x2[active] = a2
        f1[active] = f
        f2[active] = b2
        gap = (a2 - x).abs()
        limit = tolerance(active, x, gap, (b2 - f).abs()) / gap.clamp(min=1e-300)
        place = (x - a2) / (a3 - a2)
        height = (f - b2) / (b3 - b2)
        safe = (height**2 < place) & ((1 - height) ** 2 < 1 - place)
        inverse = f / (b2 - f) * b3 / (b2 - b3)
        inverse = inverse + (a3 - x) / (a2 - x) * f / (b3 - f) * b2 / (b3 - b2)
        # A function with steps, from rounding, is flat where it is interpolated: then halve.
        inverse = torch.where(safe & (number < _INTERPOLATED), inverse, 0.5)
        share[active] = torch.minimum(torch.maximum(inverse, limit), 1 - limit)
        # Stop at a root, and where f is NaN.
        active = active[(limit < 0.5) & (f.abs() > 0)]
    if not len(active):
        return x1, x2, f1, f2
    raise NumericalError(
        f"A quantile was not found in {most} steps for {len(active)} examples. "
        f"Choose levels further from 0 and 1."
    )


_MOST_HALVINGS = 120
"""Largest number of steps of a search in a bracket whose ends may be far apart."""

_OVERSHOOT = 1.25
"""The second end of a bracket is as many times as far away as a line of slope 1 says."""

_LEAST_STEP = 1e-9
"""Least distance of the second end."""


def smallest_root(offset: Offset, start: Row, farthest: float) -> Row:
    """Find the smallest x with offset(index, x) ≥ 0 for increasing functions of slope about 1.

    x errs by 1e-12 times the change of x over which the function rises by 1, but by rounding at
    least. The result is ±farthest where there is no root, and NaN where the function is NaN.
    """

    def nonzero(index: Tensor, x: Tensor) -> Tensor:
        value = offset(index, x)
        # The search goes on below a root, in case the function is 0 there, too.
        return torch.where(value < 0, value, value.clamp(min=TINY))

    every = torch.arange(len(start), device=start.device)
    near = start.clone()
    f_near = nonzero(every, near)
    side = -torch.sign(f_near)
    step = torch.asinh(_OVERSHOOT * f_near.abs()).clamp(min=_LEAST_STEP)
    far = (near + side * step).clamp(-farthest, farthest)
    f_far = nonzero(every, far)
    step = step.clamp(min=1.0)
    while True:
        short = (torch.sign(f_far) == torch.sign(f_near)) & (far.abs() < farthest)
        i = torch.nonzero(short).squeeze(-1)
        if not len(i):
            break
        near[i] = far[i]
        f_near[i] = f_far[i]
        far[i] = (far[i] + side[i] * step[i]).clamp(-farthest, farthest)
        f_far[i] = nonzero(i, far[i])
        step = 2 * step
    bracketed = torch.sign(f_far) == -torch.sign(f_near)
    gap = (far - near).abs()
    rise = (f_far - f_near).abs()
    # Least change of x, seen so far, over which the function rises by 1.
    unit = gap / rise
    rounding = 4 * torch.finfo(start.dtype).eps

    def tolerance(index: Tensor, x: Tensor, gap: Tensor, rise: Tensor) -> Tensor:
        unit[index] = torch.fmin(unit[index], gap / rise)
        return torch.maximum(TOLERANCE * unit[index], rounding * (1 + x.abs()))

    least = (TOLERANCE * unit / gap.clamp(min=TINY)).clamp(max=0.5)
    share = torch.minimum(torch.maximum(f_far.abs() / rise, least), 1 - least)
    ends = far.clone()
    bracket = Bracket(near, far, f_near, f_far)
    x1, x2, f1, f2 = _narrowed(nonzero, bracket, bracketed, share, tolerance, _MOST_HALVINGS)
    root = torch.where(f1 > 0, x1, x2)
    undefined = f1.isnan() | f2.isnan()
    return torch.where(undefined, torch.nan, torch.where(bracketed, root, ends))


CountCdf = Callable[[Int[Tensor, " r"], Float[Tensor, " r"]], Float[Tensor, " r"]]
"""Indices of examples and a count for each → P(Y ≤ count)."""

LARGEST = 1e300
"""Counts from here on count as infinite."""

_GROWTH = 4.0
"""Factor by which the upper end of a bracket moves out."""

_HALVE_EVERY = 4
"""One of this many steps halves the bracket instead of interpolating."""

TINY = 1e-300
"""Smallest absolute offset of a count below the level."""


def smallest_count(cdf: CountCdf, level: Row, guess: Row) -> Row:
    """Find the smallest k = 0, 1, 2, … with cdf(k) ≥ level, starting from a guess.

    A bracket of whole numbers, below and at or above the answer, grows from the guess and then
    shrinks. Inside it k comes from interpolation of probit(cdf) − probit(level), which is nearly
    linear in log(k + 2); the offset of an end that stays for the second time is halved, so that
    interpolation moves it (the Illinois rule). The result is NaN where the cdf is NaN.
    """
    offset = _offset(cdf, level)
    lower = torch.full_like(guess, -1.0)
    upper = guess.clone()
    below = torch.full_like(guess, -torch.inf)
    above = offset(torch.arange(len(guess), device=guess.device), guess)
    while len(short := torch.nonzero((above < 0) & (upper < LARGEST)).squeeze(-1)):
        lower[short] = upper[short]
        below[short] = above[short]
        upper[short] = (_GROWTH * (upper[short] + 1)).clamp(max=LARGEST)
        above[short] = offset(short, upper[short])
    reached = above >= 0
    lower = torch.where(reached, lower, upper)
    return _smallest_inside(offset, Bracket(lower, upper, below, above), reached)


def smallest_count_between(cdf: CountCdf, level: Row, lower: Row, upper: Row) -> Row:
    """Find the smallest whole k from lower to upper with cdf(k) ≥ level; the upper one by default.

    The search is that of `smallest_count`. The distribution function is not computed where both
    ends are equal.
    """
    lower = lower.clamp(max=LARGEST)
    upper = upper.clamp(max=LARGEST)
    offset = _offset(cdf, level)
    wide = torch.nonzero(upper > lower).squeeze(-1)
    above = torch.zeros_like(upper)
    above[wide] = offset(wide, upper[wide]).clamp(min=0.0)
    below = torch.full_like(lower, -torch.inf)
    bracket = Bracket(lower - 1, upper, below, above)
    # NaN ends give NaN, as NaN distribution functions do.
    found = _smallest_inside(offset, bracket, above >= 0)
    return torch.where(lower.isnan() | upper.isnan(), torch.nan, found)


def _offset(cdf: CountCdf, level: Row) -> Offset:
    """Return probit(cdf) − probit(level), negative exactly where the cdf is below the level."""
    target = torch.special.ndtri(level)

    def offset(index: Tensor, k: Tensor) -> Tensor:
        value = cdf(index, k)
        far = torch.special.ndtri(value) - target[index]
        short = value < level[index]
        return torch.where(short, far.clamp(max=-TINY), far.clamp(min=0.0))

    return offset


def _smallest_inside(offset: Offset, bracket: Bracket, reached: Bool[Tensor, " n"]) -> Row:
    """Shrink brackets of whole numbers, below and at or above the answer, to neighbours."""
    lower, upper, below, above = bracket
    for step in count():
        i = torch.nonzero(upper - lower > _neighbours(upper)).squeeze(-1)
        if len(i) == 0:
            break
        share = below[i] / (below[i] - above[i])
        halve = step % _HALVE_EVERY == _HALVE_EVERY - 1
        share = torch.where(torch.isfinite(share) & (not halve), share, 0.5)
        k = torch.exp(torch.lerp(torch.log(lower[i] + 2), torch.log(upper[i] + 2), share)) - 2
        gap = (0.25 * _neighbours(upper[i])).clamp(min=1.0)
        k = torch.minimum(torch.maximum(torch.floor(k), lower[i] + gap), upper[i] - gap)
        at_k = offset(i, k)
        hit = at_k >= 0
        again = torch.where(hit == reached[i], 0.5, 1.0)
        lower[i] = torch.where(hit, lower[i], k)
        upper[i] = torch.where(hit, k, upper[i])
        below[i] = torch.where(hit, again * below[i], at_k)
        above[i] = torch.where(hit, at_k, again * above[i])
        reached[i] = hit
    undefined = below.isnan() | above.isnan()
    return torch.where(undefined, torch.nan, torch.where(upper < LARGEST, upper, torch.inf))


def _neighbours(k: Values) -> Values:
    """Return the distance to the next count: 1, or above 2⁵⁰ four times the spacing of float64."""
    return (4 * torch.finfo(k.dtype).eps * k).clamp(min=1.0)

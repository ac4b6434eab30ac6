"""Compute what a likelihood has no formula for: derivatives, quantiles, moments and draws.

`Likelihood` calls these functions where a family has no method of its own, so this module does not
import it. P(Y ≤ y given f) is the `cdf` of the family; without one, moments are those of draws.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from directgp.errors import NumericalError, UnsupportedError
from directgp.numerics.roots import OUTSIDE, increasing_root, rounded_down, smallest_count
from directgp.shapes import Points, Row, Values

Draws = Float64[np.ndarray, "..."]

NUM_DRAWS = 10_000
"""Draws of y in place of a distribution function: P(Y ≤ y) has a standard error up to 0.005."""

_SEED = 0
"""Seed of these draws: the same for all f, so that their mean is smooth in f."""

_FARTHEST = 700.0
"""|asinh y| where sinh ends."""

_REACH = 7.0
"""Largest normal quantile z at which the quantile of y is summed."""

_STEP = 0.25
"""Step in z."""

_HEAVY = 1e-3
"""A moment counts as infinite if its outermost quantiles contribute more than this share."""

_SPACING = 1 / 32
"""Distance in f of the moments between which others are interpolated: a cubic errs by 1e-8."""

_FEWEST = 4
"""Points of a cubic."""

_SAVING = 4
"""Interpolation, which errs at kinks, must save all but one of this many evaluations."""

_TAIL = 1e-12
"""Probability of counts that moments leave out on either side."""

_MAX_COUNTS = 512
"""Largest number of counts that a sum evaluates; the rest is interpolated."""

_SHIFT = 10.0
"""Counts up to about this one are all evaluated, however many follow."""

_LARGEST_BLOCK = 1 << 21
"""Values of y found at once."""


def derivatives_by_autograd(
    log_kernel: Callable[[Values, Values], Values],
    y: Values,
    f: Values,
    num_latent: int,
    order: int,
) -> list[Values]:
    """Return log_kernel(y, f) and its first, and second for order 2, derivatives in each f."""
    with torch.enable_grad():
        shape = y.shape if num_latent == 1 else (*y.shape[:-1], num_latent, *y.shape[-1:])
        latent = f.detach().expand(torch.broadcast_shapes(shape, f.shape)).clone().requires_grad_()
        value = log_kernel(y, latent)
        first = _slope(value, latent, order == 2)
        results = [value.detach(), first.detach()]
        if order == 2 and num_latent == 1:
            results.append(_slope(first, latent))
        elif order == 2:
            # The slope of ∂ℓ/∂f_p in f_p, for one p at a time.
            parts = (_slope(first[..., p, :], latent, True)[..., p, :] for p in range(num_latent))
            results.append(torch.stack([part.detach() for part in parts], -2))
    return results


def _slope(values: Values, f: Values, create_graph: bool = False) -> Values:
    """Return ∂ Σ values / ∂f.

    Return zeros for values without a graph, such as the slope of Laplace's log density.
    """
    if not values.requires_grad:
        return torch.zeros_like(f)
    (slope,) = torch.autograd.grad(
        values.sum(), f, create_graph=create_graph, allow_unused=True, materialize_grads=True
    )
    return slope


class Flat:
    """A likelihood with `cdf` and its latent values, as one list of examples."""

    def __init__(self, likelihood: Any, f: Values) -> None:
        several = likelihood.num_latent > 1
        self.latent = f.movedim(-2, 0).flatten(1) if several else f.reshape(-1)
        self.shape = f.movedim(-2, 0).shape[1:] if several else f.shape
        self.likelihood = likelihood.take(self.shape)

    def cdf(self, index: Tensor, y: Row) -> Row:
        """Return P(Y ≤ y given f) of the examples of these indices."""
        return checked_cdf(self.likelihood.take(index), y, self.latent[..., index])


def checked_cdf(likelihood: Any, y: Values, f: Values) -> Values:
    """Return the likelihood's `cdf`; raise `NumericalError` if it is not a probability."""
    value: Values = likelihood.cdf(y, f)
    good = (value >= -1e-9) & (value <= 1 + 1e-9)
    if not bool(good.all()):
        got = value[~good][0].item()
        raise NumericalError(
            f"cdf(y, f) of {type(likelihood).__name__} must be between 0 and 1. Got {got}. Check "
            "it for large and small y and f."
        )
    return value.clamp(0.0, 1.0)


def quantiles_given(likelihood: Any, level: Values, f: Values) -> Values:
    """Find the smallest y with cdf(y, f) ≥ level; one level for each example."""
    flat = Flat(likelihood, f)
    levels = level.reshape(-1)
    blocks = torch.arange(len(levels), device=levels.device).split(_LARGEST_BLOCK)
    counts = likelihood.task == "count"
    parts = [_quantiles(flat, levels[index], index, counts) for index in blocks]
    return torch.cat(parts).reshape(flat.shape)


def _quantiles(flat: Flat, level: Row, index: Tensor, counts: bool) -> Row:
    if counts:

        def cdf(place: Tensor, k: Row) -> Row:
            return flat.cdf(index[place], k)

        return smallest_count(cdf, rounded_down(level), torch.zeros_like(level))
    target: Row = torch.special.ndtri(level)

    def offset(place: Tensor, x: Row) -> Row:
        below: Row = torch.special.ndtri(flat.cdf(index[place], torch.sinh(x)))
        return below.clamp(-OUTSIDE, OUTSIDE) - target[place]

    # y = sinh x has values of any size at moderate x.
    x = increasing_root(offset, torch.zeros_like(level), torch.ones_like(level), _FARTHEST)
    return torch.sinh(x)


def draws_by_cdf(likelihood: Any, f: Values, random: np.random.RandomState) -> Draws:
    """Return one draw of y for each f, the quantile at a random level."""
    shape = Flat(likelihood, f).shape
    level = torch.as_tensor(random.random_sample(shape)).to(f).clamp(1e-15, 1 - 1e-15)
    return quantiles_given(likelihood, level, f).cpu().numpy()


def checked_draws(likelihood: Any, f: Values, random: np.random.RandomState) -> Draws:
    """Return `likelihood.sample`; raise `UnsupportedError` unless it has the right shape."""
    drawn = np.asarray(likelihood.sample(f, random), dtype=np.float64)
    shape = tuple(f.shape)
    if likelihood.num_latent > 1:
        shape = (*shape[:-2], shape[-1])
    if drawn.shape != shape or not np.isfinite(drawn).all():
        raise UnsupportedError(
            f"sample(f, random) of {type(likelihood).__name__} must return finite numbers, one y "
            f"for each f, of shape {shape}. Got shape {drawn.shape}."
        )
    return drawn


@torch.no_grad()
def moments_given(likelihood: Any, f: Values, by_cdf: bool) -> tuple[Values, Values]:
    """Return mean and variance of y for each f, by `cdf` or else by draws.

    NaN and infinite where the tails are too heavy. Where f has many values they are interpolated.
    """
    latent = f.detach().double()
    compute = _moments_by_cdf if by_cdf else _moments_by_draws
    constants = (*likelihood.parameters(), *likelihood.buffers())
    shared = likelihood.num_latent == 1 and all(constant.numel() == 1 for constant in constants)
    lowest = latent.min().item()
    highest = latent.max().item()
    number = max(_FEWEST, 1 + math.ceil(min((highest - lowest) / _SPACING, latent.numel())))
    if not shared or _SAVING * number >= latent.numel():
        return compute(likelihood, latent)
    grid = torch.linspace(lowest, highest, number, dtype=latent.dtype, device=latent.device)
    moments = torch.stack(compute(likelihood, grid)).cpu().numpy()
    if not np.isfinite(moments).all():
        return compute(likelihood, latent)
    from scipy.interpolate import CubicSpline  # 0.1 s that most programs do not need

    spline = CubicSpline(grid.cpu().numpy(), moments, axis=1)
    mean, variance = torch.as_tensor(spline(latent.cpu().numpy())).to(latent)
    return mean, variance


def _moments_by_draws(likelihood: Any, f: Values) -> tuple[Values, Values]:
    flat = Flat(likelihood, f)
    moments = []
    for i in range(flat.shape.numel()):
        index = torch.tensor([i], device=f.device)
        many = flat.latent[..., index].expand(*flat.latent.shape[:-1], NUM_DRAWS)
        drawn = checked_draws(flat.likelihood.take(index), many, np.random.RandomState(_SEED))
        moments.append((drawn.mean(), drawn.var()))
    mean, variance = torch.tensor(moments, dtype=f.dtype, device=f.device).T
    return mean.reshape(flat.shape), variance.reshape(flat.shape)


def _moments_by_cdf(likelihood: Any, f: Values) -> tuple[Values, Values]:
    flat = Flat(likelihood, f)
    every = torch.arange(flat.shape.numel(), device=f.device)
    compute = _count_moments if likelihood.task == "count" else _moments_of_quantiles
    size = max(1, _LARGEST_BLOCK // _MAX_COUNTS)
    parts = [compute(flat, index) for index in every.split(size)]
    mean, variance = (torch.cat(column).reshape(flat.shape) for column in zip(*parts, strict=True))
    return mean, variance


def _moments_of_quantiles(flat: Flat, index: Tensor) -> tuple[Row, Row]:
    """Sum the quantiles of y at Φ(z) over equal steps in z, where they are smooth."""
    number = round(_REACH / _STEP)
    z = _STEP * torch.arange(-number, number + 1, dtype=flat.latent.dtype, device=index.device)
    weight = torch.exp(-0.5 * z * z)
    weight = (weight / weight.sum())[:, None]
    level = torch.special.ndtr(z)[:, None].expand(-1, len(index))
    many = index.expand(len(z), -1)
    y = _quantiles(flat, level.reshape(-1), many.reshape(-1), False).reshape(many.shape)
    mean = (weight * y).sum(0)
    spread = weight * (y - mean).square()
    variance = spread.sum(0)
    distance = weight * (y - mean).abs()
    heavy = spread[[0, -1]].sum(0) > _HEAVY * variance
    none = distance[[0, -1]].sum(0) > _HEAVY * distance.sum(0)
    return torch.where(none, torch.nan, mean), torch.where(heavy, torch.inf, variance)


def _count_moments(flat: Flat, index: Tensor) -> tuple[Row, Row]:
    """Sum the tails of a count on either side of its median m.

    E[Y] − m = Σ_k t(k) with t = P(Y > k) for k ≥ m and −P(Y ≤ k) for k < m, and
    E[(Y − m)²] = Σ_k (2(k − m) + 1) t(k).
    """
    low, middle, high = (
        _quantiles(flat, flat.latent.new_full((len(index),), level), index, True)
        for level in (_TAIL, 0.5, 1 - _TAIL)
    )

    def tail(k: Points) -> Points:
        below = flat.cdf(index.expand(k.shape).reshape(-1), k.reshape(-1)).reshape(k.shape)
        return torch.where(k < middle, -below, 1 - below)

    def weighed(k: Points) -> Points:
        return (2 * (k - middle) + 1) * tail(k)

    shift, square = (
        sum_counts(function, low, middle - 1) + sum_counts(function, middle, high)
        for function in (tail, weighed)
    )
    return middle + shift, square - shift.square()


def sum_counts(
    function: Callable[[Points], Points], first: Values, last: Values, most: int = _MAX_COUNTS
) -> Values:
    """Sum a function of k from the first to the last k; of more than `most`, by trapezoids."""
    number = (last - first + 1).clamp(min=0)
    nodes = int(number.max().clamp(max=most)) if number.numel() else 0
    if nodes == 0:
        return torch.zeros_like(first)
    steps = torch.arange(nodes, dtype=first.dtype, device=first.device)
    steps = steps.reshape(-1, *([1] * first.dim()))
    # Equal steps of log(k + 10): over a wide q probabilities vary on the scale of log k.
    left = torch.log(first + _SHIFT)
    right = torch.log(last.clamp(min=0) + _SHIFT)
    spread = torch.exp(torch.lerp(left, right, steps / max(1, nodes - 1))) - _SHIFT
    # The two ends are exact, whatever the logarithm rounds.
    spread = torch.minimum(torch.maximum(spread.round(), first), last)
    spread[0] = first
    spread[-1] = last
    k = torch.where(number <= nodes, first + steps, spread)
    inside = k <= last
    values = function(torch.where(inside, k, first))
    # The weight of a count is 1, plus half of those between it and its neighbours.
    gaps = torch.where(inside[1:], k.diff(dim=0), 1.0)
    weights = torch.ones_like(k)
    weights[1:] += (gaps - 1) / 2
    weights[:-1] += (gaps - 1) / 2
    return torch.where(inside, weights * values, 0.0).sum(0)

"""Compute E[log(c + x²)] of a Gaussian x, and its slopes, by one integral over log t."""

import math
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from directgp.errors import NumericalError
from directgp.numerics.arrays import Array, exp_in_place, library_of, plus_product, tensor_of
from directgp.numerics.fixed_sizes import constant, fixed_size, fixed_sizes
from directgp.shapes import Values

# log a = ∫ (e^{−t} − e^{−ta}) dt/t (Frullani), and E[e^{−tx²}] is a formula. So the mean of
# log(c + x²) is one smooth integral over log t, accurate for any arguments, which are scaled to sum
# to 1. The integrand falls only as t on the left; log t = x − e^{−x}/√e shortens that tail.

_NATS = 25.0
"""The sum over x goes at least to where the integrand is e^−25."""

_STEP = 2 * math.pi * 1.3 / _NATS
"""The integrand is analytic and bounded in x while |Im x| < 1.3."""

_FIRST = -0.5 - math.log(_NATS + 1.5)
"""The first x."""

_BLOCK = 40_000
"""Elements of an array that stays in the cache of a CPU."""


def expected_log_square(offset: Values, mean: Values, variance: Values) -> Values:
    """Compute E[log(c + x²)] for x ~ N(mean, variance) and an offset c > 0, differentiable."""
    size = (offset + mean**2 + variance).detach()
    c = offset / size
    m = mean**2 / size
    v = variance / size
    if size.numel() == 0:
        return size
    nodes, total = _log_nodes(c.detach(), m.detach(), v.detach())
    t, weight, _ = nodes.reshape(3, -1, *([1] * size.dim()))
    spread = 1 + 2 * t * v
    decay = torch.exp(-t * (c + m / spread)) * torch.rsqrt(spread)
    value: Values = torch.log(size) + total - (weight * decay).sum(0)
    return value


def expected_log_square_slopes(offset: Array, mean: Array, variance: Array) -> tuple[Array, ...]:
    """Compute E[log(c + x²)] and its slopes in c, mean and variance; not differentiable.

    With p = 1/(1 + 2tv) and D = √p·e^{−t(c + mp)} the slopes sum tD, tpD and (tp − 2mt²p²)D.
    """
    xp = library_of(mean)
    square = mean * mean
    size = square + variance + offset
    if not len(mean.reshape(-1)):
        return size, size, size, size
    c, m, v = ((argument / size).reshape(-1) for argument in (offset, square, variance))
    nodes, constant_part = _log_nodes(c, m, v)
    on_device = isinstance(mean, Tensor) and mean.is_cuda
    rows = len(c) if on_device else max(256, _BLOCK // nodes.shape[1])
    blocks = (slice(first, first + rows) for first in range(0, len(c), rows))
    parts = [_decay_sums(nodes, c[block], m[block], v[block]) for block in blocks]
    columns = parts[0] if len(parts) == 1 else xp.concatenate(parts, 1)
    total, first, second, third = columns.reshape(4, *size.shape)
    value = xp.log(size) - total + constant_part
    by_variance = (second - 2 * m.reshape(size.shape) * third) / size
    return value, first / size, 2 * mean * second / size, by_variance


def _decay_sums(nodes: Array, c: Array, m: Array, v: Array) -> Array:
    """Sum D, tD, tpD and t²p²D over the nodes."""
    xp = library_of(v)
    t = nodes[0][:, None]
    sums = nodes[1:]
    p = 1 / (2 * t * v + 1)
    decay = plus_product(c, m, p)
    decay *= -t
    exp_in_place(decay)
    decay *= xp.sqrt(p)
    both = sums @ decay
    p *= t
    decay *= p
    once = sums[:1] @ decay
    decay *= p
    return xp.concatenate([both, once, sums[:1] @ decay])


def _log_nodes(c: Array, m: Array, v: Array) -> tuple[Array, float]:
    """Return `_log_rule` for arguments that sum to 1.

    t(c + m/(1 + 2tv)) exceeds the nats from t = nats/(c + m − 2·nats·v) on. More nats are used,
    for the slope in c: most of it may come from x near 0, even if such x are improbable.
    """
    slowest = ((m - 120.0 * v).clip(min=0.0) + c).min()
    highest = None
    if fixed_sizes.get() is not None:
        highest = fixed_size("largest log t", math.log(_NATS) - torch.log(tensor_of(slowest)))
    if highest is None:
        highest = math.log(_NATS / float(slowest)) if slowest > 0 else math.inf
    if not math.isfinite(highest):
        raise NumericalError(
            "The mean of log(c + x²) is NaN or infinite, or underflows. Check the scale of the "
            "noise, mean and variance."
        )
    rule, total = _log_rule(math.ceil((highest - _FIRST) / _STEP) + 1)
    if isinstance(v, Tensor):
        return constant(("log t", rule.shape), lambda: torch.from_numpy(rule).to(v)), total
    return rule, total


@lru_cache(maxsize=64)
def _log_rule(number: int) -> tuple[NDArray[np.float64], float]:
    """Return t, w and wt at equal steps of x with the weights w of dt/t, and the sum of w·e^−t.

    The array must not be written to.
    """
    x = _FIRST + _STEP * np.arange(number)
    bend = np.exp(-0.5 - x)
    t = np.exp(x - bend)
    weight = _STEP * (1 + bend)
    return np.stack([t, weight, weight * t]), float(weight @ np.exp(-t))

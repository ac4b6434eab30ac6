"""Integrate log E_q[p] for a Gamma mixture of Gaussians (Student's t noise), to 1e-10.

p(y given f) = ∫ N(y; f, w(t)) π(t) dt gives E_q[p] = ∫ N(y; μ, v + w(t)) π(t) dt: one smooth
integral over t whatever the residual and v, where the integral over f may have two far peaks. Here
w = σ²e^−t, and π ∝ exp(ν/2·(t − e^t)). On the left the integrand falls only as a power of e^t. So
t = s + x − e^−x with equal steps in x, from a start s left of where that begins. e^t and w are then
products of a factor for each example and one for each node.
"""

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal, NamedTuple, cast, final

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from directgp.errors import NumericalError
from directgp.integration.adaptive import POINTS, adaptive_gibbs
from directgp.integration.contract import (
    NEEDED_NODES,
    Density,
    Estimate,
    FlatExamples,
    GammaPrecision,
    IntegrationMethod,
    Integrator,
    Nodes,
)
from directgp.integration.nodes import blocks_by_nodes, nodes_for_all, recorded_nodes
from directgp.numerics.arrays import (
    Array,
    array_of,
    exp_in_place,
    library_of,
    plus_product,
    special_of,
    tensor_of,
    without_warnings,
    zeros,
)
from directgp.numerics.fixed_sizes import constant, fixed_size, fixed_sizes

_NATS = 25.0
"""Values err by less than 1e-10; the slope in v sums terms of either sign, and errs by more."""

_STRIP = 1.2
"""Im x up to which the integrand stays bounded: on the left t bends away from the real line."""

_GRAIN = 4
"""Bounds of ν/2 are rounded to fourths of an octave."""


class _MixtureRule(NamedTuple):
    """Nodes x = first, first + step, … of t = s + x − e^−x, common to all examples."""

    first: float
    """The first x."""

    step: float
    """Distance of neighbouring x."""

    margin: float
    """Distance of s from where the integrand turns into a power: there dt/dx is nearly 1."""


@lru_cache(maxsize=64)
def _columns(rule: _MixtureRule, number: int) -> Array:
    """Return t − s, e^{t−s} and e^{s−t} of the nodes, and the weights that sum 1, t and e^t.

    The array must not be written to.
    """
    x = np.arange(number) * rule.step + rule.first
    bend = np.exp(-x)
    t = x - bend
    weight = (1 + bend) * rule.step
    growth = np.exp(t)
    return np.stack([t, growth, np.exp(-t), weight, weight * t, weight * growth])


@lru_cache(maxsize=64)
def _mixture_rule(low: float, high: float) -> _MixtureRule:
    """Return the nodes for ν/2 between two bounds.

    For A = (ν+1)/2 the integrand is at most cos(d)^−A times larger at Im x = d than on the real
    line, so that a step h errs by exp(−2πd/h)·cos(d)^−A; d is near the best.
    """
    power = high + 0.5
    d = (_STRIP**-2 + 0.5 * power / _NATS) ** -0.5
    step = 2 * math.pi * d / (_NATS - power * math.log(math.cos(d)))
    margin = 1 + 0.5 * math.log1p(high)
    # Where the integrand has fallen by the nats: t − s = −left.
    left = min(_fall_distance(low), 0.5 + (_NATS + 1) / (low + 0.5)) - margin
    first = -math.log(left) if left > 1 else max(-left, 0.5 * (1 - left))
    return _MixtureRule(first, step, margin)


def _fall_distance(half: float) -> float:
    """Return an s with half·(s − 1 + e^−s) ≥ nats, from s − 1 + e^−s ≥ s²/(2 + s)."""
    share = _NATS / half
    return 0.5 * share + math.sqrt(0.25 * share**2 + 2 * share)


def _range_of(half: Array) -> tuple[float, float]:
    """Return bounds of ν/2, rounded: they and the nodes stay the same for many training steps."""
    high = inverse = None
    if fixed_sizes.get() is not None:
        high = fixed_size("largest ν/2", tensor_of(half))
        inverse = fixed_size("largest 2/ν", tensor_of(1 / half))
    if high is None or inverse is None:
        high = float(half.max())
        inverse = float(1 / half.min())
    if not (0 < inverse < math.inf and 0 < high < math.inf):
        raise NumericalError("Student's t noise has NaN or infinite degrees of freedom, or 0.")
    ends = math.ceil(_GRAIN * math.log2(inverse)), math.ceil(_GRAIN * math.log2(high))
    return 2 ** (-ends[0] / _GRAIN), 2 ** (ends[1] / _GRAIN)


def _starts(
    rule: _MixtureRule, least: float, square: Array, v: Array, half: Array, noise: Array
) -> tuple[Array, Array, Array]:
    """Return the start s of the nodes given r² = (y − μ)², e^s, and the number of nodes needed.

    ν/2 is at least `least`. With g = 1 + r²/(νσ²) the integrand falls left of −log g, by
    (ν/2)(s − 1 + e^−s) at a distance s, and from w = v on as e^{(ν+1)t/2}. On the right it ends
    where it is e^−nats of its maximum: the Gamma factor dominates, from −log g on if N(r; 0, 2v) is
    negligible.
    """
    xp = library_of(square)
    g = square / (2 * half * noise) + 1
    excess = v / (g * noise)
    rise = xp.log(g)
    beyond = xp.log(excess)
    apart = (excess > 1) & (beyond < _fall_distance(least))
    start = -rule.margin - rise - xp.where(apart, beyond, 0.0)
    growth = math.exp(-rule.margin) / (g * xp.where(apart, excess, 1.0))
    share = (_NATS + 5) / least
    end = min(math.sqrt(2 * share), math.log1p(share + 5))
    far = 0.25 * square / v - half * rise + 0.5 * beyond.clip(max=0.0) > _NATS + 0.4
    upper = end - far * (rise - 1.7).clip(min=0.0)
    # x − e^−x = upper − s where x is at most this.
    last = upper - start + math.exp(-rule.margin)
    return start, growth, (last - rule.first) / rule.step + 1


@final
@dataclass(frozen=True, kw_only=True)
class GammaMixture(Integrator):
    """Integrals of Gaussian noise whose precision has a Gamma distribution, `GammaPrecision`."""

    @override
    def of_density(self, density: Density, nodes: Nodes = NEEDED_NODES) -> IntegrationMethod:
        estimate = partial(mixture_estimate, num_nodes=nodes.number)
        return IntegrationMethod(recorded_nodes(), estimate, self.fixed_work)

    @override
    def of_log_density(self, density: Density, nats: float) -> IntegrationMethod:
        return IntegrationMethod(POINTS, adaptive_gibbs)


@without_warnings
def mixture_estimate(examples: FlatExamples, num_nodes: int | Literal["auto"]) -> Estimate:
    """Compute value and slopes over nodes in t, as many as needed if `num_nodes` is "auto".

    On a CPU numpy computes what is not for each node: its calls take less time than torch's.
    """
    likelihood, y, mean, variance = examples
    mixture = cast(GammaPrecision, likelihood)
    tensors = y, mean, variance, mixture.df, mixture.scale
    target, centre, v, df, scale = map(array_of, tensors)
    xp = library_of(v)
    half = 0.5 * df
    noise = scale * scale
    residual = target - centre
    special = special_of(v)
    square = residual * residual
    low, high = _range_of(half)
    rule = _mixture_rule(low, high)
    start, growth, needed = _starts(rule, low, square, v, half, noise)
    if num_nodes != "auto" and len(needed):
        rule = rule._replace(step=rule.step * (float(needed.max()) - 1) / (num_nodes - 1))
        needed = xp.full_like(needed, num_nodes)
    # In these units neither the precisions nor their squares underflow.
    unit = square + v + noise
    square = square / unit
    v = v / unit
    rows = square, v, noise / (unit * growth), half * growth, half
    columns = _sum_blocks(rule, needed, rows)
    top, total = columns[:2]
    place, rate, once, twice = columns[2:] / total
    base = half * xp.log(half) - special.gammaln(half) - 0.5 * math.log(2 * math.pi)
    value = xp.log(total / xp.sqrt(unit)) + top + half * start + base
    columns = [value, residual / unit * once, 0.5 * (square * twice - once) / unit]
    if likelihood.learned():
        by_df = xp.log(half) + 1 - special.digamma(half) + start + place - growth * rate
        # E[w(r²p² − p)] with p = 1/(v + w), so that pw = 1 − pv.
        by_scale = square * (once - v * twice) + v * once - 1
        columns += [0.5 * by_df, by_scale / scale]
    value, mean_slope, variance_slope, *parameters = map(tensor_of, columns)
    return Estimate(value, mean_slope, variance_slope, tuple(parameters))


def _sum_blocks(rule: _MixtureRule, needed: Array, rows: tuple[Array, ...]) -> Array:
    """Return `_sum_mixture`, of examples together that need about the same number of nodes."""
    number = nodes_for_all(needed)
    if number is not None:
        return _sum_mixture(rule, number, *rows)
    columns = zeros((6, len(needed)), needed)
    for number, index in blocks_by_nodes(tensor_of(needed)):
        place = index if isinstance(needed, Tensor) else index.numpy()
        block = (row[place] if row.ndim else row for row in rows)
        columns[:, place] = _sum_mixture(rule, number, *block)
    return columns


def _sum_mixture(
    rule: _MixtureRule, number: int, square: Array, v: Array, noise: Array, rate: Array, half: Array
) -> Array:
    """Compute the log of the largest term, and sums of 1, t − s, e^{t−s}, p = 1/(v + w) and p².

    The terms are h_k·N(y; μ, v + w(t_k))·exp(ν/2·(t_k − s − e^{t_k})).
    """
    xp = library_of(v)
    table = _columns(rule, number)
    if xp is torch:
        table = constant((rule, number), partial(torch.as_tensor, table, device=v.device))
    t, growth, decay = table[:3, :, None]
    sums = table[3:]
    weights = table[3:4]
    precision = 1 / plus_product(v, decay, noise)
    root = xp.sqrt(precision)
    mass = plus_product(half * t, growth, -rate)
    mass = plus_product(mass, precision, -0.5 * square)
    top = xp.amax(mass, 0)
    mass -= top
    exp_in_place(mass)
    mass *= root
    totals = sums @ mass
    mass *= precision
    once = weights @ mass
    mass *= precision
    return xp.concatenate([top[None], totals, once, weights @ mass])

"""Write the predictive distribution of a mixture as a program.

Moments and probabilities are weighted means of those of the members. A quantile is a root of the
distribution function Σ_k w_k P_k(Y ≤ y). Each member has a ladder: its quantiles at 97 levels, from
a table. P_k(Y ≤ y) is interpolated between the steps of the ladder that are nearest to y.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, cast

import numpy as np
import torch
from scipy.special import erfcx
from torch import Tensor

from directgp.errors import UnsupportedError
from directgp.export.family import (
    TOLERANCE,
    Outputs,
    TargetFamily,
    deviation_of_gaussian,
    table_over_f,
)
from directgp.export.heads import numbers, probabilities
from directgp.export.latents import Latent
from directgp.export.program import Value, concatenate
from directgp.export.tables import (
    Axis,
    chebyshev,
    chebyshev_nodes,
    tabulate,
    to_coefficients,
)
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.gaussian import GaussianTruth
from directgp.numerics.special import log_ndtr
from directgp.predictive import predictive_quantiles
from directgp.predictive.component import Component
from directgp.predictive.mixture import ONE_DEVIATION
from directgp.shapes import Marginals

_STEPS = 97
"""Steps of a ladder."""

_FARTHEST = 5.6
"""Probit of the last level of a ladder, at least; 1 − level is then known to 1e-8 of its value."""

_LARGEST = 8.0
"""Probit of the largest level of a ladder."""

_BEYOND = 3.0
"""Distance in probits of the ends of a ladder from the outermost levels of the export, at least."""

_POINTS = 12
"""Steps of a ladder between which a probability is interpolated."""

_BISECTIONS = 20
"""Halvings of the bracket of a quantile."""

_SECANTS = 4
"""Steps of the Illinois method, in the bracket that is left."""

_NOISE_STEP = 0.4
"""Largest step in the log of the noise variance of a sum over equal steps, which errs by e⁻²⁴."""

_NOISE_FARTHEST = 6.5
"""Deviations of the log of the noise variance on either side."""

_POLYNOMIALS = 22
"""Number of polynomials of the tail of a normal distribution."""

_BELOW = -1e300
"""Coordinate of y outside of the support of a member."""


Tail = Callable[[Value, np.ndarray], Value]
"""Maps y and the sides to weighted probabilities, (n, L)."""

Evaluate = Callable[[Likelihood, Marginals], Sequence[Tensor]]


@dataclass(frozen=True)
class MemberProgram:
    """A member of a mixture, and its latent functions."""

    weight: float
    """Weight in the mixture."""

    family: TargetFamily
    """The likelihood, and the units of its targets."""

    latents: Sequence[Latent]
    """Its latent functions."""

    def outputs(self, levels: Sequence[float] = ()) -> Outputs:
        """Return the outputs of the member alone."""
        is_label = self.family.likelihood.task == "classification"
        write = probabilities if is_label else numbers
        return write(replace(self.family, levels=tuple(levels)), self.latents)

    def component(self) -> Component:
        """Return the member at a latent of 0, for what does not depend on it."""
        zeros = torch.zeros((1,), dtype=torch.float64)
        if len(self.latents) > 1:
            zeros = zeros.expand(len(self.latents), 1)
        return Component(self.weight, self.family.for_rows(1), Marginals(zeros, zeros + 1))


def outputs_of(members: Sequence[MemberProgram]) -> Outputs:
    """Return the outputs of a model: of its only member, or of the mixture of several."""
    family = members[0].family
    if len(members) == 1:
        return members[0].outputs(family.levels)
    if family.likelihood.task == "classification":
        return {"probabilities": _average([m.outputs()["probabilities"] for m in members], members)}
    return _numbers(members)


def _average(values: Sequence[Value], members: Sequence[MemberProgram]) -> Value:
    total: Value = reduce(
        add, (member.weight * value for member, value in zip(members, values, strict=True))
    )
    return total


def _numbers(members: Sequence[MemberProgram]) -> Outputs:
    """Mean, deviation and quantiles of real numbers or counts."""
    wanted = members[0].family.levels
    if wanted and members[0].family.likelihood.task == "count":
        raise UnsupportedError(
            "Quantiles of a mixture of counts are not exported. Export with levels=(), or fit with "
            "combine='best'."
        )
    components = [member.component() for member in members]
    has_mean = not any(bool(component.mean().isnan().any()) for component in components)
    has_variance = all(component.has_variance for component in components)
    levels = [*wanted, *(() if has_mean else (0.5,)), *(() if has_variance else ONE_DEVIATION)]
    parts = [member.outputs(levels) for member in members]
    outputs: Outputs = {}
    quantiles = _quantiles(members, parts, levels) if levels else None

    def level(place: int) -> Value:
        # Only called for a place of `levels`.
        return cast(Value, quantiles).column(place)

    means = [part["mean"] for part in parts]
    outputs["mean"] = _average(means, members) if has_mean else level(len(wanted))
    if has_variance:
        squares = [
            part["std"] * part["std"] + (mean - outputs["mean"]) * (mean - outputs["mean"])
            for part, mean in zip(parts, means, strict=True)
        ]
        outputs["std"] = _average(squares, members).sqrt()
    else:
        outputs["std"] = 0.5 * (level(len(levels) - 1) - level(len(levels) - 2))
    if wanted and quantiles is not None:
        outputs["quantiles"] = quantiles.take(np.arange(len(wanted)), axis=1)
    return outputs


def _quantiles(
    members: Sequence[MemberProgram], parts: Sequence[Outputs], levels: Sequence[float]
) -> Value:
    """Return the quantiles at all levels, between the smallest and the largest of the members."""
    own = [part["quantiles"] for part in parts]
    lower = reduce(Value.minimum, own)
    upper = reduce(Value.maximum, own)
    tables = [member for member in members if len(member.latents) == 1]
    tails: list[Tail] = [Ladders.of(tables, levels).tail] if tables else []
    tails += [ChangingNoise.of(member).tail for member in members if len(member.latents) > 1]
    level = np.array(levels)[None]
    above = level > 0.5
    tail = np.where(above, 1 - level, level)
    side = np.where(above, -1.0, 1.0)

    def excess(y: Value) -> Value:
        """The probability below y, or minus that above y, beyond the level."""
        gap: Value = side * (reduce(add, (part(y, side) for part in tails)) - tail)
        return gap

    for _ in range(_BISECTIONS):
        middle = 0.5 * (lower + upper)
        below = excess(middle) < 0.0
        lower = below.where(middle, lower)
        upper = below.where(upper, middle)
    return _illinois(excess, lower, upper)


def _illinois(excess: Callable[[Value], Value], lower: Value, upper: Value) -> Value:
    """Return the root of an increasing function in a bracket, by false position.

    The value of an end that stays twice is halved.
    """
    low, high = excess(lower).minimum(0.0), excess(upper).maximum(0.0)
    y = 0.5 * (lower + upper)
    for step in range(_SECANTS):
        width = high - low
        share = (0.0 < width).where((0.0 - low) / (0.0 < width).where(width, 1.0), 0.5)
        y = lower + share * (upper - lower)
        if step == _SECANTS - 1:
            break
        value = excess(y)
        below = value < 0.0
        lower = below.where(y, lower)
        upper = below.where(upper, y)
        low, high = below.where(value, 0.5 * low), below.where(0.5 * high, value)
    return y


# Ladders


@dataclass(frozen=True)
class Coordinate:
    """An increasing function a(y), in which the quantiles of a member are smooth.

    It is asinh((y − centre)/scale), or log y, or log y − log(1 − y), or y/scale.
    """

    kind: str
    """"asinh", "log", "logit" or "linear"."""

    centre: Value | float = 0.0
    """Of shape (n, 1)."""

    scale: Value | float = 1.0
    """Of shape (n, 1)."""

    def of(self, y: Value) -> Value:
        """Return a(y) of shape (n, L), and a very small number outside of the support."""
        if self.kind == "asinh":
            return asinh((y - self.centre) / self.scale)
        if self.kind == "linear":
            return y / self.scale
        if self.kind == "log":
            return (0.0 < y).where((0.0 < y).where(y, 1.0).log(), _BELOW)
        inside = (0.0 < y).where(y < 1.0, 0.0 < y)
        possible = inside.where(y, 0.5)
        outside = (0.0 < y).where(-_BELOW, _BELOW)
        return inside.where(possible.log() - (1.0 - possible).log(), outside)


def asinh(x: Value) -> Value:
    """Return asinh x, without cancellation for x < 0."""
    size = x.maximum(-1.0 * x)
    value = (size + (size * size + 1.0).sqrt()).log()
    return (x < 0.0).where(-1.0 * value, value)


@dataclass(frozen=True)
class Ladders:
    """For each member the coordinates of its quantiles at the levels of the ladder."""

    coordinates: tuple[Coordinate, ...]
    """One for each member."""

    steps: Value
    """Coordinates of the quantiles, of shape (n, members·steps)."""

    log_odds: np.ndarray
    """log(level/(1 − level)) of each step."""

    weights: np.ndarray
    """Weight of each member."""

    @classmethod
    def of(cls, members: Sequence[MemberProgram], levels: Sequence[float]) -> "Ladders":
        """Tabulate the ladders of all members."""
        shares, log_odds = _levels(levels)
        made = [_ladder(member, shares) for member in members]
        coordinates, steps = zip(*made, strict=True)
        weights = np.array([member.weight for member in members])
        return cls(coordinates, concatenate(steps), log_odds, weights)

    def tail(self, y: Value, side: np.ndarray) -> Value:
        """Return the probability below y where the side is 1, above y where it is −1, (n, L)."""
        number = len(self.coordinates)
        size = len(self.log_odds)
        (_, width) = side.shape
        a = concatenate([coordinate.of(y) for coordinate in self.coordinates])
        steps = self.steps.reshape(-1, number, 1, size)
        passed = (steps < a.reshape(-1, number, width, 1)).where(1.0, 0.0).sum(3)
        first = passed.reshape(-1, number * width) - float(_POINTS // 2)
        first = first.maximum(0.0).minimum(float(size - _POINTS))
        places = (first.reshape(-1, number * width, 1) + np.arange(float(_POINTS))).cast("int64")
        offset = np.repeat(size * np.arange(number), width)[None, :, None]
        nodes = self.steps.take_along((places + offset).reshape(-1, number * width * _POINTS), 1)
        values = self.steps.program.constant(self.log_odds).take(places.reshape(-1))
        shape = (-1, number * width, _POINTS)
        # Beyond the last step the probability is that of the step.
        ends = self.steps.reshape(-1, number, size)
        least = ends.take(np.array([0]), axis=2)
        most = ends.take(np.array([size - 1]), axis=2)
        inside = a.reshape(-1, number, width).maximum(least).minimum(most)
        distance = nodes.reshape(*shape) - inside.reshape(-1, number * width, 1)
        odds = interpolated(distance, values.reshape(*shape)).reshape(-1, number, width)
        chance = 1.0 / (1.0 + (-1.0 * side[None] * odds).exp())
        total: Value = (self.weights[None, :, None] * chance).sum(1)
        return total.reshape(-1, width)


def interpolated(nodes: Value, values: Value) -> Value:
    """Return the polynomial through points along the last of three axes, at 0, by Neville."""
    for size in range(1, _POINTS):
        rest = np.arange(_POINTS - size)
        left = nodes.take(rest, axis=2)
        right = nodes.take(rest + size, axis=2)
        values = (right * values.take(rest, axis=2) - left * values.take(rest + 1, axis=2)) / (
            right - left
        )
    return values


# Gaussian noise whose variance depends on the inputs


@dataclass(frozen=True)
class ChangingNoise:
    """N(f, e^g): P(Y ≤ y) = E[Φ((y − μ)/√(v + e^g))], a sum over equal steps in g."""

    mean: Value
    """Mean of y, of shape (n, 1)."""

    deviations: Value
    """Deviation of y for each g, of shape (n, 1, nodes)."""

    weights: np.ndarray
    """Weights of the nodes, times that of the member."""

    @classmethod
    def of(cls, member: MemberProgram) -> "ChangingNoise":
        """Choose the nodes."""
        q, log_noise = member.latents
        family = member.family
        step = _NOISE_STEP / max(1.0, log_noise.largest_deviation)
        z = np.arange(-_NOISE_FARTHEST, _NOISE_FARTHEST + step, step)
        weights = np.exp(-0.5 * z * z)
        noise = (log_noise.mean + log_noise.deviation * z[None]).exp()
        deviations = (q.variance + noise).sqrt() * abs(family.unit)
        weights *= member.weight / weights.sum()
        return cls(family.in_units(q.mean), deviations.reshape(-1, 1, len(z)), weights)

    def tail(self, y: Value, side: np.ndarray) -> Value:
        """Return the weighted probability below y where the side is 1, above y where it is −1."""
        (_, width) = side.shape
        distance = (side * (y - self.mean)).reshape(-1, width, 1) / self.deviations
        return (normal_cdf(distance) * self.weights).sum(2).reshape(-1, width)


def normal_cdf(x: Value) -> Value:
    """Return Φ(x) with small relative error: Φ(−z) = t·exp(P(t) − z²/2), t = 1/(1 + z/√8)."""
    size = x.maximum(-1.0 * x)
    u = 2.0 / (1.0 + size / math.sqrt(8.0)) - 1.0
    nodes = chebyshev_nodes(_POLYNOMIALS)
    t = 0.5 * (nodes + 1)
    z = math.sqrt(8.0) * (1 / t - 1)
    values = np.log(0.5 * erfcx(z / math.sqrt(2.0)) / t)
    coefficients = to_coefficients(_POLYNOMIALS) @ values
    terms = zip(coefficients.tolist(), chebyshev(u, _POLYNOMIALS), strict=True)
    power = reduce(add, (coefficient * term for coefficient, term in terms))
    lower = 0.5 * (u + 1.0) * (power - 0.5 * size * size).exp()
    return (x < 0.0).where(lower, 1.0 - lower)


def _levels(levels: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return the levels of a ladder and their log odds."""
    outermost = torch.tensor([min(levels), max(levels)], dtype=torch.float64)
    lowest, highest = torch.special.ndtri(outermost).tolist()
    # A level above Φ(8) is rounded too much.
    first = min(-_FARTHEST, lowest - _BEYOND)
    last = min(max(_FARTHEST, highest + _BEYOND), _LARGEST)
    probits = torch.linspace(first, last, _STEPS, dtype=torch.float64)
    shares = torch.special.ndtr(probits).numpy()
    # The log odds of the rounded level, whose distance from 1 is exact.
    upper = 1 - shares
    log_lower = np.where(shares < 0.5, log_ndtr(probits).numpy(), np.log1p(-upper))
    log_upper = np.where(shares < 0.5, np.log1p(-shares), np.log(upper))
    return shares, log_lower - log_upper


def _ladder(member: MemberProgram, shares: np.ndarray) -> tuple[Coordinate, Value]:
    """Return the coordinate of a member, and the coordinates of its quantiles."""
    family = member.family
    likelihood = family.likelihood

    def quantiles(likelihood: Likelihood, q: Marginals) -> Sequence[Tensor]:
        return list(predictive_quantiles(likelihood, q, shares.tolist()))

    (q,) = member.latents
    if isinstance(likelihood, GaussianTruth):
        return _gaussian(family, q, shares)
    if likelihood.additive:
        return _additive(family, q, quantiles)
    return _general(family, q, quantiles)


def _gaussian(family: TargetFamily, q: Latent, shares: np.ndarray) -> tuple[Coordinate, Value]:
    """Quantiles in units of the deviation of y are those of the standard normal distribution."""
    deviation = deviation_of_gaussian(family, q)
    coordinate = Coordinate("asinh", family.in_units(q.mean), deviation * family.unit)
    steps = np.arcsinh(torch.special.ndtri(torch.from_numpy(shares)).numpy())
    return coordinate, 0.0 * q.mean + steps[None]


def _additive(family: TargetFamily, q: Latent, quantiles: Evaluate) -> tuple[Coordinate, Value]:
    """Quantiles around the mean of f depend on its deviation alone."""
    narrow = np.array([1e-3 * q.largest_deviation])

    def above(likelihood: Likelihood, q: Marginals) -> Sequence[Tensor]:
        return list(predictive_quantiles(likelihood, q, ONE_DEVIATION[1:]))

    # About a standard deviation of the noise.
    scale = float(family.evaluate(above, 0.0 * narrow, narrow**2)[0, 0])

    def values(s: Any) -> Any:
        return np.arcsinh(family.evaluate(quantiles, np.zeros_like(s), s**2) / scale)

    table = tabulate(values, [Axis(0.0, q.largest_deviation)], TOLERANCE)
    coordinate = Coordinate("asinh", family.in_units(q.mean), scale * family.unit)
    return coordinate, table.evaluate(q.deviation)


def _general(family: TargetFamily, q: Latent, quantiles: Evaluate) -> tuple[Coordinate, Value]:
    """Tabulate over mean and deviation of f, or over the deviation if f is a location of log y."""
    kind = {"log": "log", "logit": "logit"}.get(family.likelihood.latent_scale, "linear")
    coordinate = Coordinate(kind, scale=abs(family.unit))

    def values(likelihood: Likelihood, q: Marginals) -> Sequence[Tensor]:
        y = [target * family.unit + family.offset for target in quantiles(likelihood, q)]
        if kind == "log":
            return [target.log() for target in y]
        if kind == "logit":
            return [target.log() - torch.log1p(-target) for target in y]
        return [target / abs(family.unit) for target in y]

    grid = q.largest_deviation * np.linspace(1e-3, 1.0, 5)
    ends = [
        family.evaluate(values, np.full(5, mean), grid**2) - mean for mean in (q.lower, q.upper)
    ]
    if not (np.diff(ends[0], axis=0) > 0).all():
        name = type(family.likelihood).__name__
        raise UnsupportedError(
            f"Quantiles of a mixture with {name} are not exported, because several levels have the "
            "same quantile. Export with levels=(), or fit with combine='best'."
        )
    if np.abs(ends[0] - ends[1]).max() <= 10 * TOLERANCE:
        middle = 0.5 * (q.lower + q.upper)

        def shifted(s: Any) -> Any:
            return family.evaluate(values, np.full_like(s, middle), s**2) - middle

        table = tabulate(shifted, [Axis(0.0, q.largest_deviation)], TOLERANCE)
        return coordinate, table.evaluate(q.deviation) + q.mean
    return coordinate, table_over_f(family, q, values).evaluate(q.mean, q.deviation)

"""Write the predictive distribution of a mixture as a program.

Moments and probabilities are weighted means of those of the members. A quantile is a root of the
distribution function Σ_k w_k P_k(Y ≤ y). Each member has a ladder: its quantiles at 65 levels, from
a table. P_k(Y ≤ y) is interpolated between the steps of the ladder that are nearest to y.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch
from torch import Tensor

from directgp.errors import UnsupportedError
from directgp.export.family import TOLERANCE, Outputs, TargetFamily, table_over_f
from directgp.export.heads import numbers, probabilities
from directgp.export.latents import Latent
from directgp.export.program import Value, concatenate
from directgp.export.tables import Axis, tabulate
from directgp.likelihoods.base import Likelihood
from directgp.numerics.roots import increasing_root
from directgp.numerics.special import log_ndtr
from directgp.predictive import predictive_quantiles
from directgp.predictive.mixture import Component
from directgp.shapes import Marginals

_ONE_DEVIATION = (0.15865525393145707, 0.8413447460685429)
"""Φ(−1) and Φ(1)."""

_STEPS = 97
"""Steps of a ladder."""

_FARTHEST = 8.0
"""Probit of the last level of a ladder."""

_BEYOND = 2.5
"""Distance in probits of the first level of a ladder from the smallest level of the export."""

_POINTS = 12
"""Steps of a ladder between which a probability is interpolated."""

_BISECTIONS = 14
"""Halvings of the bracket of a quantile."""

_SECANTS = 4
"""Steps of the Illinois method, in the bracket that is left."""

_NOISE_STEP = 0.25
"""Step in the log of the noise variance, at which a sum over equal steps is exact."""

_NOISE_FARTHEST = 9.0
"""Deviations of the log of the noise variance on either side."""

_NOISE_LARGEST = 100.0
"""Largest asinh of a quantile."""

_BELOW = -1e300
"""Coordinate of y outside of the support of a member."""


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
    components = [member.component() for member in members]
    has_mean = not any(bool(component.mean().isnan().any()) for component in components)
    has_variance = all(component.has_variance for component in components)
    levels = [*wanted, *(() if has_mean else (0.5,)), *(() if has_variance else _ONE_DEVIATION)]
    parts = [member.outputs(levels) for member in members]
    outputs: Outputs = {}
    quantiles = _quantiles(members, parts, levels) if levels else None

    def level(place: int) -> Value:
        assert quantiles is not None
        return quantiles.column(place)

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
    ladders = Ladders.of(members, levels)
    level = np.array(levels)[None]
    above = level > 0.5
    tail = np.where(above, 1 - level, level)
    side = np.where(above, -1.0, 1.0)

    def excess(y: Value) -> Value:
        """The probability below y, or minus that above y, beyond the level."""
        gap: Value = side * (ladders.tail(y, side) - tail)
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
        made = [_ladder(member, shares, log_odds) for member in members]
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


def _levels(levels: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return the levels of a ladder and their log odds."""
    smallest = torch.tensor(min(levels), dtype=torch.float64)
    lowest = min(-_FARTHEST, float(torch.special.ndtri(smallest)) - _BEYOND)
    probits = torch.linspace(lowest, _FARTHEST, _STEPS, dtype=torch.float64)
    shares = torch.special.ndtr(probits).numpy()
    # The log odds of the rounded level, whose distance from 1 is exact.
    upper = 1 - shares
    log_lower = np.where(shares < 0.5, log_ndtr(probits).numpy(), np.log1p(-upper))
    log_upper = np.where(shares < 0.5, np.log1p(-shares), np.log(upper))
    return shares, log_lower - log_upper


def _ladder(
    member: MemberProgram, shares: np.ndarray, log_odds: np.ndarray
) -> tuple[Coordinate, Value]:
    """Return the coordinate of a member, and the coordinates of its quantiles."""
    family = member.family
    likelihood = family.likelihood

    def quantiles(likelihood: Likelihood, q: Marginals) -> Sequence[Tensor]:
        return list(predictive_quantiles(likelihood, q, shares.tolist()))

    q, *others = member.latents
    if others:
        return _changing_noise(family, q, others[0], log_odds)
    if likelihood.additive:
        return _additive(family, q, quantiles)
    return _general(family, q, quantiles)


Evaluate = Callable[[Likelihood, Marginals], Sequence[Tensor]]


def _additive(family: TargetFamily, q: Latent, quantiles: Evaluate) -> tuple[Coordinate, Value]:
    """Quantiles around the mean of f depend on its deviation alone."""
    narrow = np.array([1e-3 * q.largest_deviation])
    own = family.evaluate(quantiles, 0.0 * narrow, narrow**2)[:, 0]
    # About a standard deviation of the noise.
    scale = float(np.interp(1.0, np.linspace(-_FARTHEST, _FARTHEST, _STEPS), own))

    def values(s: Any) -> Any:
        return np.arcsinh(family.evaluate(quantiles, np.zeros_like(s), s**2) / scale)

    table = tabulate(values, [Axis(0.0, q.largest_deviation)], TOLERANCE)
    coordinate = Coordinate("asinh", family.in_units(q.mean), scale * family.unit)
    return coordinate, table.evaluate(q.deviation)


def _changing_noise(
    family: TargetFamily, q: Latent, log_noise: Latent, log_odds: np.ndarray
) -> tuple[Coordinate, Value]:
    """Quantiles of N(f, e^g) in units of the deviation of y, as in `heads`."""
    total = q.variance + log_noise.mean.exp()

    def values(share: Any, spread: Any) -> Any:
        return _coordinates_of_mixed_noise(share, spread, log_odds)

    axes = Axis(0.0, 1.0), Axis(0.0, log_noise.largest_deviation)
    table = tabulate(values, axes, TOLERANCE)
    steps = table.evaluate(q.variance / total, log_noise.deviation)
    return Coordinate("asinh", family.in_units(q.mean), total.sqrt() * family.unit), steps


def _coordinates_of_mixed_noise(
    share: np.ndarray, spread: np.ndarray, log_odds: np.ndarray
) -> np.ndarray:
    """Return asinh of the quantiles of E[N(0, u + (1 − u)e^{sZ})] for u, s and standard normal Z.

    The tail is a sum over equal steps in Z: E[Φ(−y/√(u + (1 − u)e^{sZ}))].
    """
    step = _NOISE_STEP / max(1.0, float(spread.max()))
    z = torch.arange(-_NOISE_FARTHEST, _NOISE_FARTHEST + step, step, dtype=torch.float64)
    log_weight = -0.5 * z * z - torch.logsumexp(-0.5 * z * z, 0)
    u, s = torch.from_numpy(share), torch.from_numpy(spread)
    deviation = (u[:, None] + (1 - u[:, None]) * (s[:, None] * z).exp()).sqrt()
    # The tails are symmetric.
    size, place = np.unique(np.abs(log_odds).round(12), return_inverse=True)
    log_tail = -torch.nn.functional.softplus(torch.from_numpy(size))
    number = len(share)

    def excess(index: Tensor, a: Tensor) -> Tensor:
        logs = log_ndtr(-a.sinh()[:, None] / deviation[index % number])
        gap: Tensor = log_tail[index // number] - torch.logsumexp(log_weight + logs, 1)
        return gap

    start = torch.asinh(-torch.special.ndtri(log_tail.exp())).repeat_interleave(number)
    roots = increasing_root(excess, start, torch.full_like(start, 0.1), _NOISE_LARGEST)
    a = roots.reshape(len(size), number).numpy()
    return np.sign(log_odds)[:, None] * a[place]


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
    if np.abs(ends[0] - ends[1]).max() <= TOLERANCE:
        middle = 0.5 * (q.lower + q.upper)

        def shifted(s: Any) -> Any:
            return family.evaluate(values, np.full_like(s, middle), s**2) - middle

        table = tabulate(shifted, [Axis(0.0, q.largest_deviation)], TOLERANCE)
        return coordinate, table.evaluate(q.deviation) + q.mean
    return coordinate, table_over_f(family, q, values).evaluate(q.mean, q.deviation)

"""Write the predictive distribution of y as a program: mean, deviation, quantiles, probabilities.

A table of what the library computes stands for every function of one latent mean and variance, so
that likelihoods of users are exported, too.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import add
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from directgp.errors import UnsupportedError
from directgp.estimators.frames import deviation
from directgp.export.latents import Latent
from directgp.export.program import Value, concatenate
from directgp.export.tables import (
    Axis,
    Interpolant,
    chebyshev,
    chebyshev_nodes,
    tabulate,
    to_coefficients,
)
from directgp.integration.capabilities import has
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import BoundedCounts, Classes, NoiseLatent, SoftmaxLink
from directgp.numerics.roots import OUTSIDE, increasing_root, rounded_down
from directgp.predictive import (
    predictive_cdf,
    predictive_log_density,
    predictive_quantiles,
    predictive_variance,
)
from directgp.predictive.api import point_prediction
from directgp.predictive.distributions import SampledDistribution, distribution_of
from directgp.predictive.moments import class_log_probabilities
from directgp.shapes import Marginals

TOLERANCE = 1e-8
"""Error of the tables: of logs, or in units of scaled targets."""

_FARTHEST = 300.0
"""|f| beyond which no count changes."""

_EXPLICIT = 24
"""Counts with a threshold of their own."""

_RATIO = 1.2
_NEIGHBOURS = 10
"""Ratio of neighbouring counts whose thresholds are found, and the number of those between which
others are interpolated."""

Outputs = dict[str, Value]
Rows = Float64[np.ndarray, "j k"]
Evaluate = Callable[[Likelihood, Marginals], Sequence[Tensor]]


@dataclass(frozen=True)
class TargetFamily:
    """The likelihood of a fitted model for rows of one constant, and the units of its targets."""

    likelihood: Likelihood
    row_value: float | None
    """The constant of every row, in the units of training."""

    unit: float
    offset: float
    """The targets of the user are unit·y + offset."""

    levels: tuple[float, ...]

    def evaluate(
        self, function: Evaluate, mean: np.ndarray[Any, Any], variance: np.ndarray[Any, Any]
    ) -> Rows:
        """Return values of the library for marginals of shape (k,), or (P, k) for P latents."""
        with torch.no_grad():
            q = Marginals(torch.from_numpy(mean), torch.from_numpy(variance))
            found = function(self.for_rows(mean.shape[-1]), q)
            return np.stack([each.double().numpy() for each in found])

    def for_rows(self, rows: int) -> Likelihood:
        """Return the likelihood of this many rows."""
        if self.row_value is None:
            return self.likelihood
        values = torch.full((rows,), self.row_value, dtype=torch.float64)
        return self.likelihood.with_row_values(values)

    @property
    def bounded(self) -> bool:
        """Whether there is a largest count."""
        return has(self.likelihood, BoundedCounts)

    def in_units(self, y: Value) -> Value:
        """Return scaled targets in the units of the user."""
        return y * self.unit + self.offset


def check_exportable(likelihood: Likelihood) -> None:
    """Raise `UnsupportedError` for a likelihood that is not exported."""
    name, number = type(likelihood).__name__, likelihood.num_latent
    known = has(likelihood, SoftmaxLink) or has(likelihood, NoiseLatent)
    if number > 1 and not known:
        raise UnsupportedError(
            f"{name} is not exported, because it has {number} latent functions: of those, softmax "
            "and the heteroscedastic Gaussian are. Fit with another likelihood."
        )
    if number == 1 and likelihood.task != "classification":
        one = torch.ones(1, dtype=torch.float64)
        if isinstance(distribution_of(likelihood, one, one), SampledDistribution):
            raise UnsupportedError(
                f"{name} is not exported, because its distribution is known by draws alone. Give "
                "it a method cdf(y, f)."
            )


def log_chances(likelihood: Any, q: Marginals) -> Float[Tensor, "c n"]:
    """Return log P(Y = k) of every class."""
    if isinstance(likelihood, Classes):
        return class_log_probabilities(likelihood, q)
    labels = (torch.full_like(q.mean, y) for y in (0.0, 1.0))
    return torch.stack([predictive_log_density(likelihood, y, q) for y in labels])


def probabilities(family: TargetFamily, latents: Sequence[Latent]) -> Outputs:
    """Return the probability of each class, (n, K)."""
    if has(family.likelihood, SoftmaxLink):
        return {"probabilities": _softmax(latents)}
    many = isinstance(family.likelihood, Classes)

    def log_odds(likelihood: Likelihood, q: Marginals) -> Sequence[Tensor]:
        logs = log_chances(likelihood, q)
        return list((logs if many else logs[1:] - logs[:1]).asinh())

    # Nearly a function of z = μ/√(1 + v) alone, and a line in log z where z is large.
    (q,) = latents
    z = q.mean / (1.0 + q.variance).sqrt()

    def values(z: Any, s: Any) -> Rows:
        return family.evaluate(log_odds, z * np.sqrt(1 + s**2), s**2)

    ends = min(q.lower, 0.0), max(q.upper, 0.0)
    axes = Axis(*ends, bend=1.0), Axis(0.0, q.largest_deviation)
    found = tabulate(values, axes, TOLERANCE).evaluate(z, q.deviation)
    found = 0.5 * (found.exp() - (-1.0 * found).exp())
    if not many:
        columns = [1.0 / (1.0 + x.exp()) for x in (found, -1.0 * found)]
        return {"probabilities": concatenate(columns)}
    chances = (found - found.largest()).exp()
    return {"probabilities": chances / chances.sum()}


def numbers(family: TargetFamily, latents: Sequence[Latent]) -> Outputs:
    """Return mean, standard deviation and quantiles of real numbers or counts."""
    likelihood = family.likelihood
    if likelihood.task == "count":
        return _counts(family, *latents)
    if len(latents) > 1:
        return _changing_noise(family, *latents)
    return (_additive if likelihood.additive else _general)(family, *latents)


def _table(family: TargetFamily, q: Latent, function: Evaluate) -> Interpolant:
    """Tabulate over mean and deviation of f."""

    def values(mean: Any, deviation: Any) -> Rows:
        return family.evaluate(function, mean, deviation**2)

    axes = Axis(q.lower, q.upper), Axis(0.0, q.largest_deviation)
    return tabulate(values, axes, TOLERANCE)


def _additive(family: TargetFamily, q: Latent) -> Outputs:
    """y = f + noise: what is added to the mean of f depends on its variance alone."""
    levels = list(family.levels)

    def values(s: Any) -> Rows:
        def both(likelihood: Likelihood, q: Marginals) -> Sequence[Tensor]:
            offsets = predictive_quantiles(likelihood, q, levels) if levels else ()
            return [deviation(likelihood, q).log(), *offsets]

        return family.evaluate(both, np.zeros_like(s), s**2)

    axes = [Axis(0.0, q.largest_deviation)]
    found = tabulate(values, axes, TOLERANCE).evaluate(q.deviation)
    outputs = {
        "mean": family.in_units(q.mean),
        "std": found.column(0).exp() * abs(family.unit),
    }
    if levels:
        outputs["quantiles"] = family.in_units(q.mean + _columns(found, 1, len(levels)))
    return outputs


def _general(family: TargetFamily, q: Latent) -> Outputs:
    """Targets in the units of the user; logs of them where f is on the scale of the log."""
    levels, unit = list(family.levels), abs(family.unit)
    logs = family.likelihood.latent_scale == "log"

    def values(likelihood: Likelihood, q: Marginals) -> Sequence[Tensor]:
        y = [point_prediction(likelihood, q)]
        y += list(predictive_quantiles(likelihood, q, levels)) if levels else []
        mean, *quantiles = (each * family.unit + family.offset for each in y)
        found = [mean, deviation(likelihood, q) * unit, *quantiles]
        return [each.log() if logs else each / unit for each in found]

    found = _table(family, q, values).evaluate(q.mean, q.deviation)
    found = found.exp() if logs else found * unit
    outputs = {"mean": found.column(0), "std": found.column(1)}
    if levels:
        outputs["quantiles"] = _columns(found, 2, len(levels))
    return outputs


def _columns(values: Value, start: int, number: int) -> Value:
    return values.take(np.arange(start, start + number), axis=1)


def _changing_noise(family: TargetFamily, q: Latent, log_noise: Latent) -> Outputs:
    """N(f, e^g): quantiles are those of variance u + (1 − u)e^{g − E g}, scaled and moved."""
    noise = log_noise.mean.exp()
    total = q.variance + noise
    variance = q.variance + noise * (0.5 * log_noise.variance).exp()
    outputs = {
        "mean": family.in_units(q.mean),
        "std": variance.sqrt() * abs(family.unit),
    }
    if not family.levels:
        return outputs
    levels = list(family.levels)

    def values(share: Any, spread: Any) -> Rows:
        mean = np.stack([np.zeros_like(share), np.log1p(-share)])
        return family.evaluate(
            lambda likelihood, q: list(predictive_quantiles(likelihood, q, levels)),
            mean,
            np.stack([share, spread**2]),
        )

    axes = Axis(0.0, 1.0), Axis(0.0, log_noise.largest_deviation)
    table = tabulate(values, axes, TOLERANCE)
    found = table.evaluate(q.variance / total, log_noise.deviation)
    outputs["quantiles"] = family.in_units(q.mean + total.sqrt() * found)
    return outputs


def _counts(family: TargetFamily, q: Latent) -> Outputs:
    """Mean and deviation by their logs, and quantiles."""

    def moments(likelihood: Likelihood, q: Marginals) -> Sequence[Tensor]:
        variance = predictive_variance(likelihood, q)
        return [point_prediction(likelihood, q).log(), 0.5 * variance.log()]

    found = _table(family, q, moments).evaluate(q.mean, q.deviation).exp()
    outputs = {"mean": found.column(0), "std": found.column(1)}
    if family.levels:
        columns = [_CountQuantile(family, level).written(q) for level in family.levels]
        outputs["quantiles"] = concatenate(columns)
    return outputs


@dataclass(frozen=True)
class _CountQuantile:
    """The quantile of a count, as a function of mean and deviation of f.

    It is above k where the mean of f is above t_k(s), at which P(Y ≤ k) falls to the level. A table
    has t_k for small k, and the quantile is the number of those below the mean. Beyond the last of
    them another table has log κ, with t_κ between those of whole numbers by interpolation; the
    quantile is κ rounded up.
    """

    family: TargetFamily
    level: float

    def written(self, q: Latent) -> Value:
        """Return the quantile as a program."""
        spread = q.largest_deviation * np.linspace(1e-3, 1.0, 17)
        self._check_order(q)
        largest = int(self._quantiles(np.full_like(spread, q.upper), spread).max())
        if largest == 0:
            return 0.0 * q.mean
        # Where there is a largest count, t_k is no smooth function of k near it.
        number = largest if self.family.bounded else min(largest, _EXPLICIT)
        s, axis = q.deviation, Axis(0.0, q.largest_deviation)
        table = tabulate(lambda s: self.thresholds(np.arange(float(number)), s), [axis], TOLERANCE)
        found = table.count_below(q.mean, s)
        if number == largest:
            return found
        last = Interpolant(table.axes, table.coefficients[:, -1:])
        (ends,) = self.thresholds(np.array([number - 1.0]), spread)
        farthest = q.upper - ends.min()
        # The table covers a rectangle, and so means of f beyond their bound.
        reached = self._quantiles(ends + farthest, spread).max()
        counts = _growing(number - 1, int(reached))

        def log_count(beyond: Any, s: Any) -> Rows:
            values, rows = np.unique(s, return_inverse=True)
            known = self.thresholds(counts, values)
            found: Rows = np.empty((1, len(beyond)))
            for i, thresholds in enumerate(known.T):
                some = rows == i
                found[0, some] = _interpolate(
                    thresholds, np.log(counts), thresholds[0] + beyond[some]
                )
            return found

        beyond = q.mean - last.evaluate(s)
        # A deviation of f matters from about 1/√κ on.
        bends = [ratio / math.sqrt(reached) for ratio in (0.3, 3.0, 30.0)]
        far = tabulate(log_count, [Axis(0.0, farthest), axis], TOLERANCE, bends)
        large = 0.0 - (0.0 - far.evaluate(beyond.maximum(0.0), s).exp()).floor()
        return (beyond > 0.0).where(large, found)

    def _check_order(self, q: Latent) -> None:
        """Raise `UnsupportedError` unless counts grow with f, as those of directgp do."""
        mean = np.linspace(q.lower, q.upper, 33)

        def below(likelihood: Likelihood, q: Marginals) -> Sequence[Tensor]:
            return [predictive_cdf(likelihood, torch.zeros_like(q.mean), q)]

        (chances,) = self.family.evaluate(below, mean, np.full_like(mean, q.largest_variance))
        if (np.diff(chances) > 1e-9).any():
            raise UnsupportedError(
                f"Quantiles of {type(self.family.likelihood).__name__} are not exported, because "
                "its counts do not grow with f. Export with levels=()."
            )

    def _quantiles(self, mean: Any, s: Any) -> Any:
        def found(likelihood: Likelihood, q: Marginals) -> Sequence[Tensor]:
            return list(predictive_quantiles(likelihood, q, [self.level]))

        return self.family.evaluate(found, mean, s**2)[0]

    def thresholds(self, counts: Any, s: Any) -> Rows:
        """Return t_k(s), one row for each count."""
        k, deviations = (each.reshape(-1) for each in np.meshgrid(counts, s, indexing="ij"))
        target = rounded_down(torch.tensor(self.level, dtype=torch.float64))
        probit = torch.special.ndtri(target)

        def fallen(index: Tensor, mean: Tensor) -> Tensor:
            rows = index.numpy()

            def below(likelihood: Likelihood, q: Marginals) -> Sequence[Tensor]:
                return [predictive_cdf(likelihood, torch.from_numpy(k[rows]), q)]

            (value,) = self.family.evaluate(below, mean.numpy(), deviations[rows] ** 2)
            gap: Tensor = probit - torch.special.ndtri(torch.from_numpy(value))
            return gap.clamp(-OUTSIDE, OUTSIDE)

        start = np.log(k + 0.5) - float(probit) * np.sqrt(deviations**2 + 1 / (k + 1))
        step = torch.full((len(k),), 0.2, dtype=torch.float64)
        found = increasing_root(fallen, torch.from_numpy(start), step, _FARTHEST)
        return found.reshape(len(counts), len(s)).numpy()


def _growing(first: int, last: int) -> Float64[np.ndarray, " k"]:
    """Return whole numbers from the first to well beyond the last, in growing steps."""
    number = math.ceil(math.log(last / first) / math.log(_RATIO)) + 2
    return np.unique(np.round(first * _RATIO ** np.arange(max(number, 2 * _NEIGHBOURS))))


def _interpolate(x: Any, y: Any, at: Any) -> Any:
    """Interpolate y(x) by the polynomial through the nearest of increasing x."""
    first = np.clip(np.searchsorted(x, at) - _NEIGHBOURS // 2, 0, len(x) - _NEIGHBOURS)
    rows = first[:, None] + np.arange(_NEIGHBOURS)
    nodes, values = x[rows] - at[:, None], y[rows]
    # Neville's scheme at 0.
    for size in range(1, _NEIGHBOURS):
        left, right = nodes[:, :-size], nodes[:, size:]
        values = (right * values[:, :-1] - left * values[:, 1:]) / (right - left)
    return values[:, 0]


# P(Y = k) = P(f_k + ξ_k is the largest) for independent ξ with P(ξ ≤ t) = exp(−e^−t). With
# G(u, s) = E[exp(−e^{−u + s·z})] and λ = log(−log G), the sum over equal steps h in t
#
# P(Y = k) = ∫ ∂_t G_k Π_{j≠k} G_j dt = ∫ −λ′_k e^{λ_k} exp(−Σ_j e^{λ_j}) dt
#
# with λ_j = λ(t − μ_j, s_j) errs by e^{−π²/h}. λ is smooth: a line at either end. It is a
# polynomial in s and in u on panels, and those of u have the width h, so that all nodes of a row
# have one place in their panels, and one product of matrices evaluates λ on all panels.

_STEP = 0.5
_FIRST_PANEL = 0.5
"""Upper end of the first panel of s; each of the others ends at twice its start."""

_DEGREES = 6, 12
"""Numbers of polynomials in u and in s."""

_INNER = 9.0
"""Deviations of f on either side, for G."""


def _softmax(latents: Sequence[Latent]) -> Value:
    """Return probabilities of the classes, (n, K)."""
    largest = max(each.largest_deviation for each in latents)
    first, number = -5.0 - 6.5 * largest, math.ceil((26.0 + 13.0 * largest) / _STEP)
    doublings = max(0, math.ceil(math.log2(largest / _FIRST_PANEL)))
    edges = [0.0, *(_FIRST_PANEL * 2.0**i for i in range(doublings + 1))]
    classes, (P, Q) = len(latents), _DEGREES
    means = concatenate([each.mean for each in latents])
    s = concatenate([each.deviation for each in latents]).reshape(-1, 1)
    # The first node lies `first` from the largest mean.
    position = ((means.largest() - means) / _STEP).minimum(float(number))
    panel = position.floor()
    x = (2.0 * (position - panel) - 1.0).reshape(-1, 1)
    by_s = []
    for low, high in pairwise(edges):
        inside = (s < low).where(0.0, (s < high).where(1.0, 0.0))
        # Outside of its panel a polynomial would overflow.
        place = (2.0 * s - (low + high)) / (high - low)
        by_s += [inside * each for each in chebyshev(inside * place, Q)]
    in_s, size = concatenate(by_s), len(by_s)
    polynomials = chebyshev(x, P)
    coefficients = _gumbel_coefficients(first, number, edges)
    index = (panel.reshape(-1, classes, 1) + np.arange(float(number))).minimum(float(number))
    index = index.is_nan().where(0.0, index).cast("int64")
    found = []
    # After the last panel λ = −50, and G is 1.
    for basis, last in ((polynomials, 0.0 * x - 50.0), (_slopes(polynomials), 0.0 * x)):
        both = concatenate(basis).reshape(-1, P, 1) * in_s.reshape(-1, 1, size)
        on_panels = concatenate([both.reshape(-1, P * size) @ coefficients, last])
        found.append(on_panels.reshape(-1, classes, number + 1).take_along(index, axis=2))
    power = found[0].exp()
    none = (-1.0 * power.sum()).exp()
    chances = (-1.0 * found[1] * power * none).sum(2).reshape(-1, classes)
    return chances / chances.sum()


def _slopes(polynomials: Sequence[Value]) -> list[Value]:
    """Return T′_i = i·(2T_{i−1} + 2T_{i−3} + …), where T_0 counts once."""
    found = [0.0 * polynomials[0]]
    for i in range(1, len(polynomials)):
        terms = ((1.0 if j == 0 else 2.0) * polynomials[j] for j in range(i - 1, -1, -2))
        found.append(float(i) * reduce(add, terms))
    return found


def _gumbel_coefficients(
    first: float, number: int, edges: Sequence[float]
) -> Float64[np.ndarray, "c p"]:
    """Return the coefficients of λ: polynomials in u, then panels and polynomials of s; by u."""
    x, w = map(chebyshev_nodes, _DEGREES)
    u = first + _STEP * (np.arange(number)[:, None] + (x + 1) / 2)
    s = np.concatenate([low + (high - low) * (w + 1) / 2 for low, high in pairwise(edges)])
    values = np.stack([_log_log_G(u, each) for each in s]).reshape(len(edges) - 1, len(w), *u.shape)
    to_u, to_s = map(to_coefficients, _DEGREES)
    coefficients = np.einsum("ax,bw,pwnx->apbn", to_u, to_s, values)
    return np.ascontiguousarray(coefficients.reshape(-1, number))


def _log_log_G(u: Float64[np.ndarray, "n x"], s: float) -> Float64[np.ndarray, "n x"]:
    """Return λ(u, s), by equal steps in z."""
    nodes = math.ceil(2 * _INNER * max(4.0, 8 * s))
    z = _INNER * (2 * (np.arange(nodes) + 0.5) / nodes - 1)
    log_weight = -0.5 * z * z - np.log(np.exp(-0.5 * z * z).sum())
    rate = np.exp(np.minimum(s * z - u[..., None], 700.0))
    # −log G: by 1 − G where G is near 1.
    away = -np.expm1(-rate) @ np.exp(log_weight)
    log_G = np.logaddexp.reduce(log_weight - rate, axis=-1)
    minus_log_G = np.where(away < 0.5, -np.log1p(-np.minimum(away, 0.5)), -log_G)
    return np.asarray(np.log(minus_log_G))

"""Compute the pictures of the terms of a kernel."""

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Float64
from scipy import stats
from scipy.spatial import Delaunay, QhullError
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from directgp.estimators.decomposition import (
    LatentParts,
    check_latent,
    scale_of_latent,
    stored_shares,
)
from directgp.estimators.predictions import PredictingEstimator
from directgp.estimators.validation import ArrayLike
from directgp.kernels.columns import ColumnFacts
from directgp.kernels.parts import Categorical, Group, Linear, Periodic, Sphere
from directgp.kernels.parts.base import Part
from directgp.kernels.summands import Summand, factors_of, numbers_of_factors
from directgp.plots.parts import (
    MAX_LEVELS,
    TermCloud,
    TermCurve,
    TermImage,
    TermLevels,
    TermLines,
    TermMap,
    TermPicture,
)
from directgp.plots.style import Array
from directgp.predictive.moments import check_coverage
from directgp.text import joined, number

_MAX_PICTURES = 12
"""Pictures of a model, of the terms with the largest shares."""

_MAX_PAIRS = 3
"""Pictures of effects of pairs of columns."""

_LEAST = 1e-3
"""Share below which one of many terms is not drawn."""

_NEGLIGIBLE = 1e-4
"""Share below which a term is not drawn."""

_POINTS = 200
"""Points of a curve."""

_POINTS_OF_PERIOD = 16
"""Points of a curve in each period of a season."""

_MOST_POINTS = 2000
"""Largest number of points of a curve."""

_SIDE = 40
"""Points of each side of a picture of two columns, and of a map."""

_LINES = 60
"""Lines of a picture of levels along a column."""

_MAX_ROWS = 2000
"""Rows of clouds and maps."""

_BINS = 10
"""Bins by which the column of a cloud is chosen."""

_YEAR = 365.2425
"""Days of a year."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_REFERENCE = (date(2001, 1, 1) - date(1970, 1, 1)).days
"""A Monday and first of January: periods of a year, a week and a day begin there."""

_FORMATS = {_YEAR: "%b", 7.0: "%a", 1.0: "%H:%M"}
"""Maps a largest number of days of a period to the format of dates within it."""


def term_pictures(
    model: PredictingEstimator, X: ArrayLike | None, coverage: float, latent: int
) -> list[TermPicture]:
    """Return the pictures of the terms, the largest share first.

    Without rows, inducing inputs stand for them.
    """
    check_is_fitted(model)
    who = model._who("plot_parts")
    check_coverage(who, coverage)
    check_latent(model, latent, who)
    parts = LatentParts(model, latent)
    shares = stored_shares(model, parts, latent)
    rows = parts.representatives() if X is None else parts.inputs(model._inputs(X, who))
    if len(rows) > _MAX_ROWS:
        chosen = np.sort(np.random.default_rng(0).choice(len(rows), _MAX_ROWS, replace=False))
        rows = rows[torch.as_tensor(chosen, device=rows.device)]
    painter = _Painter(model, parts, rows, coverage, scale_of_latent(model, latent))
    pictures: list[TermPicture] = []
    pairs = 0
    least = _LEAST if len(shares) > _MAX_PICTURES else _NEGLIGIBLE
    for t in np.argsort(-shares, kind="stable").tolist():
        summand = parts.summands[t]
        pairs += len(summand.effect) == 2
        shown = shares[t] > least or not pictures
        if shown and not (len(summand.effect) == 2 and pairs > _MAX_PAIRS):
            pictures += painter.pictures(summand, parts.descriptions[t].name)
    return pictures[:_MAX_PICTURES]


@final
class _Painter:
    """Computes the pictures of summands, on scaled inputs in which other columns are 0."""

    def __init__(
        self,
        model: PredictingEstimator,
        parts: LatentParts,
        rows: Float[Tensor, "n d"],
        coverage: float,
        target: str,
    ) -> None:
        self._parts = parts
        self._rows = rows
        self._z = float(stats.norm.ppf(0.5 + 0.5 * coverage))
        self._target = target
        self._kinds = model.columns_

    def pictures(self, summand: Summand, title: str) -> list[TermPicture]:
        """Return the pictures of a summand: two of a season that changes, else one."""
        structure = self._parts.structure
        factors = [] if structure is None else factors_of(structure, summand)
        positions = self._parts.positions(summand)
        of_levels = (Group, Categorical)
        levels = {int(c) for part in factors if isinstance(part, of_levels) for c in part.columns}
        levels |= {j for j in positions if self._facts(j).coded}
        numbers = [j for j in positions if j not in levels]
        if not numbers and len(levels) == 1:
            return [self._of_levels(summand, title, positions[0])]
        if not numbers:
            return [self._of_combinations(summand, title, positions)]
        if len(numbers) == 1 and not levels:
            return self._along(summand, title, numbers[0], factors)
        if len(numbers) == 1 and len(levels) == 1:
            (level,) = levels
            return [self._by_level(summand, title, numbers[0], level, factors)]
        if len(numbers) == 2 and not levels:
            if len(factors) == 1 and isinstance(factors[0], Sphere):
                return [self._map(summand, title, [int(c) for c in factors[0].columns])]
            return [self._image(summand, title, numbers)]
        return [self._cloud(summand, title, numbers)]

    def _facts(self, position: int) -> ColumnFacts:
        return self._parts.columns[position]

    def _inputs(self, n: int) -> Float[Tensor, "n d"]:
        return self._rows.new_zeros(n, self._rows.shape[-1])

    def _in_units(self, position: int, scaled: Tensor) -> Array:
        """Return values of a column in the units of the user."""
        facts = self._facts(position)
        return np.asarray(scaled.double().cpu().numpy() * facts.scale + facts.shift)

    def _scaled(self, position: int, values: Array) -> Tensor:
        facts = self._facts(position)
        return torch.as_tensor((values - facts.shift) / facts.scale).to(self._rows)

    def _bands(self, inputs: Float[Tensor, "n d"], summand: Summand) -> tuple[Array, Array, Array]:
        """Return the mean, and the ends of the interval, at each row."""
        q = self._parts.moments(inputs, [summand])
        mean, width = q.mean[0], self._z * q.deviation[0]
        return mean, mean - width, mean + width

    def _mean(self, inputs: Float[Tensor, "n d"], summand: Summand) -> Array:
        return np.asarray(self._parts.means(inputs, [summand])[0])

    def _grid(self, position: int, points: int) -> Array:
        """Return even points over the range of a column, in the units of the user."""
        values = self._in_units(position, self._rows[:, position])
        low, high = float(values.min()), float(values.max())
        return np.linspace(low, high if high > low else low + 1.0, points)

    def _dates(self, position: int) -> str:
        return "auto" if self._facts(position).unit == "days" else ""

    def _along(
        self, summand: Summand, title: str, position: int, factors: Sequence[Part]
    ) -> list[TermPicture]:
        """Return the curve of a summand of one column; of a season, over a period."""
        seasons = [part for part in factors if isinstance(part, Periodic)]
        if not seasons:
            return [self._curve(summand, title, position, self._grid(position, _POINTS))]
        period = self._period(summand, position)
        if len(factors) == 1:
            (starts, _), dates = self._starts(position, period), self._format(position, period)
            x = starts[1] + np.linspace(0, period, _POINTS)
            curve = self._curve(summand, title, position, x)
            shown = x - starts[1] + (_REFERENCE if dates else 0.0)
            return [
                TermCurve(
                    title,
                    self._target,
                    curve.column if dates else f"{curve.column}, within a period",
                    shown,
                    curve.mean,
                    curve.lower,
                    curve.upper,
                    dates,
                )
            ]
        ends = self._grid(position, 2)
        points = int((ends[1] - ends[0]) / period * _POINTS_OF_PERIOD)
        x = self._grid(position, min(_MOST_POINTS, max(_POINTS, points)))
        return [
            self._curve(summand, title, position, x),
            self._over_periods(summand, title, position, period),
        ]

    def _curve(self, summand: Summand, title: str, position: int, x: Array) -> TermCurve:
        inputs = self._inputs(len(x))
        inputs[:, position] = self._scaled(position, x)
        name = self._facts(position).name
        bands = self._bands(inputs, summand)
        data = self._in_units(position, self._rows[:, position].unique())
        return TermCurve(title, self._target, name, x, *bands, self._dates(position), data)

    def _period(self, summand: Summand, position: int) -> float:
        """Return the period of a season, in the unit of its column."""
        structure = self._parts.structure
        if structure is None:
            return 1.0
        values = structure.natural().values
        (index,) = (
            j
            for j in numbers_of_factors(structure, summand)
            if isinstance(structure.parts[j], Periodic)
        )
        return float(values[index]["period"].mean()) * abs(self._facts(position).scale)

    def _format(self, position: int, period: float) -> str:
        """Return the format of dates within a period; empty for numbers."""
        if not self._dates(position):
            return ""
        formats = [f for days, f in _FORMATS.items() if math.isclose(days, period, rel_tol=1e-3)]
        return formats[0] if formats else ""

    def _starts(self, position: int, period: float) -> tuple[list[float], tuple[str, ...]]:
        """Return the starts of the first, the middle and the last period, and their names."""
        low, high = self._grid(position, 2).tolist()
        last = max(low, high - period)
        dates = self._format(position, period)
        if not self._dates(position):
            names = [f"from {number(x)}" for x in (low, 0.5 * (low + last), last)]
            return [low, 0.5 * (low + last), last], tuple(names)
        starts, texts = [], []
        for x in (low, 0.5 * (low + last), last):
            moment = _EPOCH + timedelta(days=x)
            start = moment
            if dates == "%b":
                start = moment.replace(month=1, day=1, hour=0, minute=0, second=0, microsecond=0)
            elif dates == "%a":
                start = _EPOCH + timedelta(days=math.floor((x + 3) / 7) * 7 - 3)
            elif dates == "%H:%M":
                start = _EPOCH + timedelta(days=math.floor(x))
            starts.append((start - _EPOCH) / timedelta(days=1))
            texts.append(f"{start.year}" if dates == "%b" else f"{start:%Y-%m-%d}")
        return starts, tuple(texts)

    def _over_periods(
        self, summand: Summand, title: str, position: int, period: float
    ) -> TermLines:
        """Return a season over the first, the middle and the last period."""
        starts, names = self._starts(position, period)
        dates = self._format(position, period)
        steps = np.linspace(0, period, _POINTS)
        inputs = self._inputs(len(starts) * _POINTS)
        x = np.concatenate([start + steps for start in starts])
        inputs[:, position] = self._scaled(position, x)
        means = self._mean(inputs, summand).reshape(len(starts), _POINTS)
        different = [i for i, name in enumerate(names) if name not in names[:i]]
        unit = f" ({self._facts(position).unit})" if self._facts(position).unit else ""
        column = self._facts(position).name
        return TermLines(
            title,
            self._target,
            column if dates else f"{column}, within a period{unit}",
            steps + (_REFERENCE if dates else 0.0),
            means[different],
            tuple(names[i] for i in different),
            dates,
        )

    def _levels(self, position: int) -> tuple[Array, list[str]]:
        """Return the levels of a column as inputs, and their names."""
        facts = self._facts(position)
        kinds = self._kinds
        if facts.coded and kinds is not None:
            codes = np.arange(float(facts.num_levels))
            return codes, [kinds.columns[position].shown(code) for code in codes.tolist()]
        scaled = self._rows[:, position].unique()
        names = [number(value, 6) for value in self._in_units(position, scaled).tolist()]
        return scaled.double().cpu().numpy(), names

    def _of_levels(
        self, summand: Summand, title: str, position: int, along: tuple[int, float] | None = None
    ) -> TermLevels:
        """Return the effect of each level; `along` is another column and its scaled value."""
        codes, names = self._levels(position)
        inputs = self._inputs(len(codes))
        inputs[:, position] = torch.as_tensor(codes).to(inputs)
        if along is not None:
            inputs[:, along[0]] = along[1]
        return self._sorted(summand, title, self._facts(position).name, inputs, names)

    def _of_combinations(
        self, summand: Summand, title: str, positions: Sequence[int]
    ) -> TermLevels:
        """Return the effect of each combination of levels that the rows have."""
        own = self._rows[:, positions].unique(dim=0)
        inputs = self._inputs(len(own))
        inputs[:, positions] = own
        known = [
            dict(zip(codes.tolist(), names, strict=True))
            for codes, names in map(self._levels, positions)
        ]
        texts = [
            ", ".join(
                names.get(code, "an unseen level") for names, code in zip(known, row, strict=True)
            )
            for row in own.double().tolist()
        ]
        name = joined([self._facts(j).name for j in positions])
        return self._sorted(summand, title, name, inputs, texts)

    def _sorted(
        self,
        summand: Summand,
        title: str,
        column: str,
        inputs: Float[Tensor, "n d"],
        names: Sequence[str],
    ) -> TermLevels:
        """Return effects with intervals at inputs, sorted by mean, evenly spaced ones of many."""
        mean, lower, upper = self._bands(inputs, summand)
        order = np.argsort(mean, kind="stable")
        among = 0
        if len(order) > MAX_LEVELS:
            among = len(order)
            order = order[np.linspace(0, len(order) - 1, MAX_LEVELS).round().astype(int)]
        levels = tuple(names[i] for i in order)
        bands = mean[order], lower[order], upper[order]
        return TermLevels(title, self._target, column, levels, *bands, among)

    def _by_level(
        self, summand: Summand, title: str, column: int, level: int, factors: Sequence[Part]
    ) -> TermPicture:
        """Return a slope of each level with its interval, or a line of each level."""
        lines = [part for part in factors if isinstance(part, Linear)]
        structure = self._parts.structure
        facts = self._facts(column)
        if len(factors) == 2 and lines and structure is not None:
            numbers = numbers_of_factors(structure, summand)
            index = next(j for j in numbers if isinstance(structure.parts[j], Linear))
            origin = float(structure.natural().values[index]["origin"].reshape(-1)[0])
            step, unit = (_YEAR, "year") if facts.unit == "days" else (1.0, f"unit of {facts.name}")
            picture = self._of_levels(summand, title, level, (column, origin + step / facts.scale))
            target = f"{self._target} per {unit}"
            bands = picture.mean, picture.lower, picture.upper
            return TermLevels(title, target, picture.column, picture.levels, *bands, picture.among)
        codes, names = self._levels(level)
        chosen = np.arange(len(codes))
        if len(codes) > _LINES:
            chosen = np.linspace(0, len(codes) - 1, _LINES).round().astype(int)
        x = self._grid(column, _POINTS)
        inputs = self._inputs(len(chosen) * _POINTS)
        inputs[:, column] = self._scaled(column, np.tile(x, len(chosen)))
        inputs[:, level] = torch.as_tensor(np.repeat(codes[chosen], _POINTS)).to(inputs)
        means = self._mean(inputs, summand).reshape(len(chosen), _POINTS)
        lines_names = tuple(names[i] for i in chosen)
        return TermLines(
            title, self._target, facts.name, x, means, lines_names, self._dates(column)
        )

    def _image(self, summand: Summand, title: str, positions: Sequence[int]) -> TermImage:
        first, second = positions
        x, y = self._grid(first, _SIDE), self._grid(second, _SIDE)
        inputs = self._inputs(_SIDE**2)
        inputs[:, first] = self._scaled(first, np.tile(x, _SIDE))
        inputs[:, second] = self._scaled(second, np.repeat(y, _SIDE))
        mean = self._mean(inputs, summand).reshape(_SIDE, _SIDE)
        data = tuple(self._in_units(j, self._rows[:, j]) for j in positions)
        names = self._facts(first).name, self._facts(second).name
        dates = self._dates(first), self._dates(second)
        return TermImage(title, self._target, names, x, y, mean, (data[0], data[1]), dates)

    def _map(self, summand: Summand, title: str, positions: Sequence[int]) -> TermMap:
        """Return the means at the places of the rows, and a surface over their hull."""
        first, second = positions
        rows, columns = self._grid(first, _SIDE), self._grid(second, _SIDE)
        inputs = self._inputs(_SIDE**2)
        inputs[:, first] = self._scaled(first, np.repeat(rows, _SIDE))
        inputs[:, second] = self._scaled(second, np.tile(columns, _SIDE))
        surface = self._mean(inputs, summand)
        places = np.column_stack([self._in_units(j, self._rows[:, j]) for j in positions])
        grid = np.column_stack([np.repeat(rows, _SIDE), np.tile(columns, _SIDE)])
        surface = np.where(_in_hull(places, grid), surface, np.nan).reshape(_SIDE, _SIDE)
        mean = self._mean(self._rows, summand)
        names = self._facts(first).name, self._facts(second).name
        return TermMap(
            title, self._target, names, places[:, 0], places[:, 1], mean, rows, columns, surface
        )

    def _cloud(self, summand: Summand, title: str, positions: Sequence[int]) -> TermCloud:
        """Return the means at the rows, against the column that explains most of their variance."""
        mean = self._mean(self._rows, summand)
        columns = [self._in_units(j, self._rows[:, j]) for j in positions]
        best = int(np.argmax([_explained(x, mean) for x in columns]))
        position = positions[best]
        name, dates = self._facts(position).name, self._dates(position)
        return TermCloud(title, self._target, name, columns[best], mean, dates)


def _in_hull(places: Float64[np.ndarray, "n 2"], grid: Float64[np.ndarray, "g 2"]) -> Array:
    """Return whether points lie in the hull of places; everywhere if that is a line."""
    try:
        inside: Array = Delaunay(places).find_simplex(grid) >= 0
    except (QhullError, ValueError):
        return np.ones(len(grid), dtype=bool)
    return inside


def _explained(x: Array, values: Array) -> float:
    """Return the variance of the means of values over bins of x with equally many rows."""
    order = np.argsort(x, kind="stable")
    bins = np.array_split(values[order], min(_BINS, len(values)))
    return float(np.var([each.mean() for each in bins]))

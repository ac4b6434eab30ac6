"""Describe the summands of a kernel in words, with parameters in the units of the user."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from directgp.kernels.columns import ColumnFacts
from directgp.kernels.expression import Expression, Product
from directgp.kernels.parts import Additive, Categorical, Group, Linear, Periodic, Sphere
from directgp.kernels.parts.base import Part
from directgp.kernels.parts.sphere import EARTH
from directgp.kernels.parts.stationary import DistancePart, RationalQuadratic
from directgp.kernels.structured import StructuredKernel
from directgp.kernels.summands import Summand, factors_of, numbers_of_factors
from directgp.text import joined, number, plural

_UNITS = (
    ("year", 365.2425),
    ("month", 365.2425 / 12),
    ("week", 7.0),
    ("day", 1.0),
    ("hour", 1 / 24),
    ("minute", 1 / 1440),
    ("second", 1 / 86400),
)
"""Units of time and their days."""

_DECIMAL = ("year", "day", "hour", "minute", "second")
"""Units of times that are not a whole number of a unit."""

_MOST = 24
"""Largest whole number of a unit of time: 252 hours are 10.5 days."""

_NAMED_COLUMNS = 4
"""Largest number of columns that are all named."""

_LENGTHSCALES = 6
"""Largest number of lengthscales that are listed."""


class Description(NamedTuple):
    """A summand in words."""

    name: str
    """What it is: "trend in date"."""

    parameters: str
    """Its main parameters in the units of the user."""

    text: str
    """The expression, with names of columns."""


def in_time(days: float) -> str:
    """Format a time in the largest unit of which it is a whole number, else with decimals.

    Examples
    --------
    >>> in_time(365.2425), in_time(7.0), in_time(0.5), in_time(400.0), in_time(10.5)
    ('1 year', '1 week', '12 hours', '1.1 years', '10.5 days')
    """
    for unit, size in _UNITS:
        count = round(days / size)
        if 1 <= count <= _MOST and math.isclose(count * size, days, rel_tol=1e-9):
            return plural(count, unit)
    for unit, size in _UNITS:
        if unit in _DECIMAL and days >= size:
            return f"{number(days / size)} {unit}s"
    return f"{number(days * 86400)} seconds"


def describe(
    kernel: StructuredKernel,
    summands: Sequence[Summand],
    columns: Sequence[ColumnFacts],
    deviation: float,
) -> list[Description]:
    """Return each summand in words.

    `columns` describe the inputs, and `deviation` is the standard deviation of f under the prior,
    in the units of the user. Summands of equal name get the name of their parts, too.
    """
    words = [_Words(kernel, summand, columns, deviation) for summand in summands]
    names = [each.name() for each in words]
    for specific in (lambda each, i: each.classes(), lambda each, i: str(i + 1)):
        repeated = {name for name in names if names.count(name) > 1}
        names = [
            f"{name} ({specific(each, i)})" if name in repeated else name
            for i, (name, each) in enumerate(zip(names, words, strict=True))
        ]
    return [
        Description(name, each.parameters(), each.text())
        for name, each in zip(names, words, strict=True)
    ]


class _Words:
    """A summand with its parts, columns and values."""

    def __init__(
        self,
        kernel: StructuredKernel,
        summand: Summand,
        columns: Sequence[ColumnFacts],
        deviation: float,
    ) -> None:
        natural = kernel.natural()
        self._columns = columns
        self._effect = summand.effect
        self._parts = factors_of(kernel, summand)
        self._values = [natural.values[j] for j in numbers_of_factors(kernel, summand)]
        share = sum(float(natural.shares[..., term].mean()) for term in summand.terms)
        self._deviation = deviation * math.sqrt(share)

    def name(self) -> str:
        """Return what the summand is."""
        groups = [p for p in self._parts if isinstance(p, Group)]
        categories = [p for p in self._parts if isinstance(p, Categorical)]
        rest = [p for p in self._parts if not isinstance(p, Group | Categorical)]
        if not rest:
            levels = groups + categories
            if len(levels) == 1:
                return f"effect of {self._names(levels)}"
            return f"joint effect of {self._names(levels)}"
        text = self._name_of_product(rest, by_level=bool(groups or categories))
        text += f" by {self._names(categories)}" if categories else ""
        return text + (f" for each {self._names(groups)}" if groups else "")

    def _name_of_product(self, parts: Sequence[Part], by_level: bool) -> str:
        """Return the name of a product of parts that look at numbers."""
        if len(parts) == 1:
            (part,) = parts
            if by_level and isinstance(part, Linear):
                return f"slope of {self._names(parts)}"
            return self._name_of_part(part)
        if self._changing:
            (season,) = (part for part in parts if isinstance(part, Periodic))
            return f"{self._name_of_part(season)}, changing"
        return f"joint effect of {self._names(parts)}"

    def _name_of_part(self, part: Part) -> str:
        """Return the name of a part that looks at numbers."""
        names = self._names([part])
        facts = self._facts(part)
        if isinstance(part, Sphere):
            return "place"
        if isinstance(part, Periodic):
            word = "season" if facts[0].kind == "time" else "cycle"
            return f"{word} of {self._period(part)} in {names}"
        if self._additive_effect and len(facts) == 2:
            return f"interaction of {names}"
        in_time = len(facts) == 1 and facts[0].kind == "time" and not isinstance(part, Additive)
        kind = f"trend in {names}" if in_time else f"effect of {names}"
        return f"linear {kind}" if isinstance(part, Linear) else kind

    def parameters(self) -> str:
        """Return the main parameters of the parts, and the deviation under the prior."""
        texts = [self._own_deviation()]
        for part, values in zip(self._parts, self._values, strict=True):
            texts += self._of_part(part, values)
        return ", ".join(filter(None, texts))

    def classes(self) -> str:
        """Return the names of the parts."""
        return " × ".join(type(part).__name__ for part in self._parts)

    def text(self) -> str:
        """Return the expression with names of columns."""
        if self._additive_effect:
            # With one column each: the product of two effects is their interaction.
            (part,) = self._parts
            parts: list[Expression] = [Additive(fact.name) for fact in self._facts(part)]
        else:
            parts = [
                part.with_columns(tuple(column.name for column in self._facts(part)))
                for part in self._parts
            ]
        return repr(parts[0] if len(parts) == 1 else Product(*parts))

    @property
    def _additive_effect(self) -> bool:
        """Whether the summand is an effect of an Additive part."""
        return bool(self._effect) and isinstance(self._parts[0], Additive)

    @property
    def _changing(self) -> bool:
        """Whether the summand is a season that changes along its own column."""
        seasons = [part for part in self._parts if isinstance(part, Periodic)]
        others = [p for p in self._parts if not isinstance(p, Periodic | Group | Categorical)]
        columns = {c for part in others for c in part.columns}
        return len(seasons) == 1 and columns == {*seasons[0].columns}

    def _facts(self, part: Part) -> list[ColumnFacts]:
        return [self._columns[int(c)] for c in part.columns]

    def _names(self, parts: Sequence[Part]) -> str:
        """Return the names of the columns of parts, each once."""
        names = list(dict.fromkeys(fact.name for part in parts for fact in self._facts(part)))
        if len(names) <= _NAMED_COLUMNS:
            return joined(names)
        shown = names[: _NAMED_COLUMNS - 1]
        return joined([*shown, f"{len(names) - len(shown)} more columns"])

    def _own_deviation(self) -> str:
        """Return the deviation of the summand under the prior, or of its slope."""
        lines = [i for i, part in enumerate(self._parts) if isinstance(part, Linear)]
        effects = [part for part in self._parts if isinstance(part, Additive)]
        deviation = self._deviation
        if len(self._parts) == 1 and self._effect:
            values = self._values[0]
            for k in self._effect:
                deviation *= math.sqrt(float(values["variance"][..., k].mean()))
            if len(self._effect) == 2:
                deviation *= math.sqrt(float(values["pairs"].mean()))
        elif effects:
            return ""
        if not lines:
            return f"sd {number(deviation)}"
        facts = [fact for i in lines for fact in self._facts(self._parts[i])]
        if len(facts) > 1:
            return ""
        (fact,) = facts
        unit = fact.unit.removesuffix("s") if fact.unit == "days" else f"unit of {fact.name}"
        slope = deviation / abs(fact.scale)
        if fact.unit == "days":
            years = dict(_UNITS)["year"]
            slope, unit = slope * years, "year"
        return f"sd of the slope {number(slope)} per {unit}"

    def _of_part(self, part: Part, values: Mapping[str, Tensor]) -> list[str]:
        """Return the parameters of a part."""
        if isinstance(part, Sphere):
            kilometres = float(values["lengthscale"].mean()) * EARTH
            return [f"lengthscale {number(kilometres)} km"]
        if isinstance(part, Categorical):
            if part.rank is not None:
                return [f"correlations of rank {part.rank}"]
            return [f"correlation of two levels {number(float(values['correlation'].mean()), 2)}"]
        if isinstance(part, Periodic):
            smooth = f"lengthscale within the season {number(float(values['lengthscale'].mean()))}"
            return [f"period {self._period(part)}", smooth] if part.period is None else [smooth]
        if isinstance(part, DistancePart | Additive):
            return self._lengthscales(part, values)
        return []

    def _lengthscales(self, part: Part, values: Mapping[str, Tensor]) -> list[str]:
        """Return the lengthscales of a part, of each of its columns."""
        facts = self._facts(part)
        scales = values["lengthscale"].reshape(-1, values["lengthscale"].shape[-1]).mean(0).tolist()
        if self._effect:
            scales = [scales[k] for k in self._effect]
        more = []
        if isinstance(part, RationalQuadratic):
            more = [f"α {number(float(values['alpha'].mean()))}"]
        if len(scales) == 1 and facts[0].coded and len(facts) == 1:
            return [self._correlation(part, scales[0], values), *more]
        if len(scales) == 1:
            word = "changing over" if self._changing else "lengthscale"
            return [f"{word} {_length(scales[0], facts)}", *more]
        pairs = sorted(zip(scales, facts, strict=True), key=lambda pair: pair[0])
        more = [
            f"{fact.name}: {self._correlation(part, scale, values)}"
            for scale, fact in pairs
            if fact.coded
        ] + more
        texts = [f"{fact.name} {_length(s, [fact])}" for s, fact in pairs if not fact.coded]
        if not texts:
            return more
        rest = len(texts) - _LENGTHSCALES
        texts = texts[:_LENGTHSCALES] + ([f"{rest} longer ones"] if rest > 0 else [])
        return [f"lengthscale{'s' * (len(texts) > 1)} {', '.join(texts)}", *more]

    @staticmethod
    def _correlation(part: Part, scale: float, values: Mapping[str, Tensor]) -> str:
        """Return the correlation of two levels that are one lengthscale apart."""
        # A part of one column of numbers has the same covariance at the distance 1.
        one = type(part)("level")
        lengthscale = values["lengthscale"].new_tensor([scale])
        origin = lengthscale.new_zeros(1, 1)
        alpha = {name: v.reshape(-1)[:1] for name, v in values.items() if name == "alpha"}
        K = one.covariance(origin, origin + 1, {"lengthscale": lengthscale, **alpha})
        return f"correlation of two levels {number(float(K), 2)}"

    def _period(self, part: Periodic) -> str:
        """Return the period, as given or trained."""
        (fact,) = self._facts(part)
        values = self._values[next(i for i, own in enumerate(self._parts) if own is part)]
        period = float(values["period"].mean()) * abs(fact.scale)
        return in_time(period) if fact.unit == "days" else number(period)


def _length(scale: float, facts: Sequence[ColumnFacts]) -> str:
    """Return a lengthscale in the unit of its column; of several columns, in their deviations."""
    if len(facts) > 1:
        return f"{number(scale)} standard deviations"
    (fact,) = facts
    length = scale * abs(fact.scale)
    return in_time(length) if fact.unit == "days" else number(length)

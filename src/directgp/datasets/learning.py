"""How the columns of a table will be coded, or why some cannot be used."""

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from directgp.datasets.columns import CategoryColumn, NumberColumn
from directgp.datasets.kinds import kind_of
from directgp.datasets.levels import level_counts
from directgp.datasets.text_advice import look_of
from directgp.datasets.wording import drop_options, listed
from directgp.errors import InvalidInputError, refuse

_FEW_LEVELS = 50
"""As many levels are never too many."""

_ROWS_A_LEVEL = 20
"""More levels need this many rows each."""

_MOST_LEVELS = 500


def learned(table: pa.Table, names: Sequence[str]) -> tuple[NumberColumn | CategoryColumn, ...]:
    """How each column that has more than one value will be coded."""
    _refuse_unusable(table, names)
    columns = [_learn(name, table.column(name)) for name in names]
    kept = tuple(column for column in columns if column is not None)
    counts = Counter(feature for column in kept for feature in column.feature_names)
    twice = [feature for feature, count in counts.items() if count > 1]
    if twice:
        got = f"{listed(twice)} more than once"
        remedy = "Rename the column of that name."
        refuse("Names of features", "different once categories are coded", got, remedy)
    return kept


def _learn(name: str, column: pa.ChunkedArray) -> NumberColumn | CategoryColumn | None:
    if kind_of(column.type) == "number":
        return NumberColumn(name=name) if _varies(column) else None
    counts = level_counts(column)
    _refuse_no_categories(name, counts, len(column))
    if len(counts) < 2:
        return None
    base = min(counts, key=lambda level: (-counts[level], level))
    levels = tuple(sorted(level for level in counts if level != base))
    return CategoryColumn(name=name, base=base, levels=levels)


def _varies(column: pa.ChunkedArray) -> bool:
    # Numbers of 16 bits have no minimum.
    ends = pc.min_max(pc.cast(column, pa.float64(), safe=False)).as_py()
    return bool(ends["min"] != ends["max"])


def _refuse_unusable(table: pa.Table, names: Sequence[str]) -> None:
    kinds = {name: kind_of(table.column(name).type) for name in names}
    times = [name for name in names if kinds[name] == "time"]
    if times:
        raise InvalidInputError(
            f"Columns of dates and times cannot be used as they are: {listed(times)}."
            " Give numbers instead, such as year, month or days since a date,"
            f" or leave {'it' if len(times) == 1 else 'them'} out with {drop_options(times)}."
        )
    others = {name: table.column(name).type for name in names if kinds[name] == "other"}
    for name, kind in others.items():
        allowed, got = "numbers or categories", f"values of type {kind}"
        refuse(f"Column {name!r}", allowed, got, f"Leave it out with {drop_options([name])}.")


def _refuse_no_categories(name: str, counts: dict[str, int], rows: int) -> None:
    look = look_of(counts)
    many = _too_many(len(counts), rows)
    if look and (many or not look.may_be_category):
        got = f"text that looks like {look.name}, such as {next(iter(counts))!r}"
        remedy = f"{look.remedy} Or leave it out with {drop_options([name])}."
        refuse(f"Column {name!r}", "numbers or categories", got, remedy)
    if many:
        raise InvalidInputError(
            f"Column {name!r} must be of categories that recur. Got {len(counts):,} different texts"
            f" in {rows:,} rows, such as {next(iter(counts))!r}, which looks like an identifier or"
            f" free text. Leave it out with {drop_options([name])}."
        )


def _too_many(levels: int, rows: int) -> bool:
    if levels == rows > 2:
        return True
    return levels > _FEW_LEVELS and levels > min(rows / _ROWS_A_LEVEL, _MOST_LEVELS)

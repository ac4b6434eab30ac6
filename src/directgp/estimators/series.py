"""Recognise series, and find the columns by which forecasts and new groups are validated."""

from dataclasses import replace

from directgp.errors import require
from directgp.estimators.preprocessing import TrainingTable
from directgp.estimators.settings import FitSettings
from directgp.registry import ColumnKind

_DISTINCT = 0.9
"""Share of rows with different times from which a table is a series."""

_MIN_ROWS = 20
"""Smallest number of rows of a series."""


def with_validation(settings: FitSettings, table: TrainingTable) -> FitSettings:
    """Return the settings with forecasts to validate a series, where that is left open."""
    if settings.validation != "auto":
        return settings
    return replace(settings, validation="forward" if is_series(settings, table) else "random")


def is_series(settings: FitSettings, table: TrainingTable) -> bool:
    """Return whether the rows are one for each time, in a column of times: a series.

    Rows of one time for each of many people or shops are not one.
    """
    kinds = settings.column_kinds
    times = [] if kinds is None else [j for j, c in enumerate(kinds.columns) if c.kind == "time"]
    n = len(table.X)
    if len(times) != 1 or n < _MIN_ROWS:
        return False
    return len(table.X[:, times[0]].unique()) >= _DISTINCT * n


def column_of_kind(settings: FitSettings, kind: ColumnKind) -> int:
    """Return the first column of a kind; raise if there is none."""
    kinds = settings.column_kinds
    columns = () if kinds is None else kinds.columns
    places = [j for j, column in enumerate(columns) if column.kind == kind]
    way = "forward" if kind == "time" else "groups"
    allowed = f"{way!r} only with a column of kind {kind!r}"
    remedy = f"Give columns={{name: {kind!r}}}."
    require(len(places) > 0, "validation", allowed, "none", remedy)
    return places[0]

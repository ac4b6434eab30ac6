"""Read the columns of a table of pandas, polars or pyarrow, or of an array, one at a time.

None of these libraries is imported: a table brings its own methods.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import cached_property
from numbers import Real
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from directgp.estimators.validation import is_missing

TypeKind = Literal["number", "time", "category", "other"]
"""Kind of a column by the types of its values; "other" for durations, lists and the like."""

MICROSECONDS = "datetime64[us]"
"""Type of dates and times, in UTC: it holds every year that Python has."""

_KIND_OF_CODE: dict[str, TypeKind] = {
    "b": "number",
    "i": "number",
    "u": "number",
    "f": "number",
    "M": "time",
    "U": "category",
    "m": "other",
    "c": "other",
}
"""Kinds by the code of a dtype of NumPy."""


class TableColumn(ABC):
    """A column of a table, or of an array of two dimensions."""

    name: Any
    """Name as the user has it; of an array the number of the column."""

    @property
    @abstractmethod
    def type_kind(self) -> TypeKind:
        """Kind by the type of the column."""

    @property
    @abstractmethod
    def values(self) -> NDArray[Any]:
        """The values as numbers, as `MICROSECONDS`, or as objects; None or NaN for gaps."""


@final
@dataclass(frozen=True, eq=False)
class PandasColumn(TableColumn):
    """A column of a DataFrame of pandas."""

    name: Any
    """Name as the user has it."""

    series: Any
    """The column."""

    @cached_property
    @override
    def type_kind(self) -> TypeKind:
        dtype = self.series.dtype
        if type(dtype).__name__ == "CategoricalDtype":
            return "category"
        return _KIND_OF_CODE.get(dtype.kind) or kind_of_values(self.values)

    @cached_property
    @override
    def values(self) -> NDArray[Any]:
        series = self.series
        if type(series.dtype).__name__ == "PeriodDtype":
            series = series.dt.to_timestamp()
        dtype = series.dtype
        if dtype.kind == "M":
            return _times_of_pandas(series)
        if isinstance(dtype, np.dtype):
            return np.asarray(series.to_numpy())
        if dtype.kind in "biuf":
            plain = getattr(dtype, "numpy_dtype", None) or getattr(dtype, "subtype", np.float64)
            if not series.isna().any():
                return np.asarray(series.to_numpy(dtype=plain))
            if dtype.kind == "f":
                return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
        return np.asarray(series.to_numpy(dtype=object))


def _times_of_pandas(series: Any) -> NDArray[Any]:
    """Return times in UTC."""
    try:
        return np.asarray(series.to_numpy(dtype=MICROSECONDS))
    except (TypeError, ValueError):
        # Dates of pyarrow are objects in pandas.
        return np.asarray(series.to_numpy(dtype=object))


@final
@dataclass(frozen=True, eq=False)
class PolarsColumn(TableColumn):
    """A column of a DataFrame of polars."""

    name: str
    """Name of the column."""

    series: Any
    """The column."""

    @cached_property
    @override
    def type_kind(self) -> TypeKind:
        dtype = self.series.dtype
        name = str(dtype).partition("(")[0]
        if dtype.is_numeric() or name == "Boolean":
            return "number"
        if name in ("Date", "Datetime"):
            return "time"
        if name in ("Categorical", "Enum", "String", "Utf8"):
            return "category"
        return kind_of_values(self.values) if name == "Object" else "other"

    @cached_property
    @override
    def values(self) -> NDArray[Any]:
        return _in_microseconds(self.series.to_numpy())


@final
@dataclass(frozen=True, eq=False)
class ArrowColumn(TableColumn):
    """A column of a table of pyarrow."""

    name: str
    """Name of the column."""

    column: Any
    """The chunks of the column."""

    @cached_property
    @override
    def type_kind(self) -> TypeKind:
        name = str(self.column.type)
        if name.startswith(("int", "uint", "float", "halffloat", "double", "decimal", "bool")):
            return "number"
        if name.startswith(("date", "timestamp")):
            return "time"
        if name.startswith(("string", "large_string", "dictionary")):
            return "category"
        return "other"

    @cached_property
    @override
    def values(self) -> NDArray[Any]:
        column = self.column
        if str(column.type).startswith("dictionary"):
            # `to_numpy` takes a gap among the codes for the last level.
            column = column.cast(column.type.value_type)
        return _in_microseconds(column.to_numpy())


@final
@dataclass(frozen=True, eq=False)
class ArrayColumn(TableColumn):
    """A column of an array."""

    name: int
    """Number of the column."""

    array: NDArray[Any]
    """The column."""

    @cached_property
    @override
    def type_kind(self) -> TypeKind:
        return _KIND_OF_CODE.get(self.array.dtype.kind) or kind_of_values(self.array)

    @cached_property
    @override
    def values(self) -> NDArray[Any]:
        return _in_microseconds(self.array)


def columns_of_frame(X: Any) -> list[TableColumn] | None:
    """Return the columns of a table of pandas, polars or pyarrow; None for any other object."""
    if hasattr(X, "iloc") and hasattr(X, "dtypes") and hasattr(X, "columns"):
        return [PandasColumn(name, X.iloc[:, j]) for j, name in enumerate(X.columns)]
    if hasattr(X, "get_column") and hasattr(X, "columns"):
        return [PolarsColumn(name, X.get_column(name)) for name in X.columns]
    if hasattr(X, "column_names") and hasattr(X, "column"):
        return [ArrowColumn(name, X.column(j)) for j, name in enumerate(X.column_names)]
    return None


def columns_of_array(X: NDArray[Any]) -> list[TableColumn]:
    """Return the columns of an array of two dimensions."""
    return [ArrayColumn(j, column) for j, column in enumerate(X.T)]


def kind_of_values(values: NDArray[Any]) -> TypeKind:
    """Return the kind of a column of objects; a column of text and numbers has categories."""
    types = {type(value) for value in values.tolist() if not is_missing(value)}
    if all(issubclass(kind, Real | Decimal | np.bool_) for kind in types):
        return "number"
    if all(issubclass(kind, date | np.datetime64) for kind in types):
        return "time"
    words = (str, Real, Decimal, np.bool_)
    return "category" if all(issubclass(kind, words) for kind in types) else "other"


def _in_microseconds(values: NDArray[Any]) -> NDArray[Any]:
    """Return times of any unit as `MICROSECONDS`; other values as they are."""
    return values.astype(MICROSECONDS) if values.dtype.kind == "M" else values

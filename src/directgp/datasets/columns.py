"""Columns of a table as they enter the features: numbers, and categories with dummies."""

from typing import Annotated, Any, Literal, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from directgp.datasets.kinds import kind_of
from directgp.datasets.text_advice import look_of
from directgp.datasets.wording import listed, several
from directgp.errors import refuse

Features = NDArray[np.float64]
"""Part of the features, of shape (n, width), all 0 before it is filled."""


@final
class NumberColumn(BaseModel):
    """A column of numbers, used as it is."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    kind: Literal["number"] = "number"
    name: str

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The name of the column."""
        return (self.name,)

    def fill(self, column: pa.ChunkedArray, features: Features) -> None:
        """Write the values to the features."""
        if kind_of(column.type) != "number":
            self._refuse(column)
        for start, chunk in _pieces(column):
            # Not checked for precision: whole numbers beyond 2⁵³ are rounded.
            values = pc.cast(chunk, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
            features[start : start + len(chunk), 0] = values
        self._check_finite(features[:, 0])

    def _check_finite(self, values: NDArray[np.float64]) -> None:
        infinite = np.flatnonzero(~np.isfinite(values))
        if len(infinite):
            got = f"{values[infinite[0]]:g} in {several(len(infinite), 'row')}"
            refuse(f"Column {self.name!r}", "finite", got, "Correct or remove these rows.")

    def _refuse(self, column: pa.ChunkedArray) -> None:
        if kind_of(column.type) != "category":
            refuse(
                f"Column {self.name!r}", "numbers, as in training", f"values of type {column.type}"
            )
        values = [str(value) for value in column.unique().to_pylist()]
        look = look_of(values)
        remedy = f"These look like {look.name}. {look.remedy}" if look else ""
        got = f"text, such as {_stranger(values)!r}"
        refuse(f"Column {self.name!r}", "numbers, as in training", got, remedy)


@final
class CategoryColumn(BaseModel):
    """A column of L categories, coded by L − 1 columns of 0 and 1."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    kind: Literal["category"] = "category"
    name: str

    base: str
    """The level whose columns are all 0: the most frequent one."""

    levels: tuple[str, ...]
    """The other levels, each with a column that is 1 where it occurs."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Such as ``sex=M``."""
        return tuple(f"{self.name}={level}" for level in self.levels)

    def fill(self, column: pa.ChunkedArray, features: Features) -> None:
        """Write the dummies to the features, where they are still 0."""
        if kind_of(column.type) not in ("number", "category"):
            got = f"values of type {column.type}"
            refuse(f"Column {self.name!r}", "categories, as in training", got)
        known = pa.array([self.base, *self.levels], pa.string())
        for start, chunk in _pieces(column):
            level = pc.index_in(pc.cast(chunk, pa.string()), value_set=known)
            if level.null_count:
                self._refuse_unknown(column, known)
            level = level.to_numpy(zero_copy_only=False)
            rows = np.flatnonzero(level)
            features[start + rows, level[rows] - 1] = 1.0

    def _refuse_unknown(self, column: pa.ChunkedArray, known: pa.Array) -> None:
        text = pc.cast(column, pa.string())
        unknown = text.filter(pc.invert(pc.is_in(text, value_set=known)))
        first = unknown[0].as_py()
        others = len(unknown.unique()) - 1
        got = f"{first!r} in {several(int(pc.sum(pc.equal(unknown, first)).as_py()), 'row')}"
        got += f", and {several(others, 'other new level')}" if others else ""
        allowed = f"of the levels seen in training, {listed(sorted(known.to_pylist()), most=12)}"
        remedy = "Correct or remove these rows, or train again with such rows."
        refuse(f"Column {self.name!r}", allowed, got, remedy)


Column = Annotated[NumberColumn | CategoryColumn, Field(discriminator="kind")]


def _pieces(column: pa.ChunkedArray) -> Any:
    """The chunks of the column, each with the number of rows before it."""
    start = 0
    for chunk in column.chunks:
        yield start, chunk
        start += len(chunk)


def _stranger(values: list[str]) -> str:
    """The first value that is no number."""
    for value in values:
        try:
            float(value)
        except ValueError:
            return value
    return values[0]

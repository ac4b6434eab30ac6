"""What turns the columns of a table into features: learned once, then the same for new tables."""

from collections.abc import Collection
from typing import final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from directgp.datasets.columns import Column
from directgp.datasets.learning import learned
from directgp.datasets.missing import refuse_missing
from directgp.datasets.wording import suggestion
from directgp.errors import InvalidInputError


@final
class Encoding(BaseModel):
    """What turns the columns of a table into features.

    Examples
    --------
    >>> import pyarrow as pa
    >>> table = pa.table({"size": [3.0, 1.0, 2.0], "sex": ["F", "M", "F"]})
    >>> encoding = Encoding.learn(table, exclude=[])
    >>> encoding.feature_names
    ('size', 'sex=M')
    >>> encoding.apply(table).tolist()
    [[3.0, 0.0], [1.0, 1.0], [2.0, 0.0]]
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    columns: tuple[Column, ...]

    @classmethod
    def learn(cls, table: pa.Table, exclude: Collection[str]) -> "Encoding":
        """From a table without missing values, with all its columns but those excluded.

        A column that has one value only is left out.
        """
        names = [name for name in table.column_names if name not in exclude]
        return cls(columns=learned(table, names))

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns that a table has to have."""
        return tuple(column.name for column in self.columns)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One a column of the features."""
        return tuple(name for column in self.columns for name in column.feature_names)

    def apply(self, table: pa.Table) -> NDArray[np.float64]:
        """The features of a table, of shape (n, d).

        Columns are found by name, wherever they stand; others are not looked at.
        """
        for name in self.column_names:
            if name not in table.column_names:
                raise InvalidInputError(
                    f"The table must have all columns used in training. Got no {name!r}."
                    f" {suggestion(name, table.column_names, 'Its columns')}"
                )
        refuse_missing(table, self.column_names, "Leave out these rows with --drop-missing.")
        features = np.zeros((table.num_rows, len(self.feature_names)))
        start = 0
        for column in self.columns:
            width = len(column.feature_names)
            column.fill(table.column(column.name), features[:, start : start + width])
            start += width
        return features

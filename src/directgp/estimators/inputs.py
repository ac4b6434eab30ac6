"""Read the features X that users pass: check them, and encode columns that are not numbers."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray
from sklearn.utils.validation import check_array, validate_data

from directgp.estimators import validation
from directgp.estimators.column_kinds import ColumnKinds, require_different
from directgp.estimators.table_columns import columns_of_array, columns_of_frame


@final
@dataclass(frozen=True, eq=False)
class EncodedRows:
    """Rows that are encoded already, such as those of a curve; methods take them as X."""

    values: Float64[np.ndarray, "n d"]
    """Numbers, dates as days, and codes of levels."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows and of columns."""
        return self.values.shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the numbers, for functions that take arrays."""
        return np.array(self.values, dtype=dtype, copy=copy)


def read_inputs(
    estimator: Any,
    X: Any,
    who: str,
    reset: bool = False,
    min_rows: int = 1,
    gaps: bool = False,
) -> Float64[np.ndarray, "n d"]:
    """Return X as finite float64, encoded; raise if `fit` had other features.

    With `reset` the kinds of the columns are learned, and kept as `columns_`. With `gaps`, NaN is
    allowed.
    """
    if isinstance(X, EncodedRows):
        return X.values
    X = validation.plain_array(X)
    given = estimator.columns
    kinds: ColumnKinds | None = getattr(estimator, "columns_", None)
    frame = columns_of_frame(X) if reset or kinds is not None else None
    checks = {"ensure_all_finite": False, "ensure_min_samples": min_rows}
    if reset:
        kinds = None
        if frame is not None:
            kinds = ColumnKinds.learned(frame, given, who, named=True, gaps=gaps)
        elif not isinstance(given, str) and given:
            array = _objects(estimator, X, reset, checks)
            kinds = ColumnKinds.learned(columns_of_array(array), given, who, named=False, gaps=gaps)
        estimator.columns_ = kinds
    if kinds is None:
        return validation.finite_inputs(estimator, X, who, reset, min_rows, gaps)
    if frame is None:
        table = columns_of_array(_objects(estimator, X, reset, checks))
    else:
        require_different([str(column.name) for column in frame], who)
        validate_data(estimator, X, reset=reset, skip_check_array=True)
        table = frame
    values = kinds.encoded(table, who, gaps)
    inputs: Float64[np.ndarray, "n d"] = check_array(
        values, estimator=estimator, input_name="X", dtype=np.float64, **checks
    )
    filled = np.where(np.isnan(inputs), 0.0, inputs) if gaps else inputs
    names = [column.name for column in kinds.columns]
    validation.check_finite("X", filled, who, None if frame is None else names)
    return inputs


def _objects(estimator: Any, X: Any, reset: bool, checks: dict[str, Any]) -> Any:
    """Return a checked array; the values of lists keep their types."""
    dtype = None if hasattr(X, "dtype") else object
    return validate_data(estimator, X, reset=reset, dtype=dtype, **checks)

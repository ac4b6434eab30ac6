"""Columns of X that hold no numbers, refused by name."""

from typing import Any, NoReturn

import numpy as np

from directgp.errors import InvalidInputError, refuse

_ENCODE = "Encode it first (sklearn.compose.ColumnTransformer, OneHotEncoder)."


def refuse_times(X: Any, who: str) -> None:
    """Refuse dates and times, which would count in units that nobody chose."""
    for j, kind in enumerate(getattr(X, "dtypes", [getattr(X, "dtype", None)])):
        if _is_temporal(kind):
            remedy = "Turn times into numbers, such as days since a date."
            refuse(f"X of {who}", "numbers", f"times ({kind}) in column {_name(X, j)}", remedy)


def explain(error: Exception, X: Any, who: str) -> NoReturn:
    """Raise what came of converting X, with the column that holds no numbers if there is one."""
    for j in range(X.shape[1] if len(getattr(X, "shape", ())) == 2 else 0):
        strange = _not_a_number(X[:, j] if isinstance(X, np.ndarray) else _column(X, j))
        if strange is not None:
            raise InvalidInputError(
                f"X of {who} must be numbers: {error}. Got {strange!r} in column {_name(X, j)}. "
                f"{_ENCODE}"
            ) from error
    raise error


def _is_temporal(kind: Any) -> bool:
    """Of a dtype of numpy, pandas or polars."""
    temporal = getattr(kind, "is_temporal", None)
    return bool(temporal()) if callable(temporal) else getattr(kind, "kind", "") in tuple("mM")


def _name(X: Any, j: int) -> str:
    return repr(str(X.columns[j])) if hasattr(X, "columns") else str(j)


def _column(X: Any, j: int) -> Any:
    return X[X.columns[j]] if hasattr(X, "columns") else ()


def _not_a_number(column: Any) -> str | None:
    """The first string in a column."""
    return next((value for value in np.asarray(column).tolist() if isinstance(value, str)), None)

"""Columns of X that hold no numbers, refused by name."""

from collections import Counter
from typing import Any, NoReturn

import numpy as np

from directgp.errors import InvalidInputError, refuse

_ENCODE = "Encode it first (sklearn.compose.ColumnTransformer, OneHotEncoder)."


def refuse_times(X: Any, who: str) -> None:
    """Refuse dates and times, which would count in units that nobody chose."""
    kinds = X.dtypes if _is_frame(X) else [getattr(X, "dtype", None)]
    for j, kind in enumerate(kinds):
        if _is_temporal(kind):
            remedy = "Turn times into numbers, such as days since a date."
            refuse(f"X of {who}", "numbers", f"times ({kind}) in column {_name(X, j)}", remedy)


def explain(error: Exception, X: Any, who: str) -> NoReturn:
    """Raise what came of converting X, with the column that is the reason if there is one."""
    names = [str(name) for name in X.columns] if _is_frame(X) else []
    if len(set(names)) < len(names):
        name, number = Counter(names).most_common(1)[0]
        raise InvalidInputError(
            f"X of {who} must be of columns with different names. Got {number} of name {name!r}. "
            "Rename or drop them."
        ) from error
    for j in range(X.shape[1] if len(getattr(X, "shape", ())) == 2 else 0):
        strange = _not_a_number(X[:, j] if isinstance(X, np.ndarray) else _column(X, j))
        if strange is not None:
            raise InvalidInputError(
                f"X of {who} must be numbers: {error}. Got {strange!r} in column {_name(X, j)}. "
                f"{_ENCODE}"
            ) from error
    raise error


def _is_frame(X: Any) -> bool:
    """Of pandas or polars; a series has one dtype, and no columns."""
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def _is_temporal(kind: Any) -> bool:
    """Of a dtype of numpy, pandas or polars."""
    temporal = getattr(kind, "is_temporal", None)
    return bool(temporal()) if callable(temporal) else getattr(kind, "kind", "") in tuple("mM")


def _name(X: Any, j: int) -> str:
    return repr(str(X.columns[j])) if _is_frame(X) else str(j)


def _column(X: Any, j: int) -> Any:
    return X[X.columns[j]] if _is_frame(X) else ()


def _not_a_number(column: Any) -> str | None:
    """The first string in a column."""
    return next((value for value in np.asarray(column).tolist() if isinstance(value, str)), None)

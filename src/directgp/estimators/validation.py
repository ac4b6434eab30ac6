"""Raise `InputError` for data that cannot be trained on."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from jaxtyping import Bool, Float64, Num, Shaped
from sklearn.utils._missing import is_pandas_na
from sklearn.utils.validation import _check_sample_weight, validate_data

from directgp.errors import InvalidInputError, refuse, require

if TYPE_CHECKING:
    from numpy.typing import ArrayLike as ArrayLike

    ValidationData = Sequence[ArrayLike]
else:
    # At run time any object is accepted here: the checks below raise errors of our own.
    ArrayLike = ValidationData = Any


# Rows and columns count from 0. The words of scikit-learn, by which its users and its own checks
# know an error, come first where it has some.


FeatureNames = Sequence[str] | Shaped[np.ndarray, " d"]

_MOST_NAMED = 5
"""Classes that an error names."""


def check_finite_inputs(
    X: Num[np.ndarray, "n d"], feature_names: FeatureNames | None, who: str
) -> None:
    """Refuse NaN and infinity, naming row and column; `who` is such as "SparseGPRegressor.fit"."""

    def place(row: int, column: int) -> str:
        named = column if feature_names is None else repr(str(feature_names[column]))
        return f"row {row}, column {named}"

    remedy = "Drop or impute these rows (sklearn.impute.SimpleImputer) first."
    _check_finite("X", X, place, who, remedy)


def finite_inputs(
    estimator: Any, X: Any, who: str, reset: bool, min_rows: int
) -> Float64[np.ndarray, "n d"]:
    """Return X as finite float64; raise if its features are not those of `fit`."""
    refuse_times(X, who)
    try:
        inputs: Float64[np.ndarray, "n d"] = validate_data(
            estimator,
            X,
            reset=reset,
            dtype=np.float64,
            ensure_all_finite=False,
            ensure_min_samples=min_rows,
        )
    except (TypeError, ValueError) as error:
        explain(error, X, who)
    check_finite_inputs(inputs, getattr(estimator, "feature_names_in_", None), who)
    return inputs


def numbers(y: Shaped[np.ndarray, " n"], who: str) -> Float64[np.ndarray, " n"]:
    """The targets in float64, refused where they are no numbers."""
    if y.dtype.kind in "biuf":
        return y.astype(np.float64)
    check_no_gaps(y, who)
    strange = [each for each in y.tolist() if not isinstance(each, Real | Decimal)]
    if strange:
        remedy = "For labels take SparseGPClassifier."
        refuse(f"y of {who}", "numbers", f"{strange[0]!r}", remedy)
    return np.asarray(y.tolist(), dtype=np.float64)


def plain_labels(y: Shaped[np.ndarray, " n"], who: str) -> Shaped[np.ndarray, " n"]:
    """The labels, numbers as such; refused where some are missing or of different types."""
    check_no_gaps(y, who)
    return _of_one_type(y, f"y of {who}")


def _of_one_type(labels: Shaped[np.ndarray, " n"], name: str) -> Shaped[np.ndarray, " n"]:
    """The labels, refused unless all are strings or all numbers."""
    if labels.dtype.kind != "O":
        return labels
    values = labels.tolist()
    if all(isinstance(value, str) for value in values):
        return labels
    if all(isinstance(value, Real) for value in values):
        return np.asarray(values)
    kinds = ", ".join(sorted({type(value).__name__ for value in values}))
    refuse(name, "labels of one type, strings or numbers", kinds, "Convert them first.")


def check_no_gaps(y: Shaped[np.ndarray, " n"], who: str) -> None:
    """Refuse targets of any type that are missing or not finite, naming the row."""
    if y.dtype.kind == "f":
        check_finite_target(y, who)
    if y.dtype.kind == "O":
        gaps = np.array([_is_missing(value) for value in y.tolist()], dtype=bool)
        check_finite_target(np.where(gaps, np.nan, 0.0), who)


def _is_missing(value: Any) -> bool:
    """Of None, NaN, NaT and pandas' NA, which is not even unequal to itself."""
    return value is None or is_pandas_na(value) or bool(value != value)


def with_stand_ins(
    y: Shaped[np.ndarray, " n"], weights: Float64[np.ndarray, " n"] | None, who: str
) -> Shaped[np.ndarray, " n"]:
    """The targets, one that counts in place of each of weight 0, whatever that one is."""
    check_no_gaps(y, who)
    if weights is None:
        return y
    counts = weights > 0
    return np.where(counts, y, y[np.argmax(counts)])


def check_finite_target(y: Num[np.ndarray, " n"], who: str) -> None:
    """Refuse NaN and infinity, naming the row."""
    _check_finite("y", y, "row {}".format, who, "Drop these rows first.")


def check_counts(y: Num[np.ndarray, " n"], who: str) -> None:
    """Refuse what is negative or not whole."""
    remedy = "For real-valued targets take SparseGPRegressor"
    _require_rows(y >= 0, y, f"y of {who}", "counts, 0, 1, 2, …", f"{remedy}.")
    remedy = f"{remedy}; for rates give the counts, and exposure= what they are counted over."
    _require_rows(y == np.floor(y), y, f"y of {who}", "counts, 0, 1, 2, …", remedy)


def check_two_classes(classes: Shaped[np.ndarray, " c"], who: str) -> None:
    """Refuse classes, each given once, that are not two; `who` is "SparseGPClassifier.fit"."""
    number = len(classes)
    named = ", ".join(map(repr, classes[:_MOST_NAMED].tolist()))
    if number > 2:
        estimator = who.split(".")[0]
        more = ", …" if number > _MOST_NAMED else ""
        raise InvalidInputError(
            "Only binary classification is supported. The type of the target is multiclass. "
            f"{who} got {number} classes: {named}{more}. "
            f"Use sklearn.multiclass.OneVsRestClassifier({estimator}())."
        )
    require(
        number == 2,
        f"y of {who}",
        "of two classes",
        f"one class, {named}" if number else "no class",
        "Look at how the rows were chosen, and at their weights: rows of weight 0 do not count. "
        "Where rows come in parts, partial_fit takes both classes as classes=.",
    )


def declared_classes(
    classes: ArrayLike, before: Shaped[np.ndarray, " c"] | None, who: str
) -> Shaped[np.ndarray, " c"]:
    """The two classes that a user names, sorted; those from before, and refused if not equal."""
    values = np.asarray(classes).ravel()
    for value in filter(_is_missing, values.tolist()):
        refuse(who, "labels, none of them missing", repr(value))
    found = np.unique(_of_one_type(values, who))
    named = ", ".join(map(repr, found[:_MOST_NAMED].tolist()))
    require(len(found) == 2, who, "two", f"{len(found)}: {named}")
    if before is not None:
        first = ", ".join(map(repr, before.tolist()))
        require(np.array_equal(found, before), who, f"those of the first call, {first}", named)
    return found if before is None else before


def check_exposure(exposure: ArrayLike, n: int, who: str) -> Float64[np.ndarray, " {n}"]:
    """The exposures in float64, refused unless there is a positive, finite one for each row."""
    name = f"exposure of {who}"
    try:
        values = np.asarray(exposure, dtype=np.float64)
    except (TypeError, ValueError):
        refuse(name, "numbers", f"a {type(exposure).__name__} of something else")
    require(values.shape == (n,), name, f"of shape ({n},)", f"shape {values.shape}")
    remedy = "Rows without exposure say nothing; drop them."
    _require_rows(np.isfinite(values) & (values > 0), values, name, "positive and finite", remedy)
    return values


def check_sample_weight(
    sample_weight: ArrayLike | None, X: Num[np.ndarray, "n d"], who: str
) -> Float64[np.ndarray, " n"] | None:
    """The weights in float64, refused unless finite, at least 0 and somewhere positive."""
    if sample_weight is None:
        return None
    weights: Float64[np.ndarray, " n"] = _check_sample_weight(sample_weight, X, dtype=np.float64)
    name = f"sample_weight of {who}"
    _require_rows(weights >= 0, weights, name, "at least 0")
    with np.errstate(over="ignore"):
        total = float(weights.sum())
    remedy = "Weights matter relative to each other and to 1, that of one row."
    require(total > 0, name, "positive somewhere", "a weight of zero for every row", remedy)
    require(total < np.inf, name, "of a finite sum", "an infinite one", remedy)
    return weights


@contextmanager
def about(what: str) -> Iterator[None]:
    """Say what it is that scikit-learn refuses."""
    try:
        yield
    except InvalidInputError:
        raise
    except ValueError as error:
        raise InvalidInputError(f"{what}. {error}") from error


def check_rows_with_weight(weights: Float64[np.ndarray, " n"] | None, least: int, who: str) -> None:
    """Refuse weights that leave too few rows, as if the others had not been there."""
    if weights is not None:
        number = int(np.count_nonzero(weights))
        allowed = f"positive in {least} rows at least"
        require(number >= least, f"sample_weight of {who}", allowed, f"{number} such rows")


def check_parts(values: Any, number: int, name: str, allowed: str) -> None:
    """Refuse what is not a tuple of so many parts."""
    parts = len(values) if isinstance(values, tuple | list) else None
    got = f"{type(values).__name__}" if parts is None else f"{parts} parts"
    require(parts == number, name, f"a tuple {allowed}", got)


def check_whole(value: Any, least: int, name: str) -> None:
    """Refuse what is no integer, or too small a one."""
    whole = isinstance(value, int | np.integer) and int(value) >= least
    require(whole, name, f"an integer of at least {least}", repr(value))


def checked_levels(levels: Any, who: str) -> list[float]:
    """Levels of quantiles, one or a list, each between 0 and 1."""
    name, allowed = f"levels of {who}", "between 0 and 1, ends excluded"
    try:
        values = np.atleast_1d(np.asarray(levels, dtype=np.float64))
    except (TypeError, ValueError):
        refuse(name, "numbers", repr(levels))
    require(values.ndim == 1, name, "a number or a list of numbers", f"shape {values.shape}")
    for value in values.tolist():
        require(0 < value < 1, name, allowed, value)
    found: list[float] = values.tolist()
    return found


def _check_finite(
    name: str, values: Num[np.ndarray, "..."], place: Callable[..., str], who: str, remedy: str
) -> None:
    kinds = {"NaN": np.isnan, "infinity or a value too large for dtype('float64')": np.isinf}
    for kind, is_bad in kinds.items():
        bad = np.argwhere(is_bad(values))
        if len(bad):
            count = f"{len(bad)} of them, the first" if len(bad) > 1 else "one,"
            raise InvalidInputError(
                f"Input {name} contains {kind}. "
                f"{who} got {count} in {place(*bad[0].tolist())}. {remedy}"
            )


def _require_rows(
    allowed: Bool[np.ndarray, " n"],
    values: Num[np.ndarray, " n"],
    who: str,
    what: str,
    remedy: str = "",
) -> None:
    """Refuse the first value that is not allowed, naming its row."""
    bad = np.flatnonzero(~allowed)
    if len(bad):
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        refuse(who, what, f"{values[bad[0]].item()!r} in row {bad[0]}{more}", remedy)


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

"""Validate the data that users pass to the estimators.

Rows and columns count from 0. A message starts with the words of scikit-learn where it has some,
because its users and its estimator checks know an error by them.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import torch
from jaxtyping import Bool, Float64, Num, Shaped
from sklearn.utils._missing import is_pandas_na
from sklearn.utils.validation import _check_sample_weight, validate_data

from directgp.errors import InvalidInputError, refuse, require
from directgp.registry import LARGEST, MAX_COUNT, ROW_CONSTANTS

if TYPE_CHECKING:
    from numpy.typing import ArrayLike as ArrayLike

    ValidationData = Sequence[ArrayLike]
else:
    # At run time any object is accepted here: the checks below raise errors of our own.
    ArrayLike = ValidationData = Any


FeatureNames = Sequence[str] | Shaped[np.ndarray, " d"]
Numbers = Float64[np.ndarray, " n"]
Labels = Shaped[np.ndarray, " n"]

_MAX_CLASSES = 5
"""Classes that an error lists."""

_TOO_LARGE = f"a value beyond ±{LARGEST:g}"

_REMEDIES = {
    ("X", _TOO_LARGE): "Give this column in another unit.",
    ("y", _TOO_LARGE): "Give y in another unit.",
    ("X", "NaN"): "Fit with missing='impute', or drop these rows first.",
    ("y", "NaN"): "Drop these rows first.",
}


def plain_array(values: Any) -> Any:
    """Return a tensor as an array, without its gradient; anything else as it is."""
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values


def finite_inputs(
    estimator: Any,
    X: Any,
    who: str,
    reset: bool = False,
    min_rows: int = 1,
    gaps: bool = False,
) -> Float64[np.ndarray, "n d"]:
    """Return X as finite float64; raise if `fit` had other features.

    With `gaps`, NaN is allowed.
    """
    X = plain_array(X)
    _check_no_times(X, who)
    try:
        checks = {"ensure_all_finite": False, "ensure_min_samples": min_rows}
        inputs: Float64[np.ndarray, "n d"] = validate_data(
            estimator, X, reset=reset, dtype=np.float64, **checks
        )
    except (TypeError, ValueError) as error:
        raise_with_column(error, X, who)
    filled = np.where(np.isnan(inputs), 0.0, inputs) if gaps else inputs
    check_finite("X", filled, who, getattr(estimator, "feature_names_in_", None))
    return inputs


def check_finite(
    name: str, values: Num[np.ndarray, "..."], who: str, feature_names: FeatureNames | None = None
) -> None:
    """Raise `InvalidInputError` for NaN, infinity and huge values, with the first place of them."""
    kinds: dict[str, Callable[[Any], Any]] = {
        "NaN": np.isnan,
        "infinity or a value too large for dtype('float64')": np.isinf,
        _TOO_LARGE: lambda values: np.abs(values) > LARGEST,
    }
    for kind, is_bad in kinds.items():
        bad = np.argwhere(is_bad(values))
        if len(bad):
            row, *columns = bad[0].tolist()
            named = columns if feature_names is None else [repr(str(feature_names[columns[0]]))]
            place = ", column ".join(map(str, (row, *named)))
            count = f"{len(bad)} of them, the first" if len(bad) > 1 else "one,"
            remedy = _REMEDIES.get((name, kind), "Correct or drop these rows first.")
            rule = f"Input {name} contains {kind}."
            error = InvalidInputError(f"{rule} {who} got {count} in row {place}. {remedy}")
            error.rule = rule
            raise error


def numbers(y: Labels, who: str) -> Numbers:
    """Return the targets as finite float64; raise `InvalidInputError` if some are no numbers."""
    check_no_gaps(y, who)
    if y.dtype.kind not in "biuf":
        for value in y.tolist():
            if not isinstance(value, Real | Decimal):
                remedy = "Use SparseGPClassifier for labels."
                refuse(f"y of {who}", "numbers", repr(value), remedy)
    values = np.asarray(y.tolist() if y.dtype.kind == "O" else y, dtype=np.float64)
    check_finite("y", values, who)
    return values


def check_counts(y: Num[np.ndarray, " n"], who: str) -> None:
    """Raise `InvalidInputError` for values that are negative or not integers."""
    remedy = "Use SparseGPRegressor for real-valued targets"
    _require_rows(y >= 0, y, f"y of {who}", "counts, 0, 1, 2, …", f"{remedy}.")
    remedy = f"{remedy}; for rates give the counts as y and their exposure as exposure=."
    _require_rows(y == np.floor(y), y, f"y of {who}", "counts, 0, 1, 2, …", remedy)
    _require_rows(y <= MAX_COUNT, y, f"y of {who}", f"counts up to {MAX_COUNT:,}", remedy)


def plain_labels(y: Labels, who: str) -> Labels:
    """Return the labels; raise `InvalidInputError` if some are missing or types are mixed."""
    check_no_gaps(y, who)
    return _of_one_type(y, f"y of {who}")


def check_no_gaps(y: Labels, who: str) -> None:
    """Raise `InvalidInputError` for targets of any type that are missing or not finite."""
    if y.dtype.kind == "f":
        check_finite("y", y, who)
    if y.dtype.kind == "O":
        check_finite("y", np.where(gaps(y), np.nan, 0.0), who)


def gaps(y: Labels) -> Bool[np.ndarray, " n"]:
    """Return which targets of any type are missing."""
    if y.dtype.kind == "f":
        return np.asarray(np.isnan(y))
    return np.array([y.dtype.kind == "O" and is_missing(value) for value in y.tolist()], dtype=bool)


def _of_one_type(labels: Labels, name: str) -> Labels:
    if labels.dtype.kind != "O":
        return labels
    values = labels.tolist()
    if all(isinstance(value, str) for value in values):
        return labels
    if all(isinstance(value, Real) for value in values):
        return np.asarray(values)
    kinds = ", ".join(sorted({type(value).__name__ for value in values}))
    refuse(name, "labels of one type, strings or numbers", kinds, "Convert them first.")


def is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, NaT or pandas' NA (which is not unequal to itself)."""
    return value is None or is_pandas_na(value) or bool(value != value)


def check_classes(classes: Shaped[np.ndarray, " c"], who: str) -> None:
    """Raise `InvalidInputError` if there are fewer than two different classes."""
    number = len(classes)
    got = f"one class, {classes.tolist()[0]!r}" if number else "no class"
    remedy = (
        "Check how the rows were selected, and their weights: rows of weight 0 do not count. If "
        "rows come in parts, give all classes to partial_fit as classes=."
    )
    require(number >= 2, f"y of {who}", "of at least two classes", got, remedy)


def declared_classes(
    classes: ArrayLike, before: Shaped[np.ndarray, " c"] | None, who: str
) -> Shaped[np.ndarray, " c"]:
    """Return the user's classes, sorted; raise if an earlier call had other classes."""
    # As objects: an array of text would turn NaN into the label 'nan'.
    for value in filter(is_missing, np.asarray(classes, dtype=object).ravel().tolist()):
        refuse(who, "labels, none of them missing", repr(value))
    values = np.asarray(classes).ravel()
    labels = np.unique(_of_one_type(values, who))
    named = ", ".join(map(repr, labels[:_MAX_CLASSES].tolist()))
    require(len(labels) >= 2, who, "at least two", f"{len(labels)}: {named}")
    if before is not None:
        first = ", ".join(map(repr, before.tolist()))
        require(np.array_equal(labels, before), who, f"those of the first call, {first}", named)
    return labels if before is None else before


class RowValues(NamedTuple):
    """A constant of each row, and the argument by which it was given."""

    argument: str
    """A name in `ROW_CONSTANTS`."""

    values: Any
    """One number for each row."""

    def checked(self, n: int, who: str) -> "RowValues":
        """Return the values in float64; raise unless each row has an allowed one."""
        name = f"{self.argument} of {who}"
        constant = ROW_CONSTANTS[self.argument]
        try:
            values = np.asarray(plain_array(self.values), dtype=np.float64)
        except (TypeError, ValueError):
            got = f"a {type(self.values).__name__} with values that are not numbers"
            refuse(name, "numbers", got)
        require(values.shape == (n,), name, f"of shape ({n},)", f"shape {values.shape}")
        remedy = f"Drop rows without {self.argument}."
        _require_rows(constant.valid(values), values, name, constant.allowed, remedy)
        return RowValues(self.argument, values)

    def take(self, rows: Any) -> "RowValues":
        """Return the values of the rows that a mask or an index selects."""
        return RowValues(self.argument, self.values[rows])


def row_values(who: str, **arguments: ArrayLike | None) -> RowValues | None:
    """Return the row values, the argument that is not None; raise if there are two."""
    constants = [
        RowValues(name, values) for name, values in arguments.items() if values is not None
    ]
    names = " and ".join(constant.argument for constant in constants)
    require(len(constants) < 2, f"{names} of {who}", "given one at a time", "all of them")
    return constants[0] if constants else None


def check_sample_weight(
    sample_weight: ArrayLike | None, X: Num[np.ndarray, "n d"], who: str, min_rows: int = 1
) -> Numbers | None:
    """Return the weights in float64; raise unless they are ≥ 0, and > 0 in `min_rows` rows."""
    if sample_weight is None:
        return None
    with explained(f"sample_weight of {who} cannot be used"):
        weights: Numbers = _check_sample_weight(plain_array(sample_weight), X, dtype=np.float64)
    name = f"sample_weight of {who}"
    _require_rows(weights >= 0, weights, name, "at least 0")
    with np.errstate(over="ignore"):
        total = float(weights.sum())
    remedy = "A weight is a number of rows: 2 counts as two equal rows."
    require(total > 0, name, "positive somewhere", "a weight of zero for every row", remedy)
    require(total <= LARGEST, name, f"of a sum up to {LARGEST:g}", f"{total:g}", remedy)
    number = int(np.count_nonzero(weights))
    allowed = f"positive in at least {min_rows} rows"
    require(number >= min_rows, name, allowed, f"{number} such rows")
    return weights


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Put `what` before the errors that scikit-learn raises."""
    try:
        yield
    except InvalidInputError:
        raise
    except ValueError as error:
        raise InvalidInputError(f"{what}. {error}") from error


def check_whole(value: Any, least: int, name: str) -> None:
    """Raise `InvalidInputError` unless the value is an integer of at least `least`."""
    whole = isinstance(value, int | np.integer) and int(value) >= least
    require(whole, name, f"an integer of at least {least}", repr(value))


def check_shares(shares: Any, name: str) -> list[float]:
    """Return one or more probabilities as a list; raise unless they lie between 0 and 1."""
    try:
        values = np.atleast_1d(np.asarray(shares, dtype=np.float64))
    except (TypeError, ValueError):
        refuse(name, "numbers", repr(shares))
    require(values.ndim == 1, name, "a number or a list of numbers", f"shape {values.shape}")
    probabilities: list[float] = values.tolist()
    for probability in probabilities:
        require(0 < probability < 1, name, "between 0 and 1, ends excluded", probability)
    return probabilities


def _require_rows(
    good: Bool[np.ndarray, " n"], y: Num[np.ndarray, " n"], who: str, what: str, remedy: str = ""
) -> None:
    """Raise `InvalidInputError` with the first value that is not good."""
    bad = np.flatnonzero(~good)
    if len(bad):
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        refuse(who, what, f"{y[bad[0]].item()!r} in row {bad[0]}{more}", remedy)


def _check_no_times(X: Any, who: str) -> None:
    """Raise `InvalidInputError` for dates and times, whose unit as numbers is arbitrary."""
    for j, kind in enumerate(X.dtypes if is_frame(X) else [getattr(X, "dtype", None)]):
        # polars has a method; dtypes of numpy and pandas have a kind.
        is_temporal = getattr(kind, "is_temporal", None)
        if is_temporal() if is_temporal else getattr(kind, "kind", "") in ("m", "M"):
            remedy = "Convert times to numbers, such as days since a date."
            got = f"times ({kind}) in column {name_of_column(X, j)}"
            refuse(f"X of {who}", "numbers", got, remedy)


def raise_with_column(error: Exception, X: Any, who: str) -> NoReturn:
    """Raise the error of scikit-learn, with the column that is the cause if there is one."""
    names = [str(name) for name in X.columns] if is_frame(X) else []
    if len(set(names)) < len(names):
        name, number = Counter(names).most_common(1)[0]
        raise InvalidInputError(
            f"X of {who} must be of columns with different names. Got {number} of name {name!r}. "
            "Rename or drop them."
        ) from error
    table = X.T if isinstance(X, np.ndarray) and X.ndim == 2 else ()
    for j, column in enumerate((X[name] for name in X.columns) if names else table):
        for value in np.asarray(column).tolist():
            if isinstance(value, str):
                raise InvalidInputError(
                    f"X of {who} must be numbers: {error}. Got {value!r} in column "
                    f"{name_of_column(X, j)}. Encode it first (sklearn.compose.ColumnTransformer, "
                    "OneHotEncoder)."
                ) from error
    raise error


def is_frame(X: Any) -> bool:
    """Return whether X is a table of pandas or polars; a series has no columns."""
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def name_of_column(X: Any, j: int) -> str:
    """Return the name of a column in quotes, or its number."""
    return repr(str(X.columns[j])) if is_frame(X) else str(j)

"""Fit and predict several outputs: each has a model of its own, over the same inputs.

Outputs are independent given the inputs. NaN in y is a missing value, left out for its output.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np
from jaxtyping import Bool, Float64
from sklearn.utils import _safe_indexing, check_consistent_length, check_random_state

from directgp.errors import DirectGPError, InvalidInputError, UnsupportedError, require
from directgp.estimators import validation
from directgp.estimators.column_kinds import ColumnKinds
from directgp.estimators.inputs import read_inputs
from directgp.estimators.messages import OUTPUT
from directgp.estimators.validation import RowValues
from directgp.registry import ROW_CONSTANTS
from directgp.training.result import Status

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Method = Callable[Concatenate[Any, Arguments], Result]


class Targets(NamedTuple):
    """Targets of several outputs, one column each; NaN where one is missing."""

    values: Float64[np.ndarray, "n P"]
    """Targets as numbers."""

    names: tuple[str, ...] | None
    """The names of the columns of a table."""

    @classmethod
    def checked(cls, y: Any, who: str, fitted: Any = None) -> "Targets":
        """Return finite float64 or NaN; raise unless the fitted model has the same columns."""
        names = tuple(map(str, y.columns)) if validation.is_frame(y) else None
        table = np.asarray(validation.plain_array(y))
        if fitted is not None:
            number = len(fitted.outputs_)
            allowed = f"of shape (n, {number}), a column for each output"
            fits = table.ndim == 2 and table.shape[1] == number
            require(fits, f"y of {who}", allowed, f"shape {table.shape}")
            names_of_fit = getattr(fitted, "output_names_", None)
            if names is not None and names_of_fit is not None:
                require(
                    names == names_of_fit,
                    f"columns of y of {who}",
                    f"{names_of_fit}, as in fit",
                    names,
                )
        if table.dtype.kind == "f":
            validation.check_finite("y", np.where(np.isnan(table), 0, table), who, names)
        columns = []
        for column in table.T:
            missing = validation.gaps(column)
            values = validation.numbers(np.where(missing, 0, column), who)
            columns.append(np.where(missing, np.nan, values))
        return cls(np.stack(columns, axis=1), names)

    def counted(self, weights: Float64[np.ndarray, " n"] | None) -> Bool[np.ndarray, "n P"]:
        """Return which targets are present in rows of positive weight."""
        present: Bool[np.ndarray, "n P"] = ~np.isnan(self.values)
        if weights is not None:
            present &= (weights > 0)[:, None]
        return present


def named(names: Sequence[str] | None, k: int) -> str:
    """Return the name of an output in quotes, or its number."""
    return str(k) if names is None else repr(names[k])


class OutputCall(NamedTuple):
    """A call of one output: its model, the rows with a target, and the arguments for these rows."""

    model: Any
    """The fitted model of the output."""

    rows: Bool[np.ndarray, " n"] | None
    """None for all rows."""

    arguments: dict[str, Any]
    """Arguments of the method, for these rows."""

    @property
    def has_rows(self) -> bool:
        """Whether the output has a target in some row; otherwise it has no result."""
        return self.rows is None or bool(self.rows.any())


def calls_of(model: Any, method: str, arguments: dict[str, Any]) -> list[OutputCall]:
    """Return a call of the method for each output, with the rows and arguments of this output."""
    who = model._who(method)
    members = model.outputs_
    constants = {
        name: _column_of(arguments[name], name, who, len(members), _rows_of(arguments["X"]))
        for name in ROW_CONSTANTS
        if arguments.get(name) is not None
    }
    if arguments.get("random_state") is not None:
        # One source of random numbers: draws of two outputs are independent.
        arguments = arguments | {"random_state": check_random_state(arguments["random_state"])}
    if "y" not in arguments:
        return [
            OutputCall(member, None, arguments | {name: at(k) for name, at in constants.items()})
            for k, member in enumerate(members)
        ]
    targets = Targets.checked(arguments["y"], who, model)
    X = arguments["X"]
    gaps = members[0].scalings_.imputation is not None
    inputs = read_inputs(model, X, who, gaps=gaps)
    check_consistent_length(inputs, targets.values)
    weights = validation.check_sample_weight(arguments.get("sample_weight"), inputs, who)
    counted = targets.counted(weights)
    calls = []
    for k, member in enumerate(members):
        rows = counted[:, k]
        shares = {"X": _taken(model, X, inputs, rows), "y": targets.values[rows, k]}
        if weights is not None:
            shares["sample_weight"] = weights[rows]
        shares |= {name: at(k)[rows] for name, at in constants.items()}
        calls.append(OutputCall(member, rows, arguments | shares))
    return calls


def _column_of(values: Any, name: str, who: str, number: int, rows: int) -> Callable[[int], Any]:
    """Return a function from the number of an output to its row values.

    They are a column of the table, or the only column for all outputs.
    """
    table = np.asarray(values)
    fits = table.shape in ((rows,), (rows, number))
    allowed = f"of shape ({rows},) or ({rows}, {number})"
    require(fits, f"{name} of {who}", allowed, f"shape {table.shape}")
    return lambda k: table[:, k] if table.ndim == 2 else table


def _rows_of(X: Any) -> int:
    return int(X.shape[0]) if hasattr(X, "shape") else len(X)


def _taken(
    model: Any, X: Any, inputs: Float64[np.ndarray, "n d"], rows: Bool[np.ndarray, " n"]
) -> Any:
    """Return the chosen rows of X: of the table if it has names, else of the checked numbers.

    With levels it is X itself: each output has codes of its own.
    """
    raw = validation.is_frame(X) or model.columns_ is not None
    return _safe_indexing(validation.plain_array(X) if raw else inputs, np.flatnonzero(rows))


# Methods of a fitted model

Join = Callable[[Sequence[OutputCall], Sequence[OutputCall], Sequence[Any]], Any]
"""Joins the results of a method: takes all calls, the calls that were made, and their results."""


def columns(calls: Sequence[OutputCall], made: Sequence[OutputCall], results: Sequence[Any]) -> Any:
    """Return arrays with the outputs along axis 1, NaN where y is missing."""
    if isinstance(results[0], tuple):
        return tuple(columns(calls, made, values) for values in zip(*results, strict=True))
    shapes = {values.shape[1:] for values in results}
    if len(shapes) > 1:
        raise UnsupportedError(
            "The outputs have different numbers of latent functions. Use those of each output: "
            "model.outputs_[k]."
        )
    results_of = {id(call): values for call, values in zip(made, results, strict=True)}
    columns_of_outputs = []
    for call in calls:
        values: Any = results_of.get(id(call))
        if call.rows is not None:
            column = np.full((len(call.rows), *results[0].shape[1:]), np.nan)
            if values is not None:
                column[call.rows] = values
            values = column
        columns_of_outputs.append(values)
    return np.stack(columns_of_outputs, axis=1)


def average(
    calls: Sequence[OutputCall], made: Sequence[OutputCall], results: Sequence[Any]
) -> float:
    """Return the mean over outputs that have targets, each with the same weight."""
    return float(np.mean(results))


def over_outputs(
    join: Join | None,
) -> Callable[[Method[Arguments, Result]], Method[Arguments, Result]]:
    """Apply a method to each output of a model that has several, and join the results.

    With None, the method is for a single output, and raises `UnsupportedError` for several.
    """

    def decorate(method: Method[Arguments, Result]) -> Method[Arguments, Result]:
        signature = inspect.signature(method)

        @wraps(method)
        def called(model: Any, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            if "outputs_" not in vars(model):
                return method(model, *args, **kwargs)
            name = method.__name__
            if join is None:
                raise UnsupportedError(
                    f"{model._who(name)} is for one output, and this model has "
                    f"{len(model.outputs_)}. Use model.outputs_[k].{name}(…)."
                )
            bound = signature.bind(model, *args, **kwargs)
            _, *arguments = bound.arguments.items()
            calls = calls_of(model, name, dict(arguments))
            made = [call for call in calls if call.has_rows]
            if not made:
                who = f"y of {model._who(name)}"
                raise InvalidInputError(
                    f"{who} must have at least one value. Got only missing values."
                )
            results = [getattr(call.model, name)(**call.arguments) for call in made]
            joined: Result = join(calls, made, results)
            return joined

        return called

    return decorate


# Training


def fit_outputs(
    model: Any,
    method: str,
    X: Any,
    y: Any,
    sample_weight: Any,
    validation_data: Any = None,
    row_values: RowValues | None = None,
) -> None:
    """Fit a model of each output on the rows with its target, or update the existing models."""
    who = model._who(method)
    before = vars(model).get("outputs_")
    model._check_parameters()
    update = method == "partial_fit" and before is not None
    continues = update or (before is not None and bool(model.warm_start))
    targets = Targets.checked(y, who, model if continues else None)
    min_rows = 1 if update else 2
    gaps = model.missing == "impute"
    inputs = read_inputs(model, X, who, not continues, min_rows, gaps)
    check_consistent_length(inputs, targets.values)
    weights = validation.check_sample_weight(sample_weight, inputs, who, min_rows)
    counted = targets.counted(weights)
    number = targets.values.shape[1]
    constants = {}
    if row_values is not None:
        name, values = row_values
        constants = {name: _column_of(values, name, who, number, len(inputs))}
    for k in range(0 if update else number):
        count = int(counted[:, k].sum())
        who_k = f"column {named(targets.names, k)} of y of {who}"
        remedy = "Drop it, or give more rows."
        allowed = f"one with at least {min_rows} values"
        require(count >= min_rows, who_k, allowed, f"{count}", remedy)
    examples = _validation_parts(model, validation_data, who, number)
    members = []
    params = model.get_params(deep=False)
    for k in range(number):
        # Attributes of a copy are replaced, so that `model` is as it was after an error.
        member = copy.copy(before[k]) if continues and before else type(model)()
        member.set_params(**params)
        rows = counted[:, k]
        if rows.any():
            if model.time_budget is not None:
                member.time_budget = model.time_budget / number
            arguments = {name: at(k)[rows] for name, at in constants.items()}
            if validation_data is not None:
                arguments["validation_data"] = examples[k]
            weights_of_rows = None if weights is None else weights[rows]
            with _naming(named(targets.names, k)):
                getattr(member, method)(
                    _taken(model, X, inputs, rows),
                    targets.values[rows, k],
                    weights_of_rows,
                    **arguments,
                )
            member.time_budget = model.time_budget
            if member.training_result_.status is Status.INTERRUPTED:
                # Raise: the remaining outputs would still be trained.
                raise KeyboardInterrupt
        members.append(member)
    names = targets.names or (getattr(model, "output_names_", None) if continues else None)
    hold(model, members, names)


def hold(model: Any, members: Sequence[Any], names: Sequence[str] | None) -> None:
    """Set the fitted models of single outputs as the outputs of a model."""
    attributes = {*model.get_params(deep=False), "n_features_in_", "feature_names_in_"}
    for name in vars(model).keys() - attributes:
        delattr(model, name)
    model.outputs_ = list(members)
    model.columns_ = ColumnKinds.joined(getattr(member, "columns_", None) for member in members)
    if names is not None:
        model.output_names_ = tuple(names)
    model.findings_ = tuple(
        f"Output {named(names, k)}: {text}"
        for k, member in enumerate(members)
        for text in member.findings_
    )


def _validation_parts(model: Any, validation_data: Any, who: str, number: int) -> list[Any]:
    """Return the validation examples of each output.

    An object that is not a tuple of validation data is returned for each; their fits raise.
    """
    if not isinstance(validation_data, tuple | list) or len(validation_data) not in (2, 3):
        return [validation_data] * number
    who = f"{who}, validation_data"
    shape = np.shape(validation_data[1])
    fits = len(shape) == 2 and shape[1] == number
    require(fits, f"y of {who}", f"of shape (m, {number})", f"shape {shape}")
    targets = Targets.checked(validation_data[1], who)
    with validation.explained(f"{who} cannot be used"):
        inputs = read_inputs(model, validation_data[0], who, gaps=model.missing == "impute")
        check_consistent_length(inputs, targets.values)
    rest = [
        _column_of(values, "row values", who, number, len(inputs)) for values in validation_data[2:]
    ]
    examples = []
    for k in range(number):
        rows = ~np.isnan(targets.values[:, k])
        name = f"column {named(targets.names, k)} of y of {who}"
        require(bool(rows.any()), name, "one with values", "none")
        inputs_and_targets = (
            _taken(model, validation_data[0], inputs, rows),
            targets.values[rows, k],
        )
        examples.append((*inputs_and_targets, *(at(k)[rows] for at in rest)))
    return examples


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Name the output in the errors and warnings of its fit."""
    token = OUTPUT.set(name)
    try:
        yield
    except DirectGPError as error:
        error.add_note(f"This is output {name} of y; rows where it is missing are not counted.")
        raise
    finally:
        OUTPUT.reset(token)

"""Which columns are read, and what their types must be."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, final

import pyarrow as pa

from directgp.datasets.kinds import kind_of
from directgp.datasets.wording import listed, refuse_name
from directgp.errors import refuse, require


@final
@dataclass(frozen=True)
class Columns:
    """The columns that are read."""

    features: tuple[str, ...]
    target: str
    weights: str | None
    positive: Any
    """The value of the target that is class 1; None for a target of numbers."""

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        weights = () if self.weights is None else (self.weights,)
        return (*self.features, self.target, *weights)

    def check(self, schema: pa.Schema, path: str) -> None:
        """Refuse a file that lacks one of the columns, or has it as something else."""
        for name in self.names:
            _check_name(name, schema, path)
        for name in self.names:
            if name != self.target:
                _check_number(f"Column {name!r}", schema.field(name).type, path, _CODE)
        self._check_target(schema.field(self.target).type, path)

    def _check_target(self, kind: pa.DataType, path: str) -> None:
        who = f"The target {self.target!r}"
        if self.positive is None:
            _check_number(who, kind, path, "Give positive=, the value that is class 1.")
        elif kind_of(kind) not in ("number", "category"):
            refuse(who, "classes", f"values of type {kind} in {path!r}", "Name another target.")
        else:
            positive_scalar(self.positive, kind, self.target)


def chosen_columns(
    schema: pa.Schema,
    path: str,
    target: str,
    features: Sequence[str] | None,
    weights: str | None,
    positive: object,
) -> Columns:
    """The columns that the user means: as features, where none are named, all other numbers."""
    if features is None:
        others = [field for field in schema if field.name not in (target, weights)]
        chosen = tuple(field.name for field in others if kind_of(field.type) == "number")
    else:
        remedy = "Put a single name in a list."
        require(not isinstance(features, str), "features", "a list of names", features, remedy)
        chosen = tuple(features)
    columns = Columns(chosen, target, weights, positive)
    columns.check(schema, path)
    _check_features(columns, path)
    return columns


def positive_scalar(positive: object, kind: pa.DataType, target: str) -> pa.Scalar:
    """The value that is class 1, in the type of the target."""
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    try:
        scalar = pa.scalar(positive, plain)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        _refuse_positive(positive, plain, target)
    if pa.types.is_integer(plain) and scalar.as_py() != positive:
        _refuse_positive(positive, plain, target)
    return scalar


_CODE = "Leave it out of features, or write it to the files as numbers."


def _check_name(name: str, schema: pa.Schema, path: str) -> None:
    number = schema.names.count(name)
    if not number:
        refuse_name(f"A column asked of {path!r}", name, schema.names)
    if number > 1:
        got = f"{number} of the name {name!r} in {path!r}"
        refuse("Columns that are used", "of different names", got, "Rename or remove them.")


def _check_number(who: str, kind: pa.DataType, path: str, remedy: str) -> None:
    if kind_of(kind) != "number":
        refuse(who, "numbers", f"values of type {kind} in {path!r}", remedy)


def _check_features(columns: Columns, path: str) -> None:
    if not columns.features:
        got = f"none beside the target {columns.target!r} in {path!r}"
        refuse("Features", "at least one column of numbers", got, "Add columns of numbers.")
    twice = sorted({name for name in columns.names if columns.names.count(name) > 1})
    if twice:
        remedy = "Name each column once, as a feature, the target or the weights."
        refuse("Columns", "used once", f"{listed(twice)} more than once", remedy)


def _refuse_positive(positive: object, kind: pa.DataType, target: str) -> NoReturn:
    allowed = f"a value of the target {target!r}, of type {kind}"
    refuse("positive", allowed, f"{positive!r} of type {type(positive).__name__}")

"""The two classes of a target, and which of them is class 1."""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from directgp.datasets.kinds import kind_of
from directgp.datasets.levels import level_counts
from directgp.datasets.wording import counted, listed, suggestion
from directgp.errors import InvalidInputError, refuse

_YES = {"true", "t", "yes", "y", "positive", "pos"}


def labels(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """The class of each row as text: ``0`` and ``1`` for numbers, whatever their type."""
    if kind_of(column.type) not in ("number", "category"):
        got = f"values of type {column.type}"
        refuse(f"The target {name!r}", "classes", got, "Name another target.")
    if pa.types.is_floating(column.type):
        # −0 is no class beside 0.
        column = pc.add(pc.cast(column, pa.float64()), 0.0)
    return pc.cast(column, pa.string())


def two_classes(
    counts: Mapping[str, int], name: str, positive: str | None, *, numbers: bool
) -> tuple[str, str]:
    """Names of class 0 and of class 1, given how often each label occurs.

    Class 1 is what is positive, where that is given. Else it is the label that means yes, the
    larger number, or the last in the order of the alphabet.
    """
    if len(counts) < 2:
        got = f"{listed(counts)} in every row"
        refuse(f"The target {name!r}", "of two classes", got, "Name another target.")
    if positive is not None:
        return _against_the_rest(list(counts), positive)
    if len(counts) > 2:
        raise InvalidInputError(
            f"The target {name!r} must be of two classes. Got {len(counts):,}:"
            f" {listed(sorted(counts))}. Give --positive LABEL to predict one class against the"
            " rest."
        )
    zero, one = sorted(counts, key=lambda label: (_means_yes(label), _size(label, numbers), label))
    return zero, one


def _against_the_rest(found: list[str], positive: str) -> tuple[str, str]:
    if positive not in found:
        remedy = suggestion(positive, sorted(found), "The classes")
        refuse("The positive class", "a class of the target", repr(positive), remedy)
    others = [label for label in found if label != positive]
    return others[0] if len(others) == 1 else f"not {positive}", positive


def refuse_other_labels(text: pa.ChunkedArray, name: str, classes: tuple[str, str]) -> None:
    """Refuse labels that were not seen in training, unless all others are class 0."""
    if classes[0] == f"not {classes[1]}":
        return
    known = pc.is_in(text, value_set=pa.array(classes))
    others = level_counts(text.filter(pc.invert(known)))
    if others:
        got = f"other labels with their counts: {counted(others)}"
        remedy = "Correct or remove these rows."
        refuse(f"The target {name!r}", f"of the classes {listed(classes)}", got, remedy)


def _means_yes(label: str) -> bool:
    return label.strip().casefold() in _YES


def _size(label: str, numbers: bool) -> float:
    return float(label) if numbers and label not in ("true", "false") else 0.0

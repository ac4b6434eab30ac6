"""Read the options --columns and --kernel: kinds of columns, and kernels of them."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn, get_args

from directgp.cli.terminal import WrongUsageError
from directgp.errors import InvalidInputError
from directgp.registry import ColumnKind, KernelName
from directgp.text import did_you_mean, joined, listed, suggestion

if TYPE_CHECKING:
    from directgp.datasets.encoding import Encoding
    from directgp.kernels import Expression
    from directgp.kernels.expression import Leaf

KINDS: tuple[ColumnKind, ...] = get_args(ColumnKind)
"""Kinds of columns."""

_KERNELS: tuple[str, ...] = ("auto", *get_args(KernelName))
"""Names of kernels."""


def kinds_of(texts: Sequence[str] | None, column_names: Collection[str]) -> dict[str, ColumnKind]:
    """Return kinds of columns that were given as ``name=kind``, one by one or with commas.

    A known name may have commas or equals signs if it is given by an option of its own.
    """
    pairs = [
        pair
        for text in texts or ()
        for pair in ([text] if text.rpartition("=")[0] in column_names else text.split(","))
        if pair.strip()
    ]
    kinds: dict[str, ColumnKind] = {}
    for pair in pairs:
        name, equals, kind = pair.rpartition("=")
        name = name if name in column_names else name.strip()
        kind = kind.strip()
        if not equals or not name:
            raise WrongUsageError(
                f"--columns must have pairs such as date=time. Got {pair!r}. Give a name with"
                " commas by a --columns of its own."
            )
        chosen = next((known for known in KINDS if known == kind), None)
        if chosen is None:
            remedy = did_you_mean(kind, KINDS) or f"The kinds are {listed(KINDS)}."
            raise WrongUsageError(
                f"The kind of {name!r} in --columns must be {joined(KINDS, 'or')}. Got {kind!r}."
                f" {remedy}"
            )
        if name not in column_names:
            remedy = suggestion(name, column_names, "Its columns")
            raise WrongUsageError(
                f"--columns must name columns of the table. Got {name!r}. {remedy}"
            )
        if kinds.setdefault(name, chosen) != chosen:
            raise WrongUsageError(
                f"--columns must give one kind to each column. Got {kinds[name]} and {chosen} for"
                f" {name!r}. Leave one out."
            )
    return kinds


def check_kernel(text: str, ard: bool | None) -> None:
    """Raise `WrongUsageError` unless this is the name of a kernel, or an expression without ARD."""
    if "(" not in text:
        if text not in _KERNELS:
            remedy = did_you_mean(text, _KERNELS)
            raise WrongUsageError(
                f"--kernel must be {joined(_KERNELS, 'or')}, or an expression such as"
                f' \'RBF("x") + Group("shop")\'. Got {text!r}. {remedy}'.rstrip()
            )
        return
    if ard is not None:
        option = "--ard" if ard else "--no-ard"
        raise WrongUsageError(
            f"{option} must be given with the name of a kernel only. Got {text!r}. Leave it out, or"
            f" set ard={ard} in the parts."
        )
    with _kernel_errors():
        _parsed(text)


def kinds_in_kernel(text: str) -> dict[str, ColumnKind]:
    """Return the kinds of columns that follow from a kernel: levels, and dates.

    Columns of `Group` and `Categorical` that no other part names have levels. A column with a
    period such as "1y" has dates.
    """
    if "(" not in text:
        return {}
    from directgp.kernels import Categorical, Group, Periodic

    kinds: dict[str, ColumnKind] = {}
    others: set[str] = set()
    for leaf in _parsed(text).leaves():
        names = [column for column in leaf.columns if isinstance(column, str)]
        if isinstance(leaf, Group | Categorical):
            use: ColumnKind = "group" if isinstance(leaf, Group) else "category"
            for name in names:
                kinds.setdefault(name, use)
        else:
            others |= {*names}
            if isinstance(leaf, Periodic) and isinstance(leaf.period, str):
                kinds |= dict.fromkeys(names, "time")
    return {name: kind for name, kind in kinds.items() if kind == "time" or name not in others}


def check_kernel_names(text: str, column_names: Collection[str]) -> None:
    """Raise `WrongUsageError` for a name in a kernel that no column or feature can have.

    Features of a column have names such as ``kind=b`` and ``size missing``.
    """
    if "(" not in text:
        return
    for leaf in _parsed(text).leaves():
        for name in leaf.columns:
            if not isinstance(name, str):
                continue
            stem = name.rpartition("=")[0] or name.removesuffix(" missing")
            if name not in column_names and stem not in column_names:
                _refuse_column(leaf, name, column_names)


def check_kernel_columns(text: str, encoding: "Encoding", imputed: bool) -> None:
    """Raise `WrongUsageError` unless the parts of a kernel can look at the columns they name."""
    if "(" not in text:
        return
    from directgp.datasets.encoding import LevelColumn, TimeColumn
    from directgp.kernels import ColumnFacts
    from directgp.kernels.parts.base import Part
    from directgp.kernels.structured import placed_columns

    facts = [
        ColumnFacts(
            name,
            kind,
            unit="days" if isinstance(column, TimeColumn) and column.dates else "",
            num_levels=len(column.levels) if isinstance(column, LevelColumn) else 0,
        )
        for column in encoding.columns
        for name, kind in column.kinds.items()
    ]
    if imputed:
        # The estimator adds a column for gaps.
        facts += [ColumnFacts(f"{fact.name} missing") for fact in facts if not fact.coded]
    expression = _parsed(text)
    for leaf in expression.leaves():
        _check_features(leaf, encoding, {fact.name for fact in facts})
    with _kernel_errors():
        for leaf in placed_columns(expression, facts).leaves():
            if isinstance(leaf, Part):
                leaf.check([facts[int(column)] for column in leaf.columns])


def _check_features(leaf: "Leaf", encoding: "Encoding", names: Collection[str]) -> None:
    """Raise `WrongUsageError` for a column that is no feature."""
    for name in leaf.columns:
        if not isinstance(name, str) or name in names:
            continue
        column = next((c for c in encoding.columns if c.name == name), None)
        if column is None:
            _refuse_column(leaf, name, encoding.feature_names)
        features = listed(column.feature_names)
        raise WrongUsageError(
            f"--kernel: columns of {type(leaf).__name__} must be features. Got {name!r}, which is"
            f" encoded as columns of 0 and 1: {features}. Use Categorical or Group for it, or"
            f" --columns {name}=number."
        )


def _refuse_column(leaf: "Leaf", name: str, names: Collection[str]) -> NoReturn:
    remedy = suggestion(name, names, "They are")
    raise WrongUsageError(
        f"--kernel: columns of {type(leaf).__name__} must be columns to predict from."
        f" Got {name!r}. {remedy}"
    )


def _parsed(text: str) -> "Expression":
    # Imported late: it imports torch.
    from directgp.kernels import parse

    return parse(text)


@contextmanager
def _kernel_errors() -> Iterator[None]:
    """Turn `InvalidInputError` on a kernel into `WrongUsageError` on the option."""
    try:
        yield
    except InvalidInputError as error:
        # The remedy of an estimator, as an option.
        text = re.sub(r"columns=\{'(.*)': '(\w+)'\}", r"--columns \1=\2", str(error))
        own = text.startswith("kernel must")
        raise WrongUsageError(f"--{text}" if own else f"--kernel: {text}") from error


def kinds_for_estimator(kinds: Mapping[str, ColumnKind], names: Sequence[str]) -> object:
    """Return the parameter `columns` of an estimator: the kinds of all features.

    Without kinds, "auto" keeps the format of model files that earlier versions read; but it would
    make a place of columns with such names.
    """
    if kinds:
        return dict(kinds)
    guessed = any(name.lower().startswith(("lat", "lon", "lng")) for name in names)
    return dict.fromkeys(names, "number") if guessed else "auto"

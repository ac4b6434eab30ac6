"""Define expressions of kernels: sums and products of parts, each over some columns."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import final

import numpy as np
from typing_extensions import override

from directgp.errors import require

ColumnName = str | int
"""The name of a column, or its position."""


class Expression(ABC):
    """A part, a sum or a product; `repr` gives the text from which `parse` makes it again."""

    def __add__(self, other: "Expression") -> "Sum":
        return Sum(self, other) if isinstance(other, Expression) else NotImplemented

    def __mul__(self, other: "Expression") -> "Product":
        return Product(self, other) if isinstance(other, Expression) else NotImplemented

    @override
    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    @override
    def __hash__(self) -> int:
        return hash(repr(self))

    @abstractmethod
    def leaves(self) -> Iterator["Leaf"]:
        """Yield the parts, from left to right."""

    @abstractmethod
    def mapped(self, change: "Callable[[Leaf], Expression]") -> "Expression":
        """Return the expression with each part replaced."""

    def named(self, names: Sequence[str]) -> "Expression":
        """Return the expression with names of columns in place of positions."""

        def of_leaf(leaf: Leaf) -> Leaf:
            return leaf.with_columns(
                tuple(c if isinstance(c, str) else names[c] for c in leaf.columns)
            )

        return self.mapped(of_leaf)

    @abstractmethod
    def terms(self, first: int = 0) -> list[tuple[int, ...]]:
        """Return the terms of the sum that remains when products are multiplied out.

        A term has the numbers of its factors among `leaves`, counted from `first`.
        """


class Leaf(Expression):
    """A part of a kernel: a covariance that looks at some columns.

    Options are keyword arguments of the constructor, and attributes of the same name.
    """

    least_columns: int = 0
    """Smallest number of columns."""

    most_columns: int | None = None
    """Largest number of columns; None for any."""

    def __init__(self, *columns: ColumnName) -> None:
        self.check_names(columns)
        # Names of a table may be strings of numpy, whose text is not that of a string.
        self.columns = tuple(str(c) if isinstance(c, str) else c for c in columns)
        self.coded: tuple[int, ...] = ()
        """Which of the columns, from 0, hold codes of levels; set when the columns are known."""

    @classmethod
    def check_names(cls, columns: tuple[object, ...]) -> None:
        """Raise `InvalidInputError` unless these are names of as many columns as allowed."""
        who = f"columns of {cls.__name__}"
        named = all(isinstance(c, str | int) and not isinstance(c, bool) for c in columns)
        require(named, who, "names or positions", columns)
        require(len({*columns}) == len(columns), who, "different", columns)
        lowest, highest = cls.least_columns, cls.most_columns
        enough = lowest <= len(columns) and (highest is None or len(columns) <= highest)
        at_most = "or more" if highest is None else f"to {highest}"
        count = f"{lowest}" if lowest == highest else f"{lowest} {at_most}"
        require(enough, who, f"{count} in number", f"{len(columns)}")

    @classmethod
    def defaults(cls) -> dict[str, object]:
        """Return the options of the constructor, with their defaults."""
        parameters = inspect.signature(cls).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    @property
    def options(self) -> dict[str, object]:
        """Options that differ from their default."""
        values = ((name, vars(self)[name], default) for name, default in self.defaults().items())
        return {name: value for name, value, default in values if value != default}

    def with_columns(self, columns: tuple[ColumnName, ...]) -> "Leaf":
        """Return the same part of other columns."""
        twin = type(self).__new__(type(self))
        vars(twin).update(vars(self), columns=columns)
        return twin

    @override
    def leaves(self) -> Iterator["Leaf"]:
        yield self

    @override
    def mapped(self, change: Callable[["Leaf"], Expression]) -> Expression:
        return change(self)

    @override
    def terms(self, first: int = 0) -> list[tuple[int, ...]]:
        return [(first,)]

    @override
    def __repr__(self) -> str:
        arguments = [repr(column) for column in self.columns]
        arguments += [f"{name}={_plain(value)!r}" for name, value in self.options.items()]
        return f"{type(self).__name__}({', '.join(arguments)})"


def _plain(value: object) -> object:
    """Return a number of numpy as one of Python, whose text can be read again."""
    return value.item() if isinstance(value, np.generic) else value


class _Compound(Expression):
    """Several kernels; kernels of the same class are taken apart."""

    def __init__(self, *kernels: Expression) -> None:
        inner = (k.kernels if isinstance(k, type(self)) else (k,) for k in kernels)
        self.kernels: tuple[Expression, ...] = tuple(part for parts in inner for part in parts)

    @override
    def leaves(self) -> Iterator[Leaf]:
        for kernel in self.kernels:
            yield from kernel.leaves()

    @override
    def mapped(self, change: Callable[[Leaf], Expression]) -> Expression:
        return type(self)(*(kernel.mapped(change) for kernel in self.kernels))


@final
class Sum(_Compound):
    """The sum of several kernels."""

    @override
    def terms(self, first: int = 0) -> list[tuple[int, ...]]:
        terms = []
        for kernel in self.kernels:
            terms += kernel.terms(first)
            first += sum(1 for _ in kernel.leaves())
        return terms

    @override
    def __repr__(self) -> str:
        return " + ".join(map(repr, self.kernels))


@final
class Product(_Compound):
    """The product of several kernels."""

    @override
    def terms(self, first: int = 0) -> list[tuple[int, ...]]:
        products: list[tuple[int, ...]] = [()]
        for kernel in self.kernels:
            terms = kernel.terms(first)
            products = [(*product, *term) for product in products for term in terms]
            first += sum(1 for _ in kernel.leaves())
        return products

    @override
    def __repr__(self) -> str:
        texts = (f"({k!r})" if isinstance(k, Sum) else repr(k) for k in self.kernels)
        return " * ".join(texts)

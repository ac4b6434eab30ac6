"""Define a program: a list of array operations, written once and run by every format.

The operations have the names and the meaning of ONNX, of which they are a small subset.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from directgp.export.numpy_predictor import Predictor

Array = NDArray[Any]


class Node(NamedTuple):
    """One operation; values are numbered."""

    op: str
    inputs: tuple[int, ...]
    output: int
    attributes: Mapping[str, Any]


@dataclass
class Program:
    """Operations in order, the constants they use, one input X, and the outputs by name."""

    nodes: list[Node] = field(default_factory=list)
    """The operations, in order."""

    constants: dict[int, Array] = field(default_factory=dict)
    """Maps the number of a value to the constant."""

    outputs: dict[str, int] = field(default_factory=dict)
    """Maps the name of an output to the number of its value."""

    facts: dict[str, Any] = field(default_factory=dict)
    """What the outputs mean: names of features, classes, levels."""

    size: int = 1
    """Number of values; number 0 is X."""

    _numbers: dict[tuple[Any, ...], int] = field(default_factory=dict, repr=False)
    """Maps the contents of a constant to its number."""

    @property
    def X(self) -> "Value":
        """The input, of shape (n, d) and float64."""
        return Value(self, 0)

    def constant(self, value: Any) -> "Value":
        """Return a constant; equal ones are stored once."""
        array = np.asarray(value)
        array = array if array.dtype.kind in "bi" else array.astype(np.float64)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._numbers:
            self._numbers[key] = self._new()
            self.constants[self._numbers[key]] = array
        return Value(self, self._numbers[key])

    def apply(self, op: str, *inputs: "Value | Any", **attributes: Any) -> "Value":
        """Add an operation and return its result."""
        values = [x if isinstance(x, Value) else self.constant(x) for x in inputs]
        output = self._new()
        self.nodes.append(Node(op, tuple(value.number for value in values), output, attributes))
        return Value(self, output)

    def _new(self) -> int:
        self.size += 1
        return self.size - 1


@dataclass(frozen=True)
class Value:
    """The result of an operation, with the arithmetic of arrays."""

    program: Program
    number: int

    # Arrays on the left of an operator leave it to this class.
    __array_ufunc__: ClassVar[None] = None

    def _do(self, op: str, *inputs: Any, **attributes: Any) -> "Value":
        return self.program.apply(op, *inputs, **attributes)

    def __add__(self, other: Any) -> "Value":
        return self._do("Add", self, other)

    def __radd__(self, other: Any) -> "Value":
        return self._do("Add", other, self)

    def __sub__(self, other: Any) -> "Value":
        return self._do("Sub", self, other)

    def __rsub__(self, other: Any) -> "Value":
        return self._do("Sub", other, self)

    def __mul__(self, other: Any) -> "Value":
        return self._do("Mul", self, other)

    def __rmul__(self, other: Any) -> "Value":
        return self._do("Mul", other, self)

    def __truediv__(self, other: Any) -> "Value":
        return self._do("Div", self, other)

    def __rtruediv__(self, other: Any) -> "Value":
        return self._do("Div", other, self)

    def __matmul__(self, other: Any) -> "Value":
        return self._do("MatMul", self, other)

    def __lt__(self, other: Any) -> "Value":
        return self._do("Less", self, other)

    def __gt__(self, other: Any) -> "Value":
        return self._do("Less", other, self)

    def equal(self, other: Any) -> "Value":
        """Whether two are equal."""
        return self._do("Equal", self, other)

    def exp(self) -> "Value":
        """e^x."""
        return self._do("Exp", self)

    def log(self) -> "Value":
        """Natural logarithm."""
        return self._do("Log", self)

    def sin(self) -> "Value":
        """Sine of an angle in radians."""
        return self._do("Sin", self)

    def sqrt(self) -> "Value":
        """Square root."""
        return self._do("Sqrt", self)

    def floor(self) -> "Value":
        """The largest whole number that is not above x."""
        return self._do("Floor", self)

    def round(self) -> "Value":
        """The nearest whole number; the even one of two."""
        return self._do("Round", self)

    def is_nan(self) -> "Value":
        """Whether a value is missing."""
        return self._do("IsNaN", self)

    def minimum(self, other: Any) -> "Value":
        """The smaller of two, NaN if one is."""
        return self._do("Min", self, other)

    def maximum(self, other: Any) -> "Value":
        """The larger of two, NaN if one is."""
        return self._do("Max", self, other)

    def where(self, yes: Any, no: Any) -> "Value":
        """Choose by this condition."""
        return self._do("Where", self, yes, no)

    def cast(self, to: str) -> "Value":
        """Convert to "int64" or "float64"."""
        return self._do("Cast", self, to=to)

    def sum(self, axis: int = 1) -> "Value":
        """Sum along an axis, which stays with size 1."""
        return self._do("ReduceSum", self, axes=[axis])

    def largest(self, axis: int = 1) -> "Value":
        """Maximum along an axis, which stays with size 1."""
        return self._do("ReduceMax", self, axes=[axis])

    def reshape(self, *shape: int) -> "Value":
        """Reshape; −1 is what is left."""
        return self._do("Reshape", self, shape=list(shape))

    def take(self, index: Any, axis: int = 0) -> "Value":
        """Select rows of a table, or columns, by whole numbers."""
        return self._do("Gather", self, index, axis=axis)

    def take_along(self, index: "Value", axis: int) -> "Value":
        """Select one element for each index along an axis."""
        return self._do("GatherElements", self, index, axis=axis)

    def column(self, j: int) -> "Value":
        """Return column j, of shape (n, 1)."""
        return self.take(np.array([j]), axis=1)


def concatenate(values: Sequence[Value], axis: int = 1) -> Value:
    """Join arrays along an axis."""
    if len(values) == 1:
        return values[0]
    return values[0].program.apply("Concat", *values, axis=axis)


def run(program: Program, X: Array) -> dict[str, Array]:
    """Return the outputs of a program, by the reader that is exported with it."""
    reader = Predictor(program.nodes, program.constants, program.outputs, program.facts)
    return reader.run(X)

"""Define a part of a kernel: its parameters, covariance, and gradient by hand."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

from jaxtyping import Float
from torch import Tensor

from directgp.errors import require
from directgp.kernels.columns import ColumnFacts
from directgp.kernels.expression import Leaf
from directgp.numerics.arrays import Array, zeros

Link = Literal["positive", "unit", "real"]
"""Range of a parameter: above 0 by softplus, between 0 and 1 by the logistic function, or all."""

Values = Mapping[str, Array]
"""Values of parameters and constants by name. Parameters have shape (*batch, 1, k)."""


class PartGradient(NamedTuple):
    """Gradient of a loss through a covariance."""

    inputs: Array | None
    """Gradient in the first inputs, of their shape; None if the covariance has steps alone."""

    parameters: dict[str, Array]
    """Gradient in the value of each parameter."""


class Evaluation(NamedTuple):
    """A covariance, and the function from the gradient in it to the gradient in its arguments."""

    value: Array
    """Covariance of each pair."""

    backward: Callable[[Array], PartGradient]
    """Takes the gradient of a loss in `value`; the second inputs count as constant."""


class VarianceEvaluation(NamedTuple):
    """The variance at inputs, and the function from its gradient to that in the parameters."""

    value: Array
    """Variance of each input."""

    backward: Callable[[Array], dict[str, Array]]
    """Takes the gradient of a loss in `value`."""


class Part(Leaf):
    """A part of a kernel.

    The covariance stands twice: `covariance` with a tape, which defines the part and is
    differentiable in everything; and `evaluate` for numpy arrays and tensors, several times faster,
    with the gradient by hand.
    """

    parameters: ClassVar[Mapping[str, Link]] = {}
    """Names and ranges of the parameters that are trained."""

    constants: ClassVar[tuple[str, ...]] = ()
    """Names of values that are computed from the training inputs once."""

    unit_variance: ClassVar[bool] = True
    """Whether the variance is 1 everywhere."""

    smooth: ClassVar[bool] = True
    """Whether the covariance has a derivative in the inputs; levels have none."""

    @property
    def positions(self) -> tuple[int, ...]:
        """Positions of the columns, once they are known."""
        return tuple(map(int, self.columns))

    def default_columns(self, columns: Sequence[ColumnFacts]) -> tuple[int, ...]:
        """Return the positions of the columns of a part that names none: those of numbers."""
        return tuple(j for j, column in enumerate(columns) if not column.coded)

    def check(self, columns: Sequence[ColumnFacts]) -> None:
        """Raise `InvalidInputError` if the part cannot look at these columns."""
        for column in columns:
            who = f"columns of {type(self).__name__}"
            remedy = "Use Categorical or Group for categories."
            require(not column.coded, who, "numbers", f"{column.name!r}, a {column.kind}", remedy)

    @property
    def trained(self) -> tuple[str, ...]:
        """Names of the parameters of this part with its options."""
        return tuple(self.parameters)

    @property
    def fixed(self) -> tuple[str, ...]:
        """Names of the constants of this part with its options."""
        return self.constants

    @abstractmethod
    def start(
        self, X: Float[Tensor, "n k"], columns: Sequence[ColumnFacts]
    ) -> dict[str, Float[Tensor, "*shape"]]:
        """Return starting values of the parameters, and the constants, from the columns."""

    @abstractmethod
    def covariance(
        self, a: Float[Tensor, "*#batch m k"], b: Float[Tensor, "*#batch n k"], values: Values
    ) -> Float[Tensor, "*batch m n"]:
        """Compute the covariance of each pair, with a tape."""

    def variance(
        self, b: Float[Tensor, "*#batch n k"], values: Values
    ) -> Float[Tensor, "*batch n"]:
        """Compute the covariance of each input with itself, with a tape."""
        return b.new_ones(b.shape[:-1])

    @abstractmethod
    def evaluate(self, a: Array, b: Array, values: Values, exact: bool) -> Evaluation:
        """Compute the covariance of each pair.

        With `exact`, distances come from differences, which keep the digits of small ones.
        """

    def evaluate_variance(self, b: Array, values: Values) -> VarianceEvaluation:
        """Compute the variance at each input; 1 for parts with `unit_variance`."""
        return VarianceEvaluation(zeros(b.shape[:-1], b) + 1, lambda g: {})

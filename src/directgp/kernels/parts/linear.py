"""Linear effects: Linear."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.errors import require
from directgp.kernels.columns import ColumnFacts
from directgp.kernels.expression import ColumnName
from directgp.kernels.parts.base import (
    Evaluation,
    Link,
    Part,
    PartGradient,
    Values,
    VarianceEvaluation,
)
from directgp.numerics.arrays import Array, library_of

# κ = Σ_j v_j (a_j − o_j)(b_j − o_j). With c = b − o, dv_j = Σ_i (a_ij − o_j)(G c)_ij.


@final
class Linear(Part):
    """Σ v (x − origin)(x′ − origin): functions linear in each column, with slopes of variance v.

    The origin is in the units of the column, by default its mean: there the effect is 0.
    """

    parameters: ClassVar[Mapping[str, Link]] = {"variance": "positive"}
    constants: ClassVar[tuple[str, ...]] = ("origin",)
    unit_variance: ClassVar[bool] = False
    least_columns = 1

    def __init__(self, *columns: ColumnName, origin: float | None = None) -> None:
        super().__init__(*columns)
        number = isinstance(origin, int | float) and not isinstance(origin, bool)
        require(origin is None or number, "origin of Linear", "a number", repr(origin))
        self.origin = origin

    @property
    @override
    def trained(self) -> tuple[str, ...]:
        # The scale of a single column is that of the whole term.
        return ("variance",) if len(self.columns) > 1 else ()

    @override
    def start(
        self, X: Float[Tensor, "n k"], columns: Sequence[ColumnFacts]
    ) -> dict[str, Float[Tensor, "..."]]:
        origin = X.mean(0)
        if self.origin is not None:
            places = [(self.origin - column.shift) / column.scale for column in columns]
            origin = X.new_tensor(places)
        squares = (X - origin).square().mean(0)
        start = {"origin": origin}
        if "variance" in self.trained:
            start["variance"] = 1 / squares.clamp(min=1e-6) / len(columns)
        return start

    @override
    def covariance(
        self, a: Float[Tensor, "*#batch m k"], b: Float[Tensor, "*#batch n k"], values: Values
    ) -> Float[Tensor, "*batch m n"]:
        origin = values["origin"]
        covariance: Tensor = ((a - origin) * values.get("variance", 1.0)) @ (b - origin).mT
        return covariance

    @override
    def variance(
        self, b: Float[Tensor, "*#batch n k"], values: Values
    ) -> Float[Tensor, "*batch n"]:
        squares = (b - values["origin"]).square()
        variance: Tensor = (squares * values.get("variance", 1.0)).sum(-1)
        return variance

    @override
    def evaluate(self, a: Array, b: Array, values: Values, exact: bool) -> Evaluation:
        xp = library_of(b)
        origin = values["origin"]
        variance = values.get("variance", 1.0)
        left = a - origin
        right = b - origin
        K = xp.matmul(left * variance, right.swapaxes(-1, -2))

        def backward(G: Array) -> PartGradient:
            product = xp.matmul(G, right)
            gradients = {}
            if "variance" in values:
                gradients["variance"] = (left * product).sum(-2)[..., None, :]
            return PartGradient(variance * product, gradients)

        return Evaluation(K, backward)

    @override
    def evaluate_variance(self, b: Array, values: Values) -> VarianceEvaluation:
        squares = (b - values["origin"]) ** 2
        value = (squares * values.get("variance", 1.0)).sum(-1)

        def backward(g: Array) -> dict[str, Array]:
            if "variance" not in values:
                return {}
            return {"variance": (g[..., None] * squares).sum(-2)[..., None, :]}

        return VarianceEvaluation(value, backward)

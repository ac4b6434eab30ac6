"""Define the kernel of an expression: a sum of products of parts, with its parameters."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add, mul
from typing import NamedTuple, cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from directgp.errors import refuse, require
from directgp.kernels.columns import ColumnFacts
from directgp.kernels.expression import ColumnName, Expression, Leaf
from directgp.kernels.parsing import parse
from directgp.kernels.parts.base import Link, Part
from directgp.numerics.arrays import columns_of
from directgp.numerics.special import softplus, softplus_inverse
from directgp.shapes import Inputs
from directgp.text import listed

# k(x, x′) = Σ_t π_t Π_j κ_tj(x, x′), with shares π_t > 0 of sum 1. The output scale of the prior is
# the variance of f.

LINKS: dict[Link, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "positive": (softplus, softplus_inverse),
    "unit": (torch.sigmoid, torch.logit),
    "real": (lambda raw: raw, lambda value: value),
}
"""Maps a range to the function from a raw parameter to its value, and to the inverse."""

_SHARES = "raw_shares"
"""Name of the raw parameter of the shares of the terms."""


class StructuredNatural(NamedTuple):
    """Natural parameters of an expression."""

    parts: list[Part]
    """The parts, with positions of columns."""

    terms: list[tuple[int, ...]]
    """Numbers of the factors of each term."""

    values: list[dict[str, Tensor]]
    """Parameters of shape (*batch, 1, k), and constants, of each part."""

    shares: Float[Tensor, "*batch t"]
    """Share of each term in the variance."""


class StructuredGradient(NamedTuple):
    """Gradient of a loss in the natural parameters of an expression."""

    values: list[dict[str, Tensor]]
    """Gradients in the parameters of each part."""

    shares: Float[Tensor, "*batch t"]
    """Gradient in the share of each term."""


@final
class StructuredKernel(nn.Module):
    """The kernel of an expression, on inputs whose columns are known.

    Parameters
    ----------
    expression : Expression
        Sum or product of parts, with positions of columns.
    coded : sequence of int
        Positions of the columns that hold codes of levels.
    values : list of dict
        Values of parameters and constants of each part, by name, of shape (k,).

    Examples
    --------
    >>> X = torch.linspace(0, 1, 3, dtype=torch.float64).reshape(-1, 1)
    >>> kernel = StructuredKernel.from_data("RBF('x') + Linear('x')", X, [ColumnFacts("x")])
    >>> kernel.covariance(X, X).shape
    torch.Size([3, 3])
    """

    raw_shares: nn.Parameter
    """Logits of the shares."""

    def __init__(
        self,
        expression: Expression,
        coded: Sequence[int],
        values: Sequence[Mapping[str, Tensor]],
    ) -> None:
        super().__init__()
        self.expression = expression
        self.coded = tuple(coded)
        self.batch_shape = torch.Size()
        self._parts = [_bound(cast(Part, leaf), self.coded) for leaf in expression.leaves()]
        self._terms = expression.terms()
        for index, (part, of_part) in enumerate(zip(self._parts, values, strict=True)):
            for name in part.trained:
                raw = LINKS[part.parameters[name]][1](of_part[name].detach().clone())
                self.register_parameter(_raw_name(index, name), nn.Parameter(raw))
            for name in part.fixed:
                self.register_buffer(_raw_name(index, name), of_part[name].detach().clone())
        like = next((v for of_part in values for v in of_part.values()), torch.zeros(0))
        dtype = like.dtype if like.numel() else torch.float64
        shares = torch.zeros(len(self._terms), dtype=dtype, device=like.device)
        self.register_parameter(_SHARES, nn.Parameter(shares, len(self._terms) > 1))

    @classmethod
    def from_data(
        cls, expression: Expression | str, X: Inputs, columns: Sequence[ColumnFacts]
    ) -> "StructuredKernel":
        """Return the kernel of an expression, with starting values from training inputs."""
        tree = parse(expression) if isinstance(expression, str) else expression
        placed = placed_columns(tree, columns)
        coded = [j for j, column in enumerate(columns) if column.coded]
        values = []
        for leaf in placed.leaves():
            part = _bound(cast(Part, leaf), coded)
            positions = [*map(int, part.columns)]
            facts = [columns[j] for j in positions]
            part.check(facts)
            values.append(part.start(X[:, positions].double(), facts))
        kernel = cls(placed, coded, values)
        kernel.to(X)
        return kernel

    @property
    def parts(self) -> list[Part]:
        """The parts, with positions of columns."""
        return self._parts

    @property
    def terms(self) -> list[tuple[int, ...]]:
        """Numbers of the factors of each term of the sum."""
        return self._terms

    @property
    def shares(self) -> Float[Tensor, "*batch t"]:
        """Share of each term in the variance."""
        shares: Tensor = self.raw_shares.softmax(-1)
        return shares

    def values(self) -> list[dict[str, Tensor]]:
        """Return parameters of shape (*batch, 1, k), and constants, of each part."""
        values = []
        for index, part in enumerate(self._parts):
            of_part = {}
            for name in part.trained:
                raw = getattr(self, _raw_name(index, name))
                of_part[name] = LINKS[part.parameters[name]][0](raw).unsqueeze(-2)
            for name in part.fixed:
                of_part[name] = getattr(self, _raw_name(index, name))
            values.append(of_part)
        return values

    def natural(self) -> StructuredNatural:
        """Return the natural parameters, outside any graph."""
        with torch.no_grad():
            return StructuredNatural(self._parts, self._terms, self.values(), self.shares)

    def raw_gradients(self, gradient: StructuredGradient) -> list[tuple[nn.Parameter, Tensor]]:
        """Return the gradient in each raw parameter from gradients in natural parameters."""
        gradients = []
        for index, part in enumerate(self._parts):
            for name, by_value in gradient.values[index].items():
                raw = getattr(self, _raw_name(index, name))
                at = raw.detach()
                by_raw = by_value.squeeze(-2)
                if part.parameters[name] == "positive":
                    by_raw = by_raw * torch.sigmoid(at)
                elif part.parameters[name] == "unit":
                    by_raw = by_raw * torch.sigmoid(at) * torch.sigmoid(-at)
                gradients.append((raw, by_raw.sum_to_size(raw.shape)))
        shares = self.shares.detach()
        mean = (shares * gradient.shares).sum(-1, keepdim=True)
        by_raw = shares * (gradient.shares - mean)
        return [*gradients, (self.raw_shares, by_raw.sum_to_size(shares.shape))]

    def covariance(
        self,
        X1: Float[Tensor, "*#batch m d"],
        X2: Float[Tensor, "*#batch n d"],
        terms: Sequence[int] | None = None,
    ) -> Float[Tensor, "*batch m n"]:
        """Return k(x, x′) for every pair, or the sum of some of its terms, with a tape."""
        factors = [
            part.covariance(
                columns_of(X1, part.positions), columns_of(X2, part.positions), _like(X2, values)
            )
            for part, values in zip(self._parts, self.values(), strict=True)
        ]
        return self._sum(factors, self.shares.to(X2)[..., None, None, :], terms)

    def variance(
        self, X: Float[Tensor, "*#batch n d"], terms: Sequence[int] | None = None
    ) -> Float[Tensor, "*batch n"]:
        """Return k(x, x) of each input, or the sum of some of its terms, with a tape."""
        factors = [
            part.variance(columns_of(X, part.positions), _like(X, values))
            for part, values in zip(self._parts, self.values(), strict=True)
        ]
        return self._sum(factors, self.shares.to(X)[..., None, :], terms)

    def _sum(self, factors: list[Tensor], shares: Tensor, terms: Sequence[int] | None) -> Tensor:
        """Return Σ π_t Π_j κ_tj over some terms; the last axis of the shares has the terms."""
        products = []
        for t in range(len(self._terms)) if terms is None else terms:
            share = shares[..., t]
            product = reduce(mul, (factors[j] for j in self._terms[t]))
            products.append(share * product)
        return reduce(add, products)


def placed_columns(expression: Expression, columns: Sequence[ColumnFacts]) -> Expression:
    """Return the expression with positions of columns in place of names.

    A part without columns gets all columns that it can look at.
    """
    names = {column.name: j for j, column in enumerate(columns)}

    def position(column: ColumnName, leaf: Leaf) -> int:
        who = f"columns of {type(leaf).__name__}"
        if isinstance(column, str):
            if column not in names:
                refuse(who, f"among {listed(names)}", repr(column))
            return names[column]
        if not -len(columns) <= column < len(columns):
            refuse(who, f"positions below {len(columns)}, the number of columns", column)
        return column % len(columns)

    def place(leaf: Leaf) -> Leaf:
        named = leaf.columns or cast(Part, leaf).default_columns(columns)
        placed = tuple(position(column, leaf) for column in named)
        who = f"columns of {type(leaf).__name__}"
        require(len({*placed}) == len(placed) > 0, who, "different, and at least one", named)
        return leaf.with_columns(placed)

    return expression.mapped(place)


def _bound(leaf: Leaf, coded: Sequence[int]) -> Part:
    """Return a part that knows which of its columns hold codes."""
    part = cast(Part, leaf.with_columns(leaf.columns))
    part.coded = tuple(k for k, column in enumerate(part.columns) if column in coded)
    return part


def _raw_name(index: int, name: str) -> str:
    return f"raw_{index}_{name}"


def _like(X: Tensor, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return values in the dtype of X."""
    return {name: value.to(X.dtype) for name, value in values.items()}

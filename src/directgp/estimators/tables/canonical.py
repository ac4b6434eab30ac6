"""Training data in one order, without repetitions: what is learned depends on neither.

A row of weight 2 stands for two equal rows, a row of weight 0 for none.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int

Column = Float64[np.ndarray, " n"]
Columns = Float64[np.ndarray, "n d"]

_CLEARLY = 1e-6
"""Part of Σ|terms| that a sum has to reach before its sign means something."""


@dataclass(frozen=True)
class CanonicalData:
    """Distinct rows in canonical order."""

    X: Float64[np.ndarray, "m d"]
    y: Float64[np.ndarray, " m"]

    weights: Float64[np.ndarray, " m"] | None
    """How often each row counts; None where that is once."""

    exposure: Float64[np.ndarray, " m"] | None

    rows: Int[np.ndarray, " m"]
    """Where each row first stands in the data as given."""

    signs: Float64[np.ndarray, " d"]
    """Directions in which the columns of X were sorted, 1 or −1: X·signs is the same when columns
    change their sign."""

    num_merged: int
    """Rows that repeat another one."""


def canonical(
    X: Columns,
    y: Column,
    weights: Column | None = None,
    exposure: Column | None = None,
    *,
    signed_target: bool = False,
) -> CanonicalData:
    """Drop rows of weight 0, sort, and merge equal rows into one that has their weight.

    Parameters
    ----------
    X, y : array of shape (n, d), (n,)
        Scaled and rounded; columns of X, and a signed target, about 0.
    weights, exposure : array of shape (n,)
        1 for every row unless given.
    signed_target : bool
        Whether −y could as well have been the target, as in regression.

    Examples
    --------
    >>> import numpy as np
    >>> X, y = np.array([[3.0], [-1.0], [-1.0]]), np.array([0.0, 1.0, 1.0])
    >>> data = canonical(X, y)
    >>> data.X.tolist(), data.weights.tolist(), data.rows.tolist()
    ([[-1.0], [3.0]], [2.0, 1.0], [1, 0])
    """
    kept = np.arange(len(y)) if weights is None else np.flatnonzero(weights > 0)
    w = np.ones(len(y)) if weights is None else weights[kept]
    # There is one 0, not two.
    table = np.asfortranarray(np.column_stack([X[kept], y[kept]]) + 0.0)
    signs = _signs(table, w / w.max(), signed_target)
    if exposure is not None:
        table, signs = np.column_stack([table, exposure[kept]]), np.append(signs, 1.0)
    order, starts = _sorted(table, signs, w)
    # Weights are a key of the order, so that those of equal rows are added in one order, too.
    total, table = np.add.reduceat(w[order], starts), table[order[starts]]
    d = X.shape[1]
    return CanonicalData(
        X=np.ascontiguousarray(table[:, :d]),
        y=table[:, d].copy(),
        weights=None if (total == 1).all() else total,
        exposure=None if exposure is None else table[:, d + 1].copy(),
        rows=kept[np.minimum.reduceat(order, starts)],
        signs=signs[:d],
        num_merged=len(kept) - len(starts),
    )


def _sorted(
    table: Columns, signs: Float64[np.ndarray, " d"], weights: Column
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " m"]]:
    """A lexicographic order of the rows, and where in it a new row begins.

    Each key sorts only rows that are equal so far; mostly few are after the first.
    """
    order = np.arange(len(table))
    new = order == 0
    for sign, column in zip(signs, table.T, strict=True):
        tied = _sort_tied(order, new, sign * column)
        new[tied[1:]] |= np.diff(column[order[tied]]) != 0
    _sort_tied(order, new, weights)
    return order, np.flatnonzero(new)


def _sort_tied(
    order: Int[np.ndarray, " n"], new: Bool[np.ndarray, " n"], key: Column
) -> Int[np.ndarray, " k"]:
    """Sort the members of each run of equal rows by the key, in place; return their positions."""
    tied = np.flatnonzero(~(new & np.append(new[1:], True)))
    rows, run = order[tied], np.cumsum(new)[tied]
    order[tied] = rows[np.lexsort([key[rows], run])]
    return tied


def _signs(table: Columns, weights: Column, signed_target: bool) -> Float64[np.ndarray, " d"]:
    """A direction for each column, which turns round with the column; 1 where none is clear.

    It is the sign of the column's third moment; else of its product with the squared length of the
    row, which no change of sign alters; else of that with the columns that have a direction.
    """
    squares = np.einsum("ij,ij->i", table, table)
    target = table.shape[1] - 1
    signs, guide = np.ones(table.shape[1]), np.zeros(len(table))
    for j in (target, *range(target)):
        column = table[:, j]
        if j < target or signed_target:
            signs[j] = _sign(column, (column * column, squares, guide), weights)
        guide += signs[j] * column
    return signs


def _sign(column: Column, others: tuple[Column, ...], weights: Column) -> float:
    for other in others:
        terms = weights * column * other
        total = float(terms.sum())
        if abs(total) > _CLEARLY * float(np.abs(terms).sum()):
            return math.copysign(1.0, total)
    return 1.0

"""Write the columns of a stack of boosted trees as a program."""

from collections.abc import Sequence
from functools import reduce
from operator import add

import numpy as np
from jaxtyping import Float64, Int64

from directgp.errors import UnsupportedError
from directgp.estimators.preprocessing import ColumnScaling
from directgp.export.latents import forward
from directgp.export.program import Value, concatenate
from directgp.stack import Stack, Trees
from directgp.stack.scales import Scale


def stack_columns(x: Value, stack: Stack, scaling: ColumnScaling) -> Value:
    """Return the scaled columns of a stack at scaled inputs."""
    folds = [fitted for source in stack.sources for fitted in source.folds]
    raw = _raw(x, [_trees(fitted.model) for fitted in folds])
    columns = []
    start = 0
    for source in stack.sources:
        width = len(source.names)
        parts = []
        for fitted in source.folds:
            values = raw.take(np.arange(start, start + width), axis=1)
            parts.append(_on_scale(values, fitted.scale))
            start += width
        columns.append(reduce(add, parts) / float(len(parts)))
    return forward(concatenate(columns), scaling)


def _trees(model: object) -> Trees:
    if isinstance(model, Trees):
        return model
    name = getattr(model, "name", type(model).__name__)
    raise UnsupportedError(
        f"A model with {name} in its stack is not exported: of all estimators, boosted trees are. "
        "Fit with stack='trees' or stack=None."
    )


def _on_scale(values: Value, scale: Scale) -> Value:
    """The steps of `Scale.forward`."""
    values = values.maximum(scale.low).minimum(scale.high)
    if scale.link == "identity":
        return values
    logs = values.log()
    return logs if scale.link == "log" else logs - (1.0 - values).log()


def _raw(x: Value, ensembles: Sequence[Trees]) -> Value:
    """Return the sums of all ensembles, one column for each output of each.

    All trees are walked together, the deepest first, so that the trees that go on are the first.
    """
    tables = [trees.nodes() for trees in ensembles]
    starts = np.cumsum([0, *(len(table.value) for table in tables)])

    def shifted(name: str) -> Int64[np.ndarray, " k"]:
        """Return numbers of nodes among those of all ensembles."""
        return np.concatenate(
            [getattr(table, name) + start for table, start in zip(tables, starts, strict=False)]
        )

    first = shifted("first")
    depths = np.concatenate([table.depths for table in tables])
    baseline = np.concatenate([trees.baseline for trees in ensembles])
    total = 0.0 * x.column(0) + baseline[None]
    if not len(first):
        return total
    feature, threshold, value = (
        x.program.constant(np.concatenate([getattr(table, name) for table in tables]))
        for name in ("feature", "threshold", "value")
    )
    children = x.program.constant(np.stack([shifted("left"), shifted("right")], 1).reshape(-1))
    order = np.argsort(-depths, kind="stable")
    shares = _shares(ensembles)[order]
    # A first node for each row and tree.
    place = x.column(0).is_nan().where(first[order][None], first[order][None])
    active = len(order)
    for level in range(int(depths.max()) + 1):
        going = int((depths > level).sum())
        if going < active:
            ended = place.take(np.arange(going, active), axis=1).reshape(-1)
            values = value.take(ended).reshape(-1, active - going)
            total = total + values @ shares[going:active]
            if not going:
                break
            place = place.take(np.arange(going), axis=1)
            active = going
        nodes = place.reshape(-1)
        compared = x.take_along(feature.take(nodes).reshape(-1, active), axis=1)
        goes_right = threshold.take(nodes).reshape(-1, active) < compared
        child = (2 * place + goes_right.cast("int64")).reshape(-1)
        place = children.take(child).reshape(-1, active)
    return total


def _shares(ensembles: Sequence[Trees]) -> Float64[np.ndarray, "trees k"]:
    """Return 1 where a tree, a row, adds to a column, else 0."""
    columns = []
    start = 0
    for trees in ensembles:
        columns.append(start + trees.output.astype(np.int64))
        start += len(trees.baseline)
    column = np.concatenate(columns)
    shares: Float64[np.ndarray, "trees k"] = np.equal.outer(column, np.arange(start)).astype(float)
    return shares

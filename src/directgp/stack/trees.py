"""Evaluate an ensemble of boosted trees that is held as plain arrays.

The predictions need NumPy alone, so a model file and an exported program can hold the trees, and a
new version of scikit-learn does not change them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, final

import numpy as np
from jaxtyping import Bool, Float64, Int64, UInt32, UInt64
from numpy.typing import NDArray

from directgp.errors import UnsupportedError
from directgp.registry import LARGEST
from directgp.text import plural

Columns = Float64[np.ndarray, "n d"]
Masks = UInt32[np.ndarray, "..."] | UInt64[np.ndarray, "..."]

MAX_LEAVES = 64
"""Largest number of leaves of a tree: each is one bit of an integer."""

_TREES = 256
"""Trees that are evaluated together."""

_ELEMENTS = 40_000
"""Pairs of a row and a tree that are evaluated together: their masks fit in a fast cache."""

_FEW_ROWS = 32
"""Up to this number of rows every split is compared with every row, without tables."""

_TOLERANCE = 1e-12
"""Largest difference from scikit-learn's predictions, relative to the size of the terms."""

_CHECKED_ROWS = 1000
"""Rows at which converted trees are compared with scikit-learn."""

DTYPES: Mapping[str, Any] = {
    "is_leaf": np.bool_,
    "feature": np.int32,
    "threshold": np.float64,
    "missing_left": np.bool_,
    "value": np.float64,
    "output": np.int32,
    "baseline": np.float64,
}
"""The arrays of an ensemble, with their dtypes."""


class Layout(NamedTuple):
    """Places of the nodes of all trees, which follow from the flags `is_leaf`."""

    tree: Int64[np.ndarray, " nodes"]
    """Number of the tree of each node."""

    right: Int64[np.ndarray, " splits"]
    """Number of the right child of each split; the left child is the next node."""

    @classmethod
    def of(cls, is_leaf: Bool[np.ndarray, " nodes"]) -> "Layout":
        """Return the layout; raise ValueError if the last tree is not complete.

        Each split opens one place for a subtree and each leaf fills one, so a tree ends where the
        number of open places reaches a new minimum. The right child of a split is the next node
        with the number of open places that the split found.
        """
        steps = np.where(is_leaf, -1, 1)
        after = np.cumsum(steps)
        lowest = np.minimum.accumulate(np.append(0, after))[:-1]
        is_last = after < lowest
        if not (len(is_leaf) and is_last[-1]):
            raise ValueError("the last tree is not complete")
        tree: NDArray[np.int64] = np.cumsum(is_last) - is_last
        order = np.lexsort((after - steps, tree))
        places = np.flatnonzero(~is_leaf[order])
        right = np.zeros(len(is_leaf), np.int64)
        right[order[places]] = order[places + 1]
        return cls(tree, right[~is_leaf])


class Nodes(NamedTuple):
    """Nodes with explicit children: a leaf is its own child, so that more steps change nothing."""

    feature: Int64[np.ndarray, " nodes"]
    """Column that a split compares; 0 for a leaf."""

    threshold: Float64[np.ndarray, " nodes"]
    """A value up to the threshold goes to the left child; ∞ for a leaf."""

    missing_left: Bool[np.ndarray, " nodes"]
    """Whether NaN goes to the left child."""

    left: Int64[np.ndarray, " nodes"]
    """Number of the left child."""

    right: Int64[np.ndarray, " nodes"]
    """Number of the right child."""

    value: Float64[np.ndarray, " nodes"]
    """Value of a leaf; 0 for a split."""

    first: Int64[np.ndarray, " trees"]
    """Number of the root of each tree."""

    depths: Int64[np.ndarray, " trees"]
    """Largest number of splits from the root of each tree to a leaf."""


@final
@dataclass(frozen=True, eq=False)
class Trees:
    """The prediction baseline + Σ_t value of the leaf of tree t that the row reaches.

    Trees follow each other in preorder: a node, its left subtree, its right subtree. The flags
    `is_leaf` fix the shape of all trees, so every way through any array of flags ends at a leaf.

    Raises ValueError if the arrays do not belong together.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.ensemble import HistGradientBoostingRegressor
    >>> X = np.arange(40.0)[:, None]
    >>> model = HistGradientBoostingRegressor(max_iter=5).fit(X, X[:, 0] > 20)
    >>> trees = Trees.from_boosting(model, X)
    >>> bool(np.allclose(trees.raw(X)[:, 0], model.predict(X)))
    True
    """

    is_leaf: NDArray[np.bool_]
    """Whether a node is a leaf, of shape (nodes,)."""

    feature: NDArray[np.int32]
    """Column that each split compares, of shape (splits,)."""

    threshold: NDArray[np.float64]
    """A value up to the threshold goes to the left child, of shape (splits,)."""

    missing_left: NDArray[np.bool_]
    """Whether NaN goes to the left child, of shape (splits,)."""

    value: NDArray[np.float64]
    """Value of each leaf, of shape (leaves,)."""

    output: NDArray[np.int32]
    """Column of the prediction that each tree adds to, not falling, of shape (trees,)."""

    baseline: NDArray[np.float64]
    """Prediction without trees, of shape (k,)."""

    num_features: int
    """Number of columns of the rows."""

    _tree: NDArray[np.int64] = field(init=False, repr=False)
    """Number of the tree of each split."""

    _kept: Masks = field(init=False, repr=False)
    """Leaves that a row can still reach after it went right at a split: one bit a leaf."""

    _first_leaf: NDArray[np.int64] = field(init=False, repr=False)
    """Number of the first leaf of each tree."""

    def __post_init__(self) -> None:
        layout = Layout.of(self.is_leaf) if len(self.is_leaf) else _NO_NODES
        self._check(layout)
        leaf_tree = layout.tree[self.is_leaf]
        first_leaf = np.searchsorted(leaf_tree, np.arange(len(self.output)))
        tree = layout.tree[~self.is_leaf]
        before: NDArray[np.int64] = np.cumsum(self.is_leaf) - self.is_leaf
        # Leaves of the left subtree lie from the split to its right child.
        start = (before[~self.is_leaf] - first_leaf[tree]).astype(np.uint64)
        end = (before[layout.right] - first_leaf[tree]).astype(np.uint64)
        one = np.uint64(1)
        left_leaves = (one << end) - (one << start)
        largest = int(np.bincount(leaf_tree).max()) if len(leaf_tree) else 1
        dtype = np.uint32 if largest <= 32 else np.uint64
        object.__setattr__(self, "_tree", tree)
        object.__setattr__(self, "_kept", (~left_leaves).astype(dtype))
        object.__setattr__(self, "_first_leaf", first_leaf)

    def _check(self, layout: Layout) -> None:
        """Raise ValueError unless all arrays fit the layout and hold values that make sense."""
        num_leaves = int(self.is_leaf.sum())
        num_splits = len(self.is_leaf) - num_leaves
        num_trees = num_leaves - num_splits
        shapes = {
            "feature": num_splits,
            "threshold": num_splits,
            "missing_left": num_splits,
            "value": num_leaves,
            "output": num_trees,
        }
        for name, length in shapes.items():
            shape = getattr(self, name).shape
            if shape != (length,):
                raise ValueError(f"{name} of the trees has shape {shape}, and needs ({length},)")
        if self.baseline.ndim != 1 or not len(self.baseline):
            raise ValueError("the trees have no baseline")
        if num_leaves and np.bincount(layout.tree[self.is_leaf]).max() > MAX_LEAVES:
            raise ValueError(f"a tree has more than {plural(MAX_LEAVES, 'leaf', 'leaves')}")
        if num_splits and not (0 <= self.feature.min() <= self.feature.max() < self.num_features):
            raise ValueError(f"a tree splits by a feature that is none of {self.num_features}")
        if num_trees and not (0 <= self.output.min() <= self.output.max() < len(self.baseline)):
            raise ValueError(f"a tree has an output that is none of {len(self.baseline)}")
        if (np.diff(self.output) < 0).any():
            raise ValueError("the trees are not sorted by output")
        if np.isnan(self.threshold).any():
            raise ValueError("a threshold of the trees is NaN")
        for values in (self.value, self.baseline):
            if not (np.abs(values) <= LARGEST).all():
                raise ValueError("a value of the trees is not finite, or too large")

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], num_features: int) -> "Trees":
        """Return the ensemble of arrays by name; raise ValueError for wrong names or dtypes."""
        if arrays.keys() != DTYPES.keys():
            raise ValueError(f"trees have the arrays {', '.join(DTYPES)}, not {', '.join(arrays)}")
        for name, dtype in DTYPES.items():
            if arrays[name].dtype != dtype or arrays[name].ndim != 1:
                raise ValueError(f"{name} of the trees has to be a vector of {dtype.__name__}")
        return cls(**arrays, num_features=num_features)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name, for a file."""
        return {name: getattr(self, name) for name in DTYPES}

    @classmethod
    def constant(cls, baseline: Float64[np.ndarray, " k"], num_features: int) -> "Trees":
        """Return an ensemble without trees."""
        empty = {name: np.zeros(0, dtype) for name, dtype in DTYPES.items()}
        return cls(**{**empty, "baseline": baseline}, num_features=num_features)

    @classmethod
    def from_boosting(cls, model: Any, X: Columns) -> "Trees":
        """Convert a fitted histogram boosting of scikit-learn, and compare both at given rows.

        Raises `UnsupportedError` for categorical features, for trees of more than 64 leaves, and
        if the predictions differ, as they may for a version of scikit-learn that is not supported.
        """
        # An iteration has a tree for each output; here trees of one output follow each other.
        predictors = list(zip(*model._predictors, strict=True))
        nodes = [predictor.nodes for column in predictors for predictor in column]
        largest = max((int(tree["is_leaf"].sum()) for tree in nodes), default=0)
        if largest > MAX_LEAVES or any(tree["is_categorical"].any() for tree in nodes):
            raise UnsupportedError(
                f"{type(model).__name__} cannot be converted to arrays: it has categorical features"
                f" or more than {MAX_LEAVES} leaves. Encode the features, and set max_leaf_nodes."
            )
        table = np.concatenate(nodes)
        is_leaf = table["is_leaf"].astype(bool)
        splits = table[~is_leaf]
        iterations = [len(column) for column in predictors]
        trees = cls(
            is_leaf=is_leaf,
            feature=splits["feature_idx"].astype(np.int32),
            threshold=splits["num_threshold"].astype(np.float64),
            missing_left=splits["missing_go_to_left"].astype(bool),
            value=table["value"][is_leaf].astype(np.float64),
            output=np.repeat(np.arange(len(predictors), dtype=np.int32), iterations),
            baseline=model._baseline_prediction.ravel().astype(np.float64),
            num_features=int(model.n_features_in_),
        )
        trees._compare(model, X[:_CHECKED_ROWS])
        return trees

    def between(self, X: Columns) -> "Trees":
        """Return the trees with each threshold in the middle between two values of its feature.

        scikit-learn may put it on a value, which rounding to float32 moves to the other side.
        """
        moved = self.threshold.copy()
        for feature in np.unique(self.feature):
            own = self.feature == feature
            values = np.unique(X[:, feature][~np.isnan(X[:, feature])])
            place = np.searchsorted(values, moved[own], side="right")
            inside = (place > 0) & (place < len(values))
            low, high = values[place[inside] - 1], values[place[inside]]
            middle = low + 0.5 * (high - low)
            moved[np.flatnonzero(own)[inside]] = np.where(middle < high, middle, low)
        return replace(self, threshold=moved)

    def _compare(self, model: Any, X: Columns) -> None:
        """Raise `UnsupportedError` unless predictions equal those of scikit-learn up to rounding.

        Sums of both are rounded, by a part of the sum of the absolute terms.
        """
        size = np.abs(self.baseline).max()
        if len(self.value):
            size += np.maximum.reduceat(np.abs(self.value), self._first_leaf).sum()
        expected = model._raw_predict(X).reshape(len(X), len(self.baseline))
        if not (np.abs(self.raw(X) - expected) <= _TOLERANCE * size).all():
            from sklearn import __version__

            raise UnsupportedError(
                f"Trees of {type(model).__name__} of scikit-learn {__version__} give other"
                " predictions than their arrays. Use stack=None, or another version."
            )

    def raw(self, X: Columns) -> Float64[np.ndarray, "n k"]:
        """Return the predictions on the scale of the trees' sum; X may have NaN."""
        raw = np.tile(self.baseline, (len(X), 1))
        for start in range(0, len(self.output), _TREES):
            trees = slice(start, min(start + _TREES, len(self.output)))
            splits = slice(*np.searchsorted(self._tree, (trees.start, trees.stop)))
            output = self.output[trees]
            for rows, masks in self._reachable(X, trees, splits):
                values = self.value[self._first_leaf[trees] + _lowest_bit(masks)]
                for k in range(output[0], output[-1] + 1):
                    raw[rows, k] += values[:, slice(*np.searchsorted(output, (k, k + 1)))].sum(1)
        return raw

    def _reachable(self, X: Columns, trees: slice, splits: slice) -> Iterator[tuple[slice, Masks]]:
        """Yield blocks of rows, with the leaves that each row can reach after all comparisons.

        A row that goes right at a split reaches no leaf of the left subtree. The lowest leaf that
        remains is the leaf where the row ends: to its left are only leaves of such subtrees.
        """
        width = trees.stop - trees.start
        if len(X) <= _FEW_ROWS:
            yield slice(0, len(X)), self._compared(X, splits, trees.start, width)
            return
        tables = self._tables(X, splits, trees.start, width)
        size = max(1, _ELEMENTS // width)
        for start in range(0, len(X), size):
            rows = slice(start, start + size)
            masks = np.full((len(X[rows]), width), _all_ones(self._kept.dtype))
            for codes, columns, table in tables:
                masks[:, columns] &= table[codes[rows]]
            yield rows, masks

    def _compared(self, X: Columns, splits: slice, first_tree: int, width: int) -> Masks:
        """Compare each row with each split."""
        x = X[:, self.feature[splits]]
        goes_right = np.where(np.isnan(x), ~self.missing_left[splits], x > self.threshold[splits])
        ones = _all_ones(self._kept.dtype)
        kept = np.where(goes_right, self._kept[splits], ones)
        masks = np.full((len(X), width), ones)
        split_trees, starts = np.unique(self._tree[splits] - first_tree, return_index=True)
        if len(starts):
            masks[:, split_trees] = np.bitwise_and.reduceat(kept, starts, axis=1)
        return masks

    def _tables(
        self, X: Columns, splits: slice, first_tree: int, width: int
    ) -> list[tuple[Int64[np.ndarray, " n"], Any, Masks]]:
        """Return, for each feature, the code of each row, trees, and their leaves for each code.

        The code is the number of different thresholds below x; NaN has one more code. The row of a
        code in the table is the bitwise and of the masks of all splits at which it goes right.
        """
        ones = _all_ones(self._kept.dtype)
        tables = []
        features = self.feature[splits]
        for j in np.unique(features):
            own = np.flatnonzero(features == j) + splits.start
            thresholds, place = np.unique(self.threshold[own], return_inverse=True)
            tree = self._tree[own] - first_tree
            columns, column = np.unique(tree, return_inverse=True)
            chosen: Any = columns
            if 4 * len(columns) > width:
                # Whole rows of masks are faster than many columns of them.
                chosen, column, columns = slice(None), tree, np.arange(width)
            table = np.full((len(thresholds) + 2, len(columns)), ones)
            np.bitwise_and.at(table, (place + 1, column), self._kept[own])
            np.bitwise_and.accumulate(table[:-1], axis=0, out=table[:-1])
            table[-1] = ones
            missing_right = ~self.missing_left[own]
            at = np.full(int(missing_right.sum()), len(table) - 1), column[missing_right]
            np.bitwise_and.at(table, at, self._kept[own[missing_right]])
            codes = np.searchsorted(thresholds, X[:, j], side="left")
            codes[np.isnan(X[:, j])] = len(table) - 1
            tables.append((codes, chosen, table))
        return tables

    def nodes(self) -> Nodes:
        """Return the nodes with explicit children, for a walk from node to node."""
        layout = Layout.of(self.is_leaf) if len(self.is_leaf) else _NO_NODES
        number = len(self.is_leaf)
        splits = ~self.is_leaf
        left = np.arange(number)
        right = np.arange(number)
        left[splits] += 1
        right[splits] = layout.right
        first = np.searchsorted(layout.tree, np.arange(len(self.output)))
        depths = np.zeros(number, np.int64)
        # Children follow their parent, so one level of all trees is set in each step.
        level = first[splits[first]]
        while len(level):
            children = np.concatenate([left[level], right[level]])
            depths[children] = np.tile(depths[level], 2) + 1
            level = children[splits[children]]

        def spread(values: NDArray[Any], where: NDArray[np.bool_], fill: Any) -> NDArray[Any]:
            whole = np.full(number, fill, values.dtype)
            whole[where] = values
            return whole

        return Nodes(
            feature=spread(self.feature.astype(np.int64), splits, 0),
            threshold=spread(self.threshold, splits, np.inf),
            missing_left=spread(self.missing_left, splits, True),
            left=left,
            right=right,
            value=spread(self.value, self.is_leaf, 0.0),
            first=first,
            depths=np.maximum.reduceat(depths, first) if number else depths,
        )


_NO_NODES = Layout(np.zeros(0, np.int64), np.zeros(0, np.int64))


def _all_ones(dtype: Any) -> Any:
    """Return the integer with all bits set."""
    return dtype.type(np.iinfo(dtype).max)


def _lowest_bit(masks: Masks) -> Int64[np.ndarray, "..."]:
    """Return the number of the lowest bit that is set: the exponent of its power of two."""
    lowest = masks & (~masks + masks.dtype.type(1))
    if masks.dtype == np.uint32:
        exponents = (lowest.astype(np.float32).view(np.int32) >> 23) - 127
    else:
        exponents = (lowest.astype(np.float64).view(np.int64) >> 52) - 1023
    places: NDArray[np.int64] = exponents.astype(np.int64, copy=False)
    return places

"""Explain a trained model: relevance of its features, and partial dependence on each."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, NamedTuple, final

import numpy as np
import torch
from gpytorch.kernels import MaternKernel, PiecewisePolynomialKernel, RBFKernel, RQKernel
from jaxtyping import Float, Float64
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from directgp.errors import refuse, require
from directgp.estimators.column_kinds import EncodedColumn
from directgp.estimators.inputs import EncodedRows
from directgp.estimators.members import Member
from directgp.estimators.predictions import PredictingEstimator
from directgp.estimators.preprocessing import Column, Columns, Scalings
from directgp.estimators.validation import ArrayLike, RowValues, check_whole
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import Classes
from directgp.numerics.linalg import jittered_cholesky
from directgp.numerics.random import standard_normal
from directgp.plots import PartialDependence
from directgp.plots.style import Array
from directgp.posteriors.sparse import SparsePosterior
from directgp.predictive.component import Component
from directgp.predictive.mixture import PredictiveMixture
from directgp.predictive.moments import centre, check_coverage, class_log_probabilities
from directgp.stack import Stack, Trees
from directgp.text import decimals_for, did_you_mean, percent, text_table, with_error

Tables = Float64[np.ndarray, "g n d"]
"""Rows once for each value of a grid."""

Curves = Float64[np.ndarray, "c g"]
"""The mean of y, or the probability of each of three or more classes, along a grid."""

_MAX_FEATURES = 6
"""Features of a picture unless the user names them."""

_MAX_ROWS = 200
"""Rows over which partial dependence is averaged; more are sampled with a fixed seed."""

_GRID = 40
"""Points of a curve, evenly spaced from the 5 % to the 95 % quantile of the feature."""

_FEWER = 2
"""Divisor of rows and points for three or more classes, whose probabilities take long."""

_MAX_LEVELS = 40
"""Levels of a category or a group that have a point each; those of most rows, if there are more."""

_FEW = 10
"""A feature with at most this many different values has a point at each."""

_DRAWS = 500
"""Draws of f for a band; its ends err by about a tenth of its standard deviation."""

_RADIAL = (RBFKernel, MaternKernel, RQKernel, PiecewisePolynomialKernel)
"""Kernels of the distance of two inputs, with each feature divided by its lengthscale."""

NO_LENGTH_SCALES = "The kernel has no lengthscale for each feature"


def lengthscale_shares(posterior: SparsePosterior) -> Array | None:
    """Return each input's share in the sum of 1 / lengthscale; None without ARD lengthscales."""
    kernel = posterior.prior.kernel
    Z = posterior.Z.detach().flatten(0, -2)
    scales = posterior.prior.length_scales()
    radial = any(isinstance(part, _RADIAL) for part in kernel.modules())
    if scales is None or len(scales) != Z.shape[1] or not radial:
        return None
    # Training leaves the lengthscale of a constant column at its start; f cannot vary along it.
    constant = (Z == Z[0]).all(0).cpu().numpy()
    slopes = np.where(constant & ~constant.all(), 0.0, 1 / scales)
    return np.asarray(slopes / slopes.sum())


def split_shares(stack: Stack | None) -> Columns:
    """Return each feature's share in the splits of the trees of each column of a stack.

    The shares of a column are 0 if its source has no trees, or trees without splits.
    """
    if stack is None:
        return np.zeros((0, 0))
    rows = []
    for source in stack.sources:
        counts = np.zeros(stack.num_features)
        for fitted in source.folds:
            if isinstance(fitted.model, Trees):
                counts += np.bincount(fitted.model.feature, minlength=stack.num_features)
        rows += [counts / max(1.0, counts.sum())] * len(source.names)
    return np.array(rows)


class Explained(NamedTuple):
    """A trained model; the methods take inputs in user units."""

    model: PredictingEstimator
    """The fitted estimator of one output."""

    @classmethod
    def of(cls, model: PredictingEstimator) -> "Explained":
        """Return the model of a fitted estimator."""
        return cls(model)

    @property
    def scalings(self) -> Scalings:
        """Scalings of inputs and targets."""
        return self.model.scalings_

    def relevance(self) -> Array | None:
        """Return the shares of `feature_importances_`; None without ARD lengthscales.

        They are the mean of the members' shares, by weight, over those with ARD lengthscales.
        """
        imputation = self.scalings.imputation
        by_splits = split_shares(self.model.stack_)
        total = None
        for weight, member in self.model._weighted():
            shares = lengthscale_shares(member.posterior)
            if shares is None:
                continue
            if member.stacked:
                # The share of a column of the stack is that of the features of its trees.
                features = shares[: by_splits.shape[1]]
                shares = features + shares[len(features) :] @ by_splits
                shares = shares / shares.sum() if shares.any() else shares
            total = weight * shares + (0.0 if total is None else total)
        if total is None:
            return None
        if imputation is not None:
            # A feature and the indicator of its gaps count together.
            sums, indicators = np.split(total, [len(imputation.medians)])
            np.add.at(sums, list(imputation.indicated), indicators)
            total = sums
        return np.asarray(total / total.sum()) if total.any() else None

    @property
    def many_classes(self) -> bool:
        """Whether y is one of three or more classes, each with a curve of its own."""
        likelihood = self.model.likelihood_
        return isinstance(likelihood, Classes) and likelihood.num_classes > 2

    def mixture(self, X: Columns) -> PredictiveMixture:
        """Return the distribution of the scaled targets."""
        return self.model._mixture(X, None)

    @torch.no_grad()
    def nll(self, X: Columns, y: Column) -> float:
        """Return the mean NLL of the scaled targets."""
        mixture = self.mixture(X)
        targets = torch.as_tensor(self.scalings.exact_targets(y)).to(mixture.device)
        return float(-mixture.log_density(targets).mean())

    @torch.no_grad()
    def averages(self, tables: Tables) -> Curves:
        """Return the mean of y, or the probability of each class, averaged over each table."""
        mixture = self.mixture(tables.reshape(-1, tables.shape[-1]))
        mean = mixture.average(self._means)
        rows = mean.cpu().numpy().reshape(len(mean), len(tables), -1)
        return self.scalings.targets_in_units(rows.mean(axis=2))

    def _means(self, member: Component) -> Tensor:
        """Return the mean of y, or the probability of each class, of shape (curves, n)."""
        if not isinstance(member.likelihood, Classes):
            return centre(member.likelihood, member.marginals)[None]
        chances = class_log_probabilities(member.likelihood, member.marginals).exp()
        return chances if self.many_classes else chances[1:]

    @torch.no_grad()
    def bands(self, tables: Tables, coverage: float) -> Float64[np.ndarray, "c 2 g"]:
        """Return central intervals of the average of E[y given f], over joint draws of f.

        Each member has draws by its weight.
        """
        weighted = self.model._weighted()
        counts = numbers_by_weight([weight for weight, _ in weighted], _DRAWS)
        members = [member for _, member in weighted]
        flat = tables.reshape(-1, tables.shape[-1])
        inputs = self.model._member_inputs(flat, members)
        draws = [
            self._draws(member, X.reshape(*tables.shape[:2], -1), number)
            for member, X, number in zip(members, inputs, counts, strict=True)
            if number
        ]
        tail = 0.5 * (1 - coverage)
        ends = np.quantile(
            self.scalings.targets_in_units(torch.cat(draws, -1).cpu().numpy()),
            [tail, 1 - tail],
            axis=-1,
        )
        return np.asarray(ends.swapaxes(0, 1))

    def _draws(
        self, member: Member, inputs: Float[Tensor, "g n d"], number: int
    ) -> Float[Tensor, "c g s"]:
        """Return draws of the average of E[y given f] over each table of scaled inputs."""
        # In float64: between close inputs the covariance is singular in float32.
        posterior = copy.deepcopy(member.posterior).double()
        X = inputs.to(posterior.Z)
        # Every table gets the same random numbers, so that the band is smooth.
        generator = torch.Generator(X.device).manual_seed(0)
        several = posterior.num_latent > 1
        numbers = range(posterior.num_latent)
        latents = [posterior.latent(k) for k in numbers] if several else [posterior]
        noise = [standard_normal(number, X[0, :, 0], generator).mT for _ in latents]

        def averages(X: Tensor) -> Tensor:
            """Return the average of each draw, of shape (curves, ..., draws)."""
            f = []
            for latent, normals in zip(latents, noise, strict=True):
                joint = latent.joint(X)
                f.append(joint.mean.unsqueeze(-1) + jittered_cholesky(joint.covariance).L @ normals)
            latent_draws = torch.stack(f, -2) if several else f[0]
            return self._conditional(member.likelihood, latent_draws).mean(-2)

        # The draws of several latents are many: one value of the grid at a time.
        return torch.stack([averages(x) for x in X], 1) if several else averages(X)

    def _conditional(self, likelihood: Likelihood, f: Tensor) -> Tensor:
        """Return E[y given f] or the probability of each class, of shape (curves, ..., n, draws).

        f has shape (..., n, draws), or (..., n, latents, draws).
        """
        if self.many_classes:
            classes: Any = likelihood
            chances: Tensor = classes.class_probabilities(f)
            return chances.movedim(-2, 0) if classes.num_latent > 1 else chances
        # Student's t noise may have no mean.
        return (f if likelihood.additive else likelihood.conditional_mean(f))[None]

    def curves(self, X: Columns, features: Sequence[int], coverage: float) -> list[Array]:
        """Return grid, mean and ends of the band along each feature, averaged over rows.

        Three or more classes have mean and ends of each.
        """
        curves = []
        for j in features:
            grid, tables = self._along(X, j)
            pairs = zip(self.averages(tables), self.bands(tables, coverage), strict=True)
            curves.append(np.stack([grid, *(row for mean, ends in pairs for row in (mean, *ends))]))
        return curves

    def _along(self, X: Columns, j: int) -> tuple[Array, Float64[np.ndarray, "g m d"]]:
        """Return the values of a feature, and the rows to average over with each of them."""
        fewer = _FEWER if self.many_classes else 1
        coded = j in self.model._coded
        grid = _codes(X[:, j]) if coded else _grid(X[:, j], _GRID // fewer)
        rows = _sample(X, _MAX_ROWS // fewer)
        tables = np.repeat(rows[None], len(grid), axis=0)
        tables[:, :, j] = grid[:, None]
        return grid, tables


def numbers_by_weight(weights: Sequence[float], total: int) -> list[int]:
    """Return whole numbers with this sum in the ratio of the weights, by largest remainders."""
    exact = total * np.array(weights)
    numbers = np.floor(exact).astype(int)
    order = np.argsort(numbers - exact, kind="stable")
    numbers[order[: total - int(numbers.sum())]] += 1
    return [int(number) for number in numbers]


def increases(nll: Callable[[Columns], float], X: Columns, random: Any) -> Array:
    """Return the increase of the NLL of rows when each feature is shuffled once."""
    order = random.permutation(len(X))
    before = nll(X)
    rises = []
    for j in range(X.shape[1]):
        shuffled = X.copy()
        shuffled[:, j] = X[order, j]
        rises.append(nll(shuffled) - before)
    return np.array(rises)


def feature_names(model: PredictingEstimator, indicators: bool = False) -> list[str]:
    """Return names of features, or their numbers, and with `indicators` names of indicators."""
    names = [*model._feature_names]
    imputation = model.scalings_.imputation
    return imputation.names(names) if indicators and imputation is not None else names


@final
@dataclass(frozen=True, eq=False, repr=False)
class FeatureRelevance:
    """How much a model uses each feature; its text is a table, the most important first."""

    features: tuple[str, ...]
    """Names of the features."""

    relevance: Array | None
    """`feature_importances_`; None if the kernel has no lengthscale for each feature."""

    importance: Array | None = None
    """Increase of the mean NLL when the feature is shuffled; None without rows."""

    importance_error: Array | None = None
    """Standard error of the importance over the repeats; None without rows."""

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns that are known, by name, for a table of any library."""
        columns = {
            "feature": self.features,
            "relevance": self.relevance,
            "importance": self.importance,
            "importance_error": self.importance_error,
        }
        filled = {name: values for name, values in columns.items() if values is not None}
        return {name: np.asarray(values).tolist() for name, values in filled.items()}

    def __repr__(self) -> str:
        columns = {"feature": [*self.features]}
        notes = [f"{NO_LENGTH_SCALES}: no relevance."]
        if self.relevance is not None:
            columns["relevance"] = [percent(share, 1) for share in self.relevance]
            notes = ["relevance: share in the sum of 1 / lengthscale, in standard deviations"]
        if self.importance is not None and self.importance_error is not None:
            pairs = self.importance.tolist(), self.importance_error.tolist()
            # Features that do not matter have small errors, and would decide the decimals.
            decimals = decimals_for(pairs[0], sorted(pairs[1])[len(pairs[1]) // 2 :])
            columns["importance"] = [
                with_error(*pair, decimals) for pair in zip(*pairs, strict=True)
            ]
            notes.append("importance: increase of the mean NLL if shuffled, ± s.e. over shuffles")
        by = self.relevance if self.importance is None else self.importance
        order = range(len(self.features)) if by is None else np.argsort(-by, kind="stable")
        rows = [[column[i] for column in columns.values()] for i in order]
        return "\n".join([text_table([[*columns], *rows], right=(1, 2)), *notes])


def feature_relevance(
    model: PredictingEstimator,
    X: ArrayLike | None,
    y: ArrayLike | None,
    row_values: RowValues | None,
    n_repeats: int,
    random_state: Any,
) -> FeatureRelevance:
    """Return the relevance by lengthscales and, with rows, the permutation importance."""
    check_is_fitted(model)
    who = model._who("feature_relevance")
    names = tuple(feature_names(model))
    check_whole(n_repeats, 2, f"n_repeats of {who}")
    got = "no X" if X is None else "no y"
    require((X is None) == (y is None), f"X and y of {who}", "given together", got)
    relevance = Explained.of(model).relevance()
    if X is None or y is None:
        return FeatureRelevance(names, relevance)
    inputs = model._inputs(X, who)
    model._targets(inputs, y, "feature_relevance")
    model._scaled_rows(row_values, len(inputs), who)

    def nll(rows: Columns) -> float:
        return model._nll(EncodedRows(rows), y, None, row_values)

    random = check_random_state(random_state)
    repeats = np.stack([increases(nll, inputs, random) for _ in range(n_repeats)])
    error = repeats.std(axis=0, ddof=1) / np.sqrt(n_repeats)
    return FeatureRelevance(names, relevance, repeats.mean(axis=0), error)


def partial_dependence(
    model: PredictingEstimator,
    X: ArrayLike,
    features: str | int | Sequence[str | int] | None = None,
    *,
    coverage: float = 0.9,
) -> tuple[PartialDependence, ...]:
    """Return the curves that the method `plot_partial_dependence` of an estimator draws."""
    check_is_fitted(model)
    who = model._who("plot_partial_dependence")
    names = feature_names(model)
    check_coverage(who, coverage)
    chosen = None if features is None else _positions(features, names, who)
    inputs = model._inputs(X, who)
    classes = getattr(model, "classes_", None)
    target = "rate" if model._task == "count" else "mean of y"
    names_of_classes: tuple[str, ...] = ()
    if classes is not None:
        many = len(classes) > 2
        target = "probability" if many else f"P({classes[1]})"
        names_of_classes = tuple(map(str, classes)) if many else ()
    explained = Explained.of(model)
    with_values = np.flatnonzero(~np.isnan(inputs).all(axis=0)).tolist()
    if chosen is None:
        by = explained.relevance()
        if by is None:
            by = np.zeros(len(names))
            for j in with_values:
                curves = explained.averages(explained._along(inputs, j)[1])
                by[j] = np.ptp(curves, axis=1).max()
        chosen = [j for j in np.argsort(-by, kind="stable").tolist() if j in with_values][
            :_MAX_FEATURES
        ]
    for j in chosen:
        require(j in with_values, f"features of {who}", "columns with values in X", repr(names[j]))
    drawn = explained.curves(inputs, chosen, coverage)
    kinds = model.columns_
    columns: list[EncodedColumn | None]
    columns = [None if kinds is None else kinds.columns[j] for j in chosen]
    return tuple(
        dependence_on(names[j], target, curve, coverage, names_of_classes, column)
        for j, curve, column in zip(chosen, drawn, columns, strict=True)
    )


def dependence_on(
    feature: str,
    target: str,
    curve: Array,
    coverage: float,
    classes: tuple[str, ...] = (),
    column: EncodedColumn | None = None,
) -> PartialDependence:
    """Return the record to draw from one of `Explained.curves`, with names of several classes.

    The column gives the names of levels, and says whether the feature is a date.
    """
    grid = curve[0]
    few = len(curve[0]) <= _FEW
    mean, lower, upper = (curve[k::3] if classes else curve[k] for k in (1, 2, 3))
    record = PartialDependence(feature, target, grid, mean, lower, upper, coverage, few, classes)
    if column is None:
        return record
    if column.coded:
        levels = tuple(column.shown(code) for code in grid.tolist())
        return replace(record, discrete=True, levels=levels)
    return replace(record, dates=column.unit == "days")


def _positions(features: Any, names: Sequence[str], who: str) -> list[int]:
    """Return the numbers of columns that are named by the user, or numbered."""
    wanted = [features] if isinstance(features, str | Integral) else [*features]
    require(bool(wanted), f"features of {who}", "one or more", "none")
    allowed = f"names of features, or numbers from 0 to {len(names) - 1}"
    for feature in wanted:
        if feature not in (names if isinstance(feature, str) else range(len(names))):
            refuse(f"features of {who}", allowed, repr(feature), did_you_mean(str(feature), names))
    return [names.index(item) if isinstance(item, str) else int(item) for item in wanted]


def _grid(column: Array, points: int) -> Array:
    """Return the values of a column with few of them, else even points between two quantiles."""
    column = column[~np.isnan(column)]
    values = np.unique(column)
    if len(values) <= _FEW:
        return values
    low, high = np.quantile(column, [0.05, 0.95])
    # Nearly all rows may have one value.
    ends = (low, high) if low < high else (values[0], values[-1])
    return np.linspace(*ends, points)


def _codes(column: Array) -> Array:
    """Return the codes of the levels that occur, in order; of many those of most rows."""
    codes, counts = np.unique(column, return_counts=True)
    most = np.argsort(-counts, kind="stable")[:_MAX_LEVELS]
    return np.sort(codes[most])


def _sample(X: Columns, number: int) -> Float64[np.ndarray, "m d"]:
    """Return the rows to average over."""
    few = len(X) <= number
    return X if few else X[np.random.default_rng(0).choice(len(X), number, replace=False)]

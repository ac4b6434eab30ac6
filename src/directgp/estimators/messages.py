"""Write the warnings of `fit` and `partial_fit`, which `issue` gives to the user."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
from jaxtyping import Bool, Num, Shaped
from sklearn.exceptions import ConvergenceWarning

from directgp.errors import DirectGPWarning
from directgp.estimators.column_kinds import ColumnKinds
from directgp.estimators.fitting import Continuation, Fit, Fitted
from directgp.estimators.members import Member
from directgp.estimators.preprocessing import Scalings, TrainingTable
from directgp.estimators.validation import FeatureNames
from directgp.likelihoods.capabilities import ParameterText, parameter_texts
from directgp.metrics import COVERAGE
from directgp.race.coverage import Group
from directgp.stack import sources_of
from directgp.text import number, plural
from directgp.training.result import BetaPath, Status, TrainingResult

_MIN_REPEATED_SHARE = 0.01
"""Share of repeated rows from which they are mentioned."""

_MIN_REPEATED = 5
"""Number of repeated rows from which they are mentioned."""

_MAX_COUNT = 1000
"""Largest integer that looks like a count."""

_MIN_COUNTS = 20
"""Rows from which integers may look like counts."""

_MIN_SKEWNESS = 0.4
"""Skewness from which integers look like counts; a Poisson variable of mean 6 has it."""

_FLAT = 100.0
"""Lengthscale, in deviations of the feature, from which f hardly depends on the feature."""

_SMALL_WEIGHT = 0.5
"""Mean weight of a row below which the weights look relative to each other."""

_FAR = 5.0
"""Mean of a scaled column from which new rows are unlike the rows of the first fit."""

_WIDE = 10.0
"""Deviation of a scaled column from which new rows are unlike the rows of the first fit."""

_FALLING = 5e-3
"""Relative fall of the loss over the last tenth of the steps of a run that stopped too early."""

_MAX_UNTRIED = 3
"""Candidates that are named where a race was ended; the rest is counted."""

_STACK_LEVEL = 4
"""Frames from `warnings.warn` to the caller of `fit`."""

_STACK_LEVEL_OF_OUTPUT = 6
"""Frames from `warnings.warn` to the caller of `fit` of several outputs."""

OUTPUT: ContextVar[str] = ContextVar("OUTPUT", default="")
"""The output of y that is being fitted in this thread, if there are several."""

_OUTPUT_SCALE = ParameterText(
    "raw_output_scale",
    "The output scale of the kernel",
    "Predictions are nearly constant: the target does not vary with the inputs.",
)


def row_findings(
    table: TrainingTable,
    names: FeatureNames | None,
    num_inducing: int | None,
    warm: bool,
    coded: Sequence[int] = (),
) -> Iterator[str]:
    """Warn about constant columns, repeated rows, small weights, new units and too few rows."""
    X = table.X.double().cpu().numpy()
    n = len(table.X)
    num_rows = table.num_rows
    if named := _named(X.min(axis=0) == X.max(axis=0), names):
        yield (
            f"The same value in every training row: {named}. The model cannot learn from it, and "
            "predictions for other values are near the prior. Drop it if you do not need it."
        )
    if table.num_merged >= _MIN_REPEATED and table.num_merged > _MIN_REPEATED_SHARE * num_rows:
        yield (
            f"{table.num_merged} of {num_rows} rows repeat another row exactly, inputs and target, "
            "and were merged with it into one of larger weight. If they are copies and not "
            "measurements, they make predictions too certain: drop them."
        )
    if table.count < _SMALL_WEIGHT * num_rows:
        yield (
            f"A weight is a number of rows; these sum to {table.count:.3g} for {num_rows} rows, so "
            f"predictions are as uncertain as with {table.count:.3g} rows. If the weights are "
            f"relative to each other, multiply them by n/Σw = {num_rows / table.count:.3g}."
        )
    if warm:
        yield from outside_scaling(table, names, coded)
    if num_inducing is not None and n < num_inducing:
        yield (
            f"There are {n} distinct training rows for num_inducing={num_inducing}. More than one "
            f"inducing input per row adds nothing; their number is reduced to {n}."
        )


def outside_scaling(
    table: TrainingTable, names: FeatureNames | None, coded: Sequence[int] = ()
) -> Iterator[str]:
    """Warn about columns whose new rows have a mean or deviation far from the first fit.

    A small spread gives no warning: rows of a sorted table have one. The columns `coded` have codes
    of levels, which are not scaled.
    """
    if not table.scalings.inputs.rounded:
        return
    scaled = table.X.double().cpu().numpy()
    far = (np.abs(scaled.mean(axis=0)) > _FAR) | (scaled.std(axis=0) > _WIDE)
    far[list(coded)] = False
    if named := _named(far, names):
        yield (
            f"The new rows lie far outside those of the first fit: {named}. The scaling is that of "
            "the first fit, so predictions there may be near the prior. Check the units; if they "
            "are right, fit again with warm_start=False."
        )


def findings_of_levels(
    kinds: ColumnKinds, names: FeatureNames | None, num_rows: int
) -> Iterator[str]:
    """Warn about columns of text that are dates, or have nearly as many levels as rows."""
    if named := ", ".join(_named_column(j, names) for j in kinds.dates_as_text):
        yield (
            f"Dates as text, which are levels without an order: {named}. Convert them, such as "
            "with pandas.to_datetime, or set their kind to 'time' with columns=..."
        )
    for j in kinds.identifiers(num_rows):
        yield (
            f"Nearly as many levels as rows, {len(kinds.columns[j].levels):,} of {num_rows:,}: "
            f"{_named_column(j, names)}. It looks like a name of each row, from which the model "
            "can learn little. Drop it; if its levels come back in new rows, its kind is 'group'."
        )


def regression_target(y: Num[np.ndarray, " n"]) -> Iterator[str]:
    """Warn about targets for which another estimator is better."""
    distinct = np.unique(y)
    if len(distinct) == 2:
        low, high = distinct.tolist()
        yield (
            f"The target has only two values, {low:g} and {high:g}. SparseGPRegressor treats them "
            "as real numbers with Gaussian noise; for probabilities of two classes use "
            "SparseGPClassifier."
        )
    elif _looks_like_counts(y, len(distinct)):
        yield (
            f"The target looks like counts: integers from 0 to {y.max():g}, skewed. "
            "SparseGPRegressor treats them as real numbers with Gaussian noise, so intervals can "
            "reach below 0; use SparseGPCountRegressor for counts."
        )


def _looks_like_counts(y: Num[np.ndarray, " n"], num_distinct: int) -> bool:
    """Return whether y are repeated, skewed integers from 0, with the variance of counts."""
    if len(y) < _MIN_COUNTS or num_distinct < 3 or 2 * num_distinct > len(y):
        return False
    if y.min() != 0 or y.max() > _MAX_COUNT or (y != np.floor(y)).any():
        return False
    mean = float(y.mean())
    variance = float(y.var())
    skewness = float(((y - mean) ** 3).mean()) / variance**1.5
    return variance > 0.5 * mean and skewness > _MIN_SKEWNESS


def one_class(y: Num[np.ndarray, " n"], classes: Shaped[np.ndarray, " c"]) -> Iterator[str]:
    """Warn about labels, 0 or 1, of which only one occurs."""
    if y.min() == y.max():
        yield (
            f"Every label is {classes.tolist()[int(y[0])]!r}, so kernel and mean cannot be "
            "learned: they keep their starting values, in later calls of partial_fit too. Call fit "
            "once there are rows of both classes."
        )


def training_findings(
    fitted: Fitted, names: FeatureNames | None, num_features: int, coded: Sequence[int] = ()
) -> Iterator[str]:
    """Warn about parameters at a bound, an early end, flat features, extreme β and failures.

    Columns after the first `num_features` are indicators of gaps and columns of the stack. The
    columns `coded` have codes of levels, without a spread.
    """
    result = fitted.result
    path = fitted.path
    if len(fitted.members) == 1:
        # In a mixture, others vary with the inputs where one member is constant.
        yield from _at_bounds(result, path)
    end = fitted.end or result.stages[-1]
    yield from ended_early(end.status, end.reason)
    flat = _flat(fitted.members, num_features)
    flat[list(coded)] = False
    if named := _named(flat, names):
        yield (
            f"The lengthscale is more than {_FLAT:g} times the spread of the feature: {named}. "
            "Predictions hardly depend on it. Drop it, or check its values for outliers."
        )
    if path is not None:
        yield from _extreme_beta(path)
        yield from (f"A candidate could not be trained: {failure}" for failure in path.failed)


def _at_bounds(result: TrainingResult, path: BetaPath | None) -> Iterator[str]:
    """Warn about parameters of the only member at their smallest value."""
    texts = {f"likelihood.{text.parameter}": text for text in parameter_texts(result.likelihood)}
    for scale in ("prior.raw_output_scale", "prior.kernel.raw_outputscale"):
        texts[scale] = _OUTPUT_SCALE
    # In a model compared with the ELBO, the variance of f may take the place of all noise.
    compared = path is not None and any(p.hyperparameters == "elbo" for p in path.points)
    for name in result.at_floor:
        text = texts.get(name, ParameterText(name, name, "It may not suit these data."))
        if not (compared and text.is_noise):
            yield f"{text.subject} ended at the smallest value that training allows. {text.advice}"


def _flat(members: Sequence[Member], num_features: int) -> Bool[np.ndarray, " d"]:
    """Return the features on which f of no member depends; the stack of a member sees all."""
    flat = np.ones(num_features, dtype=bool)
    for member in members:
        scales = member.posterior.prior.length_scales()
        if member.stacked or scales is None or len(scales) == 1:
            return np.zeros(num_features, dtype=bool)
        flat &= scales[:num_features] > _FLAT
    return flat


def _extreme_beta(path: BetaPath) -> Iterator[str]:
    """Warn if every member of the result has the same β at an end of the grid."""
    betas = {member.beta for member in path.members}
    if len(betas) != 1 or len(path.grid) < 2:
        return
    if any(member.hyperparameters == "elbo" for member in path.members):
        return
    (beta,) = betas
    ends = {
        min(path.grid): ("smallest", "hardly any regularisation", "below"),
        max(path.grid): ("largest", "predictions near the prior", "above"),
    }
    if beta in ends:
        which, means, where = ends[beta]
        yield (
            f"Validation chose β = {beta:g}, the {which} of its grid, which means {means}. The "
            f"best β may lie {where} it: try one with beta=..., or use more rows for "
            "validation."
        )


def narrow_intervals(
    fitted: Fitted,
    scalings: Scalings,
    names: FeatureNames | None,
    kinds: ColumnKinds | None = None,
) -> Iterator[str]:
    """Warn where 90 % intervals hold too few targets."""
    intervals = f"{100 * COVERAGE:.0f} % intervals"
    kind = "validation" if fitted.path is not None and fitted.path.points else "training"

    def place(group: Group) -> str:
        feature = group.feature
        scaling = scalings.targets
        what = "the predicted mean"
        if feature is not None:
            what = _named_column(feature, names)
            scaling = scalings.inputs
        j = feature or 0
        ends = sorted(end * scaling.scale[j] + scaling.shift[j] for end in (group.low, group.high))
        shown = [number(end, 4) for end in ends]
        if feature is not None and kinds is not None and feature < len(kinds.columns):
            shown = [kinds.columns[feature].shown(end) for end in ends]
        return (
            f"{group.inside} of {group.number} {kind} targets where {what} is from "
            f"{shown[0]} to {shown[1]}"
        )

    if narrow := fitted.coverage.narrow:
        more = len(narrow) - 1
        rest = f", and too few in {plural(more, 'other part')} of the table" if more else ""
        yield (
            f"The {intervals} are too narrow in places: they hold only {place(narrow[0])}{rest}. "
            "Do not rely on them there. A feature that says where targets scatter more, a larger "
            "beta or another likelihood may help."
        )


def sources_without_weights(fit: Fit | Continuation) -> Iterator[str]:
    """Warn where rows have weights that a source of the stack does not take."""
    settings = fit.settings
    if fit.table.weights is None:
        return
    for source in sources_of(settings.stack, settings.task, "fit"):
        if not source.takes_weights:
            yield (
                f"The fit of source {source.name!r} of the stack takes no sample_weight: in it "
                "every row counts as one. Use an estimator that takes it, such as one outside of "
                "a pipeline, or stack='trees'."
            )


def ended_early(status: Status, reason: str) -> Iterator[str]:
    """Warn about training that the user or a callback ended."""
    if status in (Status.CANCELLED, Status.INTERRUPTED):
        yield f"Training was ended before it converged. {reason} Fit again for a finished model."


def not_converged(result: TrainingResult, compared: bool = False) -> Iterator[str]:
    """Warn if the budget ended training while the loss fell fast; `compared` if β was chosen."""
    losses = result.history
    tail = max(2, len(result.history) // 10)
    if result.status is not Status.BUDGET:
        return
    if len(losses) > tail:
        fall = losses[-tail - 1] - losses[-1]
        if fall <= _FALLING * max(1.0, abs(losses[-1])):
            return
    share = " A run of a candidate gets at most max_iter steps." if compared else ""
    yield (
        f"Training has not converged. {result.reason}{share} Predictions may still improve with "
        "more steps or time."
    )


def findings_of_fit(model: Any, fit: Fit | Continuation, fitted: Fitted) -> Iterator[str]:
    """Yield the warnings about the training rows and the result of `fit`."""
    names = _names(model, fit.table.scalings)
    num_inducing = None
    if isinstance(fit.settings.inducing, str) and fit.settings.num_inducing != "auto":
        num_inducing = fit.settings.num_inducing
    warm = isinstance(fit, Continuation)
    yield from row_findings(fit.table, names, num_inducing, warm, model._coded)
    yield from training_findings(fitted, names, model.n_features_in_, model._coded)
    if not warm:
        if model.columns_ is not None:
            yield from findings_of_levels(model.columns_, names, fit.table.num_rows)
        yield from sources_without_weights(fit)
    yield from narrow_intervals(fitted, fit.table.scalings, names, model.columns_)
    if fitted.end is not None and fitted.end.status is Status.BUDGET:
        untried = f" Not tried: {_some_of(fitted.untried)}." if fitted.untried else ""
        yield (
            f"The time budget ended the race, and the best result so far is taken.{untried} Give "
            "it more time with time_budget=..., or a choice less with beta=... or kernel=..."
        )


def findings_of_update(model: Any, result: TrainingResult, table: TrainingTable) -> Iterator[str]:
    """Yield the warnings about the new rows and the result of `partial_fit`."""
    yield from outside_scaling(table, _names(model, table.scalings), model._coded)
    yield from ended_early(result.status, result.reason)


def issue(
    findings: Iterable[str], result: TrainingResult, compared: bool = False
) -> tuple[str, ...]:
    """Issue a `DirectGPWarning` for each finding, a `ConvergenceWarning` if due; return all."""
    texts_of_fit = tuple(findings)
    unfinished = tuple(not_converged(result, compared))
    output = OUTPUT.get()
    about, level = (f"Output {output}: ", _STACK_LEVEL_OF_OUTPUT) if output else ("", _STACK_LEVEL)
    for texts, category in ((texts_of_fit, DirectGPWarning), (unfinished, ConvergenceWarning)):
        for text in texts:
            warnings.warn(about + text, category, stacklevel=level)
    return texts_of_fit + unfinished


def _some_of(texts: Sequence[str]) -> str:
    """Return the last texts, which say most, and the number of the others before them."""
    more = len(texts) - _MAX_UNTRIED
    first = [f"{plural(more, 'candidate')}"] if more > 0 else []
    return "; ".join([*first, *texts[-_MAX_UNTRIED:]])


def _names(model: Any, scalings: Scalings) -> FeatureNames | None:
    """Return the names of the columns that are trained on, if they have some."""
    names = getattr(model, "feature_names_in_", None)
    imputation = scalings.imputation
    if imputation is None or not imputation.indicated:
        return names
    numbers = [f"column {j}" for j in range(model.n_features_in_)]
    return imputation.names(numbers if names is None else list(map(str, names)))


def _named(chosen: Bool[np.ndarray, " d"], feature_names: FeatureNames | None) -> str:
    """Return the chosen columns by name or number."""
    return ", ".join(_named_column(j, feature_names) for j in np.flatnonzero(chosen).tolist())


def _named_column(j: int, feature_names: FeatureNames | None) -> str:
    return f"column {j}" if feature_names is None else repr(str(feature_names[j]))

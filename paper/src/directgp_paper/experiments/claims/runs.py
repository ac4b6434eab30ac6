"""Pair runs of the same splits, judge their convergence, and test their differences."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, final, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from directgp.experiments import SIGNIFICANT, Record, corrected_p_value
from directgp.text import number, plural
from directgp_paper.experiments.cells import (
    AIRLINE,
    PAPER_METHODS,
    CurveOutcome,
    FitCell,
    FitOutcome,
    ProtocolName,
    Results,
)

AnyRecord = Record[Any, Any]

# Results of two methods on the same splits.

Split = tuple[int, int]
"""Repeat and seed."""


def by_setting(runs: Iterable[AnyRecord], free: set[str]) -> dict[str, dict[Split, AnyRecord]]:
    """Group runs whose cells differ only in the split and in the free fields."""
    settings: dict[str, dict[Split, AnyRecord]] = {}
    for run in runs:
        setting = run.cell.model_dump_json(exclude=free | {"repeat", "seed"})
        settings.setdefault(setting, {})[run.cell.repeat, run.cell.seed] = run
    return settings


def shared_ratio(run: AnyRecord) -> float:
    """Return test rows over training rows, by which splits that share rows are corrected."""
    return float(run.outcome.num_test / (run.outcome.num_training or run.cell.size))


def place(run: AnyRecord) -> tuple[str, str]:
    """Return machine and device, on which times depend."""
    return run.circumstances.machine, run.circumstances.device


def protocols(results: Results, dataset: str) -> list[ProtocolName]:
    """Return the protocols of the fits on a data set; ours, which converges, decides."""
    run = {r.cell.protocol for r in results.of(FitCell) if r.cell.dataset == dataset}
    return [protocol for protocol in get_args(ProtocolName)[::-1] if protocol in run] or ["best"]


def deciding(results: Results) -> list[AnyRecord]:
    """Return all runs except the fits by a protocol that does not decide."""
    datasets = {run.cell.dataset for run in results.records}
    first = {name: protocols(results, name)[0] for name in datasets}
    return [
        run
        for run in results.records
        if not isinstance(run.cell, FitCell) or run.cell.protocol == first[run.cell.dataset]
    ]


def paired_runs(
    ones: Iterable[AnyRecord],
    others: Iterable[AnyRecord],
    free: set[str],
    tie: Callable[[Any], int],
) -> list[tuple[Any, list[tuple[AnyRecord, AnyRecord]], int]]:
    """Pair runs of the same split whose cells differ only in the free fields, by setting.

    A setting has one of its cells, the pairs, and the number of runs without a partner. The largest
    size comes first; of the same size the most repeats, then the larger tie.
    """
    first = by_setting(ones, free)
    second = by_setting(others, free)
    settings = []
    for setting in (key for key in first if key in second):
        a = first[setting]
        b = second[setting]
        pairs = [(a[split], b[split]) for split in sorted(a.keys() & b.keys())]
        if pairs:
            settings.append((next(iter(a.values())).cell, pairs, len(a.keys() ^ b.keys())))

    def rank(setting: tuple[Any, ...]) -> tuple[int, int, int, str]:
        cell, pairs, _ = setting
        return cell.size, len(pairs), tie(cell), cell.model_dump_json()

    return sorted(settings, key=rank, reverse=True)


# Convergence. The history of thresholds stands in claims.toml.

NLL_MARGIN = 0.01
"""Nats within which two NLLs count as equal: a line width of the paper's plots, and a probability
that is 1 % off on average."""

REGRESSION_MARGIN = 0.05
"""Nats of the normalised target within which curves of regression are equal: a line width of plots
of the paper's four sets, whose NLLs spread over more than 1 nat."""

AIRLINE_MARGIN = 0.002
"""Nats within which curves of airline are equal: a fifth of the difference between ELBO and DLM,
which the paper calls different."""

MSE_SHARE = 0.02
"""Share of the MSE within which two count as equal: 1 % of the RMSE."""

CONVERGED = "converged"
"""Status of a fit that did not stop at a limit."""


def curve_margin(cell: Any) -> float:
    """Return the nats within which two curves, or two parts of one, count as equal."""
    if cell.dataset == AIRLINE:
        return AIRLINE_MARGIN
    return REGRESSION_MARGIN if cell.task == "regression" else NLL_MARGIN


def _may_move(run: AnyRecord) -> float:
    """Return the largest movement of the loss at which a run counts as converged.

    The objective of the square loss has half of the MSE.
    """
    if isinstance(run.outcome, CurveOutcome):
        return curve_margin(run.cell)
    squared = PAPER_METHODS[run.cell.method].objective == "square_loss"
    return MSE_SHARE / 2 * float(run.outcome.scores["mse"]) if squared else NLL_MARGIN


def movement(run: AnyRecord) -> float:
    """Return how far the mean loss in the last fifth of a run is from the fifth before.

    The loss of a curve is the NLL at its evaluations. The loss of a fit is the objective at its
    steps; a fit that ended before its limit of steps has the movement 0.
    """
    outcome = run.outcome
    if isinstance(outcome, CurveOutcome):
        # Of two evaluations at the same step the last one counts.
        by_step = {point.step: point.scores["nll"] for point in outcome.points}
        values = np.array([*by_step.values()])
        if len(values) and not math.isfinite(values[-1]):
            # It has diverged, and would not come back.
            return 0.0
    elif isinstance(outcome, FitOutcome) and outcome.status != CONVERGED:
        values = np.array([loss for _, loss in outcome.history])
    else:
        return 0.0
    fifth = max(1, len(values) // 5)
    if len(values) < 2 * fifth or not np.isfinite(values[-2 * fifth :]).all():
        return math.inf
    return abs(float(values[-fifth:].mean() - values[-2 * fifth : -fifth].mean()))


def is_converged(run: AnyRecord) -> bool:
    """Return whether a fit ended before its limit of steps, or a curve at a constant NLL."""
    outcome = run.outcome
    if isinstance(outcome, FitOutcome):
        return bool(outcome.status == CONVERGED)
    if not isinstance(outcome, CurveOutcome):
        return True
    finite = bool(outcome.points) and math.isfinite(outcome.points[-1].scores["nll"])
    return finite and movement(run) <= _may_move(run)


class Convergence(NamedTuple):
    """Whether the runs of a comparison converged."""

    note: str
    """How many runs did not converge, and how far they moved; empty if all converged."""

    unsettled: bool
    """Whether a run moved so far that the comparison decides nothing."""


ALL_CONVERGED = Convergence("", False)


def convergence(runs: Sequence[AnyRecord]) -> Convergence:
    """Describe how far runs were from convergence."""
    early = [run for run in runs if not is_converged(run)]
    if not early:
        return ALL_CONVERGED
    moved = max(map(movement, early))
    far = f"moving by up to {number(moved, 2)} in a fifth of their steps"
    note = f"{len(early)} of {plural(len(runs), 'run')} not converged, {far}"
    return Convergence(note, any(not movement(run) <= _may_move(run) for run in early))


# Tests.


@final
@dataclass(frozen=True)
class Difference:
    """A mean difference with its test and its intervals."""

    effect: float
    """Mean difference."""

    error: float
    """Standard error of the effect; NaN if unknown."""

    p_value: float
    """Two-sided p-value of the effect; NaN if unknown."""

    low: float
    """Lower end of the 95 % interval."""

    high: float
    """Upper end of the 95 % interval."""

    inner_low: float
    """Lower end of the 90 % interval.

    Two one-sided tests at 5 % show a difference within a margin exactly if this interval is within
    the margin.
    """

    inner_high: float
    """Upper end of the 90 % interval."""

    over: str = ""
    """What was averaged: "5 repeats"."""

    note: str = ""
    """Remark on infinite differences."""

    count: int = 0
    """Repeats; 0 if the effect is not a mean over repeats."""

    deviation: float = math.nan
    """Standard deviation of the repeats; NaN if the effect is not a mean over repeats."""

    ratio: float = 0.0
    """What the correction for shared rows adds to 1/count."""

    def with_repeats(self, count: int) -> "Difference":
        """Return the difference as it would be if more repeats had this mean and deviation."""
        scale = self.deviation * math.sqrt(1 / count + self.ratio)
        p = float(2 * stdtr(count - 1, -abs(self.effect) / scale)) if scale else 0.0
        return _tested(self.effect, self.error, p, scale, partial(stdtrit, count - 1))


_UPPER = 1 - SIGNIFICANT / 2
"""Upper quantile of the intervals, which exclude 0 exactly if the test is significant."""


def _tested(
    effect: float,
    error: float,
    p_value: float,
    scale: float,
    quantile: Callable[[float], float],
    **facts: Any,
) -> Difference:
    """Return a difference with intervals by quantiles of a law times a scale."""
    half, inner = (float(quantile(upper)) * scale for upper in (_UPPER, 1 - SIGNIFICANT))
    ends = effect - half, effect + half, effect - inner, effect + inner
    return Difference(effect, error, p_value, *ends, **facts)


_EVERYTHING = -math.inf, math.inf, -math.inf, math.inf
"""Ends of intervals that exclude nothing."""


def between(one: NDArray[Any], reference: NDArray[Any]) -> NDArray[np.float64]:
    """Return one − reference in float64; values that are not finite count as ∞, and ∞ − ∞ as 0."""
    first = finite_or_infinite(one)
    second = finite_or_infinite(reference)
    tie = np.isinf(first) & np.isinf(second)
    return np.subtract(first, second, out=np.zeros_like(first), where=~tie)


def finite_or_infinite(values: NDArray[Any]) -> NDArray[np.float64]:
    """Convert to float64 and replace values that are not finite by ∞, the worst score."""
    wide = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(wide), wide, np.inf)


def over_repeats(values: NDArray[np.float64], ratio: float, resolution: float = 0.0) -> Difference:
    """Test the mean of one difference per repeat with `corrected_p_value`.

    The standard error is the plain one; test and intervals use the corrected variance.
    """
    finite = values[np.isfinite(values)]
    mean, error = _mean_and_error(finite)
    count = len(finite)
    over = plural(len(values), "repeat")
    p = corrected_p_value(finite, ratio, resolution)
    if count < 2:
        return _with_infinite(Difference(mean, error, p, *_EVERYTHING, over), values)
    deviation = max(float(finite.std(ddof=1)), resolution)
    facts = {"over": over, "count": count, "deviation": deviation, "ratio": ratio}
    scale = deviation * math.sqrt(1 / count + ratio)
    law = partial(stdtrit, count - 1)
    return _with_infinite(_tested(mean, error, p, scale, law, **facts), values)


def over_rows(repeats: Sequence[NDArray[np.float64]]) -> Difference:
    """Test the differences of test rows, averaged over repeats, with a z-test."""
    finite = [rows[np.isfinite(rows)] for rows in repeats]
    moments = np.array([_mean_and_error(rows) for rows in finite if len(rows)]).reshape(-1, 2)
    count = max(len(moments), 1)
    effect = float(moments[:, 0].sum()) / count
    error = np.linalg.norm(moments[:, 1]) / count
    over = plural(sum(map(len, repeats)), "test row")
    difference = replace(measured(effect, float(error)), over=over)
    return _with_infinite(difference, np.concatenate(repeats))


def measured(effect: float, error: float) -> Difference:
    """Test a number with a known standard error with a z-test."""
    if not (math.isfinite(effect) and math.isfinite(error)):
        return Difference(effect, math.nan, math.nan, *_EVERYTHING)
    p = float(2 * ndtr(-abs(effect) / error)) if error else float(effect == 0)
    return _tested(effect, error, p, error, ndtri)


def _mean_and_error(values: NDArray[np.float64]) -> tuple[float, float]:
    count = len(values)
    mean = float(values.mean()) if count else math.nan
    return mean, float(values.std(ddof=1)) / math.sqrt(count) if count > 1 else math.nan


def _with_infinite(finite: Difference, values: NDArray[np.float64]) -> Difference:
    """Add infinite differences to a test of the finite ones.

    An infinite difference shows a direction, but no certainty: the finite ones must agree.
    """
    infinite = values[np.isinf(values)].tolist()
    if not infinite:
        return finite
    end = sum(infinite)
    every = len(infinite) == len(values)
    p = math.nan
    ends = _EVERYTHING
    if not every:
        p = finite.p_value if finite.effect * end > 0 else math.nan
        low = -math.inf in infinite
        high = math.inf in infinite
        ends = (
            -math.inf if low else finite.low,
            math.inf if high else finite.high,
            -math.inf if low else finite.inner_low,
            math.inf if high else finite.inner_high,
        )
    elif len(values) > 1 and not math.isnan(end):
        # All are infinite in one direction.
        p = 0.0
        ends = (end,) * 4
    note = f"{len(infinite)} of {plural(len(values), 'difference')} infinite"
    return Difference(end, math.nan, p, *ends, finite.over, note)

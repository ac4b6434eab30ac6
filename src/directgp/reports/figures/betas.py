"""Validation loss against β, with what was chosen."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from directgp.datasets.wording import joined
from directgp.estimators.plots.beta_axis import BetaAxis
from directgp.experiments.methods import Method
from directgp.experiments.results import Run
from directgp.reports.figures.inks import PAPER, mark_of
from directgp.reports.figures.panels import head, leave_empty, panels
from directgp.reports.figures.picture import Picture
from directgp.reports.figures.ranges import clear_range, widened
from directgp.reports.findings import Findings
from directgp.reports.numbers import short

_TICKS = 3
"""Decades that have a tick, at most."""

_APART = 0.25
"""Where β = 0 has a tick at the left, the others begin at this share of the axis."""


def betas_picture(findings: Findings) -> Picture | None:
    """A panel for every method that chooses β; none where no method does."""
    chosen = _choosing(findings)
    if not chosen:
        return None
    return Picture(
        name="beta",
        title="Loss against β",
        short="β",
        caption=(
            "Loss on the validation rows for every β of the grid: thin lines are single repeats, "
            "the thick line their mean, rings the β that was chosen. Each panel has its own loss."
        ),
        alt=_in_words(chosen),
        draw=lambda width: _draw(chosen, width),
    )


def _choosing(findings: Findings) -> dict[Method, list[Run]]:
    """Runs with a path, by method."""
    every = {m: findings.runs(m.name) for m in findings.comparison.plan.methods}
    found = {m: [run for run in runs if run.outcome.path] for m, runs in every.items()}
    return {method: runs for method, runs in found.items() if runs}


def _in_words(chosen: dict[Method, list[Run]]) -> str:
    parts = []
    for method, runs in chosen.items():
        betas = [short(run.outcome.beta) for run in runs]
        parts.append(f"{method.label}: β = {joined(betas)}")
    return f"Validation loss along β; chosen in each repeat by {'; by '.join(parts)}."


def _draw(chosen: dict[Method, list[Run]], width: float) -> Figure:
    figure, axes = panels(len(chosen), width, 2.1, 2.2 if width > 6 else 3.0)
    for ax, (method, runs) in zip(axes, chosen.items(), strict=True):
        _draw_method(ax, method, runs)
    return figure


def _draw_method(ax: Axes, method: Method, runs: Sequence[Run]) -> None:
    axis = BetaAxis.of([point.beta for run in runs for point in run.outcome.path])
    color = mark_of(method).color
    for run in runs:
        _draw_line(ax, axis, _path(run), color, 0.8, 0.4)
    _draw_line(ax, axis, _mean(runs), color, 2.0, 1.0)
    for run in runs:
        _draw_ring(ax, axis, run, color)
    axis.draw(ax)
    _draw_ticks(ax, axis)
    _draw_losses(ax, runs)
    head(ax, method.label)


def _draw_losses(ax: Axes, runs: Sequence[Run]) -> None:
    """The vertical axis: means that can be told apart, and every choice."""
    rings = [loss for run in runs if math.isfinite(loss := _loss_of_choice(run))]
    every = [loss for run in runs for loss in _path(run).values() if math.isfinite(loss)]
    means = [loss for loss in _mean(runs).values() if math.isfinite(loss)]
    if not every:
        leave_empty(ax)
    low, high = clear_range(means or every)
    ax.set_ylim(widened(min([low, *rings]), max([high, *rings]), share=0.12))
    ax.locator_params(axis="y", nbins=4)
    ax.set_ylabel(runs[0].outcome.validation_loss.replace("_", " "))


def _path(run: Run) -> dict[float, float]:
    """Losses in rising order of β."""
    return {p.beta: p.loss for p in sorted(run.outcome.path, key=lambda point: point.beta)}


def _draw_ticks(ax: Axes, axis: BetaAxis) -> None:
    """A few decades, and zero: panels are small."""
    first, last = math.ceil(math.log10(axis.low) - 1e-9), math.floor(math.log10(axis.high) + 1e-9)
    stride = max(1, math.ceil((last - first + 1) / _TICKS))
    ticks = {10.0**k: short(10.0**k) for k in range(last, first - 1, -stride)}
    zero = {axis.place(0.0): "0"} if axis.has_zero else {}
    if zero:
        ticks = {tick: name for tick, name in ticks.items() if axis.across(tick) > _APART}
    if ticks:
        ax.set_xticks([*zero, *ticks], [*zero.values(), *ticks.values()])


def _mean(runs: Sequence[Run]) -> dict[float, float]:
    """Mean loss at each β that every repeat has tried."""
    paths = [_path(run) for run in runs]
    common = sorted(set.intersection(*(set(path) for path in paths)))
    return {beta: float(np.mean([path[beta] for path in paths])) for beta in common}


def _loss_of_choice(run: Run) -> float:
    return _path(run).get(run.outcome.beta, math.nan)


def _draw_line(
    ax: Axes, axis: BetaAxis, losses: dict[float, float], color: str, width: float, alpha: float
) -> None:
    x = [axis.place(beta) for beta in losses]
    y = [loss if math.isfinite(loss) else math.nan for loss in losses.values()]
    ax.plot(x, y, color=color, linewidth=width, alpha=alpha)


def _draw_ring(ax: Axes, axis: BetaAxis, run: Run, color: str) -> None:
    ax.plot(
        axis.place(run.outcome.beta),
        _loss_of_choice(run),
        "o",
        color=color,
        markerfacecolor=PAPER,
        markeredgewidth=1.6,
        markersize=6,
        zorder=4,
    )

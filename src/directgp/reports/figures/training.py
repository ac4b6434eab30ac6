"""Training curves: the objective against the step."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from directgp.experiments.methods import Method
from directgp.experiments.results import Run
from directgp.reports.figures.inks import mark_of
from directgp.reports.figures.panels import head, label_edges, leave_empty, panels
from directgp.reports.figures.picture import Picture
from directgp.reports.figures.ranges import widened
from directgp.reports.findings import Findings

_START, _FLAT = 3, 10.0
"""Of a curve whose first values span this many times the rest, the rest is shown."""


def training_picture(findings: Findings) -> Picture | None:
    """The first repeat of every method; none where nothing was recorded."""
    methods = [standing.method for standing in findings.standings]
    found = {m: run for m in methods for run in findings.runs(m.name)[:1] if run.outcome.curve}
    if not found:
        return None
    return Picture(
        name="training",
        title="Training curves",
        short="Training",
        caption=(
            "The objective at each step of the run that was chosen, first repeat. Objectives are "
            "of different kinds, so each panel has its own axis. Where β was chosen the run began "
            "at the solution of a neighbouring β; a curve that still falls at its end would have "
            "gained from more steps."
        ),
        alt=f"Objective by step. {'; '.join(_in_words(m, run) for m, run in found.items())}.",
        draw=lambda width: _draw(found, width),
    )


def _in_words(method: Method, run: Run) -> str:
    (_, first), (steps, last) = run.outcome.curve[0], run.outcome.curve[-1]
    return (
        f"{method.label}: from {first:.4g} to {last:.4g} in {steps:,} steps, {run.outcome.status}"
    )


def _draw(found: dict[Method, Run], width: float) -> Figure:
    figure, axes = panels(len(found), width, 1.75, 2.1 if width > 6 else 1.75)
    for ax, (method, run) in zip(axes, found.items(), strict=True):
        _draw_run(ax, method, run.outcome.curve)
    label_edges(figure, "step", "objective")
    return figure


def _draw_run(ax: Axes, method: Method, curve: Sequence[tuple[int, float]]) -> None:
    # Step 0 has no place on a logarithmic axis, so that it is drawn as 1.
    steps = [max(step, 1) for step, _ in curve]
    losses = [loss if math.isfinite(loss) else math.nan for _, loss in curve]
    mark = mark_of(method)
    ax.plot(steps, losses, color=mark.color, linestyle=mark.line, linewidth=1.5)
    if all(math.isnan(loss) for loss in losses):
        leave_empty(ax)
    ax.set_xscale("log")
    ax.minorticks_off()
    ax.set_ylim(widened(*_range(losses)))
    ax.locator_params(axis="y", nbins=4)
    head(ax, method.label)


def _range(losses: Sequence[float]) -> tuple[float, float]:
    """All that is finite, but for a start that would flatten the rest."""
    finite = [loss for loss in losses if math.isfinite(loss)] or [0.0]
    late = finite[_START:] or finite
    low, high = min(finite), max(finite)
    return (low, max(late)) if high - low > _FLAT * (max(late) - low) > 0 else (low, high)

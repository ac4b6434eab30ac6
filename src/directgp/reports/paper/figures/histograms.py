"""How gradients scatter, by number of samples: fig. 1g, 1h and 9."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from directgp.experiments.paper.cells import GradientCell, PaperCell
from directgp.experiments.paper.results import Results
from directgp.experiments.paper.rules import RuleFacts
from directgp.reports.numbers import short
from directgp.reports.paper.figures.axes import inches_across
from directgp.reports.paper.figures.marks import mark_of_rule
from directgp.reports.paper.figures.panel import Panel

Statistic = Literal["alignment", "squared_norm", "squared_error"]
Array = NDArray[np.float64]

AXES: dict[Statistic, str] = {
    "alignment": "⟨g, g*⟩ / ‖g*‖²",
    "squared_norm": "‖g‖² / ‖g*‖²",
    "squared_error": "‖g − g*‖² / ‖g*‖²",
}

BLOCK = "u_mean"
DATASET = "abalone"

_BINS = 36
_TAIL = 0.005
"""Share of the draws at either end that is counted in the outermost bins."""

_WIDE = 20.0
"""Ratio of the ends of a range from which on its axis is logarithmic.

Where there are negative values, the range itself: then the axis is linear about 0 only.
"""

_BETWEEN = 0.3
"""Inches that a tick needs, at the least."""


def shows_gradients(cell: PaperCell) -> bool:
    """Whether a cell is the paper's study of gradients."""
    return isinstance(cell, GradientCell) and cell.dataset == DATASET


def histogram_panel(
    results: Results, title: str, rule: str, statistic: Statistic, beside: Sequence[str]
) -> Panel | None:
    """Draws of one rule, on the axis that it shares with the rules beside it."""
    draws = _draws(results, statistic, [rule])
    if not draws:
        return None
    edges = bin_edges(np.concatenate(list(_draws(results, statistic, [rule, *beside]).values())))
    words = [f"{facts.label} {short(float(np.median(each)))}" for facts, each in draws.items()]
    return Panel(
        title,
        f"medians of {AXES[statistic]}, {', '.join(words)}",
        lambda ax: _draw(ax, draws, edges, AXES[statistic]),
    )


def bin_edges(values: Array) -> Array:
    """Of equal width on the axis that suits the values."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return np.linspace(0.0, 1.0, _BINS + 1)
    low, high = (float(end) for end in np.quantile(finite, [_TAIL, 1 - _TAIL]))
    match _scale(low, high):
        case "log":
            return np.geomspace(low, high, _BINS + 1)
        case "asinh":
            return np.sinh(np.linspace(np.arcsinh(low), np.arcsinh(high), _BINS + 1))
    middle, least = (low + high) / 2, 1e-3 * max(abs(low), abs(high), 1e-12)
    reach = max((high - low) / 2, least)
    return np.linspace(middle - reach, middle + reach, _BINS + 1)


def _scale(low: float, high: float) -> Literal["linear", "log", "asinh"]:
    if low > 0:
        return "log" if high > _WIDE * low else "linear"
    return "asinh" if high - low > _WIDE else "linear"


def _draws(results: Results, statistic: Statistic, names: Sequence[str]) -> dict[RuleFacts, Array]:
    """Of all repeats together, by rule, few samples first."""
    found: dict[RuleFacts, list[Array]] = {}
    for cell, _, record in results.gradients():
        for rule in cell.rules:
            drawn = record.arrays.get(f"{statistic}.{rule.label}.{BLOCK}")
            if rule.name in names and drawn is not None and len(drawn):
                found.setdefault(rule, []).append(drawn.astype(np.float64))
    ordered = sorted(found, key=lambda rule: (rule.name, rule.samples))
    return {rule: np.concatenate(found[rule]) for rule in ordered}


def _shares(values: Array, edges: Array) -> Array:
    """Of the draws in each bin; what lies beyond counts in the outermost."""
    known = values[~np.isnan(values)]
    counts, _ = np.histogram(np.clip(known, edges[0], edges[-1]), edges)
    return counts / max(len(known), 1)


def _draw(ax: Axes, draws: dict[RuleFacts, Array], edges: Array, label: str) -> None:
    for place, (rule, values) in enumerate(draws.items()):
        mark = mark_of_rule(rule)
        shares = _shares(values, edges)
        depth = 2 + 0.1 * place
        ax.stairs(shares, edges, color=mark.color, alpha=0.13, fill=True, zorder=depth)
        ax.stairs(
            shares,
            edges,
            color=mark.color,
            linestyle=mark.line,
            linewidth=1.5,
            label=rule.label,
            zorder=depth + 0.05,
        )
    _scale_axis(ax, float(edges[0]), float(edges[-1]))
    ax.set(xlabel=label, ylabel="share of draws", xlim=(edges[0], edges[-1]))
    ax.set_ylim(bottom=0)
    ax.locator_params(axis="y", nbins=5)


def _scale_axis(ax: Axes, low: float, high: float) -> None:
    ax.set_xscale(_scale(low, high))
    if ax.get_xscale() == "asinh":
        ticks = _signed_ticks(low, high, most=int(inches_across(ax) / _BETWEEN))
        ax.set_xticks(ticks, [short(tick) for tick in ticks])
    if ax.get_xscale() != "linear":
        ax.minorticks_off()


def _signed_ticks(low: float, high: float, most: int) -> list[float]:
    """Nought, and ones and threes of either sign; where those are many, ones alone."""
    for steps in ((1.0, 3.0), (1.0,)):
        sizes = [step * 10.0**decade for decade in range(12) for step in steps]
        ticks = [x for x in (0.0, *sizes, *(-size for size in sizes)) if low <= x <= high]
        if len(ticks) <= most:
            break
    return ticks

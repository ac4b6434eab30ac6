"""Draw how much worse the log loss of each method is than that of directgp, by table.

``python -m benchmarks.defaults.figure --out docs/images/defaults.png``
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes

from benchmarks.defaults.methods import REPORTED, VARIANTS
from benchmarks.defaults.report import values
from benchmarks.defaults.store import DEFAULT_PATH, Results, Store
from benchmarks.defaults.tables import KINDS
from directgp.plots.style import BLUE, GREY, INK, canvas

_ENDS = (-0.5, 1.5)
"""Gaps beyond are drawn at the ends of the axis, in nats."""

Gaps = dict[str, list[float]]
"""Gaps of the other libraries by table."""


def gaps(results: Results, rows: int | None = 2000) -> Gaps:
    """Return NLL minus that of directgp for each other library, on the splits that both have."""
    found = {}
    for table in KINDS:
        nll = values(results, rows, table, "nll")
        ours = nll.get("directgp", {})
        rivals = [nll[name] for name in REPORTED if name in nll and name not in VARIANTS]
        shared = [(other, ours.keys() & other.keys()) for other in rivals if other is not ours]
        found[table] = [
            float(np.mean([other[split] - ours[split] for split in splits]))
            for other, splits in shared
            if splits
        ]
    return {table: each for table, each in found.items() if each}


def draw(found: Gaps) -> Axes:
    """Draw a line for each table, the largest lead over the best other library first."""
    order = sorted(found, key=lambda table: -min(found[table]))
    ax = canvas(None, (7.2, 0.2 * len(order) + 1.0))
    ax.axvline(0, color=BLUE, linewidth=2)
    for place, table in enumerate(order):
        _draw_row(ax, place, found[table])
    ax.set_yticks(range(len(order)), order, fontsize=8)
    ax.set_ylim(len(order) - 0.5, -0.7)
    ax.set_xlim(_ENDS[0] - 0.05, _ENDS[1] + 0.05)
    ax.text(0.01, -0.9, "directgp", color=BLUE, ha="left", va="bottom", fontsize=9)
    ax.set_xlabel(
        "log loss minus that of directgp, in nats (gaps beyond the axis are drawn at its ends)\n"
        "blue line: directgp; black: the best other library of the table; grey: the others",
        fontsize=8,
    )
    ax.grid(axis="y", visible=False)
    return ax


def _draw_row(ax: Axes, place: int, row: Sequence[float]) -> None:
    best, *others = np.sort(np.clip(row, *_ENDS))
    ax.plot(others, [place] * len(others), "o", color=GREY, markersize=3.5, alpha=0.6, linewidth=0)
    ax.plot([0, best], [place, place], color=INK, linewidth=0.8)
    ax.plot([best], [place], "o", color=INK, markersize=5)


def main() -> None:
    """Write the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=DEFAULT_PATH)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    pyplot.switch_backend("agg")
    draw(gaps(Store(arguments.results).read()))
    pyplot.savefig(arguments.out, dpi=130)


if __name__ == "__main__":
    main()

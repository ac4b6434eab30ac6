"""Tables of the documentation from the file of results, and the change between two files.

``python -m benchmarks.defaults.report --docs docs/tables`` writes the tables. With ``--before
FILE`` it prints how the results of ``--method`` differ from those of an earlier file.
"""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from benchmarks.defaults.classic import classic_table
from benchmarks.defaults.methods import METHODS, REPORTED, VARIANTS
from benchmarks.defaults.store import DEFAULT_PATH, Record, Results, Store
from benchmarks.defaults.tables import KINDS
from benchmarks.peers.tables import markdown

Splits = dict[int, float]
"""Values of one figure by split."""

NEAR_NLL = 0.01
NEAR_ERROR = 1.03
GOOD_COVERAGE = (0.87, 0.93)

FIGURES = {
    "nll": 3,
    "crps": 3,
    "error": 3,
    "coverage": 3,
    "tenths": 2,
    "width": 2,
    "cpu_seconds": 1,
}
"""Figures with a table of their own, and their decimal places."""

_ORDER = ("regression", "classification", "counts")


def near_nll(own: float, other: float) -> bool:
    """Return whether an NLL is at most 0.01 above another."""
    return own == other or own - other <= NEAR_NLL


def near_error(own: float, other: float) -> bool:
    """Return whether an error is at most 3 % above another."""
    return own <= NEAR_ERROR * other


def values(results: Results, rows: int | None, table: str, figure: str) -> dict[str, Splits]:
    """Return the values of a figure by method and split."""
    found: dict[str, Splits] = {}
    for cell, record in results.items():
        current = cell.method in REPORTED and cell.settings == METHODS[cell.method].settings
        if current and (cell.table, cell.rows) == (table, rows) and figure in record:
            found.setdefault(cell.method, {})[cell.split] = record[figure]
    return found


def rank(figures: dict[str, Splits], method: str) -> int:
    """Return 1 plus the number of methods with a lower mean on the splits that both have."""
    return 1 + sum(own > other for own, other in _pairs(figures, method))


def is_near(figures: dict[str, Splits], method: str, near: Callable[[float, float], bool]) -> bool:
    """Return whether a method is near every other one, on the splits that both have."""
    return all(near(own, other) for own, other in _pairs(figures, method))


def _pairs(figures: dict[str, Splits], method: str) -> Iterable[tuple[float, float]]:
    own = figures[method]
    for name, other in figures.items():
        if name in _rivals(method) and (shared := own.keys() & other.keys()):
            yield _mean(own[split] for split in shared), _mean(other[split] for split in shared)


def _rivals(method: str) -> set[str]:
    """Return a method and those it is compared with."""
    without = "directgp" if method in VARIANTS else ""
    return {method, *REPORTED} - {*VARIANTS} - {without} | {method}


def _mean(numbers: Iterable[float]) -> float:
    return float(np.mean(list(numbers)))


def summary_table(results: Results, rows: int | None) -> str:
    """Return one line per task and method, the best mean rank of the NLL first."""
    heads = ["task", "method", "tables", "mean rank of NLL", "NLL best or within 0.01"]
    heads += ["error within 3 % of best", "coverage 87 to 93 %", "seconds, median"]
    lines = []
    for kind in _ORDER:
        names = [name for name in KINDS if KINDS[name] == kind]
        by_figure = {
            figure: {name: values(results, rows, name, figure) for name in names}
            for figure in FIGURES
        }
        found = [
            line for method in REPORTED if (line := _summary_line(by_figure, method)) is not None
        ]
        lines += [[kind, *line] for _, line in sorted(found)]
    return markdown(heads, lines)


def _summary_line(
    by_figure: dict[str, dict[str, dict[str, Splits]]], method: str
) -> tuple[float, list[str]] | None:
    """Return the mean rank, to sort by, and the line of a method."""
    tables = {
        figure: [figures for figures in by_name.values() if method in figures]
        for figure, by_name in by_figure.items()
    }
    if not tables["error"]:
        return None
    ranks = [rank(figures, method) for figures in tables["nll"]]
    nll = [is_near(figures, method, near_nll) for figures in tables["nll"]]
    error = [is_near(figures, method, near_error) for figures in tables["error"]]
    covered = [_is_covered(_mean(each[method].values())) for each in tables["coverage"]]
    seconds = [_mean(each[method].values()) for each in tables["cpu_seconds"]]
    shares = [f"{sum(good)} of {len(good)}" if good else "–" for good in (nll, error, covered)]
    mean_rank = _mean(ranks) if ranks else float("inf")
    shown = [str(len(error)), f"{mean_rank:.1f}" if ranks else "–"]
    return mean_rank, [method, *shown, *shares, f"{np.median(seconds):.1f}"]


def _is_covered(coverage: float) -> bool:
    return GOOD_COVERAGE[0] <= coverage <= GOOD_COVERAGE[1]


def figure_table(results: Results, rows: int | None, figure: str) -> str:
    """Return the mean over splits of a figure: one line per table, one column per method.

    Values that count in the summary are bold.
    """
    by_table = {
        name: found
        for kind in _ORDER
        for name in KINDS
        if KINDS[name] == kind and (found := values(results, rows, name, figure))
    }
    methods = [each for each in REPORTED if any(each in found for found in by_table.values())]
    sizes = {cell.table: each["num_train"] for cell, each in results.items() if figure in each}
    heads = ["table, training rows", *methods]
    lines = (
        [f"{name}, {sizes[name]}", *(_cell(found, method, figure) for method in methods)]
        for name, found in by_table.items()
    )
    return markdown(heads, lines)


def _cell(figures: dict[str, Splits], method: str, figure: str) -> str:
    if method not in figures:
        return "–"
    mean = _mean(figures[method].values())
    text = f"{mean:.{FIGURES[figure]}f}".replace("-", "−")
    good = {
        "nll": lambda: is_near(figures, method, near_nll),
        "error": lambda: is_near(figures, method, near_error),
        "coverage": lambda: _is_covered(mean),
    }
    return f"**{text}**" if figure in good and good[figure]() else text


def write_tables(results: Results, folder: Path) -> None:
    """Write the summary and one file per figure for each number of rows."""
    folder.mkdir(parents=True, exist_ok=True)
    for rows in {cell.rows for cell in results if cell.table in KINDS}:
        stem = "defaults" if rows == 2000 else f"defaults_{rows or 'all'}"
        kept = {cell: record for cell, record in results.items() if cell.rows == rows}
        texts = {stem: summary_table(kept, rows)}
        texts |= {f"{stem}_{figure}": figure_table(kept, rows, figure) for figure in FIGURES}
        for name, text in texts.items():
            (folder / f"{name}.md").write_text(text, encoding="utf-8")
    (folder / "defaults_classic.md").write_text(classic_table(results), encoding="utf-8")


def change_table(before: Results, after: Results, method: str) -> str:
    """Return the change of a method in the cells that both files have, by table."""
    lines = []
    for rows, name in dict.fromkeys((cell.rows, cell.table) for cell in after):
        shared = [
            (before[cell], record)
            for cell, record in after.items()
            if (cell.rows, cell.table, cell.method) == (rows, name, method)
            and "nll" in record
            and "nll" in before.get(cell, {})
        ]
        if shared:
            lines.append([f"{name}, {rows or 'all'} rows", str(len(shared)), *_changes(shared)])
    return markdown(["table", "splits", "NLL", "change", "error", "coverage", "seconds"], lines)


def _changes(shared: list[tuple[Record, Record]]) -> list[str]:
    def both(figure: str) -> tuple[float, float]:
        first, second = (_mean(pair[i].get(figure, np.nan) for pair in shared) for i in (0, 1))
        return first, second

    arrows = [f"{first:.4g} → {second:.4g}" for first, second in map(both, _COMPARED)]
    first, second = both("nll")
    return [arrows[0], f"{second - first:+.4f}", *arrows[1:]]


_COMPARED = ("nll", "error", "coverage", "cpu_seconds")


def main() -> None:
    """Write the tables, or print the change from an earlier file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=DEFAULT_PATH)
    parser.add_argument("--docs", type=Path, help="folder for the tables of the documentation")
    parser.add_argument("--before", type=Path, help="earlier file, to compare with")
    parser.add_argument("--method", choices=METHODS, default="directgp")
    arguments = parser.parse_args()
    results = Store(arguments.results).read()
    if arguments.docs is not None:
        write_tables(results, arguments.docs)
    if arguments.before is not None:
        print(change_table(Store(arguments.before).read(), results, arguments.method))


if __name__ == "__main__":
    main()

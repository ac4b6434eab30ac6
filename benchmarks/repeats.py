"""Fits on repeated splits: run those that are missing, and tabulate mean ± standard error."""

import math
import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from threadpoolctl import threadpool_limits

from benchmarks.defaults.store import Cell, Record, Store
from benchmarks.models import now, write
from benchmarks.peers.tables import markdown

Scores = dict[str, float]
Fit = Callable[[Cell], Callable[[], Scores]]
"""Fits a method on the training rows of a cell; returns a function that scores the test rows."""


def cells(
    tables: Iterable[str],
    splits: Iterable[int],
    methods: Iterable[str],
    settings: Mapping[str, int] | None = None,
) -> list[Cell]:
    """Return a cell for each split, table and method; the first split of everything is first.

    `settings` are versions of the settings of methods other than 1; results of other versions are
    kept apart.
    """
    tables, methods, versions = list(tables), list(methods), settings or {}
    return [
        Cell(table, split, None, method, versions.get(method, 1))
        for split in splits
        for table in tables
        for method in methods
    ]


def run_missing(wanted: Sequence[Cell], store: Store, fit: Fit, device: str = "cpu") -> None:
    """Fit the cells that the store does not have, one at a time on one thread.

    A fit that fails is printed and not stored, so that the next run tries it again.
    """
    done = store.read()
    missing = [cell for cell in wanted if cell not in done]
    for number, cell in enumerate(missing, 1):
        where = f"{number}/{len(missing)} {cell.table}, split {cell.split}, {cell.method}"
        try:
            record = measured(fit, cell, device)
        except (ArithmeticError, ImportError, RuntimeError, TypeError, ValueError) as error:
            print(f"{where}: not run: {type(error).__name__}: {error}", flush=True)
            continue
        store.append(cell, record)
        figures = ", ".join(f"{name} {value:.4g}" for name, value in record.items())
        print(f"{where}: {figures}", flush=True)


def measured(fit: Fit, cell: Cell, device: str) -> Record:
    """Return the scores of a cell and the time of its fit: processor time, or wall on a GPU."""
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        since = now(device)
        judge = fit(cell)
        seconds = now(device) - since
        return {**judge(), "seconds": seconds}


Summary = dict[str, dict[str, dict[str, tuple[float, float]]]]
"""Mean and standard error by table, method and figure."""


def summary(results: Mapping[Cell, Record], wanted: Iterable[Cell]) -> Summary:
    """Return mean and standard error over the splits; the error of one split is nan."""
    values: dict[str, dict[str, dict[str, list[float]]]] = {}
    for cell in wanted:
        for figure, value in results.get(cell, {}).items():
            figures = values.setdefault(cell.table, {}).setdefault(cell.method, {})
            figures.setdefault(figure, []).append(value)
    return {
        table: {
            method: {figure: _mean_and_error(each) for figure, each in figures.items()}
            for method, figures in methods.items()
        }
        for table, methods in values.items()
    }


def _mean_and_error(values: list[float]) -> tuple[float, float]:
    if len(values) == 1 or not all(map(math.isfinite, values)):
        return statistics.fmean(values), math.nan
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))


def summary_table(found: Summary, figures: Mapping[str, int]) -> str:
    """Return a line for each table and method; figures have their number of decimal places."""
    lines = [
        [f"{table}; {method}", *(_text(by.get(name), places) for name, places in figures.items())]
        for table, methods in found.items()
        for method, by in methods.items()
    ]
    return markdown(["table; method", *figures], lines)


def _text(value: tuple[float, float] | None, places: int) -> str:
    if value is None:
        return "–"
    mean, error = value
    return f"{mean:.{places}f}" + ("" if math.isnan(error) else f" ± {error:.{places}f}")


def report(
    store: Store, wanted: Sequence[Cell], figures: Mapping[str, int], about: Record, out: Path
) -> None:
    """Print the table, and write it as Markdown and the summary as JSON beside the results."""
    found = summary(store.read(), wanted)
    text = summary_table(found, figures)
    print(f"\n{text}", flush=True)
    write(out.with_suffix(".json"), {**about, "mean and standard error": found})
    out.with_suffix(".md").write_text(text, encoding="utf-8")

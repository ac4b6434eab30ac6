"""The report of `reproduce`, made anew from a store that has every result."""

from pathlib import Path

from tests.frozen.reports import Case

FOLDER = Path(__file__).parent
PAPER_DATA = FOLDER / "paper_data"

OLD_REPRODUCE = FOLDER / "reproduce" / "cells.sqlite.gz"
"""Cells of an older sweep, most of which have changed since."""

REPRODUCE = Case(
    folder=FOLDER / "reproduce_2",
    words=(
        *("reproduce", "--scale", "smoke", "--data-dir", ".", "--no-download"),
        *("--dataset", "abalone", "--dataset", "airline", "--dataset", "banana"),
        *("--dataset", "pol", "--engine", "inline", "--out", "report"),
    ),
    store="cells.sqlite",
    document="verdicts.json",
    tables=PAPER_DATA,
)
"""All kinds of cells and all claims, on made-up rows under the names of four data sets."""

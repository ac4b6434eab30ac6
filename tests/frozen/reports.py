"""Reports, made anew from a store that has every result."""

import hashlib
import platform
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.parquet

from tests.frozen.golden import (
    FOLDER,
    assert_same_document,
    assert_same_text,
    read_json,
    read_text,
)
from tests.frozen.pages import page_text
from tests.frozen.program import Answer, run

DATA = FOLDER / "data"

_MASK = "(masked)"
_VARYING = ("versions", "machine", "began", "seconds")
"""Entries of a document that belong to the run of the test, not to the results."""

TOLERANCE = 1e-9

_STORED = ("cell", "outcome", "arrays")
"""Columns of `results.parquet` that repeat what the store has."""


@dataclass(frozen=True)
class Case:
    """One command with the store of its results."""

    folder: Path
    """Holds the golden files."""

    words: tuple[str, ...]
    """The command, which writes to the folder `report`."""

    store: str
    """Name of the store in the report's folder."""

    document: str
    """Name of the JSON document there."""

    tables: Path
    """Folder of the data files."""

    @property
    def packed_store(self) -> Path:
        """The store, compressed."""
        return self.folder / f"{self.store}.gz"


def _compare(task: str, *words: str) -> Case:
    usual = ("--repeats", "2", "--inducing", "5", "--max-iter", "3", "--jobs", "1")
    return Case(
        folder=FOLDER / "compare" / task,
        words=("compare", f"{task}.csv", *words, *usual, "--device", "cpu", "--out", "report"),
        store="fits.sqlite",
        document="report.json",
        tables=DATA,
    )


COMPARE = {
    "regression": _compare(
        *("regression", "--target", "y", "--betas", "4,1"),
        *("--sizes", "16,all", "--methods", "elbo,fitc,square-fixed"),
        *("--likelihood", "gaussian", "--kernel", "rbf", "--ard"),
    ),
    "classification": _compare(
        *("classification", "--target", "label", "--positive", "sick", "--betas", "1"),
        *("--no-ard", "--likelihood", "logistic", "--methods", "elbo,log-fixed"),
        *("--kernel", "rbf"),
    ),
    "count": _compare(
        *("count", "--target", "k", "--task", "count", "--betas", "2,0.5"),
        *("--kernel", "matern32", "--methods", "elbo,log-joint"),
        *("--likelihood", "poisson", "--ard"),
    ),
}


def prepare(case: Case, here: Path) -> None:
    """Copy the data files to the working folder."""
    for table in sorted(case.tables.glob("*.csv")):
        shutil.copy(table, here)


def make_report(case: Case, *more: str) -> Answer:
    """Run the command in the working folder."""
    answer = run(*case.words, *more)
    assert answer.code == 0, answer.err
    return answer


# What is compared.


def masked_document(case: Case, here: Path) -> Any:
    """Return the document of a report; what varies between runs is masked."""
    document = read_json(here / "report" / case.document)
    return {**document, **{name: _MASK for name in _VARYING if name in document}}


def masked_page(case: Case, here: Path) -> str:
    """Return the text of the page; what varies between runs is masked."""
    text = page_text((here / "report" / "index.html").read_text(encoding="utf-8"))
    document = read_json(here / "report" / case.document)
    lines = text.splitlines()
    for index, line in enumerate(lines):
        # The line before is the name of the entry.
        if index and lines[index - 1] in ("versions", "machine", "began", "this run"):
            if any(value in line for value in _values(document)):
                lines[index] = _MASK
    return "".join(f"{line}\n" for line in lines)


def _values(document: dict[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {value}" for name, value in document.get("versions", {}).items())
    return [value for value in (versions, document["machine"], document["began"]) if value]


def result_rows(here: Path) -> list[dict[str, Any]]:
    """Return the rows of `results.parquet`; each holds the seconds that its fit took."""
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(
        here / "report" / "results.parquet"
    ).to_pylist()
    return [{name: row[name] for name in row if name not in _STORED} for row in rows]


_ARRAYS = {"results": "arrays", "cells": "predictions"}
"""Tables of results, with the column of their arrays; the second is of version 0.5."""


def store_rows(path: Path) -> dict[str, str]:
    """Return a digest of every result of a store, by its key; without its checksum."""
    with closing(sqlite3.connect(path)) as file:
        tables = {
            name for (name,) in file.execute("select name from sqlite_master where sql != ''")
        }
        return {
            row[0]: hashlib.sha256(repr(row).encode()).hexdigest()
            for name in sorted(tables & _ARRAYS.keys())
            for row in file.execute(
                f"select key, cell, outcome, model, {_ARRAYS[name]} from {name}"
            )
        }


def check_report(case: Case, here: Path, remedy: str) -> None:
    """Make the report of a store, and compare all that it says with the golden files."""
    prepare(case, here)
    store = here / "report" / case.store
    before = store_rows(store)
    answer = make_report(case, "--resume")
    # A fit that is run again is written again, with other seconds.
    assert before and store_rows(store) == before
    golden = read_json(case.folder / "results.json")
    assert_same_document(result_rows(here), golden, TOLERANCE, remedy)
    golden = read_json(case.folder / case.document)
    assert_same_document(masked_document(case, here), golden, TOLERANCE, remedy)
    assert_same_text(masked_page(case, here), read_text(case.folder / "page.txt"), remedy)
    assert_same_text(answer.out, read_text(case.folder / "printed.txt"), remedy)


# The store of `compare` finds a fit by versions and cell: that of other versions is no use to it.


def fit_key(versions: dict[str, str], cell: str) -> str:
    """Return the key of a fit in the store of `compare`."""
    return hashlib.sha256(f"{versions} {cell}".encode()).hexdigest()


def versions_here(names: list[str]) -> dict[str, str]:
    """Return the versions of Python and of libraries."""
    return {
        name: platform.python_version() if name == "python" else version(name) for name in names
    }


def set_versions(path: Path, before: dict[str, str]) -> None:
    """Give the fits of a store the versions of this environment.

    Parameters
    ----------
    path : Path
        The store.
    before : dict
        Versions that wrote it, by name, in the order of the key.
    """
    now = versions_here(list(before))
    with closing(sqlite3.connect(path)) as file, file:
        for key, cell in file.execute("select key, cell from cells").fetchall():
            assert key == fit_key(before, cell)
            file.execute("update cells set key = ? where key = ?", (fit_key(now, cell), key))

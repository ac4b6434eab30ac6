"""The folder of a reproduction: what may be there already, and what is forgotten with --force."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from directgp.cli.places import check_report_place

STORE = "cells.sqlite"
_OURS = (STORE, f"{STORE}-journal", "index.html", "verdicts.json", "results.parquet", "figures")
_ANYTHING = "select 1 from results union all select 1 from failures union all select 1 from claims"


def check_place(out: Path, goes_on: bool, force: bool) -> None:
    """Refuse a folder that holds something else, or results that nobody spoke of."""
    check_report_place(out, STORE, goes_on or _is_blank(out / STORE), force)


def begin_anew(out: Path) -> None:
    """Forget the results and the report of an earlier run; what others have put there stays."""
    for path in (out / name for name in _OURS):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def store_in(place: Path) -> Path:
    """The store of a folder, or the file itself."""
    return place / STORE if place.is_dir() else place


def _is_blank(store: Path) -> bool:
    """Whether a run left nothing but the store: it was refused, or ended before its first cell."""
    try:
        with closing(sqlite3.connect(f"{store.absolute().as_uri()}?mode=ro", uri=True)) as file:
            return file.execute(_ANYTHING).fetchone() is None
    except sqlite3.Error:
        return False

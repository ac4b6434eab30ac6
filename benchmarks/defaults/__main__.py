"""Compare the default estimators with other libraries at their defaults.

``python -m benchmarks.defaults --data FOLDER`` fits every method on every table and writes each
result to benchmarks/results/defaults.jsonl; a second run does what is missing. Each fit has its own
process with one thread. Peers run in the environment .venv-defaults of the Makefile; ``--methods
directgp`` needs no peer.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.defaults.methods import METHODS, REPORTED, is_ours
from benchmarks.defaults.report import write_tables
from benchmarks.defaults.store import DEFAULT_PATH, Cell, Record, Store
from benchmarks.defaults.tables import CLASSIC, KINDS, kind_of, table
from directgp.errors import require

ROOT = Path(__file__).resolve().parents[2]

_THREADS = ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "LOKY")
_MAX_ERROR = 2000
"""Characters of an error that are stored."""

_SHOWN = ("mode", "beta", "likelihood", "kernel", "num_inducing", "status")
"""Choices that are printed."""


def cells(arguments: argparse.Namespace) -> list[Cell]:
    """Return the requested cells that have a method for the task of the table."""
    return [
        Cell(name, split, rows, method, METHODS[method].settings)
        for rows in arguments.rows
        for split in arguments.splits
        for name in arguments.tables
        for method in arguments.methods
        if kind_of(name) in METHODS[method].kinds
    ]


def run(cell: Cell, arguments: argparse.Namespace) -> Record:
    """Fit a cell in its own process and return its result, or the error."""
    data = table(arguments.data, cell.table, cell.split, cell.rows)
    python = sys.executable if is_ours(cell.method) else arguments.python
    one_thread = {f"{name}_NUM_THREADS": "1" for name in _THREADS} | {"LOKY_MAX_CPU_COUNT": "1"}
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, **one_thread, "PYTHONPATH": os.pathsep.join(paths)}
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "table.npz", Path(folder) / "result.json"
        np.savez(source, **data._asdict())
        module = [python, "-m", "benchmarks.defaults.fit"]
        command = [*module, cell.method, str(source), str(target), arguments.device]
        try:
            subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                check=True,
                capture_output=True,
                text=True,
                timeout=arguments.timeout,
            )
        except subprocess.TimeoutExpired:
            return {"kind": data.kind, "failure": f"The fit took more than {arguments.timeout} s."}
        except subprocess.CalledProcessError as error:
            return {"kind": data.kind, "failure": error.stderr[-_MAX_ERROR:]}
        found: Record = json.loads(target.read_text(encoding="utf-8"))
        return found


def run_all(
    wanted: list[Cell], store: Store, jobs: int, fit: Callable[[Cell], Record], about: Record
) -> None:
    """Run the cells that the store does not have and append each result to it."""
    done = store.read()
    missing = [cell for cell in wanted if cell not in done]
    pool = ThreadPoolExecutor(jobs)
    try:
        waiting = {pool.submit(fit, cell): cell for cell in missing}
        for number, future in enumerate(as_completed(waiting), 1):
            cell, record = waiting[future], future.result()
            store.append(cell, record | (about if is_ours(cell.method) else {}))
            print(f"{number}/{len(missing)} {_line(cell, record)}", flush=True)
    finally:
        pool.shutdown(cancel_futures=True)


def _line(cell: Cell, record: Record) -> str:
    names = ("nll", "crps", "error", "coverage", "width", "cpu_seconds")
    figures = [f"{name} {record[name]:.4g}" for name in names if name in record]
    choices = [str(value) for key, value in record.get("choices", {}).items() if key in _SHOWN]
    failure = record.get("failure", "").strip().splitlines()[-1:]
    what = f"{cell.table}, split {cell.split}, {cell.method}"
    return f"{what}: {', '.join(figures + choices + failure)}"


def source_version() -> Record:
    """Return the commit of the repository, if git knows it, and a hash of our source files."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    found = shutil.which("git") and subprocess.run(command, capture_output=True, text=True)
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src").rglob("*.py")):
        digest.update(path.read_bytes())
    commit = found.stdout.strip() if found else ""
    return {"commit": commit or None, "source": digest.hexdigest()[:12]}


def _rows(text: str) -> int | None:
    return None if text == "all" else int(text)


def parsed(given: list[str] | None = None) -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(prog="benchmarks.defaults", description=__doc__)
    add: Any = parser.add_argument
    add("--data", type=Path, required=True, help="folder with the data sets, Parquet or .npz")
    names = [*KINDS, *(f"classic/{name}" for name in CLASSIC)]
    add("--tables", nargs="+", choices=names, default=list(KINDS))
    add("--methods", nargs="+", choices=METHODS, default=list(REPORTED))
    add("--splits", nargs="+", type=int, default=[0, 1, 2])
    add("--rows", nargs="+", type=_rows, default=[2000], help="maximum, or all")
    add("--jobs", type=int, default=1, help="fits at a time")
    add("--again", nargs="+", choices=METHODS, default=[], help="run these methods anew")
    add("--device", default="cpu", help="of directgp")
    add("--timeout", type=float, default=3600.0, help="seconds of one fit")
    peers = ROOT / ".venv-defaults/bin/python"
    add("--python", default=str(peers), help="interpreter of the peers")
    add("--out", type=Path, default=DEFAULT_PATH)
    add("--docs", type=Path, help="folder for the tables of the documentation")
    return parser.parse_args(given)


def main() -> None:
    """Run what is missing, then write the tables if asked to."""
    arguments = parsed()
    store, wanted = Store(arguments.out), cells(arguments)
    if not all(map(is_ours, arguments.methods)):
        require(
            shutil.which(arguments.python) is not None,
            "The interpreter of the peers",
            "an installed Python",
            repr(arguments.python),
            "`make bench-defaults` installs it; or name another with --python.",
        )
    again = [cell for cell in wanted if cell.method in arguments.again]
    if again and arguments.out.exists():
        store.remove(again)
    run_all(wanted, store, arguments.jobs, lambda cell: run(cell, arguments), source_version())
    if arguments.docs is not None:
        write_tables(store.read(), arguments.docs)


if __name__ == "__main__":
    main()

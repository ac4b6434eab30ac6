"""Run a short selection of all benchmarks and keep the figures with machine and versions.

``python -m benchmarks.all`` takes a few minutes on one core, writes one file
``benchmarks/history/DATE-COMMIT-MACHINE.json``, and the table of docs/benchmarks.md, which draws
all committed files. Times are ratios within the run, so that other programs and other machines
matter little; the functions are those of the long benchmarks.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from benchmarks.defaults.__main__ import source_version
from benchmarks.defaults.fit import measure as measure_fit
from benchmarks.evaluations import matmul_rate, measure_size
from benchmarks.models import write
from benchmarks.peers.process import ROOT
from benchmarks.peers.spread import ratios
from benchmarks.peers.suite import Settings, measure_case
from benchmarks.peers.tables import markdown, write_tables
from benchmarks.problems import PROBLEMS, problem
from benchmarks.rules import time_rules
from benchmarks.softmax_step import OBJECTIVES, Size, measure_steps
from directgp.environment import cores, versions
from directgp.errors import require

Document = dict[str, Any]

HISTORY = ROOT / "benchmarks/history"
SCHEMA = 1
BETTER = ("lower", "higher")

EVALUATIONS = ((1000, 100), (5000, 100))
CELLS = ("Gaussian; ELBO", "Gaussian; log loss", "probit; log loss", "Poisson; log loss")
CASES = ("S1", "S4")
PROBLEM_ROWS = 500
PRODUCT = 1024**3
"""Multiply-adds of the matrix product that times of fits are divided by."""


@dataclass(frozen=True)
class Measurement:
    """A figure of a run; `group` and `name` say what it is, and stay the same over time."""

    group: str
    name: str
    value: float
    unit: str
    better: str
    """``lower`` or ``higher``."""

    def __post_init__(self) -> None:
        require(self.better in BETTER, "better", f"one of {BETTER}", repr(self.better))


def evaluations(rounds: int) -> Iterator[Measurement]:
    """Yield the time of an L-BFGS evaluation over that of its matrix products."""
    for n, m in EVALUATIONS:
        row = measure_size((n, m), "cpu", rounds, 0.1)
        for cell in CELLS:
            name, unit = f"{cell}; n {n}, M {m}", "times the matrix products"
            yield Measurement("evaluation", name, row["over_floor"][cell], unit, "lower")


def steps(rounds: int) -> Iterator[Measurement]:
    """Yield steps, predictions and memory of GPyTorch over ours; both are in this interpreter."""
    names = ("directgp", "floor", "GPyTorch")
    pythons = dict.fromkeys(names, sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings("cpu", names, pythons, rounds, 0.25, 10**5, Path(folder))
        for key in CASES:
            rows = measure_case(key, settings)
            for row in rows:
                name = {"log_loss": "log loss", "elbo": "ELBO"}[row["objective"]]
                yield _over_ours("step", f"{key}; {name}", row["ratio"]["GPyTorch"]["median"])
            first, memory = rows[0], rows[0]["memory"]
            yield _over_ours("prediction", key, first["prediction_ratio"]["GPyTorch"]["median"])
            yield _over_ours("memory of a step", key, memory["GPyTorch"] / memory["directgp"])


def classes(rounds: int) -> Iterator[Measurement]:
    """Yield the step of a softmax classifier of GPyTorch over ours."""
    times = measure_steps(Size(), "cpu", torch.float64, rounds, 0.5)
    for objective in OBJECTIVES:
        found = ratios(times[f"GPyTorch; {objective}"], times[f"directgp; {objective}"])
        yield _over_ours("step", f"softmax; {objective}", found.median)


def rules(rounds: int) -> Iterator[Measurement]:
    """Yield the time of a gradient of our rules over that of plain Monte Carlo."""
    for row in time_rules(6000, rounds, "cpu"):
        if row["variance"] == 1.0 and row["dtype"] == "float64":
            for rule in ("quadrature", "uPS-1"):
                middle, *_ = cast(tuple[float, float, float], row[f"{rule} / bMC-10"])
                name, unit = f"{row['likelihood']}; {rule}", "times bMC with ten draws"
                yield Measurement("rule", name, middle, unit, "lower")


def fits() -> Iterator[Measurement]:
    """Yield the loss of default fits, and their time over that of a large matrix product."""
    for name in PROBLEMS:
        before = matmul_rate("cpu")
        found = measure_fit("directgp", problem(name, PROBLEM_ROWS, 0), "cpu")
        product = PRODUCT / ((before + matmul_rate("cpu")) / 2)
        title = f"{name}; {PROBLEM_ROWS} rows"
        yield Measurement("loss of a default fit", title, found["nll"], "nats", "lower")
        unit = "products of 1024 × 1024 matrices"
        seconds = found["cpu_seconds"] / product
        yield Measurement("time of a default fit", title, seconds, unit, "lower")


def _over_ours(group: str, name: str, value: float) -> Measurement:
    return Measurement(group, name, value, "GPyTorch / directgp", "higher")


def machine() -> dict[str, Any]:
    """Return processor, cores, memory, GPU and the rate of float64 matrix products."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": _cpu(),
        "cores": cores(),
        "memory_gb": round(pages / 1e9, 1),
        "matmul_gflops": round(2e-9 * matmul_rate("cpu"), 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _cpu() -> str:
    """Return the name of the processor; Linux on ARM has it in lscpu only."""
    if shutil.which("lscpu"):
        said = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
        found = re.search(r"^Model name:\s*(.+)$", said, re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def run(rounds: int) -> Document:
    """Measure everything; each figure is printed when it is there."""
    torch.set_num_threads(1)
    measurements = []
    for measured in (evaluations(rounds), steps(rounds), classes(rounds), rules(rounds), fits()):
        for each in measured:
            measurements.append(asdict(each))
            print(f"{each.group}; {each.name}: {each.value:.3g} {each.unit}", flush=True)
    return {
        "schema": SCHEMA,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **source_version(),
        "machine": machine(),
        "versions": versions(),
        "measurements": measurements,
    }


def file_name(document: Document) -> str:
    """Return DATE-COMMIT-MACHINE.json."""
    where = f"{document['machine']['cpu']} {document['machine']['cores']}"
    slug = re.sub(r"[^a-z0-9]+", "-", where.lower()).strip("-")
    return f"{document['date'][:10]}-{document['commit'] or document['source']}-{slug}.json"


def history(folder: Path = HISTORY) -> list[Document]:
    """Return the documents of a folder, oldest first; one of another form raises an error."""
    found = [checked(path) for path in sorted(folder.glob("*.json"))]
    todo = "Run `make bench-all` first."
    require(bool(found), f"{folder}", "a folder with the file of a run", "no file", todo)
    return sorted(found, key=lambda document: str(document["date"]))


def checked(path: Path) -> Document:
    """Return the document of a file; raise if it is not of this schema."""
    document: Document = json.loads(path.read_text(encoding="utf-8"))
    keys = {"schema", "date", "commit", "source", "machine", "versions", "measurements"}
    require(set(document) == keys, f"The keys of {path.name}", f"{sorted(keys)}", sorted(document))
    require(document["schema"] == SCHEMA, "schema", str(SCHEMA), document["schema"])
    datetime.fromisoformat(document["date"])
    for each in document["measurements"]:
        Measurement(**each)
    require(path.name == file_name(document), "The name", file_name(document), path.name)
    return document


def table(documents: Sequence[Document]) -> str:
    """Return the last value of each measurement, and how it changed since the run before."""
    *earlier, last = documents
    before = _values(earlier[-1]) if earlier else {}
    lines = []
    for each in (Measurement(**raw) for raw in last["measurements"]):
        old = before.get((each.group, each.name))
        change = "–" if old is None else f"{each.value - old:+.2g}"
        heads = [f"{each.group}; {each.name}", f"{each.value:.3g}", each.unit, each.better, change]
        lines.append(heads)
    return markdown(["", "value", "unit", "better", "change"], lines)


def _values(document: Document) -> dict[tuple[str, str], float]:
    found = (Measurement(**raw) for raw in document["measurements"])
    return {(each.group, each.name): each.value for each in found}


def draw(documents: Sequence[Document]) -> Figure:
    """Draw each group over time: one line for each measurement and machine."""
    groups: dict[str, dict[tuple[str, str], list[tuple[str, float]]]] = {}
    units = {}
    for document in documents:
        where = f"{document['machine']['cpu']}, {document['machine']['cores']} cores"
        when = f"{document['date'][:10]}\n{document['commit'] or document['source']}"
        for each in (Measurement(**raw) for raw in document["measurements"]):
            units[each.group] = f"{each.unit} ({each.better} is better)"
            lines = groups.setdefault(each.group, {})
            lines.setdefault((each.name, where), []).append((when, each.value))
    figure = plt.figure(figsize=(8, 2.6 * len(groups)), layout="constrained")
    machines = {where for lines in groups.values() for _, where in lines}
    columns = figure.subplots(len(groups), 1, squeeze=False)[:, 0]
    for axes, (group, lines) in zip(columns, groups.items(), strict=True):
        for (name, where), points in lines.items():
            label = name if len(machines) == 1 else f"{name} ({where})"
            axes.plot(*zip(*points, strict=True), marker="o", label=label)
        axes.set_title(f"{group}: {units[group]}", fontsize=10, loc="left")
        axes.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
        axes.grid(alpha=0.3)
    return figure


def main() -> None:
    """Measure, write the file, and write the table of the documentation."""
    parser = argparse.ArgumentParser(prog="benchmarks.all", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=HISTORY, help="folder of the files")
    parser.add_argument("--tables", type=Path, default=ROOT / "docs/tables")
    parser.add_argument("--table-only", action="store_true", help="write the table again")
    typed = parser.parse_args()
    if not typed.table_only:
        document = run(typed.rounds)
        path = typed.out / file_name(document)
        write(path, document)
        print(f"\n{path}")
    write_tables(typed.tables, "benchmarks", {"": table(history(typed.out))})


if __name__ == "__main__":
    main()

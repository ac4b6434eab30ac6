"""Compare steps, predictions and memory with GPyTorch, GPflow and GPJax.

``python -m benchmarks.peers`` measures on the CPU, ``--device cuda`` on a GPU. Every library has
its own process and interpreter; ``--python gpytorch=python3`` sets another interpreter.
"""

import argparse
import json
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import CASES
from benchmarks.peers.growth import measure_growth
from benchmarks.peers.process import MODULES, ROOT, check_interpreters, interpreters
from benchmarks.peers.suite import Settings, matmul_rate, measure_case
from benchmarks.peers.tables import all_tables, write_tables
from directgp.errors import require

_ALWAYS = ("directgp", "floor")
_ON_GPU = (*_ALWAYS, "GPyTorch")


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the arguments, with defaults that depend on the device."""
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cases", nargs="+", choices=CASES)
    parser.add_argument("--names", nargs="+", choices=MODULES, help="libraries")
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="of a library in a round")
    parser.add_argument("--rows", type=int, help="predicted in a round")
    parser.add_argument("--no-growth", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tables", type=Path, help="folder for the tables of the documentation")
    typed = parser.parse_args(arguments)
    on_cpu = typed.device == "cpu"
    typed.cases = typed.cases or (list(CASES)[:5] if on_cpu else list(CASES))
    asked = {*(typed.names or (MODULES if on_cpu else _ON_GPU)), *_ALWAYS}
    typed.names = [name for name in MODULES if name in asked]
    typed.rounds = typed.rounds or (11 if on_cpu else 9)
    typed.seconds = typed.seconds or (0.25 if on_cpu else 0.15)
    typed.rows = typed.rows or (10**5 if on_cpu else 10**6)
    typed.out = typed.out or ROOT / f"benchmarks/results/steps{'' if on_cpu else '_gpu'}.json"
    return typed


def main() -> None:
    """Measure everything, print the tables and write the results."""
    typed = parsed()
    pythons = interpreters(dict(_pair(text) for text in typed.python))
    check_interpreters(pythons, typed.names)
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            typed.device,
            tuple(typed.names),
            pythons,
            typed.rounds,
            typed.seconds,
            typed.rows,
            Path(folder),
            lambda line: print(line, flush=True),
        )
        for results in _measured(settings, typed.cases, not typed.no_growth):
            _write(typed.out, results)
    tables = all_tables(results)
    for name, text in tables.items():
        print(f"\n{name or 'steps'}\n\n{text}", flush=True)
    if typed.tables is not None:
        write_tables(typed.tables, typed.out.stem, tables)


def _pair(text: str) -> tuple[str, str]:
    require("=" in text, "--python", "NAME=PATH", repr(text))
    name, path = text.split("=", 1)
    return name, path


def _measured(settings: Settings, cases: list[str], with_growth: bool) -> Iterator[dict[str, Any]]:
    """Yield the results after each case."""
    rate, device = matmul_rate(settings)
    settings.tell(f"matrix products: {2e-9 * rate:.0f} Gflop/s in float32")
    results: dict[str, Any] = {
        "machine": f"{platform.machine()}, one thread" if device == "CPU" else device,
        "rounds": settings.rounds,
        "rows_predicted": settings.rows,
        "matmul_rate": rate,
        "steps": [],
        "growth": [],
    }
    for key in cases:
        results["steps"] += measure_case(key, settings)
        yield results
    if with_growth:
        results["growth"] = measure_growth(settings)
    yield results


def _write(path: Path, results: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

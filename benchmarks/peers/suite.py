"""The measurements of one run, case by case."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.agreement import check, set_up
from benchmarks.peers.cases import CASES, OBJECTIVES, Case, write_parameters
from benchmarks.peers.process import Process
from benchmarks.peers.rounds import Times, prediction_times, step_times
from benchmarks.peers.spread import Spread, ratios
from benchmarks.peers.work import work

Row = dict[str, Any]

_STEPS_FOR_MEMORY = 3

LEFT_OUT = {
    "GPJax": ("S4", "S5"),
}
"""Where a library lacks the likelihood's loss, or takes many seconds a step."""


@dataclass(frozen=True)
class Settings:
    """Duration, device and libraries of a run."""

    device: str
    names: tuple[str, ...]
    pythons: dict[str, str]
    rounds: int
    seconds: float
    rows: int
    folder: Path
    tell: Callable[[str], None] = print

    def present(self, case: str) -> list[str]:
        return [name for name in self.names if case not in LEFT_OUT.get(name, ())]


def measure_case(key: str, settings: Settings) -> list[Row]:
    """Measure one case: memory first, while the processes are new."""
    case, file = CASES[key], settings.folder / f"{key}.npz"
    write_parameters(file, case)
    with ExitStack() as stack:
        processes = {
            name: stack.enter_context(Process(name, settings.pythons[name]))
            for name in settings.present(key)
        }
        memory = {
            name: _memory(process, case, file, settings) for name, process in processes.items()
        }
        rows = [
            {"case": key, **_measure_objective(processes, case, objective, file, settings)}
            for objective in OBJECTIVES
        ]
        seconds = prediction_times(processes, max(3, settings.rounds // 5), settings.rows)
        versions = {name: process.ask("about")["version"] for name, process in processes.items()}
    prediction = {name: asdict(Spread.of([1 / s for s in t])) for name, t in seconds.items()}
    rows[0] |= {"memory": memory, "rows_per_second": prediction, "versions": versions}
    rows[0]["prediction_ratio"] = _against_ours(seconds)
    return rows


def _memory(process: Process, case: Case, file: Path, settings: Settings) -> int:
    set_up(process, case, OBJECTIVES[0], file, "float32", settings.device)
    held: int = process.ask("memory", number=_STEPS_FOR_MEMORY)["bytes"]
    return held


def _measure_objective(
    processes: dict[str, Process], case: Case, objective: str, file: Path, settings: Settings
) -> Row:
    agreements: dict[str, Any] = {}
    for name, process in processes.items():
        if name == "floor":
            set_up(process, case, objective, file, "float32", settings.device)
            continue
        for dtype in ("float64", "float32"):
            found = check(process, case, objective, file, dtype, settings.device)
            agreements.setdefault(name, {})[dtype] = asdict(found)
    times = step_times(processes, settings.rounds, settings.seconds)
    milliseconds = {name: asdict(Spread.of([1e3 * s for s in t])) for name, t in times.items()}
    row = {
        "objective": objective,
        "size": asdict(case),
        "agreement": agreements,
        "ms": milliseconds,
        "ratio": _against_ours(times),
        "multiply_adds": asdict(work(case)),
    }
    settings.tell(_line(case, row))
    return row


def _against_ours(times: Times) -> Row:
    return {
        name: asdict(ratios(t, times["directgp"]))
        for name, t in times.items()
        if name != "directgp"
    }


def _line(case: Case, row: Row) -> str:
    ours = row["ms"]["directgp"]["median"]
    others = ", ".join(f"{name} ×{r['median']:.2f}" for name, r in row["ratio"].items())
    return f"{case.label()}, {row['objective']}: {ours:.3g} ms a step; {others}"


def matmul_rate(settings: Settings) -> tuple[float, str]:
    """Return the multiply-adds per second of a large float32 product, and the device name."""
    with Process("floor", settings.pythons["floor"]) as process:
        file = settings.folder / "rate.npz"
        write_parameters(file, CASES["S4"])
        set_up(process, CASES["S4"], OBJECTIVES[0], file, "float32", settings.device)
        size, number = (8192, 20) if settings.device != "cpu" else (2048, 5)
        answer = process.ask("matmul_rate", size=size, number=number)
    return answer["rate"], answer["device"]

"""Growth of the step time with n, M and d."""

from contextlib import ExitStack
from dataclasses import asdict

from benchmarks.peers.agreement import set_up
from benchmarks.peers.cases import CASES, Case, growth_cases, write_parameters
from benchmarks.peers.process import Process
from benchmarks.peers.rounds import step_times
from benchmarks.peers.spread import Spread, exponent
from benchmarks.peers.suite import Row, Settings

_ROUNDS = 3


def measure_growth(settings: Settings) -> list[Row]:
    """Return exponents of the step time in n, M and d, from S2 upwards."""
    names = [name for name in settings.names if name in ("directgp", "GPyTorch")]
    with ExitStack() as stack:
        processes = {
            name: stack.enter_context(Process(name, settings.pythons[name])) for name in names
        }
        return [
            _growth_along(axis, sizes, processes, settings)
            for axis, sizes in growth_cases(CASES["S2"]).items()
        ]


def _growth_along(
    axis: str, sizes: list[tuple[int, Case]], processes: dict[str, Process], settings: Settings
) -> Row:
    medians: dict[str, list[float]] = {name: [] for name in processes}
    for size, case in sizes:
        file = settings.folder / f"growth_{axis}_{size}.npz"
        write_parameters(file, case)
        for process in processes.values():
            set_up(process, case, "log_loss", file, "float32", settings.device)
        times = step_times(processes, _ROUNDS, settings.seconds)
        for name, t in times.items():
            medians[name].append(1e3 * Spread.of(t).median)
        file.unlink()
    along = [size for size, _ in sizes]
    fits = {name: asdict(exponent(along, ms)) for name, ms in medians.items()}
    settings.tell(
        f"growth with {axis}: " + ", ".join(f"{k} {v['value']:.2f}" for k, v in fits.items())
    )
    return {"axis": axis, "sizes": along, "ms": medians, "exponent": fits}

"""Tables of made-up results."""

from pathlib import Path
from typing import Any

from benchmarks.peers.__main__ import parsed
from benchmarks.peers.tables import all_tables, write_tables


def spread(median: float) -> dict[str, float]:
    return {"median": median, "low": 0.9 * median, "high": 1.2 * median}


def results() -> dict[str, Any]:
    size = {"likelihood": "probit", "n": 2000, "d": 20, "m": 74}
    found = {"loss": 1.0, "difference": 2e-9, "departure": 0.0, "allowed": 1e-6}
    agreement = {"float64": found, "float32": {**found, "departure": -3e-5}}
    row = {
        "case": "S1",
        "objective": "log_loss",
        "size": size,
        "agreement": {"GPyTorch": agreement},
        "ms": {"directgp": spread(4.0), "GPyTorch": spread(20.0)},
        "ratio": {"floor": spread(0.5), "GPyTorch": spread(5.0)},
        "multiply_adds": {"products": 4e8, "least": 2e8},
        "memory": {"directgp": 12_000_000, "GPyTorch": 34_000_000, "floor": 1},
        "rows_per_second": {"directgp": spread(1234567.0)},
        "prediction_ratio": {"GPyTorch": spread(2.0)},
    }
    elbo = {key: row[key] for key in list(row)[:7]} | {"objective": "elbo"}
    fit = {"directgp": {"value": 1.0, "error": 0.04}}
    growth = [{"axis": "n", "sizes": [10, 20], "ms": {}, "exponent": fit}]
    return {"steps": [row, elbo], "growth": growth, "matmul_rate": 2e11}


def test_tables_say_ratios_with_their_spread() -> None:
    tables = all_tables(results())
    lines = tables[""].splitlines()
    assert lines[0] == "|  | directgp, ms | GPyTorch / directgp |"
    assert lines[1] == "|---|---:|---:|"
    label = "S1: probit, n 2000, d 20, M 74"
    assert lines[2] == f"| {label}; log loss | 4 (3.6 to 4.8) | 5 (4.5 to 6) |"
    assert lines[3].startswith(f"| {label}; ELBO |")
    # 4e8 multiply-adds in 4 ms are half of 2e11 a second; the floor takes half of our time.
    assert "| 2 (1.67 to 2.22) | 50 % | 25 % |" in tables["floor"]
    assert tables["memory"].splitlines()[2:] == [f"| {label} | 12 | 34 |"]
    assert "| 1,234,567 | 2 (1.8 to 2.4) |" in tables["prediction"]
    assert "| n = 10, 20 | 1.00 ± 0.04 |" in tables["growth"]
    assert "; log loss | GPyTorch | 2e-09 | 2e-09 | -3e-05 |" in tables["agreement"]


def test_tables_are_files_named_after_the_results(tmp_path: Path) -> None:
    write_tables(tmp_path / "tables", "steps_h200", {"": "a", "floor": "b"})
    written = {path.name: path.read_text() for path in (tmp_path / "tables").iterdir()}
    assert written == {"steps_h200.md": "a", "steps_h200_floor.md": "b"}


def test_a_gpu_has_larger_cases_and_fewer_libraries() -> None:
    cpu, gpu = parsed([]), parsed(["--device", "cuda"])
    assert cpu.cases == ["S1", "S2", "S3", "S4", "S5"]
    assert gpu.cases[-1] == "S8"
    assert gpu.names == ["directgp", "floor", "GPyTorch"]
    assert (cpu.rows, gpu.rows) == (10**5, 10**6)
    assert cpu.out.name == "steps.json"
    assert parsed(["--names", "GPflow"]).names == ["directgp", "floor", "GPflow"]

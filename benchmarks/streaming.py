"""Compare rows streamed from Parquet with rows in memory: training rate and peak memory.

``python benchmarks/streaming.py`` writes synthetic rows to a folder, trains one epoch on them in a
separate process for each method and size, and prints rows per second (wall time of training alone)
and the peak resident memory of each process.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow.parquet import write_table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import directgp
from benchmarks.models import facts, write
from benchmarks.rules import show
from directgp.datasets.streams import ParquetRows
from directgp.likelihoods import Probit
from directgp.posteriors import SparsePosterior
from directgp.training import SmallGradient

FEATURES, FILE_ROWS, GROUP_ROWS = 8, 1_000_000, 100_000
BATCH, INDUCING = 1000, 100


def make(folder: Path, rows: int) -> None:
    """Write labels of a smooth function, a million rows per file."""
    folder.mkdir()
    for number, start in enumerate(range(0, rows, FILE_ROWS)):
        random = np.random.default_rng(number)
        size = min(FILE_ROWS, rows - start)
        X = random.standard_normal((size, FEATURES), np.float32)
        f = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + random.standard_normal(size)
        columns = {f"x{i}": X[:, i] for i in range(FEATURES)} | {"y": (f > 0).astype(np.float32)}
        write_table(pa.table(columns), folder / f"{number}.parquet", row_group_size=GROUP_ROWS)


def train(way: str, folder: Path) -> dict[str, float]:
    """Train one epoch; return wall and processor seconds and the peak memory of the process."""
    torch.set_num_threads(1)
    rows = ParquetRows(folder, target="y", dtype="float32")
    sample = torch.as_tensor(rows.blocks(20_000).__next__().X)
    posterior = SparsePosterior.from_data(
        sample, num_inducing=INDUCING, ard=True, generator=torch.Generator().manual_seed(0)
    )
    options: dict[str, Any] = {
        "start": "scratch",
        "batch_size": BATCH,
        "learning_rate": 1e-3,
        "generator": torch.Generator().manual_seed(0),
    }
    if way == "memory":
        X, y = (np.concatenate(part) for part in zip(*(b[:2] for b in rows.blocks()), strict=True))
        data = torch.from_numpy(X), torch.from_numpy(y)
        options |= {"optimizer": "adam", "max_steps": rows.num_rows // BATCH}
        options["stopping"] = SmallGradient(0.0)
        since, used = time.perf_counter(), time.process_time()
        result = directgp.train(posterior, Probit(), *data, **options)
    else:
        since, used = time.perf_counter(), time.process_time()
        result = directgp.train_stream(posterior, Probit(), rows, **options)
    return {
        "rows": rows.num_rows,
        "wall": time.perf_counter() - since,
        "processor": time.process_time() - used,
        "loss": float(np.mean(result.history[-50:])),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def apart(way: str, folder: Path) -> dict[str, float]:
    """Run `train` in a separate process."""
    command = [sys.executable, __file__, "--way", way, "--folder", str(folder)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(output)
    return found


def main() -> None:
    """Train with each method and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--in-memory", type=int, default=1_000_000, help="largest size in memory")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=("memory", "stream"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    results = Path(__file__).parent / "results"
    parser.add_argument("--out", type=Path, default=results / "streaming.json")
    arguments = parser.parse_args()
    if arguments.way is not None:
        print(json.dumps(train(arguments.way, arguments.folder)))
        return
    found: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as root:
        for rows in arguments.rows:
            folder = Path(root) / str(rows)
            make(folder, rows)
            ways = ("memory", "stream") if rows <= arguments.in_memory else ("stream",)
            for _ in range(arguments.rounds if rows <= arguments.in_memory else 1):
                for way in ways:
                    result = apart(way, folder)
                    rate = {"rows/s": result["rows"] / result["wall"]}
                    found.append({"way": way, **result, **rate})
                    show(way, found[-1:])
                    write(arguments.out, {**facts("cpu"), "runs": found})


if __name__ == "__main__":
    main()

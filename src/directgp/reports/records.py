"""Every cell as a row of a table: `results.parquet`."""

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from directgp.experiments.cells import Cell
from directgp.experiments.comparison import Comparison
from directgp.experiments.methods import Method
from directgp.experiments.results import Run
from directgp.metrics import SCORES


def results_parquet(comparison: Comparison) -> bytes:
    """The file; cells that failed have a status and a reason, and nothing else."""
    labels = {method.name: method for method in comparison.plan.methods}
    rows = [_finished(run, labels) for run in comparison.runs]
    rows += [
        {**_named(each.cell, labels), "status": "failed", "reason": each.reason}
        for each in comparison.failed
    ]
    rows.sort(key=lambda row: (row["size"], row["repeat"], list(labels).index(row["method"])))
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=_schema(comparison)), buffer)
    return buffer.getvalue()


def _schema(comparison: Comparison) -> Any:
    names, numbers = ("method", "label"), ("repeat", "size", "seed")
    scores = [score.name for score in SCORES[comparison.plan.data.task]]
    return pa.schema(
        [
            *((name, pa.string()) for name in names),
            *((name, pa.int64()) for name in numbers),
            *((name, pa.float64()) for name in ("beta", *scores, "seconds")),
            ("evaluations", pa.int64()),
            ("status", pa.string()),
            ("reason", pa.string()),
            ("num_test", pa.int64()),
        ]
    )


def _named(cell: Cell, labels: dict[str, Method]) -> dict[str, Any]:
    return {
        "method": cell.method,
        "label": labels[cell.method].label,
        "repeat": cell.repeat,
        "size": cell.size,
        "seed": cell.seed,
    }


def _finished(run: Run, labels: dict[str, Method]) -> dict[str, Any]:
    outcome = run.outcome
    return {
        **_named(run.cell, labels),
        **outcome.scores,
        "beta": outcome.beta,
        "seconds": outcome.seconds,
        "evaluations": outcome.evaluations,
        "status": outcome.status,
        "reason": outcome.reason,
        "num_test": outcome.num_test,
    }

"""Every cell as a row of a table: `results.parquet`."""

import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from directgp.experiments.paper.cells import CurveCell, FitCell, PaperCell
from directgp.experiments.paper.results import CurveOutcome, FitOutcome, Outcome, Record, Results
from directgp.metrics import SCORES
from directgp.reports.paper.figures.curve_looks import method_of

_NAMES = tuple(dict.fromkeys(score.name for every in SCORES.values() for score in every))

_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("key", "kind", "dataset", "task")),
        *((name, pa.int64()) for name in ("size", "num_inducing", "repeat", "seed")),
        *((name, pa.string()) for name in ("method", "rule", "protocol")),
        *((name, pa.float64()) for name in ("beta", *_NAMES, "seconds")),
        *((name, pa.string()) for name in ("status", "reason")),
        *((name, pa.string()) for name in ("machine", "device", "finished", "versions")),
    ]
)


def cells_parquet(results: Results) -> bytes:
    """The file; cells that failed or were not run have a status, and no scores."""
    rows = [_finished(record) for record in results.records]
    rows += [
        {**_named(each.cell), "status": "failed", "reason": each.reason} for each in results.failed
    ]
    rows += [{**_named(cell), "status": "not run"} for cell in results.missing]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), buffer)
    return buffer.getvalue()


def _named(cell: PaperCell) -> dict[str, Any]:
    shared = ("key", "kind", "dataset", "task", "size", "num_inducing", "repeat", "seed")
    return {name: getattr(cell, name) for name in shared} | _particular(cell)


def _particular(cell: PaperCell) -> dict[str, Any]:
    """What only some kinds have; a curve is called as the method of the line-up."""
    if isinstance(cell, FitCell):
        return {"method": cell.method, "rule": cell.rule.label, "protocol": cell.protocol}
    if isinstance(cell, CurveCell):
        return {"method": method_of(cell), "rule": cell.rule.label, "beta": cell.beta}
    return {"beta": cell.beta}


def _finished(record: Record) -> dict[str, Any]:
    about = record.circumstances
    return {
        **_named(record.cell),
        "status": "finished",
        **_found(record.outcome),
        "seconds": record.outcome.seconds,
        "machine": about.machine,
        "device": about.device,
        "finished": about.finished,
        "versions": json.dumps(about.versions),
    }


def _found(outcome: Outcome) -> dict[str, Any]:
    """Scores of test rows; of a curve, those at its end."""
    if isinstance(outcome, FitOutcome):
        ended = {"status": outcome.status, "reason": outcome.reason}
        return {**_known(outcome.scores), "beta": outcome.beta, **ended}
    if isinstance(outcome, CurveOutcome):
        scores = outcome.points[-1].scores if outcome.points else {}
        return {**_known(scores), "status": outcome.status, "reason": outcome.reason}
    return {}


def _known(scores: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in scores.items() if name in _NAMES}

"""Run the experiments of the paper, and keep their results in one file."""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.numpy import load, save

from directgp.datasets import Problem, Task
from directgp.errors import StoreError
from directgp.experiments import (
    Circumstances,
    FailedRecord,
    Frozen,
    Pool,
    Record,
    RunCallback,
    Runner,
    Store,
)
from directgp.metrics import ECE, RMSE, SCORES
from directgp.training import Monitor
from directgp_paper.experiments.cells import (
    CurveCell,
    CurveOutcome,
    FitCell,
    FitOutcome,
    GradientCell,
    PaperCell,
    PaperRecord,
    ProtocolName,
    Results,
    SamplerCell,
)
from directgp_paper.experiments.claims.base import NOT_RUN, Assessment
from directgp_paper.experiments.fits import run_curve, run_fit
from directgp_paper.experiments.rows import PaperRows, paper_rows
from directgp_paper.experiments.studies import run_gradients, run_samplers
from directgp_paper.experiments.sweep import SCALES, Scale


def run_paper_cell(
    cell: PaperCell,
    data: PaperRows,
    start: bytes = b"",
    monitors: Sequence[Monitor] = (),
    *,
    device: str = "cpu",
) -> PaperRecord:
    """Run one cell on its rows; `start` is the model of `cell.start`.

    The device is "cpu" or "cuda"; studies of gradients and samplers always run on the CPU.
    """
    match cell:
        case FitCell():
            return run_fit(cell, data, start, device, monitors)
        case CurveCell():
            return run_curve(cell, data, start, device, monitors)
        case GradientCell():
            return run_gradients(cell, data, monitors)
        case SamplerCell():
            return run_samplers(cell, data, monitors)


def run_sweep(
    cells: Sequence[PaperCell],
    problem_of: Callable[[str], Problem],
    store: Store,
    pool: Pool,
    *,
    callback: RunCallback | None = None,
    device: str = "cpu",
    function: Callable[..., PaperRecord] = run_paper_cell,
) -> None:
    """Run cells, and the cells they start from, until each has a result or a failure in the store.

    Finished cells are not run again. Cells that another program has leased are waited for, and
    taken over if that program dies. `problem_of` returns the data set of a name. The pool is
    `InProcess()`, `LocalWorkers(4)` or `RayCluster()`, the device "cpu" or "cuda". `function` has
    the signature of `run_paper_cell`, and is defined at the top level of a module.
    """
    runner: Runner[PaperCell] = Runner(
        store,
        lambda cell: problem_of(cell.dataset),
        paper_rows,
        partial(function, device=device),
        callback or RunCallback(),
    )
    runner.run(cells, pool)


@final
class DataRow(Frozen):
    """One data set, as used here and as in the paper's table."""

    name: str
    """Name of the data set."""

    task: Task
    """Kind of prediction."""

    rows: int
    """Number of rows here."""

    features: int
    """Features of these rows."""

    fingerprint: str
    """Checksum of the rows."""

    paper_rows: int
    """Rows in the paper's table."""

    paper_features: int
    """Features in the paper's table."""

    num_inducing: int
    """The paper's number M of inducing inputs."""

    origin: str
    """Where the rows come from."""

    licence: str
    """Licence of the data."""

    source: str
    """Public source of the data."""

    differences: str
    """Differences from the paper's data, if any."""


@final
@dataclass(frozen=True, eq=False)
class Reproduction:
    """Results, the assessment of each claim, and how they were produced."""

    results: Results
    """Results of all cells."""

    claims: tuple[Assessment, ...]
    """The claims that were judged."""

    data: tuple[DataRow, ...]
    """The data sets that were used."""

    scale: Scale
    """Sizes of the experiments."""

    protocol: ProtocolName
    """How fits were trained."""

    command: str
    """Command that writes the report again."""

    began: str
    """Date and time at which this run began, UTC."""

    seconds: float
    """Wall time of this run."""

    machine: str
    """Machine of this run; other cells may have been run elsewhere."""

    damaged: int = 0
    """Stored results that did not match their checksums."""


# A file of results: one row a cell with its scores, and what a report needs without the data.

_SCORE_NAMES = dict.fromkeys(
    s.name for task in SCORES.values() for s in task if s not in (RMSE, ECE)
)
"""The scores of the paper's experiments, which have neither RMSE nor ECE."""

_COLUMNS = (
    ("string", ("key", "kind", "dataset", "task")),
    ("int64", ("size", "num_inducing", "repeat", "seed")),
    ("string", ("method", "rule", "protocol")),
    ("float64", ("beta", *_SCORE_NAMES)),
    ("float64", ("seconds",)),
    ("string", ("status", "reason", "machine", "device", "finished", "versions")),
    ("int64", ("attempts",)),
    ("string", ("cell", "outcome")),
    ("binary", ("arrays",)),
)
"""Columns of results.parquet, by their types in pyarrow."""

_DATA = b"directgp.data"
"""Name of the table of data sets among the file's metadata."""

_SCALE = b"directgp.scale"
"""Name of the scale among the file's metadata."""

_PROTOCOL = b"directgp.protocol"
"""Name of the protocol among the file's metadata."""

_CELL: TypeAdapter[PaperCell] = TypeAdapter(PaperCell)
_DATA_ROWS = TypeAdapter(tuple[DataRow, ...])


class Archive(NamedTuple):
    """The content of a file of results."""

    results: Results
    data: tuple[DataRow, ...]
    scale: str
    protocol: ProtocolName


def to_parquet(
    results: Results, data: tuple[DataRow, ...], scale: str, protocol: ProtocolName
) -> bytes:
    """Return results.parquet; cells that failed or were not run have no scores.

    Arrays are rounded to half precision.
    """
    rows = [_finished(record) for record in results.records]
    for failed in results.failed:
        row = {"status": "failed", "reason": failed.reason, "attempts": failed.attempts}
        rows.append(_facts(failed.cell) | row)
    rows += [{**_facts(cell), "status": NOT_RUN} for cell in results.missing]
    fields = [(name, pa.type_for_alias(kind)) for kind, names in _COLUMNS for name in names]
    about = {_DATA: _DATA_ROWS.dump_json(data), _SCALE: scale, _PROTOCOL: protocol}
    schema = pa.schema(fields, metadata=about)
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), buffer, compression="zstd")
    return buffer.getvalue()


def read_parquet(path: Path) -> Archive:
    """Return the cells of a results.parquet.

    Raise `StoreError` if the file is not a results.parquet.
    """
    try:
        with path.open("rb") as file:
            table = pq.read_table(file)
        about = table.schema.metadata or {}
        data = _DATA_ROWS.validate_json(about[_DATA])
        scale = about[_SCALE].decode()
        if scale not in SCALES:
            raise ValueError(f"its scale is {scale!r}")
        protocol = TypeAdapter(ProtocolName).validate_python(about[_PROTOCOL].decode())
        rows = table.to_pylist()
        finished = [row for row in rows if row["outcome"] is not None]
        failed = [row for row in rows if row.get("attempts") is not None]
        absent = [row for row in rows if row["status"] == NOT_RUN]
        results = Results(
            tuple(map(_record, finished)),
            tuple(map(_failed_record, failed)),
            tuple(_CELL.validate_json(row["cell"]) for row in absent),
        )
        return Archive(results, data, scale, protocol)
    except (pa.ArrowException, KeyError, OSError, SafetensorError, TypeError, ValueError) as error:
        what = (str(error).splitlines() or [type(error).__name__])[0]
        if isinstance(error, KeyError):
            what = f"it has no {what}"
        raise StoreError(
            f"{path} is no results.parquet of this version of directgp ({what}). Give one that "
            "`reproduce` has written."
        ) from error


def _facts(cell: PaperCell) -> dict[str, Any]:
    shared = ("key", "kind", "dataset", "task", "size", "num_inducing", "repeat", "seed")
    row = {name: getattr(cell, name) for name in shared} | {"cell": cell.model_dump_json()}
    if isinstance(cell, FitCell):
        return row | {"method": cell.method, "rule": cell.rule.label, "protocol": cell.protocol}
    if isinstance(cell, CurveCell):
        row |= {"method": cell.method, "rule": cell.rule.label}
    return row | {"beta": cell.beta}


def _finished(record: PaperRecord) -> dict[str, Any]:
    """Return the row of a finished cell; a curve has the scores of its last point."""
    outcome = record.outcome
    about = record.circumstances
    row = _facts(record.cell) | {"status": "finished", "seconds": outcome.seconds}
    row |= {"machine": about.machine, "device": about.device, "finished": about.finished}
    row["versions"] = json.dumps(about.versions)
    if isinstance(outcome, FitOutcome):
        row |= {**outcome.scores, "beta": outcome.beta}
    elif isinstance(outcome, CurveOutcome):
        row |= outcome.points[-1].scores if outcome.points else {}
    if isinstance(outcome, FitOutcome | CurveOutcome):
        row |= {"status": outcome.status, "reason": outcome.reason}
    arrays = save({name: _rounded(values) for name, values in record.arrays.items()})
    return row | {"outcome": outcome.model_dump_json(), "arrays": arrays}


def _rounded(values: NDArray[Any]) -> NDArray[Any]:
    """Round to half precision, or to single precision if a value is too large for it."""
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    fits = np.array_equal(np.isinf(half), np.isinf(values))
    return half if fits else values.astype(np.float32)


def _record(row: dict[str, Any]) -> PaperRecord:
    cell = _CELL.validate_json(row["cell"])
    outcome: Any = cell.outcome_type.model_validate_json(row["outcome"])
    about = {name: row[name] for name in ("machine", "device", "finished")}
    where = Circumstances(versions=json.loads(row["versions"]), **about)
    return Record(cell, outcome, where, load(row["arrays"]))


def _failed_record(row: dict[str, Any]) -> FailedRecord[PaperCell]:
    return FailedRecord(_CELL.validate_json(row["cell"]), row["reason"], row["attempts"])

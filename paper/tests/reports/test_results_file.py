"""results.parquet is read as it was written."""

import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from directgp.errors import StoreError
from directgp_paper.experiments.cells import (
    CurveCell,
    FitCell,
    GradientCell,
    PaperRecord,
    Results,
    SamplerCell,
)
from directgp_paper.experiments.run import read_parquet, to_parquet
from paper.tests.reports.conftest import with_failures
from paper.tests.reports.made import DATA, Recipe, results

EVERY_KIND = Recipe(
    fits=("sarcos",),
    sizes=(346,),
    airline=True,
    gradients=True,
    samplers=("abalone",),
    repeats=1,
    points=3,
)
FOUND = with_failures(results(EVERY_KIND))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "results.parquet"
    path.write_bytes(to_parquet(FOUND, DATA, "full", "paper"))
    return path


def test_all_kinds_of_cells_come_back(file: Path) -> None:
    found = read_parquet(file).results
    kinds = {type(record.cell) for record in found.records}
    assert kinds == {FitCell, CurveCell, GradientCell, SamplerCell}
    for before, after in zip(FOUND.records, found.records, strict=True):
        assert after.cell == before.cell and after.cell.key == before.cell.key
        assert type(after.outcome) is type(before.outcome) and after.outcome == before.outcome
        assert after.circumstances == before.circumstances
        assert after.model == b""
        assert set(after.arrays) == set(before.arrays)
        for name, values in after.arrays.items():
            assert values.dtype == np.float16
            np.testing.assert_allclose(values, before.arrays[name], rtol=1e-3, atol=1e-7)


def test_failures_missing_cells_and_data_come_back(file: Path) -> None:
    found, data, *_ = read_parquet(file)
    assert found.failed == FOUND.failed and found.failed[0].attempts == 3
    assert len(FOUND.missing) == 1 and found.missing == FOUND.missing
    assert data == DATA


def with_values(record: PaperRecord, **values: float) -> PaperRecord:
    """With other scores at the end, seconds and losses."""
    outcome: Any = record.outcome
    if isinstance(record.cell, FitCell):
        changes: dict[str, Any] = {"scores": values, "history": ((1, math.nan), (2, -math.inf))}
    else:
        last = outcome.points[-1].model_copy(update={"scores": values})
        changes = {"points": (*outcome.points[:-1], last)}
    losses = np.array([[math.nan, math.inf, -math.inf, 0.5]], np.float32)
    return replace(record, outcome=outcome.model_copy(update=changes), arrays={"losses": losses})


@pytest.mark.parametrize("kind", [FitCell, CurveCell])
def test_numbers_that_are_not_finite_come_back(kind: Any, tmp_path: Path) -> None:
    scores = {"nll": math.inf, "mse": math.nan, "error": -math.inf}
    record = with_values(FOUND.of(kind)[0], **scores)
    path = tmp_path / "results.parquet"
    path.write_bytes(to_parquet(Results((record,)), (), "full", "paper"))
    (after,) = read_parquet(path).results.records
    assert repr(after.outcome) == repr(record.outcome)
    np.testing.assert_array_equal(after.arrays["losses"], record.arrays["losses"])
    (row,) = pq.read_table(path).to_pylist()
    assert row["nll"] == math.inf and math.isnan(row["mse"]) and row["mre"] is None


@pytest.mark.parametrize("sign", [-1, 1])
def test_losses_too_large_for_half_precision_stay_finite(sign: int, tmp_path: Path) -> None:
    losses = np.array([[1e5 * sign, math.inf, 0.123456]], np.float32)
    record = replace(FOUND.of(CurveCell)[0], arrays={"losses": losses})
    path = tmp_path / "results.parquet"
    path.write_bytes(to_parquet(Results((record,)), (), "full", "paper"))
    (after,) = read_parquet(path).results.records
    np.testing.assert_array_equal(after.arrays["losses"], losses)


def test_nothing_comes_back_as_nothing(tmp_path: Path) -> None:
    path = tmp_path / "results.parquet"
    path.write_bytes(to_parquet(Results(()), (), "full", "paper"))
    assert read_parquet(path) == (Results(()), (), "full", "paper")


def changed(file: Path, **columns: Any) -> None:
    """Give every row of a file these values; None drops the column."""
    table = pq.read_table(file)
    for name, value in columns.items():
        place = table.schema.get_field_index(name)
        field, count = table.schema.field(name), table.num_rows
        table = table.remove_column(place)
        if value is not None:
            table = table.append_column(field, pa.array([value] * count, field.type))
    pq.write_table(table, file)


def make_sqlite(file: Path) -> None:
    file.unlink()
    with closing(sqlite3.connect(file)) as made:
        made.execute("create table results (key text)")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-9]), "not a parquet file"),
        (lambda file: file.write_bytes(b""), "file size is 0 bytes"),
        (make_sqlite, "not a parquet file"),
        (Path.unlink, "No such file"),
        (lambda file: (file.unlink(), file.mkdir()), "Is a directory"),
        (lambda file: pq.write_table(pa.table({"y": [1.0]}), file), "it has no .*directgp.data"),
        (
            lambda file: pq.write_table(
                pq.read_table(file).replace_schema_metadata({"directgp.data": '[{"name": 1}]'}),
                file,
            ),
            "validation errors for",
        ),
        (lambda file: changed(file, outcome=None), "it has no 'outcome'"),
        (lambda file: changed(file, cell='{"kind": "fit"}'), "validation errors for"),
        (lambda file: changed(file, outcome='{"kind": "fit"'), "validation error for FitOutcome"),
        (lambda file: changed(file, versions="{"), "Expecting property name"),
        (lambda file: changed(file, arrays=b"no tensors"), "header"),
    ],
)
def test_a_file_that_is_none_is_refused(file: Path, damage: Any, sentence: str) -> None:
    damage(file)
    expected = rf"results.parquet is no results.parquet .* \(.*{sentence}.*`reproduce` has written"
    with pytest.raises(StoreError, match=expected) as caught:
        read_parquet(file)
    assert "\n" not in str(caught.value)

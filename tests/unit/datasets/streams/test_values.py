"""Numbers are those of the files, or scaled."""

import pickle
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from directgp.datasets.streams import Batch, ParquetRows
from directgp.datasets.streams.reading import DType, join_batches
from tests.unit.datasets.streams.small_files import numbered, numbers, write

KINDS: dict[str, Any] = {
    "flag": pa.array([True, False, True]),
    "small": pa.array([1, -2, 3], pa.int8()),
    "large": pa.array([2**64 - 1, 0, 5], pa.uint64()),
    "half": pa.array(np.array([0.5, 1, 2], np.float16)),
    "single": pa.array([0.1, 0.2, 0.3], pa.float32()),
    "double": pa.array([0.1, 1e-300, -1e300]),
    "decimal": pa.array([Decimal("1.25"), Decimal("-3.50"), Decimal("0.00")]),
}
OTHERS: dict[str, Any] = {
    "text": pa.array(["a", "b", "a"]),
    "level": pa.array(["a", "b", "a"]).dictionary_encode(),
    "day": pa.array([1, 2, 3], pa.date32()),
}


def all_of(blocks: Iterator[Batch]) -> Batch:
    return join_batches(list(blocks))


def test_all_numbers_are_features_unless_named(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", KINDS | OTHERS | {"y": [1, 2, 3]})
    rows = ParquetRows(path, "y")
    assert rows.feature_names == tuple(KINDS)
    assert (rows.num_rows, rows.target, rows.dtype) == (3, "y", "float64")
    X, y, weights = next(rows.blocks())
    assert weights is None
    expected = [[float(value) for value in column.to_pylist()] for column in KINDS.values()]
    np.testing.assert_array_equal(X, np.array(expected).T)
    np.testing.assert_array_equal(y, [1.0, 2.0, 3.0])


def test_columns_come_in_the_order_named(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", {"a": [1.0, 2.0], "b": [3, 4], "c": [5, 6], "a.b": [0, 0]})
    X, y, weights = next(ParquetRows(path, "b", features=["c", "a"], weights="a.b").blocks())
    np.testing.assert_array_equal(X, [[5, 1], [6, 2]])
    np.testing.assert_array_equal(y, [3, 4])
    np.testing.assert_array_equal(weights, [0, 0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_type_asked_for(tmp_path: Path, dtype: DType) -> None:
    rows = numbered(tmp_path, [[30, 40]], dtype=dtype).standardised(target=True)
    with rows.batches(20, 0) as stream:
        given = [stream.next(), rows.sample(5), next(rows.blocks(7))]
    for batch in given:
        assert batch.X.dtype == batch.y.dtype == np.dtype(dtype)
        assert batch.X.flags.c_contiguous and batch.y.flags.c_contiguous


@pytest.mark.parametrize("block", [1, 9, 64, 1000])
def test_blocks_are_in_the_order_of_the_files(tmp_path: Path, block: int) -> None:
    rows = numbered(tmp_path, [[10, 50], [3], [41, 2]])
    blocks = list(rows.blocks(block))
    np.testing.assert_array_equal(numbers(join_batches(blocks)), np.arange(106))
    assert {len(one.y) for one in blocks[:-1]} <= {block}


def test_blocks_may_be_left_early(tmp_path: Path) -> None:
    blocks = numbered(tmp_path, [[100]]).blocks(10)
    next(blocks)
    blocks.close()
    assert next(blocks, None) is None


@pytest.mark.parametrize(
    ("values", "positive", "expected"),
    [
        (["no", "yes", "maybe"], "yes", [0, 1, 0]),
        (pa.array(["no", "yes", "no"]).dictionary_encode(), "yes", [0, 1, 0]),
        ([1, 2, 2], 2, [0, 1, 1]),
        ([1.0, 2.0, 2.0], 1, [1, 0, 0]),
        ([True, False, True], False, [0, 1, 0]),
        ([True, False, True], None, [1, 0, 1]),
        ([-1, 1, -1], 1.0, [0, 1, 0]),
    ],
)
def test_the_positive_class(
    tmp_path: Path, values: Any, positive: object, expected: list[int]
) -> None:
    path = write(tmp_path / "t.parquet", {"x": [1.0, 2.0, 3.0], "y": values}, group=2)
    rows = ParquetRows(path, "y", positive=positive)
    np.testing.assert_array_equal(all_of(rows.blocks()).y, expected)


def test_scaling_is_that_of_numpy(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    columns = {
        "far": 1e9 + rng.standard_normal(3000),
        "wide": 1e6 * rng.standard_exponential(3000),
        "constant": np.full(3000, 0.1),
        "y": 3 + 2 * rng.standard_normal(3000),
    }
    write(tmp_path / "a.parquet", {name: values[:1700] for name, values in columns.items()}, 400)
    write(tmp_path / "b.parquet", {name: values[1700:] for name, values in columns.items()})
    rows = ParquetRows(tmp_path, "y").standardised(target=True)
    scaling = rows.scaling
    assert scaling is not None
    table = np.column_stack(list(columns.values()))
    means = table.astype(np.longdouble).mean(axis=0).astype(float)
    scales = table.astype(np.longdouble).std(axis=0).astype(float)
    scales[2] = 1.0
    np.testing.assert_allclose([*scaling.offsets, scaling.target_offset], means, rtol=1e-15)
    np.testing.assert_allclose([*scaling.scales, scaling.target_scale], scales, rtol=1e-12)
    X, y, _ = all_of(rows.blocks(100))
    scaled = (table - means) / scales
    np.testing.assert_allclose(np.column_stack([X, y]), scaled, rtol=1e-9, atol=1e-6)
    single = ParquetRows(tmp_path, "y", dtype="float32").scaled(scaling)
    # Rounded once, after scaling: 1e9 has no digits after the point in float32.
    np.testing.assert_array_equal(all_of(single.blocks()).X, X.astype(np.float32))


def test_many_blocks_are_merged(tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal(200_000) + 50
    path = write(tmp_path / "t.parquet", {"x": values, "y": values}, 30_000)
    scaling = ParquetRows(path, "y").standardised().scaling
    assert scaling is not None
    np.testing.assert_allclose(scaling.offsets[0], values.mean(), rtol=1e-14)
    np.testing.assert_allclose(scaling.scales[0], values.std(), rtol=1e-13)
    assert (scaling.target_offset, scaling.target_scale) == (0.0, 1.0)


def test_weights_count_in_scaling(tmp_path: Path) -> None:
    weights = np.array([1, 0, 3, 2] * 10)
    values = np.random.default_rng(2).standard_normal(40)
    values[1] = 1e300
    path = write(tmp_path / "t.parquet", {"x": values, "y": values, "w": weights})
    rows = ParquetRows(path, "y", weights="w").standardised()
    repeated = np.repeat(values, weights)
    assert rows.scaling is not None
    np.testing.assert_allclose(rows.scaling.offsets, [repeated.mean()], rtol=1e-13)
    np.testing.assert_allclose(rows.scaling.scales, [repeated.std()], rtol=1e-13)
    np.testing.assert_array_equal(all_of(rows.blocks()).weights, weights)


def test_weights_stay_with_their_rows(tmp_path: Path) -> None:
    number = np.arange(200)
    path = write(tmp_path / "t.parquet", {"x": -1.0 * number, "y": number, "w": number / 2}, 30)
    with ParquetRows(path, "y", weights="w", buffer_rows=40).batches(64, 0) as stream:
        for _ in range(5):
            batch = stream.next()
            np.testing.assert_array_equal(batch.weights, numbers(batch) / 2)


def test_a_sample_is_uniform_and_without_replacement(tmp_path: Path) -> None:
    rows = numbered(tmp_path, [[5, 20], [1], [14]], buffer_rows=16)
    drawn = np.array([numbers(rows.sample(10, seed)) for seed in range(200)])
    assert all(len(set(one)) == 10 for one in drawn.tolist())
    counts = np.bincount(drawn.ravel(), minlength=40)
    assert np.abs(counts - 50).max() < 5 * np.sqrt(200 * 0.25 * 0.75)
    # Not sorted: the first of a sample is a sample too.
    first = np.bincount(drawn[:, :2].ravel(), minlength=40)
    assert np.abs(first - 10).max() < 5 * np.sqrt(400 * (1 / 40))
    np.testing.assert_array_equal(numbers(rows.sample(10, 7)), drawn[7])
    np.testing.assert_array_equal(np.sort(numbers(rows.sample(40))), np.arange(40))


def test_rows_can_be_pickled(tmp_path: Path) -> None:
    rows = numbered(tmp_path, [[50, 20]]).standardised()
    twin = pickle.loads(pickle.dumps(rows))
    assert twin.scaling == rows.scaling
    with rows.batches(10, 0) as one, twin.batches(10, 0) as other:
        np.testing.assert_array_equal(one.next().X, other.next().X)


def test_hidden_files_and_other_suffixes_are_left_out(tmp_path: Path) -> None:
    for place, name in enumerate(["b/a.parquet", "a.PARQUET", "c.pq"]):
        write(tmp_path / name, {"x": [0.0], "y": [place]})
    for name in ["_temporary/d.parquet", ".e.parquet", "_f.parquet", "b/.g/h.parquet", "i.txt"]:
        write(tmp_path / name, {"other": [0.0]})
    assert all_of(ParquetRows(tmp_path, "y").blocks()).y.tolist() == [1, 0, 2]
    named: list[Path | str] = [tmp_path / "c.pq", str(tmp_path / "b")]
    assert all_of(ParquetRows(named, "y").blocks()).y.tolist() == [2, 0]

"""Plans, shares and streams have every row once, in random order."""

from collections import Counter
from itertools import accumulate, count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from directgp.datasets.streams import ParquetRows
from directgp.datasets.streams.files import Piece, divide, share_of
from directgp.datasets.streams.stream import shuffled, turn_rows
from directgp.errors import InvalidInputError
from tests.unit.datasets.streams.small_files import drawn, numbered, numbers

SIZES = st.lists(st.integers(1, 150), min_size=1, max_size=10)
ROW_GROUPS = st.lists(st.lists(st.integers(0, 40), max_size=6), min_size=1, max_size=4)


@given(SIZES, st.integers(1, 200), st.integers(0, 5))
def test_a_shuffled_plan_has_every_row_once(sizes: list[int], buffer: int, seed: int) -> None:
    plan = list(shuffled(sizes, buffer, np.random.default_rng(seed)))
    taken: Counter[int] = Counter()
    for takes in plan:
        for piece, rows in takes:
            taken[piece] += rows
            assert 1 <= rows <= turn_rows(buffer)
    assert taken == Counter(dict(enumerate(sizes)))
    filled = [sum(rows for _, rows in takes) for takes in plan]
    assert all(rows == buffer for rows in filled[1:-1])
    assert all(rows <= buffer for rows in filled)
    if sum(sizes) <= buffer:
        assert len(plan) == 1


@given(SIZES, st.integers(0, 5))
def test_few_pieces_are_open_at_a_time(sizes: list[int], seed: int) -> None:
    left = dict(enumerate(sizes))
    begun = set()
    for takes in shuffled(sizes, 64, np.random.default_rng(seed)):
        for piece, rows in takes:
            begun.add(piece)
            left[piece] -= rows
            assert sum(left[one] > 0 for one in begun) <= 4


def file_of(path: str, *groups: int) -> Piece:
    """All rows of a file with row groups of these sizes."""
    ends = tuple(accumulate(groups))
    return Piece(path, 1, ends, 0, ends[-1] if ends else 0)


def rows_of(piece: Piece, first: dict[str, int]) -> list[int]:
    """Numbers of the rows of a piece, in all files."""
    before = first[piece.path]
    return list(range(before + piece.start, before + piece.stop))


@given(ROW_GROUPS, st.integers(1, 60), st.integers(1, 7))
def test_shares_are_even_disjoint_and_complete(
    groups: list[list[int]], least: int, size: int
) -> None:
    files = [file_of(str(place), *rows) for place, rows in enumerate(groups)]
    ends = np.cumsum([0, *(sum(rows) for rows in groups)]).tolist()
    first = {file.path: end for file, end in zip(files, ends[:-1], strict=True)}
    pieces = [piece for file in files for piece in divide(file, least)]
    shares = [share_of(pieces, rank, size) for rank in range(size)]
    found = [[row for piece in share for row in rows_of(piece, first)] for share in shares]
    assert [row for share in found for row in share] == list(range(ends[-1]))
    assert max(map(len, found)) - min(map(len, found)) <= 1
    for piece in (piece for share in shares for piece in share):
        ends, first_group, last_group = (0, *piece.ends), piece.groups[0], piece.groups[-1]
        assert ends[first_group] <= piece.start < ends[first_group + 1]
        assert ends[last_group] < piece.stop <= ends[last_group + 1]


def test_small_row_groups_are_read_together() -> None:
    pieces = divide(file_of("f", 3, 3, 3, 100, 2, 2), 6)
    assert [list(piece.groups) for piece in pieces] == [[0, 1], [2, 3], [4, 5]]
    assert [piece.rows for piece in pieces] == [6, 103, 4]


@pytest.mark.parametrize(
    ("row", "place"),
    [
        (0, "row 5 of 'f' (row group 2)"),
        (1, "row 6 of 'f' (row group 2)"),
        (2, "row 7 of 'f' (row group 4)"),
    ],
)
def test_where_a_row_is_found(row: int, place: str) -> None:
    assert file_of("f", 3, 3, 0, 100).cut(4, 53).place(row) == place


FILES = [[20, 7, 50], [6], [13, 13, 13, 1]]
TOTAL = 123

_FOLDERS = count()


@given(
    st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(1, 70),
    st.integers(1, 5),
    st.integers(0, 3),
    st.data(),
)
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
def test_an_epoch_of_all_shares_has_every_row_once(
    tmp_path: Path, files: list[list[int]], buffer: int, shares: int, seed: int, data: st.DataObject
) -> None:
    rows = numbered(tmp_path / str(next(_FOLDERS)), files, buffer_rows=buffer)
    shares = min(shares, rows.num_rows)
    found: list[int] = []
    for rank in range(shares):
        number = len(range(rows.num_rows * rank // shares, rows.num_rows * (rank + 1) // shares))
        batch = data.draw(st.integers(1, number))
        with rows.batches(batch, seed, (rank, shares)) as stream:
            assert stream.rows == number
            two = drawn(stream, 2 * number)
        np.testing.assert_array_equal(np.sort(two[:number]), np.sort(two[number:]))
        found += two[:number].tolist()
    assert sorted(found) == list(range(sum(map(sum, files))))


@pytest.mark.parametrize("buffer", [3, 15, 10**4])
def test_the_order_is_a_function_of_seed_epoch_and_share(tmp_path: Path, buffer: int) -> None:
    rows = numbered(tmp_path, FILES, buffer_rows=buffer)
    with rows.batches(10, 3) as one, rows.batches(7, 3) as other, rows.batches(10, 4) as new:
        first = drawn(one, TOTAL)
        np.testing.assert_array_equal(drawn(other, TOTAL), first)
        assert (drawn(new, TOTAL) != first).any()
        assert (drawn(one, TOTAL) != first).any()


def test_batches_have_one_size_across_epochs(tmp_path: Path) -> None:
    rows = numbered(tmp_path, FILES, buffer_rows=15)
    with rows.batches(31, 0) as stream:
        found = []
        for step in range(1, 13):
            batch = stream.next()
            assert batch.X.shape == (31, 1) and batch.y.shape == (31,)
            assert batch.X.flags.c_contiguous and batch.y.flags.c_contiguous
            assert stream.epochs == 31 * step / TOTAL
            found.append(numbers(batch))
    flat = np.concatenate(found)
    for epoch in range(2):
        part = np.sort(flat[TOTAL * epoch : TOTAL * (epoch + 1)])
        np.testing.assert_array_equal(part, np.arange(TOTAL))


@pytest.mark.parametrize("buffer", [3, 15, 40, 10**4])
@pytest.mark.parametrize("share", [(0, 1), (1, 3)])
def test_a_resumed_stream_gives_the_same_batches(
    tmp_path: Path, buffer: int, share: tuple[int, int]
) -> None:
    rows = numbered(tmp_path, FILES, buffer_rows=buffer)
    with rows.batches(11, 1, share) as stream:
        states = []
        batches = []
        for _ in range(18):
            states.append(stream.state())
            batches.append(numbers(stream.next()))
    with rows.batches(11, 1, share) as resumed:
        for at in (11, 0, 5, 17, 4):
            resumed.restore(states[at])
            for expected in batches[at : at + 3]:
                np.testing.assert_array_equal(numbers(resumed.next()), expected)


def test_resume_does_not_read_earlier_rows(tmp_path: Path) -> None:
    rows = numbered(tmp_path, [[50], [50], [50], [50]] * 5, buffer_rows=50)
    with rows.batches(50, 0) as stream:
        for _ in range(14):
            stream.next()
        state = stream.state()
        rest = drawn(stream, 300)
    for path in set(range(20)) - {number // 50 for number in rest.tolist()}:
        (tmp_path / f"part-{path:03d}.parquet").unlink()
    with rows.batches(50, 0) as resumed:
        resumed.restore(state)
        np.testing.assert_array_equal(drawn(resumed, 300), rest)
    assert len(list(tmp_path.iterdir())) < 15


def test_a_state_of_another_stream_is_refused(tmp_path: Path) -> None:
    rows = numbered(tmp_path, FILES, buffer_rows=50)
    with rows.batches(10, 1, (0, 2)) as stream, rows.batches(10, 1, (0, 3)) as other:
        with pytest.raises(InvalidInputError, match=r"shares of the state must be that of the str"):
            other.restore(stream.state())


def test_rows_that_fit_are_permuted_as_a_whole(tmp_path: Path) -> None:
    """Where each row comes in the epoch is uniform, and knows nothing of its neighbour's place."""
    rows = numbered(tmp_path, [[10, 20], [30]], buffer_rows=60)
    with rows.batches(60, 0) as stream:
        places = np.array([np.argsort(drawn(stream, 60)) for _ in range(60)])
    # 5 deviations of a mean of 60 places, and of a mean of 60·59 products.
    assert np.abs(places.mean(axis=0) - 29.5).max() < 5 * np.sqrt(60**2 / 12 / 60)
    z = (places - 29.5) / np.sqrt((60**2 - 1) / 12)
    assert abs((z[:, 1:] * z[:, :-1]).mean() + 1 / 59) < 5 / np.sqrt(60 * 59)


def test_rows_of_a_group_are_spread_over_the_epoch(tmp_path: Path) -> None:
    """Four large groups against a buffer of a fifth of one: all of them are in every buffer."""
    rows = numbered(tmp_path, [[1000, 1000], [1000, 1000]], buffer_rows=200)
    with rows.batches(200, 0) as stream:
        order = drawn(stream, 4000)
    of_group = order.reshape(10, 400) // 1000
    assert all((of_group == group).any(axis=1).all() for group in range(4))
    # Within a buffer the rows are in random order: as many rise as fall.
    assert abs((np.diff(order) > 0).mean() - 0.5) < 0.05


def test_groups_come_in_another_order_in_every_epoch(tmp_path: Path) -> None:
    rows = numbered(tmp_path, [[10] * 12], buffer_rows=10)
    with rows.batches(120, 0) as stream:
        places = np.array([np.argsort(drawn(stream, 120)) for _ in range(25)])
    middle = places.reshape(25, 12, 10).mean(axis=2)
    # The mean place of a group in 25 epochs is near the middle, and every group moves about.
    assert np.abs(middle.mean(axis=0) - 59.5).max() < 5 * 120 / np.sqrt(12 * 25)
    assert middle.std(axis=0).min() > 12


def test_one_large_group_is_cut_elsewhere_in_every_epoch(tmp_path: Path) -> None:
    rows = numbered(tmp_path, [[600]], buffer_rows=100)
    with rows.batches(600, 0) as stream:
        orders = [drawn(stream, 600) for _ in range(6)]
    # Rows 0 to k − 1 come first, in any order, where the first buffer has k rows.
    reached = [np.maximum.accumulate(order)[:-1] for order in orders]
    cuts = {int(np.flatnonzero(most == np.arange(599))[0]) + 1 for most in reached}
    assert len(cuts) > 3
    assert all(50 < cut <= 100 for cut in cuts)


def test_buffers_are_permuted_differently(tmp_path: Path) -> None:
    rows = numbered(tmp_path, [[600]], buffer_rows=100)
    with rows.batches(600, 0) as stream:
        order = drawn(stream, 600)
    first = int(np.flatnonzero(np.maximum.accumulate(order) == np.arange(600))[0]) + 1
    ranks = order[first : first + 500].reshape(5, 100) - np.arange(first, first + 500, 100)[:, None]
    assert all(sorted(one) == list(range(100)) for one in ranks.tolist())
    assert len({tuple(one) for one in ranks.tolist()}) == 5


@pytest.mark.parametrize(
    ("batch_size", "seed", "share", "message"),
    [
        (0, 0, (0, 1), r"batch_size must be from 1 to 123, the rows of an epoch. Got 0"),
        (63, 0, (1, 2), r"batch_size must be from 1 to 62, the rows of an epoch. Got 63"),
        (1, -1, (0, 1), r"seed of batches must be at least 0. Got -1"),
        (1, 0, (2, 2), r"share of batches must be \(r, w\) with 0 ≤ r < w ≤ 123"),
        (1, 0, (0, 124), r"the number of rows. Got \(0, 124\)"),
    ],
)
def test_wrong_arguments_of_batches_are_refused(
    tmp_path: Path, batch_size: int, seed: int, share: tuple[int, int], message: str
) -> None:
    rows: ParquetRows = numbered(tmp_path, FILES)
    with pytest.raises(InvalidInputError, match=message):
        rows.batches(batch_size, seed, share)

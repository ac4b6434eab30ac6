"""Plans and shares have every row once, whatever the sizes of row groups."""

from collections import Counter
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from directgp.datasets.streams.files import Piece, divide, share_of
from directgp.datasets.streams.reading import divide_turns
from directgp.datasets.streams.stream import shuffled, turn_rows

SIZES = st.lists(st.integers(1, 300), min_size=1, max_size=12)
FILES = st.lists(st.lists(st.integers(0, 40), max_size=6), min_size=1, max_size=4)


@given(SIZES, st.integers(1, 400), st.integers(0, 5))
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


@given(SIZES, st.integers(1, 400))
def test_a_plan_in_order(sizes: list[int], block: int) -> None:
    plan = list(divide_turns(enumerate(sizes), block, block))
    flat = [piece for takes in plan for piece, rows in takes for _ in range(rows)]
    assert flat == [piece for piece, size in enumerate(sizes) for _ in range(size)]
    filled = [sum(rows for _, rows in takes) for takes in plan]
    assert all(rows == block for rows in filled[:-1])
    assert filled[-1] <= block


def file_of(path: str, *groups: int) -> Piece:
    """All rows of a file with row groups of these sizes."""
    ends = tuple(accumulate(groups))
    return Piece(path, 1, ends, 0, ends[-1] if ends else 0)


def rows_of(piece: Piece, first: dict[str, int]) -> list[int]:
    """Numbers of the rows of a piece, in all files."""
    before = first[piece.path]
    return list(range(before + piece.start, before + piece.stop))


@given(FILES, st.integers(1, 60), st.integers(1, 7))
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
        (0, "row 5 (in row group 1) of 'f'"),
        (1, "row 6 (in row group 1) of 'f'"),
        (2, "row 7 (in row group 3) of 'f'"),
    ],
)
def test_where_a_row_is_found(row: int, place: str) -> None:
    assert file_of("f", 3, 3, 0, 100).cut(4, 53).place(row) == place

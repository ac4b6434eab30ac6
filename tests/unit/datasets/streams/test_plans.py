"""Plans and shares have every row once, whatever the sizes of row groups."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from directgp.datasets.streams.files import FileGroups, Piece, pieces_of, share_of
from directgp.datasets.streams.shuffle import in_order, longest_turn, shuffled

SIZES = st.lists(st.integers(1, 300), min_size=1, max_size=12)
FILES = st.lists(st.lists(st.integers(0, 40), max_size=6), min_size=1, max_size=4)


@given(SIZES, st.integers(1, 400), st.integers(0, 5))
def test_a_shuffled_plan_has_every_row_once(sizes: list[int], buffer: int, seed: int) -> None:
    plan = list(shuffled(sizes, buffer, np.random.default_rng(seed)))
    taken: Counter[int] = Counter()
    for takes in plan:
        for piece, rows in takes:
            taken[piece] += rows
            assert 1 <= rows <= longest_turn(buffer)
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
    plan = list(in_order(sizes, block))
    flat = [piece for takes in plan for piece, rows in takes for _ in range(rows)]
    assert flat == [piece for piece, size in enumerate(sizes) for _ in range(size)]
    filled = [sum(rows for _, rows in takes) for takes in plan]
    assert all(rows == block for rows in filled[:-1])
    assert filled[-1] <= block


def rows_of(piece: Piece, first: dict[str, int]) -> list[int]:
    """Numbers of the rows of a piece, in all files."""
    before = first[piece.file.path]
    return list(range(before + piece.start, before + piece.stop))


@given(FILES, st.integers(1, 60), st.integers(1, 7))
def test_shares_are_even_disjoint_and_complete(
    groups: list[list[int]], least: int, size: int
) -> None:
    files = [FileGroups(str(place), 1, tuple(rows)) for place, rows in enumerate(groups)]
    ends = np.cumsum([0, *(sum(rows) for rows in groups)]).tolist()
    first = {file.path: end for file, end in zip(files, ends[:-1], strict=True)}
    pieces = pieces_of(files, least)
    shares = [share_of(pieces, rank, size) for rank in range(size)]
    found = [[row for piece in share for row in rows_of(piece, first)] for share in shares]
    assert [row for share in found for row in share] == list(range(ends[-1]))
    assert max(map(len, found)) - min(map(len, found)) <= 1
    for piece in (piece for share in shares for piece in share):
        rows, (one, *_, other) = piece.file.group_rows, (piece.groups[0], *piece.groups)
        assert sum(rows[:one]) <= piece.start < sum(rows[: one + 1])
        assert sum(rows[:other]) < piece.stop <= sum(rows[: other + 1])


def test_small_row_groups_are_read_together() -> None:
    file = FileGroups("f", 1, (3, 3, 3, 100, 2, 2))
    pieces = pieces_of([file], 6)
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
    file = FileGroups("f", 1, (3, 3, 0, 100))
    assert Piece(file, 4, 53).place(row) == place

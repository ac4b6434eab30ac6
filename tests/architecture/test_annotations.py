"""The annotation checks of the tests: what they skip and what they find."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from beartype import beartype
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from directgp.shapes import Marginals
from tests import annotations
from tests.annotations import checked_once

Row = Float[Tensor, " n"]
CALLS: list[tuple[int, ...]] = []


@checked_once(typechecker=beartype)  # type: ignore[untyped-decorator]
def added(a: Row, b: Row, wide: bool = False) -> Row:
    CALLS.append(tuple(a.shape))
    return a[:, None] + b if wide else a + b


@checked_once(typechecker=beartype)
@dataclass(frozen=True)
class Pair:
    left: Row
    right: Row

    @checked_once(typechecker=beartype)  # type: ignore[untyped-decorator]
    def sum(self) -> Float[Tensor, " 2"]:
        return self.left + self.right


@pytest.fixture(autouse=True)
def nothing_seen() -> Iterator[None]:
    annotations.forget()
    CALLS.clear()
    yield
    annotations.forget()


def test_a_call_is_made_once_whether_checked_or_not() -> None:
    for _ in range(3):
        assert added(torch.ones(2), torch.ones(2)).tolist() == [2.0, 2.0]
    assert CALLS == [(2,), (2,), (2,)]


def test_other_shapes_are_checked_however_often_the_right_ones_came() -> None:
    for _ in range(3):
        added(torch.ones(2), torch.ones(2))
    for wrong in ((torch.ones(2), torch.ones(1)), (torch.ones(2, 1), torch.ones(2, 1))):
        for _ in range(2):
            with pytest.raises(TypeCheckError, match="parameters of"):
                added(*wrong)


def test_other_types_are_checked() -> None:
    added(torch.ones(2), torch.ones(2))
    for wrong in (torch.ones(2, dtype=torch.int64), [1.0, 1.0], None):
        with pytest.raises(TypeCheckError):
            added(torch.ones(2), wrong)
        with pytest.raises(TypeCheckError):
            added(torch.ones(2), b=wrong)


def test_other_values_of_a_switch_are_checked() -> None:
    added(torch.ones(2), torch.ones(2), wide=False)
    with pytest.raises(TypeCheckError, match="return value"):
        added(torch.ones(2), torch.ones(2), wide=True)


def test_fields_and_what_an_object_holds_are_seen() -> None:
    Pair(torch.ones(2), torch.ones(2)).sum()
    with pytest.raises(TypeCheckError, match="parameters of"):
        Pair(torch.ones(2), torch.ones(3))
    with pytest.raises(TypeCheckError, match="return value"):
        Pair(torch.ones(3), torch.ones(3)).sum()


def test_the_library_is_imported_with_them() -> None:
    with pytest.raises(TypeCheckError):
        Marginals(torch.zeros(3), "no tensor")  # type: ignore[arg-type]


@pytest.mark.usefixtures("without_shape_checks")
def test_they_can_be_left_out() -> None:
    assert added(torch.ones(2), torch.ones(1)).tolist() == [2.0, 2.0]

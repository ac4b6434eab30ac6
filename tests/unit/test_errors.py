"""The error classes and the form of messages."""

import pickle
import re
from typing import Any

import pytest
import torch

from directgp import errors
from directgp.cli.fit import NothingTrainedError
from directgp.errors import (
    DirectGPError,
    InvalidInputError,
    InvalidTableError,
    NumericalError,
    TableProblem,
    UnsupportedError,
    refuse,
    require,
    require_all,
)


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (InvalidInputError, ValueError),
        (UnsupportedError, TypeError),
        (NumericalError, ArithmeticError),
    ],
)
def test_every_error_is_ours_and_of_a_usual_kind(
    error: type[Exception], builtin: type[Exception]
) -> None:
    assert issubclass(error, DirectGPError)
    assert issubclass(error, builtin)


ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "InvalidTableError": ([TableProblem("No rows.", {"--drop": ("a",)}), TableProblem("No a.")],),
    "MissingExtraError": ("plots", "matplotlib", "plot"),
}
CLASSES = [
    cls
    for name in errors.__all__
    if isinstance(cls := getattr(errors, name), type) and issubclass(cls, BaseException)
]


@pytest.mark.parametrize("cls", [*CLASSES, NothingTrainedError], ids=lambda cls: cls.__name__)
def test_every_error_crosses_to_another_process(cls: type[Exception]) -> None:
    own = () if cls is NothingTrainedError else ("It broke.",)
    error = cls(*ARGUMENTS.get(cls.__name__, own))
    error.add_note("In fold 2.")
    twin = pickle.loads(pickle.dumps(error))
    assert type(twin) is cls and str(twin) == str(error)
    assert vars(twin) == vars(error)


def said(values: list[float] | list[list[float]], remedy: str = "") -> str:
    """What `require_all` says of values that are not positive; empty when all are."""
    tensor = torch.tensor(values)
    try:
        require_all(tensor > 0, tensor, "x of f", "positive", remedy)
    except InvalidInputError as error:
        return str(error)
    return ""


def test_a_refusal_says_who_what_is_allowed_what_came_and_what_to_do() -> None:
    with pytest.raises(InvalidInputError) as caught:
        refuse("beta of fit", "at least 0", -1, "Leave it out.")
    assert str(caught.value) == "beta of fit must be at least 0. Got -1. Leave it out."


def test_without_a_remedy_the_sentence_ends() -> None:
    with pytest.raises(InvalidInputError) as caught:
        require(False, "beta", "at least 0", -1)
    assert str(caught.value) == "beta must be at least 0. Got -1."
    require(True, "beta", "at least 0", 1)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([1.0, 2.0], ""),
        ([], ""),
        ([1.0, -2.0], "x of f must be positive. Got -2.0 at index 1."),
        ([-1.0, 1.0, -2.0], "x of f must be positive. Got -1.0 at index 0 (and 1 more)."),
        ([[1.0, 1.0], [0.0, 1.0]], "x of f must be positive. Got 0.0 at index (1, 0)."),
    ],
)
def test_the_first_bad_value_is_named_with_its_index(
    values: list[float] | list[list[float]], sentence: str
) -> None:
    assert said(values) == sentence


def test_the_remedy_comes_last() -> None:
    assert said([-1.0], "Drop it.").endswith("Got -1.0 at index 0. Drop it.")


def test_a_single_number_has_no_index_to_speak_of() -> None:
    with pytest.raises(InvalidInputError, match=re.escape("Got -1.0 at index")):
        require_all(torch.tensor(False), torch.tensor(-1.0), "x", "positive")


def test_messages_are_visible_and_list_few_problems() -> None:
    problems = [TableProblem(f"Column 'c{j}\x1b' is wrong.") for j in range(3000)]
    message = str(InvalidTableError(problems))
    assert message.startswith("Column 'c0\\x1b' is wrong. Column 'c1")
    assert message.endswith("'c19\\x1b' is wrong. There are 2,980 more problems.")

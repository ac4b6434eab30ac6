"""The protocol between coordinator and libraries, with a fake library."""

import sys
from collections.abc import Iterator

import pytest

from benchmarks.peers.process import LibraryError, Process, check_interpreters, interpreters
from benchmarks.peers.rounds import prediction_times, step_times, steps_a_round
from directgp.errors import InvalidInputError

FAKE = "tests.benchmarks.peers.fake"


@pytest.fixture
def process() -> Iterator[Process]:
    with Process("directgp", sys.executable, FAKE) as running:
        yield running


def test_answers_come_back_whatever_libraries_print(process: Process) -> None:
    assert process.ask("chat", words="µ ≥ 0") == {"heard": "µ ≥ 0"}
    assert process.ask("chat", words="again") == {"heard": "again"}


def test_an_error_says_who_could_not_do_what_and_the_process_goes_on(process: Process) -> None:
    with pytest.raises(LibraryError, match=r"directgp could not do 'dance'[\s\S]*is unknown"):
        process.ask("dance")
    assert process.ask("steps", number=1) == {"seconds": 0.01}


def test_a_library_that_ends_is_told_with_its_last_words(process: Process) -> None:
    with pytest.raises(LibraryError, match=r"could not do 'die': It ended.\s+no more"):
        process.ask("die")


def test_steps_fill_a_round(process: Process) -> None:
    assert steps_a_round(process, 0.3) == 30
    assert steps_a_round(process, 1e-4) == 1
    assert steps_a_round(process, 1e6) == 2000


def test_times_are_per_step_and_per_row(process: Process) -> None:
    assert step_times({"a": process}, 3, 0.2)["a"] == pytest.approx([0.01] * 3)
    assert prediction_times({"a": process}, 2, 50)["a"] == pytest.approx([1e-5] * 2)


def test_missing_interpreters_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"must be for one of .* Got 'gpy'"):
        interpreters({"gpy": "python3"})
    pythons = {"GPyTorch": "/nowhere/python", "floor": sys.executable}
    check_interpreters(pythons, ["floor"])
    with pytest.raises(InvalidInputError, match=r"interpreter of GPyTorch .*--python gpytorch="):
        check_interpreters(pythons, ["floor", "GPyTorch"])


def test_interpreters_may_be_named_in_any_case() -> None:
    named = interpreters({"gpytorch": "python3"})
    assert named["GPyTorch"] == "python3"
    assert named["directgp"] == sys.executable
    assert named["GPflow"].endswith(".venv-peers/bin/python")

"""The board of `directgp compare`: what it says, and that it fits."""

import io

import pytest
from rich.console import Console
from rich.live import Live

from directgp.cli.compare_run import Lines, LiveBoard
from directgp.cli.terminal import Terminal
from directgp.experiments.cell import Finished
from directgp.experiments.workers import Activity, Refused
from tests.unit.reports.made import Recipe, comparison

RECIPE = Recipe(repeats=5, sizes=(500, 1000, 2000, 5000), num_test=20)


def board_at(width: int, recipe: Recipe = RECIPE) -> list[str]:
    """Lines of the board when all fits but a tenth are done, one failed and one is going on."""
    made = comparison(recipe)
    cells = made.plan.cells()
    board = LiveBoard(Live(console=Console(file=io.StringIO(), width=width)))
    board.begin(cells, 0)
    for run in made.runs[: len(cells) * 9 // 10]:
        board.finished(run.cell, Finished(run.outcome, run.predictions, b""))
    board.finished(cells[1], Refused("No."))
    board.looking([Activity(len(cells) - 1, 12, 345, 500, -1.2345)])
    screen = Console(file=io.StringIO(), width=width)
    screen.print(board.live.get_renderable())
    file = screen.file
    assert isinstance(file, io.StringIO)
    return file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("width", "name", "fits"),
    [
        (200, "log-loss DLM, joint", "●" * 18 + "··"),
        (80, "log-loss DLM, joint", "●" * 18 + "··"),
        (53, "log-loss DLM, joint", "18/20"),
        (40, "log-joint", "18/20"),
    ],
)
def test_numbers_are_whole_at_any_width(width: int, name: str, fits: str) -> None:
    runs = [run for run in comparison(RECIPE).runs if run.cell.method == "log-joint"]
    done = [run.outcome.scores["nll"] for run in runs[:18] if run.cell.size == 5000]
    mean = f"{sum(done) / 3:.3f}".replace("-", "−")
    lines = board_at(width)
    assert max(map(len, lines)) <= width
    (row,) = (line for line in lines if line.startswith(f"{name}  "))
    assert row.removeprefix(name).split() == [fits, mean]


def test_what_is_going_on_gives_way_first() -> None:
    whole = "run 12, step 345 of 500, loss −1.234"
    assert any(line.rstrip().endswith(whole) for line in board_at(200))
    (cut,) = (line for line in board_at(80) if "◐" in line)
    assert cut.rstrip().endswith("…") and "run 12, step" in cut
    assert not any("run" in line or "…" in line for line in board_at(53))


def test_counts_name_those_that_failed() -> None:
    assert sum("✗" in line for line in board_at(200)) == 1
    assert sum(" 1✗ " in line for line in board_at(50)) == 1


@pytest.mark.parametrize(
    ("to_run", "known", "words"),
    [
        (2, 0, "2 fits to run.\n"),
        (1, 1, "1 fit to run. 1 is there already.\n"),
        (2, 3, "2 fits to run. 3 are there already.\n"),
    ],
)
def test_one_and_many(
    capsys: pytest.CaptureFixture[str], to_run: int, known: int, words: str
) -> None:
    plan = comparison(Recipe(repeats=1, num_test=20)).plan
    Lines(plan, Terminal()).begin(plan.cells()[:to_run], known)
    assert capsys.readouterr().err == words

"""Progress of a fit: on a terminal, in a file, beside another display, at the end."""

import io
import queue
import re
import threading
from collections.abc import Callable, Iterator

import pytest
from rich.console import Console
from rich.live import Live

from directgp.estimators.progress import FitProgress
from directgp.training.result import Phase, Progress
from directgp.training.run import Monitor

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
NAME = "log_loss, joint, β = 0.39, fold 2"


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def at(step: int, part: int = 1, parts: int | None = 21, final: bool = False) -> Progress:
    phase = Phase(NAME, part, parts, final)
    return Progress("log_loss", step, 40, 2 * step, 1 / 3, 0.5, 1.0, phase)


def plain() -> tuple[io.StringIO, Console]:
    """A file, and a console that writes to it."""
    file = io.StringIO()
    return file, Console(file=file, force_terminal=False, width=40)


def terminal(width: int = 120) -> tuple[io.StringIO, Console]:
    """A file that takes itself for a terminal."""
    file = io.StringIO()
    console = Console(
        file=file, force_terminal=True, force_interactive=True, width=width, color_system=None
    )
    return file, console


def run(
    shown: FitProgress,
    clock: Clock,
    parts: int | None = None,
    last: int = 7,
    final: bool = False,
) -> None:
    """Parts of 10 steps of 0.1 s, by default of a race."""
    for part in range(1, last + 1):
        shown.reset()
        for step in range(1, 11):
            clock.now += 0.1001
            shown(at(step, part, parts, final))


def frames(file: io.StringIO) -> Iterator[str]:
    """What was drawn, one line after the other."""
    for frame in file.getvalue().split("\x1b[2K"):
        yield re.sub(r"\x1b\[[0-9?]*[a-zA-Z]|\r", "", frame).rstrip()


def test_a_line_on_a_terminal_says_it_all_and_leaves_one_behind() -> None:
    (file, console), clock = terminal(), Clock()
    shown = FitProgress(1, console, clock=clock)
    run(shown, clock, 21, final=True)
    shown.close()
    *_, drawn, last = frames(file)
    assert drawn.endswith(f"final run 7 of 21, loss 0.3333, 7 s, about 15 s left: {NAME}")
    assert drawn.startswith("━")
    assert last == "Fitted in 7 s: 7 runs, 70 steps."
    assert file.getvalue().count(HIDE) == file.getvalue().count(SHOW) == 1


def test_a_race_has_no_bar_and_numbers_that_rise() -> None:
    (file, console), clock = terminal(), Clock()
    shown = FitProgress(1, console, clock=clock)
    run(shown, clock, last=7)
    run(shown, clock, 2, last=2, final=True)
    shown.close()
    race = [frame for frame in frames(file) if frame.startswith("run ")]
    assert race[-1] == f"run 7, loss 0.3333, 7 s: {NAME}"
    numbers = [int(frame.split()[1].rstrip(",")) for frame in race]
    assert numbers == sorted(numbers) and numbers[0] == 1
    *_, drawn, last = frames(file)
    # The time of the race says nothing about the time of the final runs.
    assert drawn.endswith(f"final run 2 of 2, loss 0.3333, 9 s, about 1 s left: {NAME}")
    assert last == "Fitted in 9 s: 9 runs, 90 steps."


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_progress_is_one_line_at_any_width(width: int) -> None:
    (file, console), clock = terminal(width), Clock()
    shown = FitProgress(1, console, clock=clock)
    run(shown, clock, 21, final=True)
    drawn = [frame for frame in frames(file) if "final" in frame]
    assert drawn and all(len(frame) <= width and "\n" not in frame for frame in drawn)
    assert len({frame.index("final") for frame in drawn}) == 1
    shown.close()


def test_the_bar_moves_with_parts_and_with_steps() -> None:
    lengths = []
    for part, step in ((1, 1), (2, 40), (3, 20), (4, 40)):
        (file, console), clock = terminal(), Clock()
        shown = FitProgress(1, console, clock=clock)
        clock.now += 1
        shown(at(step, part, 4))
        lengths.append(list(frames(file))[-1].count("━"))
        shown.close()
    assert lengths == [0, 10, 12, 20]


def test_it_is_redrawn_ten_times_a_second_at_most() -> None:
    (file, console), clock = terminal(), Clock()
    shown = FitProgress(1, console, clock=clock)
    for step in range(1, 2001):
        clock.now += 0.001
        shown(at(min(step, 40)))
    assert 15 <= file.getvalue().count("1 of 21") <= 20
    shown.close()


def test_a_single_run_shows_steps_and_no_time_left() -> None:
    (file, console), clock = terminal(), Clock()
    shown = FitProgress(1, console, clock=clock)
    clock.now += 1
    shown(Progress("elbo", 7, 1200, 9, 0.5, 0.1, 1.0))
    shown.close()
    *_, drawn, last = frames(file)
    assert drawn.endswith("7 of 1,200 steps, loss 0.5, 1 s: elbo")
    assert last == "Fitted in 1 s: 1 run, 1 step, loss 0.5."


def test_the_loss_at_the_end_is_that_of_the_model_that_is_kept() -> None:
    (file, console), clock = plain(), Clock()
    shown = FitProgress(1, console, clock=clock)
    run(shown, clock)
    shown(at(1, 1, 1, final=True))
    shown.close()
    assert file.getvalue().endswith("71 steps, loss 0.3333.\n")


def test_a_file_gets_few_plain_lines() -> None:
    (file, console), clock = plain(), Clock()
    shown = FitProgress(1, console, clock=clock)
    run(shown, clock, last=13)
    shown.close()
    lines = file.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0] == f"run 5, loss 0.3333, 5 s: {NAME}"
    assert lines[-1] == "Fitted in 13 s: 13 runs, 130 steps."
    assert all(line.isprintable() for line in lines)


def test_the_time_left_follows_the_steps_done() -> None:
    clock = Clock()
    shown = FitProgress(1, plain()[1], clock=clock)
    shown(at(1))
    assert "left" not in shown._counter.status_line(clock.now)
    clock.now += 2
    shown(at(1, 2, 3))
    assert ", about 4 s left" in shown._counter.status_line(clock.now)
    clock.now += 50
    assert ", about 2 s left" in shown._counter.status_line(clock.now)
    shown(at(2, 2, 2))
    assert ", about 1 s left" in shown._counter.status_line(clock.now)
    clock.now += 1e5
    shown(at(1, 3, 20))
    assert re.search(r", about \d+\.\d h left: ", shown._counter.status_line(clock.now))


@pytest.mark.parametrize("make", [plain, terminal])
def test_at_level_2_each_part_is_a_plain_line(
    make: Callable[[], tuple[io.StringIO, Console]],
) -> None:
    (file, console), clock = make(), Clock()
    shown = FitProgress(2, console, clock=clock)
    run(shown, clock, last=2)
    shown.close()
    assert file.getvalue().splitlines() == [
        f"run 1: {NAME}: 10 steps, loss 0.3333, 1 s",
        f"run 2: {NAME}: 10 steps, loss 0.3333, 0.9 s",
        "Fitted in 2 s: 2 runs, 20 steps.",
    ]


def test_runs_at_once_have_a_line_each() -> None:
    """A run is over when its thread begins another one, or has ended."""
    (file, console), clock = plain(), Clock()
    shown = FitProgress(2, console, clock=clock)
    turns = queue.Queue[int | None](), queue.Queue[int | None]()
    done = queue.Queue[None]()

    def work(turn: queue.Queue[int | None]) -> None:
        last = None
        while (part := turn.get()) is not None:
            if part != last:
                shown.reset()
            last = part
            shown(at(1, part, None))
            done.put(None)

    threads = [threading.Thread(target=work, args=(turn,)) for turn in turns]
    for thread in threads:
        thread.start()
    # This thread waits for the others.
    shown(at(1, 1, None))
    for worker, part in ((0, 2), (1, 3), (0, 2), (1, 3), (1, 4), (0, 2), (1, 4)):
        turns[worker].put(part)
        done.get(timeout=10)
    places = [line.split(": ")[0] for line in file.getvalue().splitlines()]
    assert places == ["run 1", "run 3"]
    for turn, thread in zip(turns, threads, strict=True):
        turn.put(None)
        thread.join(10)
    shown.reset()
    shown(at(1, 1, 2, final=True))
    shown.close()
    lines = file.getvalue().splitlines()
    counts = [tuple(line.split(": ")[::2]) for line in lines[:-1]]
    steps = [(place, int(rest.split()[0])) for place, rest in counts]
    assert steps[:2] == [("run 1", 1), ("run 3", 2)]
    assert steps[2:] == [("run 2", 3), ("run 4", 2), ("final run 1 of 2", 1)]
    assert lines[-1].endswith(": 5 runs, 9 steps.")


def test_closing_without_a_step_or_twice_prints_nothing_more() -> None:
    for file, console in (plain(), terminal()):
        shown = FitProgress(1, console)
        shown.close()
        assert file.getvalue() == ""
        shown(at(1))
        shown.close()
        printed = file.getvalue()
        shown.close()
        assert file.getvalue() == printed


def test_an_error_gives_the_terminal_back_and_is_not_called_a_fit() -> None:
    (file, console), clock = terminal(), Clock()
    shown = FitProgress(1, console, clock=clock)
    with pytest.raises(KeyboardInterrupt):
        try:
            run(shown, clock)
            raise KeyboardInterrupt
        finally:
            shown.close()
    assert file.getvalue().rindex(SHOW) > file.getvalue().rindex(HIDE)
    assert list(frames(file))[-1] == "Not fitted, ended after 7 s: 7 runs, 70 steps."
    shown(at(1))
    shown.close()
    assert "Fitted in" in file.getvalue()


def test_a_fit_within_an_error_handler_is_a_fit() -> None:
    file, console = plain()
    try:
        raise ValueError
    except ValueError:
        shown = FitProgress(1, console)
        shown(at(1))
        shown.close()
    assert file.getvalue().startswith("Fitted in")


@pytest.mark.parametrize("same", [True, False])
def test_beside_another_live_display_it_prints_plain_lines(same: bool) -> None:
    (file, console), (other_file, other), clock = terminal(), terminal(), Clock()
    with Live("outer", console=console if same else other, auto_refresh=False):
        shown = FitProgress(1, console, clock=clock)
        run(shown, clock)
        shown.close()
    assert file.getvalue().count(f"run 5, loss 0.3333, 5 s: {NAME}") == 1
    assert "Fitted in 7 s" in file.getvalue()
    assert "run 6" not in file.getvalue()
    assert file.getvalue().count(HIDE) == same
    assert other_file.getvalue().count(HIDE) == (not same)


def test_progress_goes_to_standard_error_by_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    clock = Clock()
    shown = FitProgress(clock=clock)
    run(shown, clock)
    shown.close()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 2
    assert captured.err.replace("\n", "").isprintable()


def test_lines_go_above_a_live_display_that_holds_standard_error() -> None:
    (file, console), clock = terminal(), Clock()
    with Live("outer", console=console, auto_refresh=False):
        shown = FitProgress(clock=clock)
        run(shown, clock)
        shown.close()
    assert "Fitted in 7 s" in file.getvalue()


def test_it_starts_no_thread_and_never_ends_a_run() -> None:
    before = threading.active_count()
    clock = Clock()
    shown: Monitor = FitProgress(1, terminal()[1], clock=clock)
    for step in range(1, 40):
        clock.now += 1
        assert shown(at(step)) is None
    assert threading.active_count() == before
    shown.close()

"""The program as a whole: fast help, clean pipes, errors and exit codes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

import directgp
from directgp.cli import terminal
from directgp.cli.main import COMMANDS, app
from directgp.cli.terminal import Terminal, WrongUsageError, reporting_errors, sentence
from directgp.errors import InvalidInputError
from tests.cli.running import run

HEAVY = ("torch", "sklearn", "pyarrow", "matplotlib", "scipy", "numpy", "gpytorch", "pandas")
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


def program(*words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run it as users do, with its output in a pipe."""
    plain = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR", "NO_COLOR")}
    return subprocess.run(
        [sys.executable, "-m", "directgp", *map(str, words)],
        capture_output=True,
        text=True,
        env={**plain, **variables},
        check=False,
    )


def test_help_imports_nothing_slow() -> None:
    code = (
        "import sys\n"
        "from directgp.cli.main import app\n"
        "for words in (['--help'], ['fit', '--help'], ['predict', '--help'], ['--version']):\n"
        "    try:\n"
        "        app(words, prog_name='directgp')\n"
        "    except SystemExit as end:\n"
        "        assert end.code == 0\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("width", [80, 200])
def test_help_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for words in ((), *((command,) for command in COMMANDS)):
        found = run(*words, "--help")
        assert (found.code, found.err) == (0, "")
        assert max(map(len, found.out.splitlines())) == width
        assert not CONTROL.search(found.out)


def test_help_names_every_command() -> None:
    shown = run("--help").out
    functions = [command.callback for command in app.registered_commands]
    assert tuple(function.__name__ for function in functions if function) == COMMANDS
    for function in functions:
        text = getattr(function, "__doc__", "").split(".")[0][:30]
        assert re.search(rf"\b{getattr(function, '__name__', '')}\b +{text}", shown)


def test_panels_are_in_order() -> None:
    shown = run("fit", "--help").out
    places = [shown.index(f"─ {panel} ─") for panel in ("Data", "Model", "Output")]
    assert places == sorted(places)
    assert "<bool>" not in shown


def test_version() -> None:
    assert run("--version").out == f"directgp {directgp.__version__}\n"


@pytest.mark.slow
def test_pipes_get_no_control_codes(trained: Path, tmp_path: Path) -> None:
    words = ("predict", trained / "reg", trained / "reg.csv", "--out", tmp_path / "p.csv")
    found = program(*words)
    assert found.stdout or found.stderr
    assert not CONTROL.search(found.stdout + found.stderr)


def test_letters_that_cannot_be_printed_are_replaced() -> None:
    found = program("fit", "x.csv", "--out", "m", "--seed=-1", PYTHONIOENCODING="ascii")
    assert found.stderr == "Error: --seed must be from 0 to 2?? ? 1. Got -1.\n"


def test_a_reader_may_leave() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "directgp", "datasets", "--json"]
    found = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (found.returncode, found.stderr) == (1, b"")


def raised_during(error: Exception, before: Exception) -> Exception:
    error.__context__ = before
    return error


NO_MEMORY = "There is not enough memory for this. Take fewer rows or inducing inputs."


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (WrongUsageError("Not so."), 2, "Not so."),
        (InvalidInputError("Not\n so."), 1, "Not so."),
        (InvalidInputError("red \x1b[31m"), 1, "red \\x1b[31m"),
        (
            FileNotFoundError(2, "No such file or directory", "x.csv"),
            1,
            "x.csv: No such file or directory.",
        ),
        (OSError("disk on fire"), 1, "disk on fire."),
        (ImportError("lib.so: failed to map segment from shared object"), 1, NO_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 1, NO_MEMORY),
        (
            raised_during(
                RuntimeError("cannot join thread before it is started"),
                RuntimeError("can't start new thread"),
            ),
            1,
            NO_MEMORY,
        ),
        (
            OSError(28, "No space left on device", "report/index.html"),
            1,
            "report/index.html: No space left on device.",
        ),
        (
            OSError(21, "Is a directory", ".index.html.3f.tmp", None, "index.html"),
            1,
            "index.html: Is a directory.",
        ),
        (MemoryError(), 1, NO_MEMORY),
        (
            ZeroDivisionError("division by zero"),
            1,
            "directgp failed unexpectedly: ZeroDivisionError: division by zero; run again with"
            " --debug for the traceback.",
        ),
    ],
)
def test_sentences(error: Exception, code: int, words: str) -> None:
    assert sentence(error) == words
    with pytest.raises(SystemExit) as end, reporting_errors([]):
        raise error
    assert end.value.code == code


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ZeroDivisionError("no"), 1, "directgp failed unexpectedly: ZeroDivisionError: no; run"),
        (InvalidInputError("No."), 1, "Error: No."),
        (KeyboardInterrupt(), 130, "Interrupted."),
    ],
)
def test_what_is_raised_is_answered(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    with pytest.raises(SystemExit) as end, reporting_errors(["fit", "--json"]):
        raise error
    shown = capsys.readouterr()
    assert end.value.code == code
    assert shown.err.startswith(line) and shown.err.count("\n") == 1
    assert json.loads(shown.out)["error"] == shown.err.strip().removeprefix("Error: ")


def test_a_broken_pipe_is_left_in_silence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "_leave_pipe", lambda: None)
    with pytest.raises(SystemExit) as end, reporting_errors([]):
        raise BrokenPipeError
    assert (end.value.code, *capsys.readouterr()) == (1, "", "")


def test_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    def printed(terminal: Terminal) -> tuple[str, str]:
        terminal.note("note [bold] :smile:")
        terminal.warn("careful")
        terminal.show("result [red]")
        terminal.answer({"value": float("nan"), "β": (1, 2)})
        captured = capsys.readouterr()
        return captured.out, captured.err

    assert printed(Terminal()) == ("result [red]\n", "note [bold] :smile:\nWarning: careful\n")
    assert printed(Terminal(quiet=True)) == ("", "")
    for shown in (Terminal(json=True), Terminal(quiet=True, json=True)):
        out, err = printed(shown)
        assert json.loads(out) == {"value": None, "β": [1, 2]} and err == ""
    assert not Terminal().live


def test_lines_of_tables_in_files_end_with_their_last_letter(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = Table("name", "about", title=Text("Two [rows]"), title_justify="left", box=None)
    table.add_row("a", "long text")
    table.add_row(Text("[b]"), "")
    Terminal().show(table)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [
        *(["Two", "[rows]"], ["name", "about"], ["a", "long", "text"], ["[b]"]),
    ]
    assert all(line == line.rstrip() for line in lines)


def test_long_lines_of_files_are_not_broken(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().note("word " * 100)
    assert capsys.readouterr().err.count("\n") == 1

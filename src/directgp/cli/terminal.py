"""Print results and errors on a terminal."""

import os
import sys
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from io import TextIOWrapper
from typing import Annotated, Any, Literal, final

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup
from typing_extensions import override

from directgp.errors import DirectGPError, InvalidTableError
from directgp.text import command_lines, first_problems, one_line, strict_json, visible

# Exit codes, besides 0; `reporting_errors` maps the exceptions of commands to them.

FAILED = 1
"""Exit code of a command that raised an error."""

WRONG_USAGE = 2
"""Exit code of wrong options."""

INTERRUPTED = 130
"""Exit code after Ctrl-C."""

_MAX_WIDTH = 200
"""Maximum width of tables in a file or a pipe, in characters."""


def panel(title: str) -> Callable[..., Any]:
    """Return a function that defines an option in a panel of the help.

    It takes the name of the value, which is empty for a flag, the help, and the names of the
    option, if they differ from the name of the parameter.
    """

    def option(value: str, text: str, *names: str, **settings: Any) -> Any:
        return typer.Option(*names, metavar=value, help=text, rich_help_panel=title, **settings)

    return option


output_option = panel("Output")
"""Defines an option in the panel "Output"."""

HELP: dict[str, dict[str, str]] = tomllib.loads(
    files("directgp.cli").joinpath("help.toml").read_text(encoding="utf-8")
)
"""The help of options, by command."""

Quiet = Annotated[bool, output_option("", "Print nothing but errors.", "--quiet", "-q")]
Json = Annotated[bool, output_option("", "Print one JSON document, for programs.", "--json")]
Debug = Annotated[bool, output_option("", "Show the traceback of an error.", "--debug")]


@final
@dataclass(frozen=True)
class Terminal:
    """Prints results on standard output, and notes, warnings and progress on standard error."""

    quiet: Quiet = False
    json: Json = False
    debug: Debug = False

    def note(self, sentence: str, style: str | None = None) -> None:
        """Print a note on standard error."""
        if self.prints_text:
            print_line(console(err=True), sentence, style)

    def warn(self, sentence: str) -> None:
        """Print a warning on standard error."""
        self.note(f"Warning: {sentence}", style="yellow")

    def show(self, what: RenderableType, wrap: bool = True) -> None:
        """Print a result, text or a rich table, unless `json` is set; commands without wrapping."""
        if not self.prints_text:
            return
        out = console()
        if isinstance(what, str):
            print_line(out, what, wrap=wrap)
        elif out.is_terminal:
            out.print(what)
        else:
            with out.capture() as held:
                out.print(what)
            print_line(out, "\n".join(line.rstrip() for line in held.get().splitlines()))

    def answer(self, document: dict[str, Any]) -> None:
        """Print the result as JSON, if `json` is set."""
        if self.json:
            print_json(document)

    @property
    def prints_text(self) -> bool:
        """Whether text for people is printed."""
        return not self.quiet and not self.json

    @property
    def live(self) -> bool:
        """Whether to show progress: standard error is a terminal, and `quiet` is not set."""
        return not self.quiet and console(err=True).is_terminal and sys.stderr.isatty()


def console(err: bool = False) -> Console:
    """Return a console on the current standard output or standard error."""
    file = sys.stderr if err else sys.stdout
    wide = not file.isatty() and "COLUMNS" not in os.environ
    return Console(stderr=err, width=_MAX_WIDTH if wide else None, highlight=False)


def print_line(where: Console, text: str, style: str | None = None, wrap: bool = True) -> None:
    """Print text without markup; lines are wrapped on a terminal only, but for commands."""
    soft_wrap = not (wrap and where.is_terminal)
    shown = visible(text, keep="\n")
    where.print(shown, style=style, markup=False, emoji=False, soft_wrap=soft_wrap)


def plain_table(
    title: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    numeric: Sequence[str] = (),
    padding: int = 1,
) -> Table:
    """Return a table without lines; numbers are aligned right, a last column of text wraps."""
    heading = Text(visible(title, keep="\n"), style="bold") if title else None
    table = Table(title=heading, title_justify="left", title_style="bold", box=None)
    table.pad_edge = False
    table.padding = (0, padding)
    for head in heads:
        wraps = head == heads[-1] and head not in numeric
        side: Literal["left", "right"] = "right" if head in numeric else "left"
        table.add_column(head, justify=side, no_wrap=not wraps, overflow="fold")
    for row in rows:
        cells = (Text(visible(cell)) if isinstance(cell, str) else cell for cell in row)
        table.add_row(*cells)
    return table


def print_json(document: dict[str, Any]) -> None:
    """Print a JSON document on standard output; numbers that are not finite become null."""
    # Use ASCII only, which every encoding can print.
    print(strict_json(document, ascii_only=True), flush=True)


@final
class WrongUsageError(DirectGPError):
    """The command line is wrong, as can be seen before any work is done."""

    exit_code = WRONG_USAGE


@contextmanager
def reporting_errors(arguments: Sequence[str]) -> Iterator[None]:
    """Turn an exception into a line on standard error and `SystemExit`.

    ``--debug`` in the arguments adds the traceback; ``--json`` also prints ``{"error": "…"}``.
    """
    try:
        yield
    except BrokenPipeError:
        _leave_pipe()
        sys.exit(FAILED)
    except KeyboardInterrupt as error:
        _report("Interrupted.", error, arguments)
        sys.exit(INTERRUPTED)
    except Exception as error:
        _report(sentence(error), error, arguments)
        sys.exit(getattr(error, "exit_code", FAILED))


def sentence(error: Exception) -> str:
    """Return the error message in one line."""
    if isinstance(error, typer.TyperException):
        return _usage_sentence(error)
    if isinstance(error, InvalidTableError) and len(error.problems) > 1:
        problems = first_problems([problem.sentence for problem in error.problems])
        sentences = [f"  - {one_line(problem)}" for problem in problems]
        return "\n".join(["The table cannot be used as it is.", *sentences])
    if isinstance(error, DirectGPError):
        return one_line(str(error))
    if (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or _no_room(error)
    ):
        return "There is not enough memory for this. Take fewer rows or inducing inputs."
    if isinstance(error, OSError):
        what = error.strerror or one_line(str(error)) or type(error).__name__
        # Of two files, the first is a draft of the second.
        file = error.filename2 or error.filename
        return f"{one_line(str(file))}: {what}." if file else f"{what}."
    what = one_line(f"{type(error).__name__}: {error}").rstrip(":. ")
    return f"directgp failed unexpectedly: {what}; run again with --debug for the traceback."


def _no_room(error: BaseException) -> bool:
    """Return whether a library, a thread or torch could not get memory, now or just before."""
    signs = (
        *("failed to map segment", "cannot allocate memory", "can't allocate memory"),
        *("not enough memory", "can't start new thread"),
    )
    text = str(error).lower()
    if isinstance(error, ImportError | RuntimeError) and any(sign in text for sign in signs):
        return True
    return error.__context__ is not None and _no_room(error.__context__)


def _report(words: str, error: BaseException, arguments: Sequence[str]) -> None:
    if not words:
        return  # typer has printed the help instead.
    if "--debug" in arguments:
        lines = "".join(traceback.format_exception(error))
        print(visible(lines, keep="\n"), end="", file=sys.stderr)
    command = working_command(error, arguments) if isinstance(error, InvalidTableError) else ""
    if "--json" in arguments:
        print_json({"error": words} | ({"command": command} if command else {}))
    is_error = not words.startswith(("directgp failed", "Interrupted"))
    print_line(console(err=True), f"Error: {words}" if is_error else words, style="red")
    if command:
        print_line(console(err=True), f"This works:\n{command}", wrap=False)


def working_command(error: InvalidTableError, arguments: Sequence[str]) -> str:
    """Return the command with the options that solve the problems of a table; empty if unknown."""
    more = [
        word
        for option, values in (error.options or {}).items()
        for word in ([w for value in values for w in (option, value)] or [option])
    ]
    words = [*arguments, *more] if more else error.instead
    return command_lines(["directgp", *words]) if words else ""


def _usage_sentence(error: typer.TyperException) -> str:
    """Return typer's message in one line, with the command that prints the help."""
    option = getattr(error, "option_name", "")
    possibilities = getattr(error, "possibilities", None)
    if possibilities:
        # Without the dashes, which all options have in common.
        by_name = {possibility.lstrip("-"): possibility for possibility in possibilities}
        close = get_close_matches(option.lstrip("-"), by_name, n=1)
        words = f"No such option: {option}."
        words += f" Did you mean {by_name[close[0]]!r}?" if close else ""
    else:
        # typer converts with pydantic, which adds a prefix.
        words = error.format_message().replace("Value error, ", "").replace("?.", "?")
    words = one_line(words)
    context = getattr(error, "ctx", None)
    if not words or context is None:
        return words
    end = "" if words.endswith((".", "?")) else "."
    return f"{words}{end} See '{context.command_path} --help'."


def _leave_pipe() -> None:
    """Redirect standard output to nowhere, so that the final flush does not fail."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _PlainHelp:
    """Removes the type from the help of ``--help``, which is a flag."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.metavar = ""
        return option


@final
class PlainCommand(_PlainHelp, TyperCommand):
    """One command."""


@final
class ProgramGroup(_PlainHelp, TyperGroup):
    """The commands of directgp, whose exceptions are printed by `reporting_errors`."""

    @override
    def main(self, args: Sequence[str] | None = None, *more: Any, **settings: Any) -> Any:
        arguments = sys.argv[1:] if args is None else list(args)
        settings["standalone_mode"] = False
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                # Print ? for characters that the encoding of the stream does not have.
                stream.reconfigure(errors="replace")
        with reporting_errors(arguments):
            code = super().main(arguments, *more, **settings)
            sys.stdout.flush()
            if code == INTERRUPTED:
                raise KeyboardInterrupt
            sys.exit(code if isinstance(code, int) else 0)

"""Print results and errors on a terminal."""

import json
import math
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from io import TextIOWrapper
from typing import Any, final

import typer
from rich.console import Console, RenderableType
from typer.core import TyperCommand, TyperGroup
from typing_extensions import override

from directgp.errors import DirectGPError

_WIDTH_OF_FILES = 200
"""Tables that go to a file or a pipe take the width they need, up to this."""


@final
@dataclass(frozen=True)
class Terminal:
    """Standard output for results, standard error for notes, warnings and progress.

    A command makes one of its options and passes it down; nothing else prints.

    Examples
    --------
    >>> from directgp.cli.terminal import Terminal
    >>> Terminal().show("a result")
    a result
    >>> Terminal(json=True).show("not shown")
    >>> Terminal(json=True).answer({"rows": 3})
    {
      "rows": 3
    }
    """

    quiet: bool = False
    """Nothing but errors, and the document of `json`."""

    json: bool = False
    """One JSON document on standard output, and nothing else there."""

    def say(self, sentence: str) -> None:
        """A note on standard error, such as how the task was guessed."""
        if self.talks:
            print_line(console(err=True), sentence)

    def warn(self, sentence: str) -> None:
        """A warning on standard error."""
        if self.talks:
            print_line(console(err=True), f"Warning: {sentence}", style="yellow")

    def show(self, what: RenderableType) -> None:
        """A result for people: text as it is, or a table of rich; nothing with `json`."""
        if not self.talks:
            return
        if isinstance(what, str):
            print_line(console(), what)
        else:
            _print_table(console(), what)

    def answer(self, document: dict[str, Any]) -> None:
        """The result for machines; nothing without `json`."""
        if self.json:
            print_json(document)

    @property
    def talks(self) -> bool:
        """Whether people are meant to read along."""
        return not self.quiet and not self.json

    @property
    def live(self) -> bool:
        """Whether progress may be shown, on standard error: it is a terminal, and not `quiet`."""
        return not self.quiet and console(err=True).is_terminal and sys.stderr.isatty()


def console(err: bool = False) -> Console:
    """A console on standard output or standard error, as these are now."""
    file = sys.stderr if err else sys.stdout
    natural = not file.isatty() and "COLUMNS" not in os.environ
    return Console(stderr=err, width=_WIDTH_OF_FILES if natural else None, highlight=False)


def print_line(where: Console, text: str, style: str | None = None) -> None:
    """Plain text, in which brackets mean themselves; lines of a file are not broken."""
    where.print(text, style=style, markup=False, emoji=False, soft_wrap=not where.is_terminal)


def _print_table(where: Console, table: RenderableType) -> None:
    """A table of rich, whose lines in a file end with their last letter."""
    if where.is_terminal:
        where.print(table)
        return
    with where.capture() as held:
        where.print(table)
    print_line(where, "\n".join(line.rstrip() for line in held.get().splitlines()))


def print_json(document: dict[str, Any]) -> None:
    """A JSON document on standard output; numbers that are not finite become null."""
    # Escapes beyond ASCII, so that any encoding of standard output will do.
    print(json.dumps(_plain(document), indent=2, allow_nan=False), flush=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# Commands raise and do not catch: 0 is done, 1 failed, 2 wrong usage, 130 interrupted.


FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130


@final
class WrongUsageError(DirectGPError):
    """What was typed cannot be meant, as can be told before any work is done."""


@contextmanager
def answering(arguments: Sequence[str]) -> Iterator[None]:
    """Turn what is raised into a sentence and `SystemExit`; ``--debug`` adds the traceback.

    With ``--json`` the sentence is also printed as a JSON document, ``{"error": "…"}``.
    """
    try:
        yield
    except BrokenPipeError:
        _leave_pipe()
        sys.exit(FAILED)
    except KeyboardInterrupt as error:
        _tell("Interrupted.", error, arguments)
        sys.exit(INTERRUPTED)
    except Exception as error:
        _tell(sentence(error), error, arguments)
        sys.exit(exit_code(error))


def sentence(error: Exception) -> str:
    """What went wrong, in one line for people."""
    if isinstance(error, typer.TyperException):
        return _usage_sentence(error)
    if isinstance(error, DirectGPError):
        return _one_line(str(error))
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "There is not enough memory for this. Take fewer rows or inducing inputs."
    if isinstance(error, OSError):
        what = error.strerror or _one_line(str(error)) or type(error).__name__
        # Of two files, the first is a draft of the second.
        file = error.filename2 or error.filename
        return f"{_one_line(str(file))}: {what}." if file else f"{what}."
    what = _one_line(f"{type(error).__name__}: {error}").rstrip(":. ")
    return f"directgp failed unexpectedly: {what}; run again with --debug for the traceback."


def exit_code(error: Exception) -> int:
    """2 for wrong usage, else 1."""
    if isinstance(error, typer.TyperException):
        return error.exit_code
    return WRONG_USAGE if isinstance(error, WrongUsageError) else FAILED


def _tell(words: str, error: BaseException, arguments: Sequence[str]) -> None:
    if not words:
        return  # The help was shown in place of an answer.
    if "--debug" in arguments:
        traceback.print_exception(error)
    if "--json" in arguments:
        print_json({"error": words})
    known = not words.startswith(("directgp failed", "Interrupted"))
    print_line(console(err=True), f"Error: {words}" if known else words, style="red")


def _usage_sentence(error: typer.TyperException) -> str:
    """The words of typer in one line, and where help is."""
    option, known = getattr(error, "option_name", ""), getattr(error, "possibilities", None)
    if known:
        words = f"No such option: {option}.{_meant(option, known)}"
    else:
        # pydantic, by which typer converts, announces what typer says itself.
        words = error.format_message().replace("Value error, ", "").replace("?.", "?")
    words = _one_line(words)
    context = getattr(error, "ctx", None)
    if not words or context is None:
        return words
    end = "" if words.endswith((".", "?")) else "."
    return f"{words}{end} See '{context.command_path} --help'."


def _meant(option: str, known: Sequence[str]) -> str:
    """The nearest option, if it is near; dashes do not count, since all have them."""
    by_name = {each.lstrip("-"): each for each in known}
    close = get_close_matches(option.lstrip("-"), by_name, n=1)
    return f" Did you mean {by_name[close[0]]!r}?" if close else ""


def _one_line(text: str) -> str:
    """Without line breaks, and without what would control a terminal."""
    return "".join(c for c in " ".join(text.split()) if c.isprintable())


def _leave_pipe() -> None:
    """Nobody reads on: let the interpreter flush into nothing as it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@final
class PlainCommand(TyperCommand):
    """One command."""

    @override
    def get_help_option(self, ctx: Any) -> Any:
        """The option ``--help``."""
        return _without_type(super().get_help_option(ctx))


@final
class AnsweringGroup(TyperGroup):
    """The commands of directgp; whatever they raise is answered in a sentence."""

    @override
    def get_help_option(self, ctx: Any) -> Any:
        """The option ``--help``."""
        return _without_type(super().get_help_option(ctx))

    @override
    def main(self, args: Sequence[str] | None = None, *more: Any, **settings: Any) -> Any:
        """Run a command and exit."""
        arguments = sys.argv[1:] if args is None else list(args)
        settings["standalone_mode"] = False
        _print_what_can_be()
        with answering(arguments):
            code = super().main(arguments, *more, **settings)
            sys.stdout.flush()
            if code == INTERRUPTED:
                raise KeyboardInterrupt
            sys.exit(code if isinstance(code, int) else 0)


def _print_what_can_be() -> None:
    """Print ? for letters that the encoding of a stream lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def _without_type(option: Any) -> Any:
    """The option, not said to take a bool."""
    if option is not None:
        option.metavar = ""
    return option

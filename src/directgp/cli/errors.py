"""From exceptions to one sentence on standard error and an exit code, in one place.

Commands raise and do not catch: 0 is done, 1 failed, 2 wrong usage, 130 interrupted.
"""

import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from typing import final

import typer

from directgp.cli.terminal import console, print_json, print_line
from directgp.errors import DirectGPError

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

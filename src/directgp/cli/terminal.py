"""What a command prints, and where: results on standard output, everything else beside it."""

import json
import math
import os
import sys
from dataclasses import dataclass
from typing import Any, final

from rich.console import Console, RenderableType

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

"""Commands as typer makes them, with our answers to errors and a help that reads well."""

import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any, final

from typer.core import TyperCommand, TyperGroup
from typing_extensions import override

from directgp.cli.errors import INTERRUPTED, answering


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

"""Define the program `directgp` and its commands.

The modules of the commands import torch, numpy and pyarrow only inside functions, so that
``--help`` is fast. Other packages add commands by entry points in the group ``directgp.commands``:
an entry point has the name of the command, and leads to a function like those of this package.
"""

import atexit
import os
import signal
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

import typer

from directgp import __version__
from directgp.cli.options import command
from directgp.cli.terminal import INTERRUPTED, PlainCommand, ProgramGroup, WrongUsageError
from directgp.errors import cause_of
from directgp.processes import exit_at_once, interrupt

COMMANDS = ("compare", "fit", "predict", "inspect", "reproduce", "datasets")
"""In the order of the help; each but `PAPER_COMMAND` is a function in the module of its name."""

PAPER_COMMAND = "reproduce"
"""Command of the package directgp-paper, listed in the help whether it is installed or not."""

app = typer.Typer(
    cls=ProgramGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line, and exit."""
    # Spinning OpenMP threads slow training down many times on a machine that other programs use.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, interrupt)
    try:
        app(prog_name="directgp")
    except SystemExit as ending:
        if ending.code == INTERRUPTED:
            # Run the finalizers, which remove shared memory; skip the slow end of other libraries.
            atexit._run_exitfuncs()
            exit_at_once(INTERRUPTED)
        if signal.getsignal(signal.SIGINT) is interrupt:
            # Restore the default handler: Python would print the exception of a late Ctrl-C.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise
    except KeyboardInterrupt:
        # Ctrl-C came before or after a command.
        exit_at_once(INTERRUPTED, "Interrupted.")


def _show_version(asked: bool) -> bool:
    if asked:
        typer.echo(f"directgp {__version__}")
        raise typer.Exit()
    return asked


_VERSION = typer.Option(
    "--version", metavar="", callback=_show_version, is_eager=True, help="Show the version."
)


@app.callback()
def directgp(version: Annotated[bool, _VERSION] = False) -> None:
    """Sparse Gaussian processes trained for the loss they will be judged on.

    DATA is a table (CSV, TSV, parquet, Feather) or the name of a data set; MODEL is a folder.
    """


def _add(name: str, function: Callable[..., None]) -> None:
    app.command(name, cls=PlainCommand)(command(function))


def _add_refusal(name: str, sentence: str, about: str) -> None:
    """Add a command that takes any words and ends with a sentence."""

    def refuse() -> None:
        raise WrongUsageError(sentence)

    refuse.__doc__ = about
    any_words: Any = {"ignore_unknown_options": True, "allow_extra_args": True}
    app.command(name, cls=PlainCommand, context_settings=any_words)(refuse)


def _add_of_package(point: EntryPoint) -> None:
    """Add the command of an entry point; one that cannot be imported says why when it is run."""
    try:
        function = point.load()
    except Exception as error:
        reason = f"directgp {point.name} cannot be imported from {point.value}: {cause_of(error)}."
        _add_refusal(point.name, f"{reason} Install its package again.", reason)
    else:
        _add(point.name, function)


def _add_all() -> None:
    points = {point.name: point for point in entry_points(group="directgp.commands")}
    for name in COMMANDS:
        if name != PAPER_COMMAND:
            _add(name, getattr(import_module(f"directgp.cli.{name}"), name))
        elif name in points:
            _add_of_package(points[name])
        else:
            needs = "needs the package directgp-paper. Run: pip install 'directgp[paper]'."
            # Brackets would be read as markup.
            about = "Run the experiments of the paper: needs pip install directgp-paper."
            _add_refusal(name, f"directgp {name} {needs}", about)
    for name in sorted(points.keys() - {*COMMANDS}):
        _add_of_package(points[name])


_add_all()

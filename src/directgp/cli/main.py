"""Define the program `directgp` and its commands.

The modules of the commands import torch, numpy and pyarrow only inside functions, so that
``--help`` is fast.
"""

import atexit
import os
import signal
from importlib import import_module
from typing import Annotated

import typer

from directgp import __version__
from directgp.cli.options import command
from directgp.cli.terminal import INTERRUPTED, PlainCommand, ProgramGroup
from directgp.processes import exit_at_once, interrupt

COMMANDS = ("compare", "fit", "predict", "inspect", "reproduce", "datasets")
"""In the order of the help; each is a function in the module of its name."""

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


for name in COMMANDS:
    function = getattr(import_module(f"directgp.cli.{name}"), name)
    app.command(cls=PlainCommand)(command(function))

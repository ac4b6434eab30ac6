"""Define the program `directgp` and its commands.

The modules of the commands import torch, numpy and pyarrow only inside functions, so that
``--help`` is fast.
"""

import os
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer

from directgp.cli.compare import compare
from directgp.cli.fit import fit
from directgp.cli.inspect import datasets, inspect
from directgp.cli.predict import predict
from directgp.cli.reproduce import reproduce
from directgp.cli.terminal import PlainCommand, ProgramGroup

COMMANDS: tuple[Callable[..., None], ...] = (
    compare,
    fit,
    predict,
    inspect,
    reproduce,
    datasets,
)
"""In the order of the help; each command has the name of its function."""

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
    app(prog_name="directgp")


def _show_version(asked: bool) -> bool:
    if asked:
        typer.echo(f"directgp {version('directgp')}")
        raise typer.Exit()
    return asked


@app.callback()
def directgp(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            metavar="",
            callback=_show_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """Sparse Gaussian processes trained for the loss they will be judged on.

    DATA is a table (CSV, TSV, parquet, Feather) or the name of a data set; MODEL is a folder.
    """


for command in COMMANDS:
    app.command(cls=PlainCommand)(command)

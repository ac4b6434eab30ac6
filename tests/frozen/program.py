"""The command line in this process."""

import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from unittest import mock

from typer import Typer
from typer.testing import CliRunner


@dataclass(frozen=True)
class Answer:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


def app() -> Typer:
    """Return the typer object of the program `directgp`."""
    found: Any = import_module("directgp.cli.main").app
    assert isinstance(found, Typer)
    return found


def run(*words: object) -> Answer:
    """Run a command in this process; reports repeat these words as the command."""
    typed = list(map(str, words))
    with mock.patch.object(sys, "argv", ["directgp", *typed]):
        found = CliRunner().invoke(app(), typed, prog_name="directgp")
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return Answer(found.exit_code, found.stdout, found.stderr)

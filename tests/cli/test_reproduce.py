"""`directgp reproduce` with the package directgp-paper, for one claim, and without it."""

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from directgp.cli.main import COMMANDS
from directgp.datasets.catalogues import GROUP
from directgp_paper.datasets import PAPER
from tests.cli.running import run, write_csv

WITHOUT_PACKAGES = (
    "import importlib.metadata, sys; importlib.metadata.entry_points = lambda **which: ();"
    "from directgp.__main__ import main; sys.argv[0] = 'directgp'; main()"
)
"""The program where no package has entry points."""


def run_alone(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the program as if directgp-paper were not installed."""
    wide = {**os.environ, "COLUMNS": "200"}
    command = [sys.executable, "-c", WITHOUT_PACKAGES, *words]
    return subprocess.run(command, capture_output=True, text=True, env=wide)


@pytest.mark.usefixtures("without_shape_checks")
def test_one_claim_is_judged(here: Path) -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(size=(2, 80)).round(3)
    y = (np.sin(2 * a) + 0.1 * random.normal(size=80)).round(3)
    write_csv(pa.table({"a": a, "b": b, "y": y}), here / "pol.csv")
    which = ("--claim", "C3", "--dataset", "pol", "--data-dir", ".", "--no-download")
    small = ("--scale", "smoke", "--repeats", "2", "--max-steps", "3", "--largest-only")
    answer = run("reproduce", *which, *small, "--engine", "inline", "--out", "report")
    assert answer.code == 0, answer.err
    document = json.loads((here / "report" / "verdicts.json").read_text(encoding="utf-8"))
    assert [claim["id"] for claim in document["claims"]] == ["C3"]
    assert (here / "report" / "index.html").is_file()


def test_without_the_package_the_command_says_how_to_install_it(here: Path) -> None:
    for words in (["reproduce"], ["reproduce", "--claim", "C3", "--out", "x"]):
        ended = run_alone(*words)
        assert ended.returncode == 2
        assert ended.stdout == ""
        assert ended.stderr == (
            "Error: directgp reproduce needs the package directgp-paper. Run: pip install"
            " 'directgp[paper]'.\n"
        )
    assert list(here.iterdir()) == []


def test_without_the_package_the_help_lists_the_command_and_says_what_it_needs() -> None:
    ended = run_alone("--help")
    assert ended.returncode == 0
    lines = [line.strip("│ ") for line in ended.stdout.splitlines()]
    listed = [line.split()[0] for line in lines if line.startswith(COMMANDS)]
    assert listed == list(COMMANDS)
    assert "needs pip install directgp-paper." in ended.stdout


@pytest.mark.parametrize("name", ["pol", "airline"])
def test_without_the_package_a_set_of_the_paper_says_how_to_install_it(
    name: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("directgp.datasets.catalogues.entry_points", lambda **which: ())
    answer = run("compare", name, "--target", "y", "--out", "report")
    assert answer.code == 1
    assert f"Got {name!r}, one of the paper's data sets" in answer.err
    assert "Run: pip install 'directgp[paper]'." in answer.err
    assert not (here / "report").exists()


def test_without_the_package_its_sets_are_not_listed(here: Path) -> None:
    ended = run_alone("datasets", "--json")
    assert ended.returncode == 0 and list(json.loads(ended.stdout)) == ["datasets"]
    ended = run_alone("datasets")
    assert "listed after: pip install 'directgp[paper]'" in ended.stderr
    assert not [name for name in PAPER if f"\n{name}  " in ended.stdout and "_dir" in name]


def test_a_command_of_a_broken_package_says_why() -> None:
    point = "importlib.metadata.EntryPoint('reproduce', 'gone.package:f', 'directgp.commands')"
    code = WITHOUT_PACKAGES.replace("which: ()", f"which: [{point}]")
    command = [sys.executable, "-c", code, "reproduce", "--list"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "cannot be imported from gone.package:f: No module named 'gone'." in ended.stderr


@pytest.mark.parametrize("words", [("datasets",), ("compare", "unknown", "--target", "y")])
def test_data_sets_of_a_broken_package_say_why(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    point = EntryPoint("sets", "gone.package:SETS", GROUP)
    monkeypatch.setattr("directgp.datasets.catalogues.entry_points", lambda **which: [point])
    monkeypatch.setenv("COLUMNS", "200")
    answer = run(*words)
    assert answer.code == 1
    assert answer.err == (
        "Error: The data sets 'sets' cannot be imported from gone.package:SETS: No module named"
        " 'gone'. Install their package again.\n"
    )

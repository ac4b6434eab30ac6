"""Every script of examples/ runs in its short form; its output and figure are plausible.

A script is run as from a shell, but in this process, from a copy in a folder of its own: what it
writes beside itself, or into the working folder, lands there.
"""

import math
import re
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pytest
from matplotlib.image import imread
from scipy.stats import norm
from sklearn.datasets import load_diabetes, load_digits

matplotlib.use("Agg")

SCRIPTS = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))

Lines = list[dict[str, str]]


class Outcome(NamedTuple):
    """What a script printed, the table in it, its picture and its names."""

    printed: str
    lines: Lines
    picture: Path
    names: dict[str, Any]


def table(printed: str) -> Lines:
    """The lines of the first table, by the heads of its columns; these must not be wrapped."""
    rows = [re.split(r"\s{2,}", line.strip()) for line in printed.splitlines()]
    rule = next(i for i, row in enumerate(rows) if row[0].startswith("──"))
    end = rows.index([""], rule)
    return [dict(zip(rows[rule - 1], row, strict=True)) for row in rows[rule + 1 : end]]


def run(
    script: Path, folder: Path, capture: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Outcome:
    """Run the copy with short settings."""
    copy = folder / "examples" / script.name
    copy.parent.mkdir()
    shutil.copy(script, copy)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(sys, "argv", [str(copy), "--quick"])
    names = runpy.run_path(str(copy), run_name="__main__")
    printed = capture.readouterr().out
    return Outcome(printed, table(printed), folder / f"build/examples/{script.stem}.png", names)


@pytest.fixture(params=SCRIPTS, ids=lambda script: script.stem)
def outcome(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    without_shape_checks: None,
) -> Outcome:
    return run(request.param, tmp_path, capsys, monkeypatch)


def numbers(lines: Lines, head: str) -> list[float]:
    """A column of figures, per cent as they stand."""
    return [float(line[head].rstrip("%")) for line in lines]


def marginal_of_diabetes(names: dict[str, Any]) -> float:
    """NLL under one normal distribution, the best that knows no feature."""
    _, y = load_diabetes(return_X_y=True)
    return -float(norm.logpdf(y, y.mean(), y.std()).mean())


def marginal_of_digits(names: dict[str, Any]) -> float:
    """Entropy of odd or even."""
    share = float((load_digits().target % 2).mean())
    return -share * math.log(share) - (1 - share) * math.log(1 - share)


def marginal_of_counts(names: dict[str, Any]) -> float:
    """NLL under the frequencies of tens, spread evenly within each."""
    tens = np.bincount((names["KILLED"] // 10).astype(int))
    share = tens[tens > 0] / tens.sum()
    return -float(share @ np.log(share / 10))


MARGINALS: dict[str, Callable[[dict[str, Any]], float]] = {
    "calibrated_regression": marginal_of_diabetes,
    "classifier": marginal_of_digits,
    "counts": marginal_of_counts,
    "deep_kernel": marginal_of_digits,
}


@pytest.mark.filterwarnings("ignore:Training has not converged")
@pytest.mark.filterwarnings("ignore::directgp.errors.DirectGPWarning")
@pytest.mark.slow_for("bayesian", "classifier", "counts", "deep_kernel", "tails")
def test_script(outcome: Outcome) -> None:
    check_picture(outcome.picture)
    assert str(outcome.picture) in outcome.printed, "it says where the picture is"
    figures = [line[head] for line in outcome.lines for head in line.keys() - {"usual recipe"}]
    assert len(outcome.lines) >= 2 and not re.search(r"\b(nan|inf)\b", " ".join(figures))
    check = CHECKS.get(outcome.picture.stem)
    if check is not None:
        check(outcome)


def check_picture(file: Path) -> None:
    """It is there, wide enough to read, and shows something."""
    picture = imread(file)
    assert picture.shape[1] >= 600 and picture[..., :3].std() > 0.05


def check_losses(outcome: Outcome) -> None:
    """Features help, and intervals hold about as often as they say."""
    marginal = MARGINALS[outcome.picture.stem](outcome.names)
    for nll in numbers(outcome.lines, "NLL"):
        assert 0 < nll < marginal
    for inside in numbers([line for line in outcome.lines if "in 90 %" in line], "in 90 %"):
        assert 60 < inside < 99


def check_tails(outcome: Outcome) -> None:
    """directgp prints the truth to its five digits; the recipe does not always print a number."""
    assert all(line["directgp"] == line["truth"] for line in outcome.lines)
    assert any(line["usual recipe"] == "-inf (nan)" for line in outcome.lines)


def check_optimisation(outcome: Outcome) -> None:
    """Errors in per cent, which do not grow with more evaluations."""
    found = numbers(outcome.lines, "directgp and BoTorch")
    assert found == sorted(found, reverse=True) and 0 <= found[-1] < 37.3, "the rarer class"


CHECKS: dict[str, Callable[[Outcome], None]] = {
    "tails": check_tails,
    "bayesian_optimisation": check_optimisation,
    **dict.fromkeys(MARGINALS, check_losses),
}


def test_all_are_found() -> None:
    assert {script.stem for script in SCRIPTS} >= CHECKS.keys()


def test_the_table_is_read() -> None:
    printed = "  title\n\n  a b    NLL  \n ────────── \n  x y    1.5  \n  z      2%   \n      \nend"
    assert table(printed) == [{"a b": "x y", "NLL": "1.5"}, {"a b": "z", "NLL": "2%"}]

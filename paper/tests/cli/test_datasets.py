"""`directgp datasets` with the sets of the paper."""

import json
from pathlib import Path

from directgp_paper.datasets import PAPER
from tests.cli.running import class_table, run, write_csv


def test_the_papers_sets_are_listed(here: Path) -> None:
    (here / "sets").mkdir()
    write_csv(class_table().rename_columns(["x", "z", "y"]), here / "sets" / "banana.csv")
    shown = run("datasets", "--data-dir", "sets").out.split("Of the paper: ")[1].splitlines()
    lines = {line.split()[0]: line for line in shown[2:]}
    assert list(lines) == list(PAPER)
    assert lines["pol"].split("  ")[-1] == "downloaded from raw.githubusercontent.com"
    assert "15,000 × 26  100" in lines["pol"]
    assert lines["banana"].endswith("in the data folder: banana.csv")
    assert lines["twonorm"].endswith("downloaded from sci2s.ugr.es, else generated")
    assert f"not available: {PAPER['airline'].not_fetched}" in lines["airline"]


def test_the_papers_sets_in_json(here: Path) -> None:
    (here / "sets").mkdir()
    write_csv(class_table().rename_columns(["x", "z", "y"]), here / "sets" / "banana.csv")
    found = json.loads(run("datasets", "--data-dir", "sets", "--json").out)["paper"]
    by_name = {each["name"]: each for each in found}
    assert list(by_name) == list(PAPER)
    song = by_name["song"]
    assert (song["rows"], song["features"], song["num_inducing"]) == (515345, 90, 100)
    assert song["file"] is None and song["where"] == "downloaded from archive.ics.uci.edu"
    assert song["differences"] == PAPER["song"].differences
    assert by_name["banana"]["file"] == "banana.csv"


def test_a_set_of_the_paper_that_is_not_here(here: Path) -> None:
    answer = run("compare", "pol", "--target", "y", "--out", "report")
    assert answer.code == 1
    assert answer.err == (
        "Error: DATA must be a file that exists or the name of a data set. Got 'pol', one of the"
        " paper's data sets, which does not come with directgp. Give --data-dir with pol.parquet"
        f" (column y). Its source: {PAPER['pol'].source}, {PAPER['pol'].url}\n"
    )
    assert not (here / "report").exists()

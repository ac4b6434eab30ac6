"""What is known of the paper's data sets, against its table and the known copies."""

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from directgp.datasets.paper import PAPER, PaperDataset, open_paper

# Name, type, size, dim and M, as printed in the paper's table of data sets.
TABLE = """
pol regression 15000 26 100
cadata regression 20640 8 206
sarcos regression 48933 21 100
song regression 515345 90 100
banana classification 5300 2 53
thyroid classification 3772 6 37
twonorm classification 7400 20 74
ringnorm classification 7400 20 74
airline classification 2055733 8 200
abalone count 4177 9 41
Peds1_dir0 count 4000 30 40
Peds1_dir1 count 4000 30 40
Peds1_dir2 count 4000 30 40
"""

KNOWN_SIZES = {
    "sarcos": (7432, 21),
    "song": (4679, 54),
    "airline": (1969507, 8),
}
"""Of the known copies, where they are smaller than the paper's."""

FOLDER = os.environ.get("DIRECTGP_DATA", "")

every_set = pytest.mark.parametrize("facts", PAPER.values(), ids=lambda facts: facts.name)


def printed(facts: PaperDataset) -> str:
    numbers = (facts.rows, facts.features, facts.num_inducing)
    return " ".join(map(str, (facts.name, facts.task, *numbers)))


def test_the_papers_table() -> None:
    rows = [printed(facts) for facts in PAPER.values() if not facts.stands_for]
    assert rows == TABLE.lower().split("\n")[1:-1]


def test_names_are_those_of_the_sets() -> None:
    assert all(name == facts.name for name, facts in PAPER.items())


def test_one_set_stands_for_three() -> None:
    assert list(PAPER)[-1] == "peds1"
    peds1 = PAPER["peds1"]
    assert peds1.stands_for == ("peds1_dir0", "peds1_dir1", "peds1_dir2")
    for name in peds1.stands_for:
        assert PAPER[name].size == peds1.size and PAPER[name].home is None
        assert PAPER[name].where_from.startswith("not available: ")


@every_set
def test_facts_are_told(facts: PaperDataset) -> None:
    assert facts.target and facts.licence and facts.source
    assert not facts.differences or facts.differences.endswith(".")
    assert (facts.home is None) == bool(facts.not_fetched)
    assert all(re.fullmatch("[0-9a-f]{64}", each) for each in facts.copies)
    assert urlsplit(facts.url).hostname


@every_set
def test_homes_can_be_trusted(facts: PaperDataset) -> None:
    if facts.home is None:
        return
    home = facts.home
    assert all(each.url.startswith("https://") for each in home.files)
    # A branch may move; a commit does not.
    for each in home.files:
        if "githubusercontent" in each.url:
            assert re.search("/[0-9a-f]{40}/", each.url)
    assert home.fingerprint is None or home.fingerprint in facts.copies
    assert "pickle" not in home.read.__module__


def test_files_of_different_homes_have_different_names_in_the_cache() -> None:
    urls = {each.url for facts in PAPER.values() if facts.home for each in facts.home.files}
    assert len({url.rsplit("/", 1)[-1] for url in urls}) == len(urls)


@every_set
def test_the_page_on_data_says_the_same(facts: PaperDataset) -> None:
    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    cells = (f"`{facts.name}`", facts.task, facts.size, facts.num_inducing, facts.licence)
    other = facts.differences or ("none" if facts.copies else "no copy is known")
    row = " | ".join(map(str, (*cells, f"[{facts.source}]({facts.url})", other)))
    assert f"| {row} |\n" in page


@pytest.mark.parametrize("name", ["twonorm", "ringnorm"])
def test_what_has_a_formula_is_drawn_in_the_papers_size(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DIRECTGP_DATA", raising=False)
    data = open_paper(name, tmp_path, download=False)
    assert data.origin == "generated" and "not the rows of DELVE" in data.differences
    assert data.problem.X.shape == (7400, 20) and data.problem.target == "y"
    # The mean of class 1 is −a in twonorm and a in ringnorm, a = 2/√20, in every dimension.
    inner = data.problem.X[data.problem.y == 1]
    mean = 2 / np.sqrt(20) * (-1 if name == "twonorm" else 1)
    assert abs(inner.mean(axis=0) - mean).max() < 5 / np.sqrt(len(inner))


@pytest.mark.skipif(not FOLDER, reason="DIRECTGP_DATA names no folder with the known copies")
@pytest.mark.parametrize("name", [name for name in PAPER if not name.startswith("peds1_")])
def test_known_copies_are_recognised(name: str) -> None:
    facts = PAPER[name]
    data = open_paper(name, Path(FOLDER), download=False)
    assert data.origin == "folder" and data.problem.fingerprint() in facts.copies
    assert data.problem.X.shape == KNOWN_SIZES.get(name, (facts.rows, facts.features))
    assert data.differences == facts.differences
    assert bool(data.differences) == (name in (*KNOWN_SIZES, "peds1"))

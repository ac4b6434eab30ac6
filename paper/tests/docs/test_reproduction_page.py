"""The page "The paper, rerun" is made from the results that are kept beside it."""

import json
from functools import cache

from directgp_paper.experiments.cells import Results
from directgp_paper.experiments.claims import CLAIMS
from directgp_paper.experiments.claims.base import Assessment
from directgp_paper.experiments.run import read_parquet
from tools.paper_tables import ARCHIVE, BEFORE, DOCS, tables

VERDICTS = DOCS / "reproduction" / "verdicts.json"


@cache
def _results() -> Results:
    return read_parquet(ARCHIVE).results


@cache
def _assessed() -> list[Assessment]:
    return [claim.assess(_results()) for claim in CLAIMS.values()]


def test_the_tables_are_those_of_the_results() -> None:
    made = tables(_results(), _assessed())
    kept = {path.stem: path for path in (DOCS / "tables").glob("reproduction_*.md")}
    assert {f"reproduction_{name}" for name in made} == set(kept)
    for name, text in made.items():
        assert kept[f"reproduction_{name}"].read_text(encoding="utf-8") == text, name


def test_the_verdicts_are_those_of_the_results() -> None:
    document = json.loads(VERDICTS.read_text(encoding="utf-8"))
    kept = {
        (claim["id"], reading["name"]): (reading["verdict"], reading["sentence"])
        for claim in document["claims"]
        for reading in claim["readings"]
    }
    found = {
        (each.claim.id, reading.name): (finding.verdict, finding.sentence)
        for each in _assessed()
        for reading, finding in each.judged
    }
    assert kept == found


def test_the_page_includes_every_table() -> None:
    page = (DOCS / "reproduction.md").read_text(encoding="utf-8")
    for path in (DOCS / "tables").glob("reproduction_*.md"):
        assert f"tables/{path.name}" in page
    assert set(BEFORE) == set(CLAIMS)


def test_results_have_their_circumstances() -> None:
    for record in _results().records:
        about = record.circumstances
        assert about.machine and about.device and about.finished and "torch" in about.versions
        assert record.outcome.seconds > 0
    # A few megabytes, for everyone who clones.
    assert ARCHIVE.stat().st_size < 10e6

import base64
import hashlib
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from directgp.experiments.paper.cells import FitCell, ProtocolName, Results
from directgp.experiments.paper.claims.base import Finding, Part, Verdict
from directgp.reports.paper import (
    PROTOCOLS,
    SIGNS,
    VERDICTS,
    counted_cells,
    effect_of,
    headline,
    reproduction_page,
    run_facts,
    second_line,
)
from tests.unit.reports.html import Page
from tests.unit.reports.paper.conftest import with_failures
from tests.unit.reports.paper.made import CLAIMS, DATA, SMALL, Recipe, cells, reproduction, results

HOSTILE = "<script>alert(1)</script> \"a\" 'b' & {{ 7 * 7 }}"
NOTHING = Results(())


@pytest.fixture(scope="session")
def written(folder: Path) -> Page:
    return Page.of((folder / "index.html").read_text(encoding="utf-8"))


def test_the_page_stands_alone(written: Page) -> None:
    for element in written.elements:
        for name in ("src", "srcset", "href"):
            assert element.attributes.get(name, "#").startswith(("#", "data:"))
    assert not re.search(r"url\(|@import", written.all("style")[0].text)
    assert "--chosen" in written.all("style")[0].text and ".badge" in written.all("style")[0].text


def test_anchors_lead_somewhere(written: Page) -> None:
    names = [e.attributes["id"] for e in written.elements if "id" in e.attributes]
    assert len(names) == len(set(names))
    assert {a.attributes["href"][1:] for a in written.all("a")} <= set(names)
    labelled = {e.attributes.get("aria-labelledby") for e in written.elements} - {None}
    assert labelled <= set(names)


def test_readers_without_eyes_are_served(written: Page) -> None:
    assert written.all("html")[0].attributes["lang"] == "en"
    assert len(written.all("h1")) == len(written.all("main")) == len(written.all("nav")) == 1
    assert len(written.all("img")) == 5
    assert all(re.search(r"\d", image.attributes["alt"]) for image in written.all("img"))
    assert len(written.all("table")) == len(written.all("caption"))
    headers = [th for th in written.all("th") if "thead" in th.inside]
    assert headers and all(th.attributes["scope"] == "col" for th in headers)


def test_only_the_script_of_the_page_is_allowed(written: Page) -> None:
    (script,) = written.all("script")
    digest = base64.b64encode(hashlib.sha256(script.text.encode()).digest()).decode()
    (policy,) = [m for m in written.all("meta") if "http-equiv" in m.attributes]
    assert f"script-src 'sha256-{digest}'" in policy.attributes["content"]
    assert policy.attributes["content"].startswith("default-src 'none'")


def test_the_table_has_every_claim_and_its_verdict(written: Page) -> None:
    rows = [[text.replace("\u00a0", " ") for text in row] for row in written.rows(0)]
    told = reproduction(NOTHING)
    assert rows == [
        [claim.id, f"{SIGNS[finding.verdict]} {finding.verdict}", claim.statement, finding.sentence]
        for claim, finding in told.findings
    ]


def test_verdicts_are_words_and_signs() -> None:
    assert set(SIGNS) == set(VERDICTS) == set(get_args(Verdict))
    assert len(set(SIGNS.values())) == 3
    assert set(PROTOCOLS) == set(get_args(ProtocolName))


def test_every_claim_is_told(written: Page) -> None:
    articles = written.all("article")
    assert len(articles) == len(CLAIMS)
    for article, claim in zip(articles, CLAIMS, strict=True):
        for words in (claim.id, claim.statement, claim.where, claim.criterion):
            assert words in article.text
    first, second, third, last = (article.text for article in articles)
    assert "−0.451 ± 0.012 NLL" in first and "p < 0.001" in first
    assert "song was not run." in first
    assert "Not deciding on C1: 1 comparison" in first
    folded = [table for table in written.all("table") if "details" in table.inside]
    assert len(folded) == 1 and "abalone" in folded[0].text and "sarcos" not in folded[0].text
    assert "Figure 1a." in first and "Figure 2." in first
    assert "Shown by an earlier claim: figure 2." in second
    assert "Not run: figure 1c." in second
    assert "Not run: figures 1g, 1h and 9." in third
    assert "Figure S1." in last
    others = next(s for s in written.all("section") if s.attributes["aria-labelledby"] == "figures")
    assert re.findall(r"Figure (\w+)\.", others.text) == ["1b", "3"]


def test_data_and_circumstances_are_told(written: Page) -> None:
    told = written.all("main")[0].text
    for words in (
        "7,432 × 21",
        "48,933 × 21",
        "A subset of 7,432 rows.",
        "directgp reproduce --scale small --data-dir data",
        "python 3.12.3, directgp 0.1.0, torch 2.13.0",
        "1 h 2 min elapsed",
        "26 fits (sarcos) and 2 studies of samplers (abalone)",
        "1 fit (sarcos)",
        "sarcos, 346 rows, elbo, repeat 1: The covariance matrix is not positive definite. "
        "(tried 3 times)",
    ):
        assert words in told, words


def test_the_summary_counts() -> None:
    told = reproduction(with_failures(results(SMALL)))
    assert headline(told) == "2 of 4 claims held, 1 not held, 1 not decided."
    assert second_line(told) == (
        "Scale small, protocol best: 28 cells run, 2 repeats; 1 cell failed; 1 cell not run."
    )
    alone = replace(told, findings=told.findings[:1], results=results(SMALL))
    assert headline(alone) == "1 of 1 claim held."
    assert second_line(alone).endswith(": 30 cells run, 2 repeats.")


def test_values_of_beta_that_could_not_be_trained_are_told() -> None:
    first, *others = results(SMALL).records
    lost = first.outcome.model_copy(update={"failed": ("β = 4: overflow", "β = 2: overflow")})
    told = reproduction(Results((replace(first, outcome=lost), *others)))
    said = "2 values in 1 fit could not be trained; the first: β = 4: overflow"
    assert run_facts(told)["β not trained"] == said
    assert run_facts(reproduction(results(SMALL)))["β not trained"] == "none"


def test_fits_that_did_not_converge_are_told() -> None:
    first, second, *others = results(SMALL).records
    early = first.outcome.model_copy(update={"status": "budget"})
    told = reproduction(Results((replace(first, outcome=early), second, *others)))
    fits = len(told.results.of(FitCell))
    assert f"1 of {fits} fits stopped unconverged" in second_line(told)
    assert run_facts(told)["fits not converged"] == (
        f"1 of {fits} fits reached the limit of steps: ELBO 1 of 4"
    )
    assert run_facts(reproduction(results(SMALL)))["fits not converged"] == "none"


def test_a_source_tree_has_no_version() -> None:
    first, *others = results(SMALL).records
    versions = {**first.circumstances.versions, "directgp": "not installed"}
    about = first.circumstances.model_copy(update={"versions": versions})
    told = run_facts(reproduction(Results((replace(first, circumstances=about), *others))))
    assert "directgp from its source" in told["versions"]
    assert "1 cell" in told["versions"] and f"{len(others)} cells" in told["versions"]


def test_cells_are_counted_by_kind() -> None:
    every = list(cells(Recipe(fits=("pol",), methods=("elbo",), sizes=(9,), samplers=("banana",))))
    assert counted_cells(every) == "3 fits (pol) and 3 studies of samplers (banana)"
    assert counted_cells(every[:1]) == "1 fit (pol)"
    assert counted_cells([]) == "none"


def test_effects_have_the_digits_that_their_errors_call_for() -> None:
    part = Part("a", "held", -0.45123, 0.0123, 0.0499, "NLL")
    assert effect_of(part) == "−0.451 ± 0.012 NLL"
    assert effect_of(replace(part, error=math.nan)) == "−0.451 NLL"
    assert effect_of(replace(part, error=0.0, unit="")) == "−0.451"
    nothing = replace(part, effect=math.nan, p_value=math.nan)
    assert effect_of(nothing) == "–"
    assert effect_of(replace(part, effect=math.inf)) == "∞ NLL"


def test_nothing_that_was_run_makes_a_page() -> None:
    page = Page.of(reproduction_page(reproduction(NOTHING, findings=(), data=()), {}))
    assert "0 of 0 claims held" in page.all("main")[0].text
    assert page.all("img") == []


def test_text_is_only_text() -> None:
    claim = replace(CLAIMS[0], statement=HOSTILE, criterion=HOSTILE, where=HOSTILE)
    part = Part(HOSTILE, "held", 0.1, 0.1, 0.1, HOSTILE, HOSTILE)
    row = replace(DATA[0], differences=HOSTILE, origin=HOSTILE, source=HOSTILE, licence=HOSTILE)
    told = reproduction(
        NOTHING,
        findings=((claim, Finding("held", HOSTILE, (part,))),),
        data=(row,),
        command=HOSTILE,
        scale_words=HOSTILE,
        machine=HOSTILE,
    )
    text = reproduction_page(told, {})
    assert "<script>alert" not in text and "{{ 7 * 7 }}" in text
    assert Page.of(text).all("main")[0].text.count("<script>alert(1)</script>") >= 12

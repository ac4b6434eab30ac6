import base64
import hashlib
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from directgp.text import number as in_words
from directgp_paper.diagnostics.bounds import MISPRINTS, bounds_table
from directgp_paper.experiments.cells import FitCell, ProtocolName, Results
from directgp_paper.experiments.claims.base import Assessment, Finding, JudgedReading, Part, Verdict
from directgp_paper.experiments.sweep import SCALES
from directgp_paper.reports.page import (
    ERRATA,
    PROTOCOLS,
    SIGNS,
    VERDICTS,
    counted_cells,
    effect_of,
    evidence,
    headline,
    remedies,
    reproduction_page,
    run_facts,
    second_line,
)
from paper.tests.reports.conftest import with_failures
from paper.tests.reports.made import CLAIMS, DATA, SMALL, Recipe, cells, reproduction, results
from tests.unit.reports.html import Page

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


def plain(text: str) -> str:
    """With blanks that may be broken."""
    return text.replace("\u00a0", " ")


def test_the_table_has_every_claim_and_its_verdict(written: Page) -> None:
    rows = [[plain(text) for text in row] for row in written.rows(0)]
    told = reproduction(with_failures(results(SMALL)))
    assert rows == [
        [
            each.claim.id,
            f"{SIGNS[each.finding.verdict]} {each.finding.verdict}",
            each.claim.statement,
            f"{each.finding.sentence} {evidence(each)}",
        ]
        for each in told.claims
    ]


def test_verdicts_are_words_and_signs() -> None:
    assert set(SIGNS) == set(VERDICTS) == set(get_args(Verdict))
    assert len(set(SIGNS.values())) == 4
    assert set(PROTOCOLS) == set(get_args(ProtocolName))


def test_every_claim_is_told(written: Page) -> None:
    articles = written.all("article")
    assert len(articles) == len(CLAIMS)
    for article, claim in zip(articles, CLAIMS, strict=True):
        for words in (claim.id, claim.statement, f"“{claim.quote}”", claim.where):
            assert words in article.text
    first, second, third, last = (article.text for article in articles)
    assert "−0.451 ± 0.012 NLL" in first and "p < 0.001" in first
    assert "song was not run." in first
    assert "Not deciding: 1 comparison" in first
    folded = [table for table in written.all("table") if "details" in table.inside]
    assert len(folded) == 2 and "abalone" in folded[0].text and "sarcos" not in folded[0].text
    assert "Figure 1a." in first and "Figure 2." in first
    assert "Shown by an earlier claim: figure 2." in second
    assert "Not run: figure 1c." in second
    assert "Not run: figures 1g, 1h and 9." in third
    assert "Figure S1." in last
    others = next(s for s in written.all("section") if s.attributes["aria-labelledby"] == "figures")
    assert re.findall(r"Figure (\w+)\.", others.text) == ["1b", "3"]


def test_every_reading_has_its_verdict_and_why_it_is_fair(written: Page) -> None:
    headings = [plain(h.text) for h in written.all("h4") if re.match("Reading|Our claim", h.text)]
    assert headings == [
        "Reading: taken together ✓ held",
        "Reading: strict ✗ not held",
        "Reading: the chosen β ✗ not held",
        "Reading: squared bias = no difference",
        "Reading: proposals ? not decided",
        "Our claim: the width has no effect ✓ held",
    ]
    assert [plain(h.text) for h in written.all("h3")][:4] == [
        *("C1 ✓ held", "C4 ✗ not held", "C8 = no difference", "C13 ? not decided")
    ]
    badges = [e.attributes["class"] for e in written.all("span") if "badge" in str(e.attributes)]
    assert "badge no-difference" in badges and "badge not-held" in badges
    terms = [plain(term.text) for term in written.all("dt") if "article" in term.inside]
    texts = [plain(text.text) for text in written.all("dd") if "article" in text.inside]
    told = list(zip(terms, texts, strict=True))
    every = [
        (reading, found) for each in reproduction(NOTHING).claims for reading, found in each.judged
    ]
    for name, expected in (
        ("criterion", [reading.criterion for reading, _ in every]),
        ("why it is fair", [reading.why for reading, _ in every]),
        ("found here", [found.sentence for _, found in every]),
    ):
        assert [text for term, text in told if term == name] == expected


def test_what_would_decide_is_told_of_what_decides(written: Page) -> None:
    first, _, _, last = written.all("article")
    one = "About 14 repeats would decide it, 2 h more: --repeats 14."
    items = [item.text for item in written.all("li") if "article" in item.inside]
    assert items == [f"abalone: draws: {one}"]
    assert "What would decide it:" in last.text and "What would decide it:" not in first.text
    # The others stand by their comparisons.
    assert last.text.count(one) == 2 and last.text.count("--repeats 90.") == 1


def test_the_evidence_is_counted() -> None:
    found = with_failures(results(SMALL))
    first, *_, third, last = reproduction(found).claims
    fits = found.of(FitCell)
    assert (first.runs, first.converged, first.seconds) == (30, 30, 30 * 12.5)
    assert evidence(first) == "30 runs, 100 % converged, 6 min 15 s of processor or GPU time"
    assert evidence(third) == "no runs"
    # Studies do not converge.
    assert evidence(last) == "2 runs, 1 min 0 s of processor or GPU time"
    early = fits[0].outcome.model_copy(update={"status": "budget"})
    one, *others = (replace(fits[0], outcome=early), *fits[1:3])
    claim = reproduction(Results((one, *others))).claims[0]
    assert evidence(claim) == "3 runs, 66 % converged, 38 s of processor or GPU time"
    moving = evidence(claim._replace(converged=3, moved=0.0017))
    assert "100 % converged (at most 0.0017 nats in the last fifth of their steps)" in moving


def test_only_what_decides_has_a_remedy() -> None:
    part = Part("a", "not decided", 0.1, 0.1, 0.1, "NLL", remedy="More.")
    parts = (part, replace(part, what="b", decides=False), replace(part, what="c", remedy=""))
    assert remedies(Finding("not decided", "", parts)) == ["a: More."]


def test_table_1_is_there(written: Page) -> None:
    tables = [table for table in written.all("table")]
    (number,) = [k for k, table in enumerate(tables) if "Published bounds" in table.text]
    rows, checks = written.rows(number), list(bounds_table())
    assert len(rows) == 10
    for name, targets, *bounds in rows:
        for shown in bounds:
            check = checks.pop(0)
            assert (check.likelihood, ", ".join(f"{y:g}" for y in check.targets)) == (name, targets)
            assert shown.startswith(f"{in_words(check.published)} ")
            assert shown.endswith(check.verdict)
            loose = check.verdict != "tight"
            assert (f" true {in_words(check.extremum)} " in shown) == loose
    assert not checks


def test_all_errata_and_misprints_are_there(written: Page) -> None:
    tables = [table for table in written.all("table")]
    (number,) = [k for k, table in enumerate(tables) if "Errors that were found" in table.text]
    rows = written.rows(number)
    assert len(rows) == 17
    assert rows == [
        [each[name] for name in ("where", "wrong", "effect", "here")] for each in ERRATA
    ]
    assert all(text and text.strip() == text for row in rows for text in row)
    (section,) = [
        s for s in written.all("section") if s.attributes.get("aria-labelledby") == "errata"
    ]
    assert MISPRINTS and all(misprint in section.text for misprint in MISPRINTS)


def test_a_scale_that_is_too_small_judges_nothing() -> None:
    told = reproduction(results(SMALL), scale=SCALES["smoke"])
    assert headline(told) == "34 cells ran. Scale smoke is too small to judge a claim."
    page = Page.of(reproduction_page(told, {}))
    assert [row[1] for row in page.rows(0)] == ["not judged"] * 4
    headings = [h.text for h in (*page.all("h3"), *page.all("h4"))]
    assert sum(h.endswith(" not judged") for h in headings) == 4 + 6
    assert not [e for e in page.elements if "badge" in e.attributes.get("class", "").split()]
    compared = [
        row
        for number, table in enumerate(page.all("table"))
        if "parts" in table.attributes["class"].split()
        for row in page.rows(number)
    ]
    assert [row[1] for row in compared] == ["not judged"] * 7
    assert "would decide it" not in page.all("main")[0].text


def test_data_and_circumstances_are_told(written: Page) -> None:
    told = written.all("main")[0].text
    for words in (
        "7,432 × 21",
        "48,933 × 21",
        "A subset of 7,432 rows.",
        "directgp reproduce --scale small --data-dir data",
        "python 3.12.3, directgp 0.1.0, torch 2.13.0",
        "1 h 2 min elapsed",
        "30 fits (sarcos) and 2 studies of samplers (abalone)",
        "1 fit (sarcos)",
        "sarcos, 346 rows, elbo, repeat 1: The covariance matrix is not positive definite. "
        "(tried 3 times)",
    ):
        assert words in told, words


def test_the_summary_counts() -> None:
    told = reproduction(with_failures(results(SMALL)))
    assert headline(told) == "1 of 4 claims held, 1 no difference, 1 not held, 1 not decided."
    assert second_line(told) == (
        "Scale small, protocol best: 32 cells run, up to 2 repeats; 1 cell failed; 1 cell not run."
    )
    alone = replace(told, claims=told.claims[:1], results=results(SMALL))
    assert headline(alone) == "1 of 1 claim held."
    assert second_line(alone).endswith(": 34 cells run, up to 2 repeats.")


def test_both_protocols_are_named() -> None:
    first, *others = results(SMALL).records
    cell = first.cell.model_copy(update={"protocol": "paper"})
    told = reproduction(Results((replace(first, cell=cell), *others)))
    assert second_line(told).startswith("Scale small, protocols paper and best: ")
    described = run_facts(told)["protocol"]
    assert described.startswith("paper: as in the paper.") and " best: the same rows" in described


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
        f"1 of {fits} fits stopped unconverged: ELBO 1 of 4"
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
    page = Page.of(reproduction_page(reproduction(NOTHING, claims=(), data=()), {}))
    assert "0 of 0 claims held" in page.all("main")[0].text
    assert page.all("img") == []


def test_text_is_only_text() -> None:
    reading = replace(CLAIMS[0].readings[0], name=HOSTILE, criterion=HOSTILE, why=HOSTILE)
    claim = replace(CLAIMS[0], statement=HOSTILE, quote=HOSTILE, where=HOSTILE)
    part = Part(HOSTILE, "not decided", 0.1, 0.1, 0.1, HOSTILE, HOSTILE, remedy=HOSTILE)
    found = Finding("not decided", HOSTILE, (part, replace(part, decides=False)))
    changes = dict.fromkeys(("differences", "origin", "source", "licence"), HOSTILE)
    told = reproduction(
        NOTHING,
        claims=(Assessment(claim, (JudgedReading(reading, found),), 0, 0, 0, 0.0, 0.0),),
        data=(DATA[0].model_copy(update=changes),),
        command=HOSTILE,
        scale=replace(SCALES["small"], name=HOSTILE, about=HOSTILE),
        machine=HOSTILE,
    )
    text = reproduction_page(told, {})
    assert "<script>alert" not in text and "{{ 7 * 7 }}" in text
    shown = plain(Page.of(text).all("main")[0].text)
    # 2 in the table of verdicts, 3 of the claim, 2 of its remedy, 4 of the reading, 4 of each
    # comparison, 4 of the data, and scale twice, its description, machine and command.
    assert shown.count(HOSTILE) == 2 + 3 + 2 + 4 + 2 * 4 + 4 + 5

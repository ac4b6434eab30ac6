"""The page of a report: its text, links and tables."""

import math
from dataclasses import replace

import pytest

from directgp.reports.compare import ScoreTable, page, run_facts, score_table
from directgp.reports.findings import Findings
from directgp.reports.verdict import steps_allowed, verdict
from tests.unit.reports.html import Page
from tests.unit.reports.made import NLL, Recipe, comparison

HOSTILE = "<script>alert(1)</script> \"a\" 'b' & ü 数据 {{ 7 * 7 }}"


def text_of(recipe: Recipe) -> str:
    """A page without pictures."""
    findings = Findings(comparison(recipe))
    return page(findings, verdict(findings), [])


def test_the_table_has_the_scores() -> None:
    found = Page.of(text_of(Recipe(repeats=3)))
    rows = {row[0]: row[1:] for row in found.rows()}
    assert list(rows) == [
        "ELBO",
        "β-ELBO",
        "FITC",
        "log-loss DLM, joint",
        "log-loss DLM, fixed",
        "square-loss DLM, joint",
        "square-loss DLM, fixed",
    ]
    assert rows["ELBO"][:2] == ["1", "0.376 ± 0.021"]
    assert rows["log-loss DLM, joint"][1] == "−0.086 ± 0.022"
    assert rows["log-loss DLM, joint"][5].startswith("90.4")
    assert rows["log-loss DLM, joint"][6] == "83"
    bold = [element.text for element in found.all("strong") if "tbody" in element.inside]
    assert bold[0] == "−0.086"


def test_the_verdict_and_the_row_that_it_recommends_are_shown() -> None:
    recipe = Recipe(repeats=5)
    text = text_of(recipe)
    found = Page.of(text)
    said = verdict(Findings(comparison(recipe)))
    everything = found.all("main")[0].text.replace("\u00a0", " ")
    assert said.quality in everything and said.choice in everything
    assert all(sentence in everything for sentence in said.details)
    assert said.command in everything
    assert [row.text.split()[0] for row in found.all("tr", **{"class": "chosen"})] == ["log-loss"]


def test_names_of_users_are_only_names() -> None:
    recipe = Recipe(
        name=HOSTILE,
        target=HOSTILE,
        source=HOSTILE,
        features=[HOSTILE] * 3,
        notes=[HOSTILE],
        failed=[("fitc", 0, 5000, HOSTILE)],
        lost=[HOSTILE],
    )
    text = text_of(recipe)
    plain = text_of(Recipe(notes=["a"], failed=[("fitc", 0, 5000, "a")], lost=["a"]))
    found = Page.of(text)
    tags = [element.tag for element in found.elements if element.tag != "span"]
    assert tags == [e.tag for e in Page.of(plain).elements if e.tag != "span"]
    assert found.all("h1")[0].text == HOSTILE
    assert found.all("main")[0].text.count(HOSTILE) >= 6
    assert "{{ 7 * 7 }}" in text and "<script>alert" not in text


def test_names_of_classes_are_only_names() -> None:
    found = Page.of(text_of(Recipe(task="classification", classes=(HOSTILE, "<b>"))))
    classes = next(dd.text for dd in found.all("dd") if "<b>" in dd.text)
    assert classes.endswith(" and <b>")


def test_what_was_run_is_told() -> None:
    made = comparison(Recipe(failed=[("fitc", 0, 5000, "singular")], lost=["β = 4: overflow"]))
    text = Page.of(
        text_of(Recipe(failed=[("fitc", 0, 5000, "singular")], lost=["β = 4: overflow"]))
    )
    told = text.all("main")[0].text
    for words in (
        made.command,
        made.machine,
        made.began,
        made.plan.data.fingerprint,
        "torch 2.13.0",
        "12 min 41 s of one core in all, for 20 fits",
        "as many as lower the objective",
        "fitc, repeat 0, 5,000 rows: singular",
        "elbo, repeat 0, 5,000 rows: β = 4: overflow",
        "AISTATS 2021",
        "corrected resampled t-test",
        *(method.about for method in made.plan.methods),
        *made.plan.data.notes,
    ):
        assert words in told, words


def test_the_time_is_that_of_the_fits_whenever_they_were_run() -> None:
    made = comparison(Recipe(methods=("elbo",), repeats=2))
    resumed = run_facts(Findings(replace(made, seconds=0.011)))
    assert resumed["fits took"] == "8.2 s of one core in all, for 2 fits"
    plan = made.plan
    settings = plan.settings.model_copy(update={"device": "cuda"})
    on_gpu = replace(plan, settings=settings)
    facts = run_facts(Findings(replace(made, plan=on_gpu)))
    assert facts["fits took"] == "8.2 s of the GPU in all, for 2 fits"
    ranking, scores = Findings(made).ranking, Findings(made).scores
    for where, each in (("one core", plan), ("the GPU", on_gpu)):
        about = score_table(ranking, scores, each).columns["seconds"]
        assert about.startswith(f"Computing time of one repeat on {where}: the runs for all values")


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({}, "as many as lower the objective"),
        ({"max_steps": 2000}, "as many as lower the objective, at most 2,000 in a run"),
    ],
)
def test_the_limit_of_steps_is_told(settings: dict[str, int], steps: str) -> None:
    plan = comparison(Recipe(repeats=1, num_test=2)).plan
    assert steps_allowed(replace(plan, settings=plan.settings.model_copy(update=settings))) == steps


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(methods=("elbo",), repeats=1, failed=[("elbo", 0, 5000, "why")]),
        Recipe(methods=("log-joint",), repeats=1, num_test=1),
        Recipe(repeats=2, nll={name: math.inf for name in NLL}),
        Recipe(repeats=20, nll={**NLL, "elbo": 1e300}),
        Recipe(sizes=(7,), num_test=2),
    ],
)
def test_odd_comparisons_have_a_page(recipe: Recipe) -> None:
    found = Page.of(text_of(recipe))
    assert "nan" not in found.all("main")[0].text.lower().split()


def board(recipe: Recipe) -> ScoreTable:
    findings = Findings(comparison(recipe))
    return score_table(findings.ranking, findings.scores, findings.comparison.plan)


def test_columns_are_those_of_the_task() -> None:
    titles = list(board(Recipe()).columns)
    assert titles == ["β", "NLL", "RMSE", "MSE", "CRPS", "coverage of 90 %", "seconds"]
    labels = list(board(Recipe(task="classification")).columns)
    assert labels == ["β", "NLL", "error", "Brier", "seconds"]


def test_values_are_means_over_the_repeats() -> None:
    made = comparison(Recipe(repeats=4))
    findings = Findings(made)
    found = score_table(findings.ranking, findings.scores, findings.comparison.plan)
    for method, entries in found.rows.items():
        nll = [run.outcome.scores["nll"] for run in made.runs if run.cell.method == method.name]
        assert entries[1].rank == pytest.approx(sum(nll) / 4)
        shown = float(entries[1].text.replace("−", "-"))
        assert shown == pytest.approx(sum(nll) / 4, abs=0.0006)


def test_the_best_is_bold_and_what_is_close_is_marked() -> None:
    found = board(Recipe(repeats=5, nll={**NLL, "log-fixed": -0.102}))
    nll = {method.name: entries[1] for method, entries in found.rows.items()}
    assert [name for name, entry in nll.items() if entry.best] == ["log-fixed"]
    assert [name for name, entry in nll.items() if entry.close] == ["log-joint"]


def test_one_method_is_not_called_the_best() -> None:
    (row,) = board(Recipe(methods=("elbo",))).rows.values()
    assert not any(entry.best or entry.close for entry in row)


def test_one_repeat_has_no_errors() -> None:
    found = board(Recipe(repeats=1))
    assert found.heading == "5,000 training rows, one repeat"
    assert all(entry.error == "" for row in found.rows.values() for entry in row)


def test_numbers_that_are_not_finite_come_last() -> None:
    found = board(Recipe(nll={**NLL, "fitc": math.inf}))
    nll = {method.name: entries[1] for method, entries in found.rows.items()}
    assert (nll["fitc"].text, nll["fitc"].rank, nll["fitc"].error) == ("∞", None, "")
    assert nll["elbo"].error


def test_coverage_is_ranked_by_its_distance_from_the_nominal_one() -> None:
    found = board(Recipe(methods=("elbo", "log-joint"), coverage={"elbo": 0.97, "log-joint": 0.86}))
    cover = {method.name: entries[5] for method, entries in found.rows.items()}
    assert cover["log-joint"].best and not cover["elbo"].best
    assert (cover["log-joint"].rank or 0) < (cover["elbo"].rank or 0)
    assert cover["elbo"].text.startswith("96.") or cover["elbo"].text.startswith("97.")


def test_the_range_of_beta_is_shown_where_repeats_chose_differently() -> None:
    found = board(Recipe(repeats=3))
    made = comparison(Recipe(repeats=3))
    for method, entries in found.rows.items():
        betas = {run.outcome.beta for run in made.runs if run.cell.method == method.name}
        assert bool(entries[0].note) == (len(betas) > 1)
    assert {m.name: e[0].text for m, e in found.rows.items()}["fitc"] == "–"

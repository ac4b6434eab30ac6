import math

import pytest

from directgp.reports.compare import ScoreTable, score_table
from directgp.reports.verdict import Findings
from tests.unit.reports.made import NLL, Recipe, comparison


def board(recipe: Recipe) -> ScoreTable:
    findings = Findings(comparison(recipe))
    return score_table(findings.ranking, findings.scores)


def test_columns_are_those_of_the_task() -> None:
    titles = list(board(Recipe()).columns)
    assert titles == ["β", "NLL", "MSE", "CRPS", "coverage of 90 %", "seconds"]
    labels = list(board(Recipe(task="classification")).columns)
    assert labels == ["β", "NLL", "error", "Brier", "seconds"]


def test_values_are_means_over_the_repeats() -> None:
    made = comparison(Recipe(repeats=4))
    findings = Findings(made)
    found = score_table(findings.ranking, findings.scores)
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
    cover = {method.name: entries[4] for method, entries in found.rows.items()}
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

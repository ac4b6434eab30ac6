"""All claims: their texts, and the cells that they need."""

import re
from typing import Any

import pytest

from directgp.experiments.paper.cells import (
    EXACT,
    CurveCell,
    FitCell,
    PaperCell,
    PaperRecord,
    Results,
    RuleFacts,
)
from directgp.experiments.paper.claims import CLAIMS
from directgp.experiments.paper.claims.base import Claim, Finding
from tests.unit.experiments.paper.made_up import (
    TASKS,
    curve,
    curve_cell,
    fit,
    fit_cell,
    gradients,
    look,
    samplers,
)

FIGURES = {*(f"1{x}" for x in "abcdefghi"), *map(str, range(2, 17)), "S1"}

METHODS = ("elbo", "beta-elbo", "fitc", "log-joint", "log-fixed", "square-joint", "square-fixed")
RULES = [
    EXACT,
    *(
        RuleFacts.model_validate({"name": n, "samples": s})
        for n in ("bmc", "smooth-bmc", "ups", "ups-mixed")
        for s in (1, 10, 100)
    ),
]


def _everything() -> list[PaperRecord]:
    """Some record of each kind that a sweep may have, and more; two repeats, all alike."""
    sets = [name for name in TASKS if name != "airline"]
    scores = {"nll": 0.5, "mse": 0.5, "error": 0.1, "mre": 0.2}
    fits = [
        fit(fit_cell(name, method, repeat, size=size), scores)
        for name in sets
        for method in METHODS
        for repeat in range(2)
        for size in (700, 2000)
    ]
    # Count curves have two learning rates; a second one elsewhere would be another study.
    settings = [
        *((name, 0.1, rate) for name in ("abalone", "peds1") for rate in (0.1, 0.01)),
        *(
            (name, beta, 0.01)
            for name in ("pol", "cadata", "sarcos", "song")
            for beta in (0.1, 1.0)
        ),
        *(("airline", beta, 0.01) for beta in (0.1, 1.0, 10.0)),
        ("banana", 0.1, 0.01),
    ]
    curves = [
        curve(curve_cell(name, rule, beta=beta, learning_rate=rate), 0.5)
        for name, beta, rate in settings
        for rule in RULES
    ]
    kinds: list[dict[str, Any]] = [{"objective": "elbo"}, {"hyperparameters": "fixed"}]
    airline = [
        curve(curve_cell("airline", beta=beta, learning_rate=0.01, **kind), 0.5)
        for beta in (0.1, 1.0, 10.0)
        for kind in kinds
    ]
    biases = {(str(rule.name), rule.samples): 0.1 for rule in RULES if rule != EXACT}
    studies = [gradients(biases), gradients(biases, dataset="peds1")]
    looks = [samplers(name, [look(100)]) for name in ("abalone", "banana", "thyroid")]
    return [*fits, *curves, *airline, *studies, *looks]


@pytest.fixture(scope="module")
def everything() -> list[PaperRecord]:
    return _everything()


def test_there_are_fourteen() -> None:
    assert list(CLAIMS) == [f"C{i}" for i in range(1, 15)]
    assert all(claim.id == key for key, claim in CLAIMS.items())


def test_every_figure_shows_a_claim() -> None:
    shown = [figure for claim in CLAIMS.values() for figure in claim.figures]
    assert set(shown) == FIGURES


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS.keys())
def test_of_nothing_nothing_is_decided(claim: Claim) -> None:
    found = claim.judge(Results(()))
    assert found.verdict == "not decided"
    assert found.parts and all(part.note == "not run" for part in found.parts)
    assert found.sentence.startswith("Not run: ")


def _described(finding: Finding) -> list[str]:
    return [finding.sentence, *(str(part) for part in finding.parts)]


@pytest.mark.parametrize("name", CLAIMS)
def test_what_a_claim_does_not_use_does_not_matter(
    name: str, everything: list[PaperRecord]
) -> None:
    claim = CLAIMS[name]
    used = [record for record in everything if claim.uses(record.cell)]
    assert 0 < len(used) < len(everything)
    of_all, of_used = (claim.judge(Results(tuple(r))) for r in (everything, used))
    same = _described(of_all) == _described(of_used)
    assert same


def _kind(cell: PaperCell) -> tuple[object, ...]:
    """What a claim might choose by."""
    if isinstance(cell, FitCell):
        return ("fit", cell.dataset, cell.method)
    if isinstance(cell, CurveCell):
        kind = (cell.objective, cell.hyperparameters, cell.rule, cell.beta, cell.learning_rate)
        return ("curve", cell.dataset, *kind)
    return (cell.kind, cell.dataset)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLAIMS)
def test_what_a_claim_uses_does_matter(name: str, everything: list[PaperRecord]) -> None:
    claim = CLAIMS[name]
    used = [record for record in everything if claim.uses(record.cell)]
    whole = _described(claim.judge(Results(tuple(used))))
    for kind in {_kind(record.cell) for record in used}:
        rest = tuple(record for record in used if _kind(record.cell) != kind)
        changed = _described(claim.judge(Results(rest))) != whole
        assert changed, kind


@pytest.mark.parametrize("name", CLAIMS)
def test_parts_are_told_in_words(name: str, everything: list[PaperRecord]) -> None:
    found = CLAIMS[name].judge(Results(tuple(everything)))
    assert found.sentence.endswith(".") and not re.search(r"\bnan\b", found.sentence)
    for part in found.parts:
        assert ": " in part.what and part.unit

"""All claims: their texts, the cells that they need, tests of differences, and verdicts."""

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from directgp.experiments.cell import METHODS, Record
from directgp_paper.experiments.cells import (
    EXACT,
    CurveCell,
    FitCell,
    PaperCell,
    PaperRecord,
    Results,
    RuleFacts,
)
from directgp_paper.experiments.claims import CLAIMS
from directgp_paper.experiments.claims.base import (
    Assessment,
    Claim,
    Finding,
    Pair,
    Part,
    Verdict,
    all_of,
    compare,
    hardest,
)
from directgp_paper.experiments.claims.runs import (
    Convergence,
    Difference,
    between,
    is_converged,
    measured,
    movement,
    over_repeats,
    over_rows,
)
from paper.tests.experiments.made_up import (
    TASKS,
    curve,
    curve_cell,
    fit,
    fit_cell,
    gradients,
    look,
    samplers,
)

FIGURES = {*(f"1{x}" for x in "abcdefghi"), *map(str, range(2, 17)), "S1", "S2", "S3"}

PAPER_METHODS = (
    "elbo",
    "beta-elbo",
    "fitc",
    "fitc-of-elbo",
    "log-joint",
    "log-fixed",
    "square-joint",
    "square-fixed",
)
RULES = [
    EXACT,
    *(
        RuleFacts.model_validate({"name": n, "samples": s})
        for n in ("bmc", "smooth-bmc", "ups", "ups-mixed", "ups-paper")
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
        for method in PAPER_METHODS
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
    unwhitened = [curve(curve_cell("airline", rule, whitened=False), 0.5) for rule in RULES]
    biases = {(str(rule.name), rule.samples): 0.1 for rule in RULES if rule != EXACT}
    studies = [gradients(biases), gradients(biases, dataset="peds1")]
    sets = ["abalone", "banana", "airline", "thyroid"]
    looks = [samplers(name, [look(100)]) for name in sets]
    return [*fits, *curves, *airline, *unwhitened, *studies, *looks]


@pytest.fixture(scope="module")
def everything() -> list[PaperRecord]:
    return _everything()


@pytest.fixture(scope="module")
def assessments(everything: list[PaperRecord]) -> dict[str, Assessment]:
    """Of each claim, from all records."""
    results = Results(tuple(everything))
    return {name: claim.assess(results) for name, claim in CLAIMS.items()}


def test_there_are_fourteen_claims() -> None:
    assert list(CLAIMS) == [f"C{i}" for i in range(1, 15)]
    assert all(claim.id == key for key, claim in CLAIMS.items())


def test_every_figure_shows_a_claim() -> None:
    shown = [figure for claim in CLAIMS.values() for figure in claim.figures]
    assert set(shown) == FIGURES


def test_a_claim_has_readings_of_the_paper_first() -> None:
    for claim in CLAIMS.values():
        assert claim.quote and claim.readings[0].of == "paper"
        assert all(each.criterion and each.why for each in claim.readings)
        assert "{" not in "".join(each.criterion for each in claim.readings)
    ours = {each.name for claim in CLAIMS.values() for each in claim.readings if each.of == "ours"}
    assert len(ours) == 3


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS.keys())
def test_without_records_a_claim_is_not_decided(claim: Claim) -> None:
    assessed = claim.assess(Results(()))
    assert (assessed.runs, assessed.converged, assessed.seconds) == (0, 0, 0.0)
    for _, found in assessed.judged:
        assert found.verdict == "not decided"
        assert found.parts and all(part.note == "not run" for part in found.parts)
        assert found.sentence.startswith("Not run: ")


def _described(assessed: Assessment) -> list[str]:
    findings = [finding for _, finding in assessed.judged]
    return [text for f in findings for text in (f.sentence, *(str(part) for part in f.parts))]


@pytest.mark.parametrize("name", CLAIMS)
def test_records_that_a_claim_does_not_use_do_not_change_it(
    name: str, everything: list[PaperRecord], assessments: dict[str, Assessment]
) -> None:
    claim = CLAIMS[name]
    used = [record for record in everything if claim.uses(record.cell)]
    assert 0 < len(used) < len(everything)
    assert assessments[name].runs == len(used)
    assert _described(assessments[name]) == _described(claim.assess(Results(tuple(used))))


def test_evidence_counts_runs_that_converged_and_their_seconds() -> None:
    elbo = [fit(fit_cell("pol", "elbo", repeat), {"nll": 0.5, "mse": 0.1}) for repeat in range(3)]
    outcome = elbo[0].outcome.model_copy(update={"status": "budget", "seconds": 5.0})
    early: PaperRecord = Record(elbo[0].cell, outcome, elbo[0].circumstances)
    found = CLAIMS["C3"].assess(Results((early, *elbo[1:])))
    assert (found.runs, found.converged, found.seconds) == (3, 2, 7.0)


def test_evidence_is_of_the_protocol_that_decides() -> None:
    cells = [fit_cell("pol", "elbo", protocol=name) for name in ("paper", "best")]
    paper, best = (fit(cell, {"nll": 0.5}) for cell in cells)
    other = fit(fit_cell("song", "elbo", protocol="paper"), {"nll": 0.5})
    assert CLAIMS["C3"].assess(Results((paper, best, other))).runs == 2
    assert CLAIMS["C3"].assess(Results((paper,))).runs == 1


def _kind(cell: PaperCell) -> tuple[object, ...]:
    """What a claim might choose by."""
    if isinstance(cell, FitCell):
        return ("fit", cell.dataset, cell.method)
    if isinstance(cell, CurveCell):
        kind = (cell.objective, cell.hyperparameters, cell.rule, cell.beta, cell.learning_rate)
        return ("curve", cell.dataset, cell.whitened, *kind)
    return (cell.kind, cell.dataset)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLAIMS)
def test_records_that_a_claim_uses_change_it(name: str, everything: list[PaperRecord]) -> None:
    claim = CLAIMS[name]
    used = [record for record in everything if claim.uses(record.cell)]
    whole = _described(claim.assess(Results(tuple(used))))
    for kind in {_kind(record.cell) for record in used}:
        rest = tuple(record for record in used if _kind(record.cell) != kind)
        changed = _described(claim.assess(Results(rest))) != whole
        assert changed, kind


@pytest.mark.parametrize("name", CLAIMS)
def test_findings_and_parts_are_in_words(name: str, assessments: dict[str, Assessment]) -> None:
    findings: list[Finding] = [found for _, found in assessments[name].judged]
    for found in findings:
        assert found.sentence.endswith(".") and not re.search(r"\bnan\b", found.sentence)
        for part in found.parts:
            assert ": " in part.what and part.unit


INF, NAN = math.inf, math.nan
RANDOM = np.random.default_rng(3)


def _pair(difference: Difference | None, margin: float = 0.0) -> Pair:
    return Pair("pol", "a", "b", "NLL", difference, note="", setting="2,000 rows", margin=margin)


def test_without_shared_rows_it_is_the_paired_t_test_and_its_interval() -> None:
    a, b = RANDOM.normal(size=7), RANDOM.normal(0.4, size=7)
    expected = stats.ttest_rel(a, b)
    interval = expected.confidence_interval(0.95)
    found = over_repeats(between(a, b), 0.0)
    assert found.effect == pytest.approx((a - b).mean())
    assert found.error == pytest.approx(stats.sem(a - b))
    assert found.p_value == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    inner = expected.confidence_interval(0.90)
    assert (found.inner_low, found.inner_high) == pytest.approx((inner.low, inner.high))


def test_two_one_sided_tests_show_a_difference_within_a_margin() -> None:
    """As scipy's one-sided t-tests do, at 5 % each."""
    for seed in range(20):
        values = np.random.default_rng(seed).normal(0.0, 0.02, 6)
        below = stats.ttest_1samp(values, 0.02, alternative="less").pvalue
        above = stats.ttest_1samp(values, -0.02, alternative="greater").pvalue
        equal = max(below, above) < 0.05
        found = over_repeats(values, 0.0)
        assert (compare(_pair(found, 0.02), "equal").verdict == "held") == equal
        assert (compare(_pair(found, 0.02), "not above").verdict == "held") == (below < 0.05)
        significant = stats.ttest_1samp(values, 0.0).pvalue < 0.05
        same = compare(_pair(found, 0.02)).verdict == "no difference"
        assert same == (equal and not significant)
    assert compare(_pair(measured(0.0, 0.001))).verdict == "not decided"


def test_repeats_that_would_decide() -> None:
    values = np.array([-0.1, 0.02, -0.05, 0.06, -0.08])
    pair = replace(_pair(over_repeats(values, 0.01), 0.001), seconds=60.0)
    part = compare(pair)
    assert part.verdict == "not decided"
    (count,) = map(int, re.findall(r"--repeats (\d+)", part.remedy))
    found = over_repeats(values, 0.01)
    assert found.with_repeats(count).p_value < 0.05 <= found.with_repeats(count - 1).p_value
    minutes = f"{count - 5} min 0 s more"
    assert f"A run of {count} repeats would decide it, {minutes}" in part.remedy
    # The rows that splits share limit what repeats can show.
    shared = compare(_pair(over_repeats(values, 0.4), 0.001))
    assert shared.remedy.startswith("Not even 500 repeats would decide it")
    once = compare(_pair(over_repeats(np.array([0.1]), 0.2)))
    assert once.remedy == "Two repeats or more would decide it."
    assert not compare(_pair(measured(0.1, 0.001))).remedy


def test_as_many_repeats_give_the_same_test() -> None:
    found = over_repeats(np.array([0.1, 0.3, 0.2, 0.4]), 0.3)
    again = found.with_repeats(4)
    assert again.p_value == pytest.approx(found.p_value)
    assert (again.low, again.inner_high) == pytest.approx((found.low, found.inner_high))


def test_runs_that_are_not_converged_decide_nothing() -> None:
    sure = _pair(measured(-0.5, 0.01))
    part = compare(replace(sure, convergence=Convergence("1 of 4 runs not converged", True)))
    assert part.verdict == "not decided" and "1 of 4 runs not converged" in part.note
    near = compare(replace(sure, convergence=Convergence("1 of 4 runs not converged", False)))
    assert near.verdict == "held" and "1 of 4 runs not converged" in near.note


def test_movement_of_curves_and_fits() -> None:
    looks = list(range(0, 100, 10))
    falling = curve(curve_cell("abalone"), [3.0 - 0.01 * i for i in range(10)], looks=looks)
    assert movement(falling) == pytest.approx(0.02) and not is_converged(falling)
    still = curve(curve_cell("abalone"), [3.0] * 5 + [2.5] * 5, looks=looks)
    assert movement(still) == 0.0 and is_converged(still)
    # The same movement does not matter in regression, whose margin is larger.
    assert is_converged(curve(curve_cell("pol"), [3.0 - 0.01 * i for i in range(10)], looks=looks))
    diverged = curve(curve_cell("abalone"), [3.0] * 9 + [INF], looks=looks)
    assert movement(diverged) == 0.0 and not is_converged(diverged)
    assert movement(curve(curve_cell("abalone"), [3.0], looks=[0])) == INF
    done = fit(fit_cell("pol", "elbo"), {"nll": 0.5})
    assert movement(done) == 0.0 and is_converged(done)
    # Lower by 0.1 in the last fifth, and by as much above the fifth before if it rises.
    history = tuple((step, 1.0 + 0.1 * (step <= 80)) for step in range(1, 101))
    changes = {"status": "budget", "history": history}
    early = Record(done.cell, done.outcome.model_copy(update=changes), done.circumstances)
    assert movement(early) == pytest.approx(0.1) and not is_converged(early)
    nothing = done.outcome.model_copy(update={"status": "budget"})
    assert movement(Record(done.cell, nothing, done.circumstances)) == INF


@pytest.mark.parametrize("ratio", [0.0, 0.37, 1.0])
def test_the_interval_leaves_out_what_the_test_refuses(ratio: float) -> None:
    values = np.array([0.5, 0.8, 0.6, 0.3])
    found = over_repeats(values, ratio)
    at_the_end = over_repeats(values - found.low, ratio)
    assert at_the_end.p_value == pytest.approx(0.05)
    assert at_the_end.low == pytest.approx(0.0, abs=1e-12)


def test_shares_of_few_rows_are_not_surer_than_a_row() -> None:
    same = np.full(5, 0.004)
    assert over_repeats(same, 0.3).high == pytest.approx(0.004)
    deviation = 0.01 * math.sqrt(1 / 5 + 0.3)
    assert over_repeats(same, 0.3, 0.01).high == pytest.approx(
        0.004 + stats.t.ppf(0.975, 4) * deviation
    )


def test_rows_of_one_repeat_are_a_z_test() -> None:
    rows = RANDOM.normal(0.03, 1.0, 5000)
    found = over_rows([rows])
    z = rows.mean() / (rows.std(ddof=1) / math.sqrt(5000))
    assert found.p_value == pytest.approx(2 * stats.norm.sf(abs(z)))
    # With so many rows the t-test says the same.
    assert found.p_value == pytest.approx(stats.ttest_1samp(rows, 0).pvalue, rel=0.01)
    assert found.over == "5,000 test rows"


def test_rows_of_several_repeats_are_averaged() -> None:
    repeats = [RANDOM.normal(mean, 1.0, 400) for mean in (0.0, 0.5, 1.0)]
    found = over_rows(repeats)
    assert found.effect == pytest.approx(np.mean(repeats))
    assert found.error == pytest.approx(np.sqrt(sum(stats.sem(r) ** 2 for r in repeats)) / 3)


def test_what_is_not_finite_is_worst_and_two_of_them_are_equal() -> None:
    one, other = np.array([1.0, NAN, INF, 2.0, -INF]), np.array([0.5, 1.0, NAN, INF, 1.0])
    assert between(one, other).tolist() == [0.5, INF, 0.0, -INF, INF]


@pytest.mark.parametrize(
    ("values", "strict", "margin"),
    [
        # One repeat decides nothing, however large.
        ([-5.0], "not decided", "not decided"),
        ([-INF], "not decided", "not decided"),
        ([-0.5, -0.6, -0.55], "held", "held"),
        ([0.5, 0.6, 0.55], "not held", "not held"),
        ([0.0, 0.0, 0.0], "not decided", "held"),
        ([-1.0, 1.0, 0.1], "not decided", "not decided"),
        # The other has no finite score, once or always.
        ([-0.5, -0.6, -0.55, -INF], "held", "held"),
        ([-INF, -INF], "held", "held"),
        # One has none: it cannot win, and has lost if the rest says so.
        ([-0.5, -0.6, -0.55, INF], "not decided", "not decided"),
        ([0.5, 0.6, 0.55, INF], "not held", "not held"),
        ([INF, INF], "not held", "not held"),
        # They contradict each other.
        ([INF, -INF, -0.5, -0.6], "not decided", "not decided"),
    ],
)
def test_verdicts_over_repeats(values: list[float], strict: Verdict, margin: Verdict) -> None:
    evidence = over_repeats(np.array(values), 0.2)
    assert compare(_pair(evidence)).verdict == strict
    assert compare(_pair(evidence, 0.1), "not above").verdict == margin


@pytest.mark.parametrize(
    ("low", "high", "one_sided", "two_sided"),
    [
        (-0.005, 0.005, "held", "held"),
        (-0.5, 0.005, "held", "not decided"),
        (-0.5, -0.02, "held", "not held"),
        (0.005, 0.02, "not decided", "not decided"),
        (0.011, 0.02, "not held", "not held"),
        (-INF, INF, "not decided", "not decided"),
    ],
)
def test_verdicts_within_margins(
    low: float, high: float, one_sided: Verdict, two_sided: Verdict
) -> None:
    pair = _pair(Difference((low + high) / 2, 0.1, 0.5, low, high, low, high), 0.01)
    assert compare(pair, "not above").verdict == one_sided
    assert compare(pair, "equal").verdict == two_sided


def test_infinite_effects_are_told_and_noted() -> None:
    judged = compare(_pair(over_repeats(np.array([INF, 0.5, 0.6]), 0.2)))
    assert judged.effect == INF
    assert "1 of 3 differences infinite" in judged.note
    assert judged.clause.startswith("a infinitely far above b in NLL")
    both = compare(_pair(over_repeats(np.array([INF, -INF]), 0.2)))
    assert math.isnan(both.effect) and "infinite" in both.clause and both.clause


def test_rows_that_are_infinite_do_not_win() -> None:
    rows = np.full(1000, -0.5) + RANDOM.normal(0, 0.1, 1000)
    assert compare(_pair(over_rows([rows]))).verdict == "held"
    rows[3] = INF
    found = over_rows([rows])
    assert found.effect == INF and math.isnan(found.p_value)
    assert compare(_pair(found)).verdict == "not decided"
    assert compare(_pair(over_rows([np.full(50, INF)]))).verdict == "not held"


def test_a_measured_difference() -> None:
    assert measured(-1.97, 1.0).p_value < 0.05 < measured(-1.95, 1.0).p_value
    assert measured(-1.97, 1.0).high < 0 < measured(-1.95, 1.0).high
    assert measured(0.0, 0.0).p_value == 1.0 and measured(0.1, 0.0).p_value == 0.0
    assert math.isnan(measured(INF, 1.0).p_value) and measured(1.0, NAN).low == -INF


def test_a_pair_without_records_is_not_run() -> None:
    judged = compare(replace(_pair(None), note="not run"))
    assert not judged.clause and judged.verdict == "not decided"
    assert math.isnan(judged.effect) and judged.note == "not run"


@pytest.mark.parametrize(
    ("verdicts", "every"),
    [
        (["held", "held"], "held"),
        (["held", "not decided"], "not decided"),
        (["held", "not held"], "not held"),
        (["not held", "not decided"], "not held"),
        (["not held", "not held"], "not held"),
        (["held", "no difference"], "no difference"),
        (["no difference", "not decided"], "not decided"),
        (["no difference", "not held"], "not held"),
        ([], "not decided"),
    ],
)
def test_verdicts_together(verdicts: list[Verdict], every: Verdict) -> None:
    assert all_of(verdicts) == every


def test_the_hardest_speaks_most_against_the_claim() -> None:
    def judged(verdict: Verdict, excess: float, clause: str = "run") -> Part:
        return Part("", verdict, NAN, 0.1, 0.5, "NLL", clause=clause, excess=excess)

    some = [judged("held", -1.0), judged("not decided", NAN, clause=""), judged("held", -0.1)]
    assert hardest(some).excess == -0.1
    assert hardest([*some, judged("not decided", -2.0)]).excess == -2.0
    assert hardest([*some, judged("not held", 0.05), judged("not decided", 3.0)]).excess == 0.05


def test_of_two_that_have_to_be_equal_the_one_further_off_is_harder() -> None:
    below, above = measured(-0.004, 0.001), measured(0.0001, 0.001)
    both = (("x", below), ("y", above))
    pairs = [replace(_pair(evidence, 0.01), one=name) for name, evidence in both]
    equal = [compare(each, "equal") for each in pairs]
    assert hardest(equal).clause.startswith("x 0.0040 ± 0.0010")
    # Where one has to be lower, the sign counts.
    lower = [compare(replace(each, margin=0.0)) for each in pairs]
    assert hardest(lower).clause.startswith("y")


@pytest.mark.parametrize(
    ("effect", "error", "clause"),
    [
        (-0.125, 0.0079, "a 0.125 ± 0.008 below b in NLL (margin 0.01 exceeded)"),
        (0.0012, 0.0013, "a 0.0012 ± 0.0013 above b in NLL (margin 0.01 kept)"),
        (-2e-6, 1.7e-6, "a less than 0.0001 below b in NLL (margin 0.01 kept)"),
        (0.007, 0.006, "a 0.007 ± 0.006 above b in NLL (undecided, margin 0.01)"),
        (0.0, 0.001, "a equal to b in NLL (margin 0.01 kept)"),
    ],
)
def test_margins_are_told_with_the_side(effect: float, error: float, clause: str) -> None:
    assert compare(_pair(measured(effect, error), 0.01), "equal").clause == clause


def test_differences_are_told_with_the_side_and_the_test() -> None:
    assert compare(_pair(measured(-0.179, 0.0096))).clause == (
        "a 0.179 ± 0.010 below b in NLL (p < 0.001)"
    )
    assert compare(_pair(measured(0.07, 0.05))).clause == (
        "a 0.07 ± 0.05 above b in NLL (p = 0.16, undecided)"
    )
    assert compare(_pair(measured(0.001, 0.002), 0.01)).clause == (
        "a 0.0010 ± 0.0020 above b in NLL (no difference, margin 0.01)"
    )


def test_names_of_methods() -> None:
    assert [METHODS[m].name_in_text for m in ("elbo", "fitc", "log-joint")] == [
        "the ELBO",
        "FITC",
        "log-loss DLM (joint)",
    ]

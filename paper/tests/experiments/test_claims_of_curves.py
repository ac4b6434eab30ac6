"""C7 and C9 to C12, on learning curves whose verdict is known by construction."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from directgp.experiments.cell import Record
from directgp_paper.experiments.cells import (
    EXACT,
    CurveCell,
    CurveOutcome,
    PaperRecord,
    Results,
    RuleFacts,
)
from directgp_paper.experiments.claims.base import Finding, Part, Verdict
from paper.tests.experiments.made_up import curve, curve_cell, judge, results

REGRESSION = ("pol", "cadata", "sarcos", "song")


def _rule(name: str, samples: int) -> RuleFacts:
    return RuleFacts.model_validate({"name": name, "samples": samples})


BMC = {n: _rule("bmc", n) for n in (1, 10, 100)}
UPS = {n: _rule("ups", n) for n in (1, 10)}
SMOOTH = {n: _rule("smooth-bmc", n) for n in (1, 10, 100)}


def _judge(claim: str, *records: PaperRecord | list[PaperRecord], reading: str = "") -> Finding:
    return judge(claim, results(*records), reading)


def _part(finding: Finding, *words: str) -> Part:
    found = [part for part in finding.parts if all(word in part.what for word in words)]
    assert len(found) == 1, [part.what for part in finding.parts]
    return found[0]


def _airline(
    dlm: Sequence[float], elbo: Sequence[float], repeats: int = 2, **changes: Any
) -> list[PaperRecord]:
    """Levels at the four looks, the first of which is before training."""
    kinds: list[tuple[dict[str, Any], Sequence[float]]] = [
        ({"objective": "elbo"}, elbo),
        ({"hyperparameters": "joint"}, dlm),
        ({"hyperparameters": "fixed"}, dlm),
    ]
    return [
        each
        for beta in (0.1, 1.0, 10.0)
        for kind, levels in kinds
        for each in _repeated(curve_cell("airline", beta=beta, **kind, **changes), levels, repeats)
    ]


ELBO = (0.7, 0.6, 0.59, 0.583)
BETTER = (0.7, 0.59, 0.58, 0.573)


def test_c7_held() -> None:
    found = _judge("C7", _airline(BETTER, ELBO))
    assert found.verdict == "held"
    assert len(found.parts) == 10 and all(part.decides for part in found.parts)
    part = _part(found, "β = 10: log-loss DLM (fixed) against the ELBO with β = 10")
    assert part.effect == pytest.approx(-0.01, abs=1e-6)
    assert "after epoch 3; lower at 3 of 3 evaluations" in part.note
    assert found.sentence.startswith("airline (10 of 10 hold): log-loss DLM")
    assert "lower at 3 of 3 evaluations" in found.sentence and "ends 0.0100 ± " in found.sentence


def test_c7_figures_by_hand() -> None:
    """The rows of both repeats, whose means are averaged, where the repeats agree."""
    halves = [_airline(BETTER, ELBO, repeats=1, repeat=repeat) for repeat in range(2)]
    records = [*halves[0], *halves[1]]
    losses = [[r.arrays["losses"][-1].astype(np.float64) for r in half[:2]] for half in halves]
    # The ELBO, then joint DLM.
    rows = [dlm - elbo for elbo, dlm in losses]
    part = _part(
        _judge("C7", records), "β = 0.1: log-loss DLM (joint) against the ELBO with β = 0.1"
    )
    mean = (rows[0].mean() + rows[1].mean()) / 2
    error = math.hypot(stats.sem(rows[0]), stats.sem(rows[1])) / 2
    assert part.effect == pytest.approx(mean) and part.error == pytest.approx(error)
    assert part.p_value == pytest.approx(2 * stats.norm.sf(abs(mean) / error))


def test_c7_repeats_that_vary_more_than_rows_explain_are_what_is_tested() -> None:
    """Training is noisy: the repeats differ by 0.004, the rows' error is a tenth of that."""
    lucky = _airline([x - 0.002 for x in BETTER], ELBO, repeats=1, repeat=0)
    unlucky = _airline([x + 0.002 for x in BETTER], ELBO, repeats=1, repeat=1)
    part = _part(_judge("C7", lucky, unlucky), "β = 1: log-loss DLM (joint)")
    assert part.effect == pytest.approx(-0.01, abs=1e-6) and part.error == pytest.approx(0.002)
    t = 0.01 / (0.002 * math.sqrt(2) * math.sqrt(1 / 2 + 400 / 1600))
    assert part.p_value == pytest.approx(2 * stats.t.sf(t, 1)) and "2 repeats" in part.note
    assert part.verdict == "not decided" and "--repeats" in part.remedy


def test_one_repeat_decides_nothing() -> None:
    found = _judge("C7", _airline(BETTER, ELBO, repeats=1))
    assert found.verdict == "not decided"
    part = _part(found, "β = 1: log-loss DLM (joint)")
    assert part.effect == pytest.approx(-0.01, abs=1e-6) and 0 < part.error < 0.002
    assert math.isnan(part.p_value) and part.remedy == "Two repeats or more would decide it."


def test_c7_rows_whose_losses_were_not_kept_count_too() -> None:
    """The mean is that of all rows, as the figures have it; the error is that of as many."""
    whole = _airline(BETTER, ELBO)
    name = "β = 1: log-loss DLM (joint)"
    few = [
        Record(r.cell, r.outcome, r.circumstances, {"losses": r.arrays["losses"][:, :100]})
        for r in whole
    ]
    of_all, of_few = (_part(_judge("C7", records), name) for records in (whole, few))
    assert of_few.effect == pytest.approx(of_all.effect, abs=1e-6)
    assert of_few.error == pytest.approx(of_all.error, rel=0.3)
    assert "800 test rows, standard error from 200 of them" in of_few.note


def test_c7_a_row_that_was_not_kept_may_be_infinite() -> None:
    few = [
        Record(r.cell, r.outcome, r.circumstances, {"losses": r.arrays["losses"][:, :100]})
        for r in _airline((*BETTER[:3], math.inf), ELBO)
    ]
    for each in few:
        each.arrays["losses"][~np.isfinite(each.arrays["losses"])] = 0.5
    part = _part(_judge("C7", few), "β = 1: log-loss DLM (joint)")
    # In both repeats.
    assert part.effect == math.inf and part.verdict == "not held"


@pytest.mark.parametrize(
    ("dlm", "verdict"),
    [
        # Worse at the start only: that is before the first epoch.
        ((0.9, 0.59, 0.58, 0.573), "held"),
        # Clearly worse in the middle.
        ((0.7, 0.59, 0.60, 0.573), "not held"),
        # A little worse in the middle, which may be chance.
        ((0.7, 0.59, 0.5905, 0.573), "not decided"),
        # Significant by itself (p = 0.03), but not among three looks.
        ((0.7, 0.59, 0.5911, 0.573), "not decided"),
        # Better everywhere, but not surely at the end.
        ((0.7, 0.59, 0.58, 0.5829), "not decided"),
        ((0.7, 0.59, 0.58, math.nan), "not decided"),
    ],
)
def test_c7_at_every_epoch(dlm: Sequence[float], verdict: Verdict) -> None:
    one = curve_cell("airline", beta=1.0)
    replaced = _repeated(one, [0.573 if math.isnan(x) else x for x in dlm], 2)
    if math.isnan(dlm[-1]):
        # One row of the last look is certain of what did not come.
        replaced[0].arrays["losses"][-1, 7] = math.inf
    assert _judge("C7", _without(one), replaced).verdict == verdict


def _without(one: CurveCell) -> list[PaperRecord]:
    """Curves that support C7, except those of a cell in both repeats."""
    return [r for r in _airline(BETTER, ELBO) if r.cell.replace(repeat=0) != one]


def test_c7_a_curve_that_ended_early_has_lost() -> None:
    one = curve_cell("airline", beta=1.0)
    short = [curve(one.replace(repeat=i), BETTER[:2], looks=(0, 10)) for i in range(2)]
    found = _judge("C7", _without(one), short)
    assert found.verdict == "not held"
    assert _part(found, "β = 1: log-loss DLM (joint)").effect == math.inf


def test_c7_looks_that_one_curve_alone_has_do_not_count() -> None:
    """A run that broke off is looked at where it stood; others were not, and go on."""
    one = curve_cell("airline", objective="elbo", beta=1.0)
    broken = [curve(one.replace(repeat=i), (0.7, 0.6, 0.59), looks=(0, 10, 13)) for i in range(2)]
    found = _judge("C7", _without(one), broken)
    part = _part(found, "β = 1: log-loss DLM (joint)")
    assert part.verdict == "held" and part.effect == -math.inf
    assert "lower at 3 of 3 evaluations" in part.note


def test_the_last_of_two_looks_at_one_step_counts() -> None:
    twice = [
        curve(
            curve_cell(name, rule, repeat=repeat),
            [9.9, level, 9.9, level + 0.0001 * repeat * rule.samples],
            looks=(0, 10, 30, 30),
        )
        for name in REGRESSION
        for rule, level in LEARNT.items()
        for repeat in range(3)
    ]
    assert _judge("C10", twice).verdict == "held"


def test_c7_not_run_or_too_short() -> None:
    cells = {r: r.cell for r in _airline(BETTER, ELBO) if isinstance(r.cell, CurveCell)}
    found = _judge("C7", [r for r, cell in cells.items() if cell.beta != 10.0])
    assert found.verdict == "not decided" and "Partly run: airline." in found.sentence
    assert _judge("C7").sentence == "Not run: airline."
    short = [curve(cell, (0.7, 0.6), looks=(0, 5)) for cell in cells.values()]
    assert _judge("C7", short).parts[0].note == "no evaluation after the first epoch"


def _repeated(cell: CurveCell, level: float | Sequence[float], repeats: int) -> list[PaperRecord]:
    """Curves whose repeats differ a little, each kind in its own way, and not in their mean."""
    seed = sum(map(ord, f"{cell.title} {cell.beta} {cell.objective}"))
    own = np.zeros(1)
    if repeats > 1:
        own = 0.0002 * stats.zscore(np.random.default_rng(seed).normal(size=repeats))
    found = []
    for repeat, shift in enumerate(own.tolist(), cell.repeat):
        levels = level + shift if isinstance(level, float) else [x + shift for x in level]
        found.append(curve(cell.replace(repeat=repeat), levels))
    return found


def _sampled(
    levels: dict[RuleFacts, float], dataset: str, repeats: int = 3, **changes: Any
) -> list[PaperRecord]:
    return [
        each
        for rule, level in levels.items()
        for each in _repeated(curve_cell(dataset, rule, **changes), level, repeats)
    ]


RECOVERED = {EXACT: 0.573, UPS[10]: 0.5735, BMC[100]: 0.5725, UPS[1]: 0.576, BMC[10]: 0.58}


def test_c9_held() -> None:
    found = _judge("C9", _sampled(RECOVERED, "airline"))
    assert found.verdict == "held" and sum(part.decides for part in found.parts) == 3
    part = _part(found, "uPS-10 against exact")
    assert part.effect == pytest.approx(0.0005, abs=1e-6) and "margin 0.002" in part.note
    assert not _part(found, "bMC-10 against exact").decides


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({UPS[10]: 0.58}, "not held"),
        ({BMC[100]: 0.56}, "not held"),
        ({UPS[10]: 0.575}, "not decided"),
        ({UPS[1]: 0.59}, "not held"),
        ({UPS[1]: 0.58}, "no difference"),
    ],
)
def test_c9_otherwise(changed: dict[RuleFacts, float], verdict: Verdict) -> None:
    assert _judge("C9", _sampled({**RECOVERED, **changed}, "airline")).verdict == verdict


def test_c9_other_betas_and_ours_are_told_beside() -> None:
    main = _sampled({**RECOVERED, _rule("ups-mixed", 1): 0.9}, "airline")
    other = _sampled({**RECOVERED, UPS[10]: 0.9}, "airline", beta=10.0)
    found = _judge("C9", main, other)
    assert found.verdict == "held"
    assert _part(found, "uPS (ours)-1 against exact").verdict == "not held"
    assert _part(found, "β = 10,", "uPS-10 against exact").verdict == "not held"
    assert _judge("C9", other).verdict == "not decided"


LEARNT = {EXACT: 0.1, BMC[10]: 0.12, BMC[100]: 0.1, BMC[1]: 0.4}


def _regression(
    levels: dict[RuleFacts, float], repeats: int = 1, jitter: float = 0.0
) -> list[PaperRecord]:
    random = np.random.default_rng(5)
    return [
        curve(curve_cell(name, rule, repeat=repeat), level + jitter * float(random.normal()))
        for name in REGRESSION
        for repeat in range(repeats)
        for rule, level in levels.items()
    ]


def test_c10_over_repeats() -> None:
    found = _judge("C10", _regression(LEARNT, 4, jitter=0.001))
    assert found.verdict == "held" and len(found.parts) == 20
    assert all("4 repeats" in part.note for part in found.parts)
    assert _judge("C10", _regression(LEARNT, 1)).verdict == "not decided"


def test_c10_figures_by_hand() -> None:
    records = _regression(LEARNT, 4, jitter=0.01)
    nll = {
        (r.cell.rule, r.cell.repeat): r.outcome.points[-1].scores["nll"]
        for r in records
        if isinstance(r.cell, CurveCell)
        and isinstance(r.outcome, CurveOutcome)
        and r.cell.dataset == "song"
    }
    d = np.array([nll[BMC[10], i] - nll[EXACT, i] for i in range(4)])
    part = _part(_judge("C10", records), "song", "bMC-10 against exact")
    t = d.mean() / (d.std(ddof=1) * math.sqrt(1 / 4 + 400 / 1600))
    assert part.effect == pytest.approx(d.mean()) and part.error == pytest.approx(stats.sem(d))
    assert part.p_value == pytest.approx(2 * stats.t.sf(abs(t), 3))


def test_c10_two_repeats_that_disagree() -> None:
    """Rows alone would be sure; the repeats are not."""
    found = _judge("C10", _regression(LEARNT, 2, jitter=0.2))
    assert found.verdict == "not decided"


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({BMC[10]: 0.2}, "not held"),
        ({BMC[1]: 0.11}, "not held"),
        ({BMC[10]: 0.15}, "not decided"),
        ({BMC[1]: math.inf}, "held"),
        ({BMC[100]: math.nan}, "not held"),
    ],
)
def test_c10_otherwise(changed: dict[RuleFacts, float], verdict: Verdict) -> None:
    assert _judge("C10", _regression({**LEARNT, **changed}, 3, jitter=0.001)).verdict == verdict


def test_c9_unwhitened_is_a_reading_of_its_own() -> None:
    records = _sampled(RECOVERED, "airline", whitened=False)
    assert _judge("C9", records, reading="unwhitened").verdict == "held"
    assert _judge("C9", records).verdict == "not decided"
    wrong = _sampled({**RECOVERED, UPS[1]: 0.59}, "airline", whitened=False)
    both = [*_sampled(RECOVERED, "airline"), *wrong]
    assert _judge("C9", both).verdict == "held"
    assert _judge("C9", both, reading="unwhitened").verdict == "not held"


@pytest.mark.parametrize(("fall", "verdict"), [(0.04, "held"), (0.2, "not decided")])
def test_curves_that_still_move_decide_nothing(fall: float, verdict: Verdict) -> None:
    """All fall by the same in the last fifth: their differences are those of the claim."""
    looks = list(range(0, 100, 10))
    moving = [
        curve(
            curve_cell(name, rule, repeat=repeat),
            [level + 0.001 * repeat + fall * (look < 80) for look in looks],
            looks=looks,
        )
        for name in REGRESSION
        for rule, level in LEARNT.items()
        for repeat in range(3)
    ]
    found = _judge("C10", moving)
    assert found.verdict == verdict
    part = _part(found, "pol", "bMC-100 against exact")
    assert ("not converged" in part.note) == (verdict != "held")
    assert ("--max-steps" in part.remedy) == (verdict != "held")


def test_c10_only_beta_of_the_claim() -> None:
    found = _judge("C10", *[_sampled(LEARNT, name, beta=1.0) for name in REGRESSION])
    assert found.sentence == "Not run: pol, cadata, sarcos and song."


SAME = {**{BMC[n]: 2.2 for n in BMC}, **{SMOOTH[n]: 2.201 for n in SMOOTH}}


def test_c11_held_on_counts_and_on_airline() -> None:
    counts = [_sampled(SAME, name) for name in ("abalone", "peds1")]
    found = _judge("C11", *counts)
    assert found.verdict == "held" and len(found.parts) == 6
    airline = {BMC[10]: 0.58, SMOOTH[10]: 0.5805}
    assert _judge("C11", *counts, _sampled(airline, "airline")).verdict == "held"
    # The margin is narrower there.
    off = {BMC[10]: 0.58, SMOOTH[10]: 0.585}
    assert _judge("C11", *counts, _sampled(off, "airline")).verdict == "not held"


def test_c11_otherwise() -> None:
    abalone = _sampled(SAME, "abalone")
    off = _sampled({**SAME, SMOOTH[1]: 2.3}, "peds1")
    found = _judge("C11", abalone, off)
    assert found.verdict == "not held"
    assert "peds1 (2 of 3 hold): smooth-bMC-1 0.1" in found.sentence
    assert "above bMC-1 (margin 0.01 exceeded)" in found.sentence
    assert _judge("C11", abalone).verdict == "not decided"


def test_c11_pairs_equal_settings_only() -> None:
    smooth = {SMOOTH[n]: 2.2 for n in SMOOTH}
    plain = {BMC[n]: 2.2 for n in BMC}
    apart = [
        _sampled(smooth, "abalone", learning_rate=0.1),
        _sampled(plain, "abalone", learning_rate=0.01),
    ]
    assert {part.note for part in _judge("C11", *apart).parts} == {"not run"}
    both = [_sampled({**smooth, **plain}, name, learning_rate=0.1) for name in ("abalone", "peds1")]
    slow = [_sampled({**smooth, **plain}, name) for name in ("abalone", "peds1")]
    found = _judge("C11", *both, *slow)
    assert found.verdict == "held" and len(found.parts) == 12


def test_c11_needs_the_papers_beta() -> None:
    """Other values of β do not take its place."""
    counts = [_sampled(SAME, name, beta=beta) for name in ("abalone", "peds1") for beta in (1, 10)]
    found = _judge("C11", *counts)
    assert found.verdict == "not decided"
    missing = [part for part in found.parts if part.note == "not run"]
    assert len(missing) == 6 and all("β = 0.1" in part.what for part in missing)


def test_c11_asks_for_the_samples_that_the_sweep_has() -> None:
    few = {BMC[1]: 2.2, SMOOTH[1]: 2.2}
    counts = [each for name in ("abalone", "peds1") for each in _sampled(few, name)]
    assert _judge("C11", counts).verdict == "held"
    missing = (curve_cell("abalone", SMOOTH[10]),)
    found = judge("C11", Results(tuple(counts), missing=missing))
    assert found.verdict == "not decided"
    assert _part(found, "smooth-bMC-10 against bMC-10").note == "not run"


EVEN = {BMC[1]: 2.2, BMC[10]: 2.2, UPS[1]: 2.199, UPS[10]: 2.201}


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [({}, "held"), ({UPS[1]: 2.25}, "not held"), ({UPS[10]: 2.21}, "not decided")],
)
def test_c12_verdicts(changed: dict[RuleFacts, float], verdict: Verdict) -> None:
    counts = [_sampled({**EVEN, **changed}, name) for name in ("abalone", "peds1_dir1")]
    assert _judge("C12", *counts).verdict == verdict


def test_c12_has_a_learning_rate() -> None:
    counts = [_sampled(EVEN, name, learning_rate=0.1) for name in ("abalone", "peds1")]
    assert _judge("C12", *counts).sentence == "Not run: abalone and peds1."


def test_c12_ours_is_told_beside() -> None:
    ours = {**EVEN, _rule("ups-mixed", 1): 1.9}
    found = _judge("C12", *[_sampled(ours, name) for name in ("abalone", "peds1")])
    assert found.verdict == "held"
    assert _part(found, "peds1", "uPS (ours)-1 against bMC-1").verdict == "not held"

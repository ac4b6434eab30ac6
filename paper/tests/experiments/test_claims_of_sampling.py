"""C8, C13 and C14, on studies of samples whose verdict is known by construction."""

import itertools
import math
from typing import Any

import pytest

from directgp.experiments.cell import Record
from directgp.text import number
from directgp_paper.experiments.cells import Measured, PaperRecord, SamplerPoint, rules
from directgp_paper.experiments.claims.base import Finding, Part, Verdict
from paper.tests.experiments.made_up import (
    curve,
    curve_cell,
    gradients,
    judge,
    look,
    results,
    samplers,
)

BIASES = {
    ("bmc", 1): 4.0,
    ("smooth-bmc", 1): 1.3,
    ("ups", 1): 0.0,
    ("bmc", 10): 0.07,
    ("smooth-bmc", 10): 0.065,
    ("ups", 10): -0.001,
    ("bmc", 100): 0.0003,
}


def _judge(claim: str, *records: PaperRecord, reading: str = "") -> Finding:
    return judge(claim, results(*records), reading)


def _part(finding: Finding, *words: str) -> Part:
    found = [part for part in finding.parts if all(word in part.what for word in words)]
    assert len(found) == 1, [part.what for part in finding.parts]
    return found[0]


def test_c8_held() -> None:
    found = _judge("C8", gradients(BIASES))
    assert found.verdict == "held"
    deciding = [part.what for part in found.parts if part.decides]
    assert deciding == [
        "abalone, gradient in u_mean: uPS-1 against bMC-1",
        "abalone, gradient in u_mean: uPS-10 against bMC-10",
        "abalone, gradient in u_mean: the squared bias of smooth-bMC is between those of uPS and "
        "bMC",
    ]
    assert found.parts[0].effect == pytest.approx(-4.0)
    assert found.parts[0].error == pytest.approx(0.01 * math.sqrt(2))
    assert "In the squared error of one draw, which the paper plots: uPS-1 " in found.sentence


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({("ups", 10): 0.2}, "not held"),
        ({("ups", 10): 0.05}, "not decided"),
        # Smooth-bMC beyond bMC, and beyond uPS.
        ({("smooth-bmc", 10): 0.2}, "not held"),
        ({("smooth-bmc", 1): -0.1}, "not held"),
        # Between for no number of samples.
        ({("smooth-bmc", 1): 4.0}, "not decided"),
        ({("ups", 10): math.nan}, "not decided"),
    ],
)
def test_c8_otherwise(changed: dict[tuple[str, int], float], verdict: Verdict) -> None:
    assert _judge("C8", gradients({**BIASES, **changed})).verdict == verdict


def test_c8_needs_errors_that_are_small_enough() -> None:
    assert _judge("C8", gradients(BIASES, error=3.0)).verdict == "not decided"


def test_c8_averages_over_repeats() -> None:
    lower = {**BIASES, ("ups", 1): -1.0}
    found = _judge("C8", gradients(BIASES), gradients(lower, repeat=1))
    part = found.parts[0]
    assert part.what == "abalone, gradient in u_mean: uPS-1 against bMC-1"
    assert part.unit.startswith("squared bias") and part.effect == pytest.approx(-4.5)
    assert part.error == pytest.approx(0.01 / math.sqrt(2) * math.sqrt(2))


def test_c8_not_run() -> None:
    found = _judge("C8")
    assert found.verdict == "not decided" and found.sentence == "Not run: abalone."
    without = {key: value for key, value in BIASES.items() if key[0] != "smooth-bmc"}
    assert _judge("C8", gradients(without)).verdict == "not decided"


def _all(*looks: SamplerPoint) -> list[PaperRecord]:
    return [samplers(name, looks) for name in ("abalone", "banana", "airline")]


def _proposals(value: float, error: float = 0.02) -> Measured:
    return Measured(value=value, error=error)


STRICT, WIDTH, CHEAPER = "strict", "the width has no effect", "ours is cheaper for the same error"


def test_c13_proposals_are_counted_on_airline() -> None:
    two = look(50, proposals=_proposals(1.98))
    found = _judge("C13", *_all(look(0, proposals=_proposals(30.0)), two))
    assert found.verdict == "held"
    assert found.sentence.startswith(
        "airline: the paper's sampler needs 1.98 proposals for a draw; vectorising leaves "
    )
    assert _part(found, "1.5 to 2.5 proposals").effect == pytest.approx(1.5 - 1.98)
    # Counts may need another number.
    others = [r for r in _all(two) if r.cell.dataset == "airline"]
    assert _judge("C13", *_all(look(50))[:2], *others).verdict == "held"
    assert _judge("C13", *_all(look(50))).verdict == "not held"


def test_c13_strict_counts_rejections_on_all_sets() -> None:
    records = _all(look(0, proposals=_proposals(30.0)), look(50), look(200))
    found = _judge("C13", *records, reading=STRICT)
    assert found.verdict == "held"
    assert "abalone: the paper's sampler rejects 2 draws on average" in found.sentence
    # In the middle of the range, one from either end.
    assert _part(found, "banana", "1 to 3 rejected").effect == pytest.approx(-1.0)


@pytest.mark.parametrize(
    ("value", "error", "verdict"),
    [
        (3.9, 0.02, "held"),
        (4.2, 0.02, "not held"),
        (1.5, 0.02, "not held"),
        (4.02, 0.02, "not decided"),
        (math.inf, 0.02, "not decided"),
    ],
)
def test_c13_rejections(value: float, error: float, verdict: Verdict) -> None:
    others = [r for r in _all(look()) if r.cell.dataset != "abalone"]
    own = samplers("abalone", [look(proposals=_proposals(value, error))])
    found = _judge("C13", own, *others, reading=STRICT)
    assert _part(found, "abalone", "1 to 3 rejected").verdict == verdict
    side = {4.2: ", more than", 1.5: ", fewer than"}.get(value, "")
    assert (f'{side} the paper\'s "approximately 2"' in found.sentence) == bool(side)
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("times", "verdict"),
    [((0.5, 0.6), "held"), ((0.7, 0.9), "not held"), ((0.5, 0.7), "not decided")],
)
def test_c13_time_of_vectors(times: tuple[float, float], verdict: Verdict) -> None:
    looks = [look(100 * i, vectorised_seconds=t) for i, t in enumerate(times, 1)]
    found = _judge("C13", *_all(*looks), reading=STRICT)
    assert found.verdict == verdict
    part = _part(found, "abalone", "vectorising")
    assert part.effect == pytest.approx(sum(times) / 2 - 0.6) and math.isnan(part.error)


@pytest.mark.parametrize(
    ("narrow", "error", "verdict"),
    [
        (3.05, 0.02, "held"),
        # Significant, but less than 5 %; more than 5 %, but not significant; both.
        (3.10, 0.01, "not decided"),
        (3.30, 0.20, "not decided"),
        (3.30, 0.02, "not held"),
    ],
)
def test_c13_width(narrow: float, error: float, verdict: Verdict) -> None:
    both = {"proposals": _proposals(3.0, error), "proposals_narrow": _proposals(narrow, error)}
    found = _judge("C13", *_all(look(100), look(200, **both)), reading=WIDTH)
    assert _part(found, "banana", "width").verdict == verdict and found.verdict == verdict


def test_c13_looks_before_the_claim_do_not_count() -> None:
    found = _judge("C13", *_all(look(0), look(49)), reading=STRICT)
    assert found.verdict == "not decided"
    assert found.sentence == "Not run: abalone, banana and airline."


def _timed(
    rule: str, seconds: float, samples: int, machine: str = "one", repeats: int = 4
) -> list[PaperRecord]:
    """Curves of both count sets that reach their end at half of their time."""
    (facts,) = rules(rule, samples)
    found: list[PaperRecord] = []
    for dataset, repeat in itertools.product(("abalone", "peds1"), range(repeats)):
        steps = list(range(0, 101, 10))
        cell = curve_cell(dataset, facts, repeat=repeat, steps=100)
        levels = [2.5 if step < 50 else 2.2 for step in steps]
        made = curve(cell, levels, looks=steps)
        # Repeats differ by a tenth.
        times = [seconds * (1 + 0.1 * repeat) * step / 50 for step in steps]
        outcome: Any = made.outcome
        points = [
            point.model_copy(update={"seconds": each})
            for point, each in zip(outcome.points, times, strict=True)
        ]
        changed = outcome.model_copy(update={"points": tuple(points)})
        where = made.circumstances.model_copy(update={"machine": machine})
        found.append(Record(cell, changed, where, made.arrays))
    return found


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [(40.0, "held"), (11.0, "no difference"), (5.0, "not held")],
)
def test_c14_compares_times_to_converge(seconds: float, verdict: Verdict) -> None:
    found = _judge("C14", *_timed("ups-paper", seconds, 10), *_timed("bmc", 10.0, 10))
    assert found.verdict == verdict
    part = _part(found, "abalone")
    assert part.effect == pytest.approx(math.log10(seconds / 10.0))
    times = {40.0: "4", 11.0: "1.1", 5.0: "0.5"}[seconds]
    assert f"takes {times} times as long as bMC-10 to converge" in part.clause
    assert f"medians {number(1.15 * seconds, 2)} s and 12 s" in part.note


def test_c14_times_of_different_machines_are_not_compared() -> None:
    ours = _timed("ups-paper", 40.0, 10, machine="other")
    found = _judge("C14", *ours, *_timed("bmc", 10.0, 10))
    assert found.verdict == "not decided"
    assert {part.note for part in found.parts} == {"on different machines"}


def test_c14_ours_is_judged_apart() -> None:
    records = [*_timed("ups-mixed", 12.0, 1), *_timed("bmc", 10.0, 10)]
    assert _judge("C14", *records, reading="ours is not much slower").verdict == "held"
    slow = [*_timed("ups-mixed", 50.0, 1), *_timed("bmc", 10.0, 10)]
    assert _judge("C14", *slow, reading="ours is not much slower").verdict == "not held"
    assert _judge("C14", *records).verdict == "not decided"


def test_c14_our_gradients_are_cheaper() -> None:
    records = _all(look(0, our_ups_seconds=1.0), look(100), look(200))
    found = _judge("C14", *records, reading=CHEAPER)
    assert found.verdict == "held"
    # 3 times the time and a fiftieth of the error.
    assert "ours takes 0.06 times as long as bMC for the same squared error" in found.sentence
    assert _part(found, "banana", "our uPS").effect == pytest.approx(0.06 - 1)
    assert _part(found, "banana", "a gradient of the paper's uPS").note.startswith("10 at 2")


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"our_ups_error": 0.4}, "not held"),
        ({"our_ups_seconds": 0.06}, "not held"),
        ({"our_ups_error": math.nan}, "not held"),
        ({"bmc_error": 5.0}, "held"),
    ],
)
def test_c14_cost_otherwise(changes: dict[str, float], verdict: Verdict) -> None:
    found = _judge("C14", *_all(look(100, **changes)), reading=CHEAPER)
    assert found.verdict == verdict


def test_c14_looks_that_disagree_decide_nothing() -> None:
    records = _all(look(100), look(200, our_ups_error=0.4))
    found = _judge("C14", *records, reading=CHEAPER)
    assert found.verdict == "not decided" and "evaluations disagree" in found.sentence
    assert "A study with other draws may decide it" in found.parts[0].remedy


def test_c14_error_over_repeats_and_missing_data() -> None:
    slower = samplers("abalone", [look(100, our_ups_seconds=0.006)], repeat=1)
    found = _judge("C14", samplers("abalone", [look(100)]), slower, reading=CHEAPER)
    part = _part(found, "abalone", "our uPS")
    # 0.06 and 0.12 times, where 1 is claimed.
    assert part.effect == pytest.approx(0.09 - 1) and part.error == pytest.approx(0.03)
    assert found.verdict == "not decided" and "Not run: banana and airline." in found.sentence


def test_c14_tiny_ratios_are_told_as_such() -> None:
    found = _judge("C14", *_all(look(100, our_ups_error=1e-9)), reading=CHEAPER)
    assert "ours takes less than 0.0001 times as long as bMC" in found.sentence


def test_c14_the_papers_trade_off_is_told_beside() -> None:
    costly, cheap = look(100, paper_ups_error=5.0), look(100, paper_ups_error=1e-6)
    for each, verdict in ((costly, "held"), (cheap, "not held")):
        found = _judge("C14", *_all(each), reading=CHEAPER)
        part = _part(found, "banana", "at equal squared error the paper's uPS")
        assert found.verdict == "held" and part.verdict == verdict and not part.decides

"""C8, C13 and C14, on studies of samples whose verdict is known by construction."""

import math
from typing import Any

import pytest

from directgp.experiments.paper.cells import Measured, PaperRecord, SamplerPoint
from directgp.experiments.paper.claims import CLAIMS
from directgp.experiments.paper.claims.base import Finding, Part, Verdict
from tests.unit.experiments.paper.made_up import gradients, look, results, samplers

BIASES = {
    ("bmc", 1): 4.0,
    ("smooth-bmc", 1): 1.3,
    ("ups", 1): 0.0,
    ("bmc", 10): 0.07,
    ("smooth-bmc", 10): 0.065,
    ("ups", 10): -0.001,
    ("bmc", 100): 0.0003,
}


def _judge(claim: str, *records: PaperRecord) -> Finding:
    return CLAIMS[claim].judge(results(*records))


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


def _both(*looks: SamplerPoint) -> list[PaperRecord]:
    return [samplers(name, looks) for name in ("abalone", "banana")]


def _proposals(value: float, error: float = 0.02) -> Measured:
    return Measured(value=value, error=error)


def test_c13_held() -> None:
    found = _judge("C13", *_both(look(0, proposals=_proposals(30.0)), look(50), look(200)))
    assert found.verdict == "held"
    assert found.sentence.startswith(
        "abalone: the paper's sampler rejects 2 draws on average; vectorising leaves "
    )
    assert "its width changes the number of proposals by −0.010 ± 0.020. banana: " in found.sentence
    part = _part(found, "banana", "rejects 1 to 3 draws")
    # In the middle of the range, one from either end.
    assert part.effect == pytest.approx(-1.0)


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
    same: dict[str, Any] = {
        "proposals": _proposals(value, error),
        "proposals_narrow": _proposals(value, error),
    }
    found = _judge("C13", samplers("abalone", [look(**same)]), samplers("banana", [look()]))
    assert _part(found, "abalone", "rejects 1 to 3 draws").verdict == verdict
    side = {4.2: ", more than", 1.5: ", fewer than"}.get(value, "")
    assert (f'{side} the paper\'s "approximately 2"' in found.sentence) == bool(side)
    if math.isfinite(value):
        assert found.verdict == verdict


@pytest.mark.parametrize(
    ("times", "verdict"),
    [((0.5, 0.6), "held"), ((0.7, 0.9), "not held"), ((0.5, 0.7), "not decided")],
)
def test_c13_time_of_vectors(times: tuple[float, float], verdict: Verdict) -> None:
    looks = [look(100 * i, vectorised_seconds=t) for i, t in enumerate(times, 1)]
    found = _judge("C13", *_both(*looks))
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
    looks = [look(100), look(200, proposals=_proposals(3.0, error))]
    looks[1] = look(
        200, proposals=_proposals(3.0, error), proposals_narrow=_proposals(narrow, error)
    )
    found = _judge("C13", *_both(*looks))
    assert _part(found, "banana", "width").verdict == verdict and found.verdict == verdict


def test_c13_looks_before_the_claim_do_not_count() -> None:
    found = _judge("C13", *_both(look(0), look(49)))
    assert found.verdict == "not decided" and found.sentence == "Not run: abalone and banana."


def test_c14_held() -> None:
    found = _judge("C14", *_both(look(0, paper_ups_seconds=0.0), look(100), look(200)))
    assert found.verdict == "held"
    assert found.sentence.startswith("abalone: the paper's uPS takes 10 times as long as bMC")
    # 3 times the time and a fiftieth of the error.
    assert "; ours takes 0.06 times as long as bMC for the same squared error." in found.sentence
    assert _part(found, "banana", "our uPS").effect == pytest.approx(0.06 - 1)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"paper_ups_seconds": 0.002}, "not held"),
        ({"our_ups_error": 0.4}, "not held"),
        ({"our_ups_seconds": 0.06}, "not held"),
        ({"our_ups_error": math.nan}, "not held"),
        ({"bmc_error": 5.0}, "held"),
    ],
)
def test_c14_otherwise(changes: dict[str, float], verdict: Verdict) -> None:
    assert _judge("C14", *_both(look(100, **changes))).verdict == verdict


def test_c14_looks_that_disagree_decide_nothing() -> None:
    found = _judge("C14", *_both(look(100), look(200, paper_ups_seconds=0.002)))
    assert found.verdict == "not decided"
    assert "takes 2 to 10 times as long" in found.sentence


def test_c14_error_over_repeats_and_missing_data() -> None:
    slower = samplers("abalone", [look(100, paper_ups_seconds=0.02)], repeat=1)
    found = _judge("C14", samplers("abalone", [look(100)]), slower)
    part = _part(found, "abalone", "the paper's uPS takes at least")
    # 10 and 20 times, where 3 are claimed.
    assert part.effect == pytest.approx(3 - 15) and part.error == pytest.approx(5.0)
    assert found.verdict == "not decided" and "Not run: banana." in found.sentence


def test_c14_tiny_ratios_are_told_as_such() -> None:
    found = _judge("C14", *_both(look(100, our_ups_error=1e-9)))
    assert "ours takes less than 0.0001 times as long as bMC" in found.sentence


def test_c14_the_papers_trade_off_is_told_beside() -> None:
    costly, cheap = look(100, paper_ups_error=5.0), look(100, paper_ups_error=1e-6)
    for each, verdict in ((costly, "held"), (cheap, "not held")):
        found = _judge("C14", *_both(each))
        part = _part(found, "banana", "at equal squared error the paper's uPS")
        assert found.verdict == "held" and part.verdict == verdict and not part.decides

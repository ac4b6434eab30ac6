"""Paths of candidates: members, the loss of the result, units and files."""

import json
import math
from dataclasses import replace

import pytest

from directgp.training.result import BetaPath, Failure, PathPoint


def point(label: str, weight: float | None, loss: float, beta: float = 1.0) -> PathPoint:
    return PathPoint(beta, "joint", None, loss, 0.1, 0.2, 0.05, label=label, weight=weight)


RACE = BetaPath(
    points=(point("a", 0.2, 1.0), point("b", 0.0, 0.9), point("c", 0.8, 1.1)),
    chosen=2,
    loss="log_loss",
    seconds=3.0,
    failed=(Failure(0.5, "joint", "Not finite.", "rbf, gaussian, joint, β = 0.5"),),
    validation="40 examples",
    grid=(10.0, 1.0),
    mixture_loss=0.8,
    mixture_error=0.07,
    decisions=("Kept: c.",),
)
ALONE = BetaPath((point("", None, 1.0), point("", None, 0.9, 0.1)), 1, "log_loss", 1.0)


def test_members_are_the_candidates_with_weight_the_heaviest_first() -> None:
    assert [member.label for member in RACE.members] == ["c", "a"]
    assert ALONE.members == ALONE.points[1:]


def test_the_loss_of_the_result_is_that_of_the_mixture_if_there_is_one() -> None:
    assert RACE.validated == (0.8, 0.07)
    assert ALONE.validated == (0.9, 0.1)


@pytest.mark.parametrize(
    ("loss", "factor", "shift"), [("log_loss", 1.0, math.log(3.0)), ("square_loss", 9.0, 0.0)]
)
def test_the_loss_of_a_mixture_has_the_units_of_the_targets(
    loss: str, factor: float, shift: float
) -> None:
    scaled = replace(RACE, loss=loss).in_units(3.0)
    assert scaled.mixture_loss == pytest.approx(factor * 0.8 + shift)
    assert scaled.mixture_error == pytest.approx(factor * 0.07)
    assert [each.weight for each in scaled.points] == [0.2, 0.0, 0.8]


@pytest.mark.parametrize("path", [RACE, ALONE])
def test_a_path_is_read_as_it_was_written(path: BetaPath) -> None:
    assert BetaPath.from_json(json.loads(json.dumps(path.to_json()))) == path


def test_a_path_of_an_earlier_version_is_read_without_its_models() -> None:
    plain = ALONE.to_json()
    for name in ("mixture_loss", "mixture_error", "decisions"):
        del plain[name]
    plain |= {
        "models": [{"name": "rbf, gaussian", "evidence": -1.0, "loss": None, "chosen": True}],
        "replaced": "rbf, student_t, joint, β = 0.5",
        "failed": ["joint, β = 0.5: Not finite."],
    }
    path = BetaPath.from_json(plain)
    assert path.points == ALONE.points
    assert path.failed == (Failure(0.5, "joint", "Not finite."),)


def test_a_failure_is_named_by_its_candidate() -> None:
    assert str(RACE.failed[0]) == "rbf, gaussian, joint, β = 0.5: Not finite."
    assert str(Failure(0.5, "fixed", "Not finite.")) == "fixed, β = 0.5: Not finite."

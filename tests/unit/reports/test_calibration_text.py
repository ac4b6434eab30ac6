from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from directgp.experiments.plan import Comparison
from directgp.plots.calibration import reliability
from directgp.reports.verdict import Findings, calibration
from tests.unit.reports.made import Recipe, comparison

ONE = comparison(Recipe(task="classification", repeats=1, methods=("elbo",)))
FIVE = comparison(Recipe(task="classification", repeats=5, methods=("elbo",)))
WRONG = "not calibrated"
TIMES = 200

Array = NDArray[np.float64]


def words(made: Comparison, told: list[tuple[Array, Array]], num_rows: int = 10**6) -> str:
    """Of labels and the probabilities that were given to them, repeat by repeat."""
    runs = [
        replace(run, predictions=replace(run.predictions, **_rows(*each)))
        for run, each in zip(made.runs, told, strict=True)
    ]
    data = made.plan.data.model_copy(update={"num_rows": num_rows})
    findings = Findings(replace(made, runs=tuple(runs), plan=replace(made.plan, data=data)))
    return calibration(findings, findings.ranking[0])


def _rows(ones: Array, p: Array) -> dict[str, Array]:
    zero = np.zeros(len(p))
    return {
        "actual": ones,
        "mean": p,
        "lower": zero,
        "upper": zero + 1,
        "below": zero,
        "up_to": zero + 1,
    }


def drawn(random: np.random.Generator, p: Array) -> Array:
    return (random.random(len(p)) < p).astype(np.float64)


@pytest.mark.parametrize("rows", [30, 150, 300, 700])
@pytest.mark.parametrize("shape", [(1.0, 1.0), (0.3, 0.3), (0.5, 5.0)])
def test_right_probabilities_are_believed(rows: int, shape: tuple[float, float]) -> None:
    random = np.random.default_rng([7, rows])
    wrong = 0
    for _ in range(TIMES):
        p = random.beta(*shape, rows)
        wrong += WRONG in words(ONE, [(drawn(random, p), p)])
    assert wrong <= 0.06 * TIMES


def test_right_probabilities_are_believed_where_repeats_share_rows() -> None:
    random, table = np.random.default_rng(8), 280
    wrong = 0
    for _ in range(TIMES):
        p = random.random(table)
        ones = drawn(random, p)
        repeats = [random.permutation(table)[: table // 2] for _ in range(5)]
        wrong += WRONG in words(FIVE, [(ones[each], p[each]) for each in repeats], table)
    assert wrong <= 0.06 * TIMES


@pytest.mark.parametrize(("rows", "least"), [(150, 0.7), (700, 1.0)])
def test_wrong_probabilities_are_not(rows: int, least: float) -> None:
    random = np.random.default_rng([9, rows])
    found = 0
    for _ in range(TIMES):
        p = random.random(rows)
        sure = p**3 / (p**3 + (1 - p) ** 3)
        found += WRONG in words(ONE, [(drawn(random, p), sure)])
    assert found >= least * TIMES


def test_what_few_rows_can_show_is_said() -> None:
    random = np.random.default_rng(10)
    p = random.random(100)
    assert "are as near the observed shares as so few rows can show, off by " in words(
        ONE, [(drawn(random, p), p)]
    )
    p = random.random(100_000)
    assert "are near the observed shares, off by " in words(ONE, [(drawn(random, p), p)])


def test_the_error_by_chance_is_what_chance_gives() -> None:
    random = np.random.default_rng(11)
    p = random.random(500)
    errors = [reliability(drawn(random, p), p).expected_error for _ in range(1000)]
    limit = reliability(drawn(random, p), p).error_by_chance()
    assert limit == pytest.approx(np.mean(errors) + 2 * np.std(errors), rel=0.05)

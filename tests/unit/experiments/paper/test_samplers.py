"""The study of samplers during training."""

from typing import Any

import pytest
import torch

import directgp
from directgp.datasets.problem import Task
from directgp.diagnostics import compare_gradients
from directgp.experiments.fit import ScaledRows
from directgp.experiments.paper import studies
from directgp.experiments.paper.cells import SamplerCell, SamplerOutcome
from directgp.experiments.paper.fits import paper_model
from directgp.experiments.paper.studies import run_samplers
from directgp.log_expectations import BiasedMonteCarlo, ProductSampling
from tests.unit.experiments.paper.test_gradients import rows

pytestmark = pytest.mark.usefixtures("without_shape_checks")


@pytest.fixture(autouse=True)
def brief_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "_SWEEPS", 2)
    monkeypatch.setattr(studies, "_GRADIENTS", 1)
    monkeypatch.setattr(studies, "_LOOP_WORK", 100)
    monkeypatch.setattr(studies, "_MIN_EXAMPLES", 5)


def a_cell(**changes: Any) -> SamplerCell:
    cell = SamplerCell(
        dataset="small",
        data="",
        task="count",
        size=40,
        num_inducing=6,
        repeat=0,
        seed=1,
        looks=(0, 15),
        samples=4,
        beta=0.1,
        learning_rate=0.1,
    )
    return cell.replace(**changes)


def plain(outcome: SamplerOutcome) -> list[dict[str, Any]]:
    looks = [look.model_dump() for look in outcome.looks]
    timed = [name for name in looks[0] if name.endswith("seconds")]
    assert len(timed) == 5 and all(look.pop(name) >= 0 for look in looks for name in timed)
    return looks


@pytest.mark.parametrize("task", ["regression", "classification", "count"])
def test_the_paper_s_sampler_does_as_theory_says_at_every_look(task: Task) -> None:
    outcome = run_samplers(a_cell(task=task), rows(task)).outcome
    assert [look.step for look in outcome.looks] == [0, 15] and outcome.samples == 4
    for look in outcome.looks:
        for seen in (look.proposals, look.proposals_narrow):
            assert seen.value == pytest.approx(look.expected_proposals, abs=4 * seen.error)
        assert 1 <= look.proposals_ours.value < 1.2
        assert look.our_ups_error < look.paper_ups_error


def test_looks_are_at_the_trained_model() -> None:
    cell, data = a_cell(), rows()
    X, y = ScaledRows.of(data, "count").train
    start = paper_model(cell, X, y)
    result = directgp.train(
        start.posterior,
        start.likelihood,
        X,
        y,
        beta=0.1,
        start="scratch",
        optimizer="adam",
        learning_rate=0.1,
        max_steps=15,
    )
    looks = run_samplers(cell, data).outcome.looks
    for look, posterior in zip(looks, (start.posterior, result.posterior), strict=True):
        q = posterior.predict(X)
        log_z = directgp.log_expectation(start.likelihood, y, q.mean, q.variance)
        log_peak = torch.xlogy(y, y) - y - torch.lgamma(y + 1)
        expected = torch.exp(log_peak - log_z).mean()
        assert look.expected_proposals == pytest.approx(float(expected), rel=1e-9)
    assert looks[1].expected_proposals < looks[0].expected_proposals


def test_errors_are_those_of_the_diagnostics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "_ERROR_DRAWS", 1000)
    cell, data = a_cell(looks=(0,)), rows()
    look = run_samplers(cell, data).outcome.looks[0]
    X, y = ScaledRows.of(data, "count").train
    start = paper_model(cell, X, y)
    rules = {"bmc_error": BiasedMonteCarlo(4), "our_ups_error": ProductSampling(4)}
    for name, rule in rules.items():
        blocks = compare_gradients(
            rule,
            start.likelihood,
            y,
            start.posterior.predict(X),
            repeats=1000,
            generator=torch.Generator().manual_seed(5),
        ).values()
        error = sum(block.squared_error.value for block in blocks)
        norm = sum(block.exact_squared_norm for block in blocks)
        assert getattr(look, name) == pytest.approx(error / norm, rel=0.3)


def test_the_same_cell_has_the_same_result_and_another_seed_another() -> None:
    cell, data = a_cell(looks=(0, 3)), rows()
    first, again, other = (
        plain(run_samplers(each, data).outcome) for each in (cell, cell, cell.replace(seed=2))
    )
    assert first == again and first != other


def test_long_loops_are_measured_on_some_examples_and_scaled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []

    def measured(rivals: dict[str, Any], repeats: int) -> dict[str, float]:
        if repeats == studies._SWEEPS:
            draws = [rival() for rival in rivals.values()]
            sizes.extend(map(len, draws))
            again = [rival() for rival in rivals.values()]
            assert all(map(torch.equal, draws, again))
        return dict.fromkeys(rivals, 1.0)

    monkeypatch.setattr(studies, "least_seconds", measured)
    monkeypatch.setattr(studies, "_LOOP_WORK", 0)
    monkeypatch.setattr(studies, "_MIN_EXAMPLES", 8)
    look = run_samplers(a_cell(looks=(0,)), rows()).outcome.looks[0]
    assert sizes == [8, 8]
    assert (look.one_by_one_seconds, look.vectorised_seconds) == (5.0, 5.0)
    assert look.bmc_seconds == 1.0

"""The studies of samplers: during training, one by one, their proposals and times."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import integrate, stats
from torch import Tensor

import directgp
from directgp.integration.contract import FlatExamples
from directgp.integration.peaks import peak_of
from directgp.likelihoods import Gaussian, Poisson, Probit
from directgp.likelihoods.base import UnimodalInF
from directgp.log_expectations import BiasedMonteCarlo, ProductSampling
from directgp.log_expectations.api import log_expectation
from directgp.log_expectations.samplers import build_hat, choose_width, propose_from_hat
from directgp.registry import Task
from directgp_paper.diagnostics import compare_gradients
from directgp_paper.experiments import studies
from directgp_paper.experiments.cells import SamplerCell, SamplerOutcome
from directgp_paper.experiments.models import paper_model
from directgp_paper.experiments.rows import ScaledRows
from directgp_paper.experiments.studies import (
    SampledExamples,
    expected_proposals,
    least_seconds,
    our_proposals,
    run_samplers,
    seen_proposals,
)
from paper.tests.experiments.test_studies_gradients import rows

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
        examples=40,
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
    cell, data = a_cell(looks=(3,)), rows()
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


Values = NDArray[np.float64]

DRAWS = 400
WAYS = {"one by one": SampledExamples.one_by_one, "hybrid": SampledExamples.by_hybrid}


def a_row(value: float) -> Tensor:
    return torch.full((DRAWS,), value, dtype=torch.float64)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("likelihood", "density", "target", "mean", "variance"),
    [
        (Poisson(), lambda f: stats.poisson.pmf(6, np.exp(f)), 6.0, 0.5, 0.8),
        (Probit(), stats.norm.cdf, 1.0, -0.7, 2.0),
    ],
    ids=["poisson", "probit"],
)
def test_draws_have_the_right_distribution(
    likelihood: UnimodalInF,
    density: Callable[[Values], Values],
    target: float,
    mean: float,
    variance: float,
    way: str,
) -> None:
    """Against an integral of q·p by scipy."""
    batch = SampledExamples.of(likelihood, a_row(target), a_row(mean), a_row(variance))
    delta = WAYS[way](batch, torch.Generator().manual_seed(0)).numpy()
    f = mean + np.linspace(-9, 9, 4001)
    cumulative = integrate.cumulative_simpson(
        density(f) * stats.norm.pdf(f, mean, variance**0.5), x=f, initial=0.0
    )
    found = stats.kstest(mean + delta, lambda x: np.interp(x, f, cumulative / cumulative[-1]))
    assert found.pvalue > 1e-3


@pytest.mark.parametrize("likelihood", [Poisson(), Probit(), Gaussian(0.1)])
def test_widths_are_the_paper_s(likelihood: UnimodalInF) -> None:
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(0, 2, (60,), generator=generator).double()
    y = y if isinstance(likelihood, Probit) else 5 * y
    mean = 2 * torch.randn(60, generator=generator, dtype=torch.float64)
    variance = 0.05 + 2 * torch.rand(60, generator=generator, dtype=torch.float64)
    batch = SampledExamples.of(likelihood, y, mean, variance)
    with torch.no_grad():
        widths = torch.cat([batch._example(i)._width() for i in range(60)])
        expected = choose_width(FlatExamples(likelihood, y, mean, variance))
    assert torch.equal(widths, expected)
    assert len(widths.unique()) > 2


def test_the_hybrid_loops_only_where_both_proposals_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    propose = SampledExamples._propose

    def counted(
        self: SampledExamples, width: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        sizes.append(len(self.y))
        return propose(self, width, generator)

    monkeypatch.setattr(SampledExamples, "_propose", counted)
    # q on the label's side: about 1 in 16 proposals is refused.
    batch = SampledExamples.of(Probit(), a_row(1.0), a_row(1.6), a_row(0.1))
    batch.by_hybrid(torch.Generator().manual_seed(2))
    assert sizes[:2] == [DRAWS, DRAWS]
    assert len(sizes) - 2 < 0.05 * DRAWS and set(sizes[2:]) <= {1}
    sizes.clear()
    batch.one_by_one(torch.Generator().manual_seed(2))
    assert len(sizes) > DRAWS and set(sizes) == {1}


def test_hopeless_examples_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "MAX_PROPOSALS", 20)
    rows = (torch.tensor([value], dtype=torch.float64) for value in (300.0, -3.0, 0.1))
    batch = SampledExamples.of(Poisson(), *rows)
    for way in WAYS.values():
        assert way(batch, torch.Generator().manual_seed(3)).isnan().all()


def a_state(n: int = 30) -> tuple[Tensor, Tensor, Tensor]:
    """Counts, means and variances, a few of the counts unlikely."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 9, (n,), generator=generator).double()
    mean = torch.log(y + 1) + 0.8 * torch.randn(n, generator=generator, dtype=torch.float64)
    return y, mean, 0.1 + torch.rand(n, generator=generator, dtype=torch.float64)


def expected_at(y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    log_z = log_expectation(Poisson(), y, mean, variance)
    return expected_proposals(SampledExamples.of(Poisson(), y, mean, variance), log_z)


def test_expected_proposals_by_integration() -> None:
    y, mean, variance = a_state(8)
    found = expected_at(y, mean, variance)
    for i in range(8):
        target, q = float(y[i]), stats.norm(float(mean[i]), float(variance[i]) ** 0.5)

        def product(f: float, target: float = target, q: stats.norm = q) -> float:
            return float(q.pdf(f) * stats.poisson.pmf(target, np.exp(f)))

        mass = integrate.quad(product, q.mean() - 9, q.mean() + 9, limit=200)[0]
        assert float(found[i]) == pytest.approx(stats.poisson.pmf(target, target) / mass, rel=1e-6)


def test_a_label_of_even_chance_needs_two_proposals() -> None:
    zero, one = torch.zeros(1).double(), torch.ones(1).double()
    log_z = log_expectation(Probit(), one, zero, 3 * one)
    assert float(
        expected_proposals(SampledExamples.of(Probit(), one, zero, 3 * one), log_z)
    ) == pytest.approx(2.0)


@pytest.mark.parametrize("widen", [True, False])
def test_seen_proposals_agree_with_expected_ones(widen: bool) -> None:
    state = a_state()
    expected = expected_at(*state)
    generator = torch.Generator().manual_seed(1)
    found = seen_proposals(SampledExamples.of(Poisson(), *state), expected, generator, widen=widen)
    assert found.value == pytest.approx(float(expected.mean()), abs=4 * found.error)
    assert 0 < found.error < 0.05 * found.value


def test_the_error_is_that_of_counting() -> None:
    state = a_state(5)
    expected = expected_at(*state)
    generator = torch.Generator().manual_seed(2)
    found = [
        seen_proposals(SampledExamples.of(Poisson(), *state), expected, generator, widen=True)
        for _ in range(100)
    ]
    spread = np.std([each.value for each in found], ddof=1)
    assert np.mean([each.error for each in found]) == pytest.approx(spread, rel=0.3)


def test_an_example_that_is_hardly_served_counts_as_expected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(studies, "_ROUNDS", 2)
    y, mean, variance = torch.tensor([60.0, -1.0, 0.2], dtype=torch.float64).split(1)
    expected = expected_at(y, mean, variance)
    generator = torch.Generator().manual_seed(3)
    examples = SampledExamples.of(Poisson(), y, mean, variance)
    found = seen_proposals(examples, expected, generator, widen=True)
    assert found.value == float(expected[0]) > 1e6 and found.error == 0.0


def test_our_proposals_are_those_of_the_hat() -> None:
    y, mean, variance = a_state()
    log_z = log_expectation(Poisson(), y, mean, variance)
    found = our_proposals(SampledExamples.of(Poisson(), y, mean, variance), log_z)
    examples = FlatExamples(Poisson(), y, mean, variance)
    hat = build_hat(examples, peak_of(*examples))
    generator = torch.Generator().manual_seed(4)
    _, hits = propose_from_hat(examples, hat, 20_000, generator)
    assert found.value == pytest.approx(float((1 / hits.double().mean(0)).mean()), rel=2e-3)
    assert 1.1 < found.value < 1.2


def test_a_sampler_without_rejection_needs_one() -> None:
    one = torch.ones(3).double()
    assert our_proposals(SampledExamples.of(Probit(), one, one, one), one).value == 1.0


def test_rivals_take_turns_and_the_least_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, order = [0.0], []
    lasts = {"a": iter([50.0, 2.0, 9.0]), "b": iter([3.0, 4.0, 3.5])}
    monkeypatch.setattr(time, "process_time", lambda: clock[0])

    def rival(name: str) -> None:
        order.append(name)
        clock[0] += next(lasts[name])

    found = least_seconds({"a": lambda: rival("a"), "b": lambda: rival("b")}, repeats=3)
    assert found == {"a": 2.0, "b": 3.0}
    assert "".join(order) == "ababab"

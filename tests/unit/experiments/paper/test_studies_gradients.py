"""The study of gradients: blocks, known biases, stored draws, gradients in q(u)."""

from typing import Any

import numpy as np
import pytest
import torch

from directgp.diagnostics import gradient_draws
from directgp.experiments.paper.cells import (
    EXACT,
    GradientCell,
    GradientOutcome,
    GradientRow,
    RuleFacts,
)
from directgp.experiments.paper.fits import paper_model
from directgp.experiments.paper.studies import objective_pullback, run_gradients
from directgp.experiments.splits import CellData, ScaledRows
from directgp.likelihoods import Gaussian, Likelihood, Poisson, Probit
from directgp.log_expectations.api import resolve_rule
from directgp.objectives import GibbsLoss, LogLoss, Objective
from directgp.objectives.base import PointLoss
from directgp.posteriors import SparsePosterior
from directgp.registry import Task
from directgp.training.result import Progress
from directgp.training.run import Monitor
from tests.unit.experiments.small import problem

pytestmark = pytest.mark.usefixtures("without_shape_checks")

BMC = tuple(RuleFacts(name="bmc", samples=number) for number in (1, 10, 100))
UPS = tuple(RuleFacts(name=name, samples=1) for name in ("ups", "ups-mixed"))
BLOCKS = ("u_mean", "u_chol")


def rows(task: Task = "count", n: int = 40) -> CellData:
    given = problem(task, n + 2)
    X, y = given.X, given.y
    return CellData((X[2:], y[2:]), (X[:1], y[:1]), (X[1:2], y[1:2]))


def a_cell(rules: tuple[RuleFacts, ...], **changes: Any) -> GradientCell:
    cell = GradientCell(
        dataset="small",
        data="",
        task="count",
        size=40,
        num_inducing=6,
        repeat=0,
        seed=1,
        rules=rules,
        draws=20,
        beta=0.1,
        truth_samples=100,
    )
    return cell.replace(**changes)


def row_of(outcome: GradientOutcome, rule: RuleFacts, block: str) -> GradientRow:
    return next(row for row in outcome.rows if (row.rule, row.block) == (rule, block))


def gradient(cell: GradientCell, data: CellData, loss: PointLoss) -> dict[str, torch.Tensor]:
    """Of the objective that training minimises, by automatic differentiation."""
    X, y = ScaledRows.of(data, cell.task).train
    model = paper_model(cell, X, y)
    posterior = model.posterior
    objective = Objective(loss, num_data=len(y), beta=cell.beta)
    objective(model.likelihood, y, posterior.marginals(X), posterior.kl()).backward()
    assert posterior.u_mean.grad is not None and posterior.u_chol.grad is not None
    return {"u_mean": posterior.u_mean.grad, "u_chol": posterior.u_chol.grad.tril().flatten()}


@pytest.mark.parametrize(
    ("task", "blocks"),
    # The slope of log Φ(μ/√(1 + v)) in v is 0 at μ = 0.
    [("regression", BLOCKS), ("classification", ("u_mean",)), ("count", BLOCKS)],
)
def test_the_exact_rule_has_no_error(task: Task, blocks: tuple[str, ...]) -> None:
    outcome = run_gradients(a_cell((EXACT,), task=task), rows(task)).outcome
    assert tuple(row.block for row in outcome.rows) == tuple(outcome.truth_error) == blocks
    for row in outcome.rows:
        assert row.alignment.value == pytest.approx(1, abs=1e-12)
        assert row.squared_error.value == pytest.approx(0, abs=1e-20)
        assert row.squared_bias.value == pytest.approx(0, abs=1e-20)


def test_one_sample_of_bmc_is_the_elbo() -> None:
    """Its mean is the gradient of the ELBO; the bias is the difference of the two objectives."""
    cell, data = a_cell(BMC[:1], draws=1000), rows()
    outcome = run_gradients(cell, data).outcome
    elbo, exact = gradient(cell, data, GibbsLoss()), gradient(cell, data, LogLoss())
    for block in BLOCKS:
        row, norm = row_of(outcome, BMC[0], block), exact[block].square().sum()
        alignment = float(elbo[block] @ exact[block] / norm)
        bias = float((elbo[block] - exact[block]).square().sum() / norm)
        assert row.alignment.value == pytest.approx(alignment, abs=4 * row.alignment.error)
        assert row.squared_bias.value == pytest.approx(bias, abs=4 * row.squared_bias.error)
        assert bias > 4 * row.squared_bias.error


def test_bias_of_bmc_falls_with_samples_and_ups_has_none() -> None:
    outcome = run_gradients(a_cell(BMC + UPS, draws=300), rows()).outcome
    for block in BLOCKS:
        biases = [row_of(outcome, rule, block).squared_bias.value for rule in BMC]
        assert biases[0] > 3 * biases[1] > 9 * biases[2]
        score, mixed = (row_of(outcome, rule, block) for rule in UPS)
        for row in (score, mixed):
            assert abs(row.squared_bias.value) < 4 * row.squared_bias.error < 0.05
            assert row.alignment.value == pytest.approx(1, abs=4 * row.alignment.error)
        assert mixed.variance.value < 0.1 * score.variance.value


def test_every_draw_is_told() -> None:
    cell = a_cell((BMC[1], UPS[1]))
    found = run_gradients(cell, rows())
    outcome, arrays = found.outcome, found.arrays
    statistics = ("alignment", "squared_norm", "squared_error")
    assert len(outcome.rows) == 4 and len(arrays) == 12
    for row in outcome.rows:
        for what in statistics:
            draws = arrays[f"{what}.{row.rule.label}.{row.block}"]
            told = getattr(row, what)
            assert draws.shape == (20,) and draws.dtype == np.float32
            assert told.value == pytest.approx(draws.mean(), rel=1e-5)
            assert told.error == pytest.approx(draws.std(ddof=1) / 20**0.5, rel=1e-3)


def test_the_truth_of_the_paper_is_better_with_more_samples() -> None:
    errors = [
        run_gradients(a_cell(BMC[:1], draws=3, truth_samples=number), rows()).outcome.truth_error
        for number in (10, 10_000)
    ]
    for block in BLOCKS:
        assert 0 < errors[1][block] < 0.1 * errors[0][block]
        assert errors[1][block] < 0.01


def plain(outcome: GradientOutcome) -> dict[str, Any]:
    found = outcome.model_dump(exclude={"seconds"})
    for row in found["rows"]:
        assert row.pop("seconds") >= 0
    return found


def test_the_same_cell_has_the_same_result_and_another_repeat_another() -> None:
    cell, data = a_cell(BMC[1:2], draws=3), rows()
    first, again, other = (
        plain(run_gradients(each, data).outcome) for each in (cell, cell, cell.replace(repeat=1))
    )
    assert first == again and first != other


def test_at_the_prior_beta_makes_no_difference() -> None:
    found = [
        plain(run_gradients(a_cell(UPS[:1], beta=beta), rows()).outcome) for beta in (0.0, 50.0)
    ]
    assert found[0] == found[1]


def test_monitors_hear_of_every_rule() -> None:
    steps = []

    class Listener(Monitor):
        def __call__(self, progress: Progress) -> None:
            steps.append((progress.step, progress.max_steps))

        def reset(self) -> None:
            pass

    run_gradients(a_cell(BMC[:2], draws=3), rows(), [Listener()])
    assert steps == [(1, 2), (2, 2)]


N, M, BETA = 30, 5, 0.7


def a_posterior(X: torch.Tensor, generator: torch.Generator) -> SparsePosterior:
    """Far from the prior, and with rubbish above the diagonal that nobody reads."""
    posterior = SparsePosterior.from_data(X, num_inducing=M, generator=generator)
    with torch.no_grad():
        posterior.u_mean.copy_(torch.randn(M, generator=generator))
        posterior.u_chol.add_(0.3 * torch.randn(M, M, generator=generator))
    return posterior


@pytest.mark.parametrize("likelihood", [Gaussian(0.2), Probit(), Poisson()])
def test_it_is_the_gradient_of_the_objective(likelihood: Likelihood) -> None:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(N, 2, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 2, (N,), generator=generator).double()
    posterior = a_posterior(X, generator)
    objective = Objective(LogLoss(), num_data=N, beta=BETA)
    objective(likelihood, y, posterior.marginals(X), posterior.kl()).backward()
    marginals = posterior.predict(X)
    exact = resolve_rule("auto", likelihood)
    by_mean, by_variance = gradient_draws(exact, likelihood, y, marginals)
    found = objective_pullback(posterior, X, BETA)(by_mean, by_variance)
    assert posterior.u_mean.grad is not None and posterior.u_chol.grad is not None
    torch.testing.assert_close(found["u_mean"][0], posterior.u_mean.grad)
    torch.testing.assert_close(found["u_chol"][0], posterior.u_chol.grad.tril())


def test_draws_do_not_mix() -> None:
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(N, 2, generator=generator, dtype=torch.float64)
    pullback = objective_pullback(a_posterior(X, generator), X, BETA)
    by_mean, by_variance = torch.randn(2, 3, N, generator=generator, dtype=torch.float64)
    together = pullback(by_mean, by_variance)
    for r in range(3):
        alone = pullback(by_mean[r : r + 1], by_variance[r : r + 1])
        for block in ("u_mean", "u_chol"):
            torch.testing.assert_close(together[block][r], alone[block][0])


def test_at_the_prior_the_kl_has_no_gradient() -> None:
    X = torch.linspace(-1, 1, N, dtype=torch.float64).reshape(-1, 1)
    posterior = SparsePosterior.from_data(X, num_inducing=M)
    nothing = torch.zeros(1, N, dtype=torch.float64)
    for block in objective_pullback(posterior, X, 1.0)(nothing, nothing).values():
        assert not block.any()

"""Fits by both protocols."""

import pytest
import torch
from scipy import stats

from directgp.experiments.fit import ScaledRows
from directgp.experiments.paper.cells import FitCell, FitOutcome, ProtocolName, RuleFacts
from directgp.experiments.paper.fits import paper_model, paper_rows, run_fit
from tests.unit.experiments.paper.made_up import TASKS, fit_cell
from tests.unit.experiments.small import problem

pytestmark = pytest.mark.usefixtures("without_shape_checks")


def cell_of(dataset: str, method: str, protocol: ProtocolName, max_steps: int = 40) -> FitCell:
    return fit_cell(
        dataset, method, size=100, num_inducing=10, protocol=protocol, max_steps=max_steps
    )


def fitted(cell: FitCell) -> tuple[FitOutcome, bytes]:
    data = paper_rows(cell, problem(TASKS[cell.dataset], n=240))
    start = b"" if cell.start is None else fitted(cell.start)[1]
    record = run_fit(cell, data, start, "cpu", ())
    return record.outcome, record.model


def constant_nll(dataset: str) -> float:
    """Of a prediction that is the same everywhere, and right on average."""
    y = problem(TASKS[dataset], n=240).y
    if TASKS[dataset] == "regression":
        return float(-stats.norm.logpdf(stats.zscore(y)).mean())
    law = stats.bernoulli if TASKS[dataset] == "classification" else stats.poisson
    return float(-law.logpmf(y, y.mean()).mean())


@pytest.mark.parametrize("protocol", ["paper", "best"])
@pytest.mark.parametrize(
    ("dataset", "method"),
    [
        ("pol", "elbo"),
        ("pol", "beta-elbo"),
        ("pol", "fitc"),
        ("pol", "log-joint"),
        ("pol", "square-joint"),
        ("pol", "square-fixed"),
        ("banana", "log-fixed"),
        ("abalone", "log-joint"),
    ],
)
def test_a_fit_is_better_than_knowing_nothing_of_x(
    dataset: str, method: str, protocol: ProtocolName
) -> None:
    outcome, model = fitted(cell_of(dataset, method, protocol))
    assert outcome.scores["nll"] < constant_nll(dataset)
    assert bool(model) == (method == "elbo")
    chooses = method not in ("elbo", "fitc")
    assert [p.beta for p in outcome.path] == ([10.0, 1.0, 0.1] if chooses else [])


@pytest.mark.parametrize("protocol", ["paper", "best"])
def test_the_smallest_validation_loss_is_chosen_and_its_scores_are_told(
    protocol: ProtocolName,
) -> None:
    outcome, _ = fitted(cell_of("pol", "square-joint", protocol))
    best = min(outcome.path, key=lambda point: point.validation)
    assert outcome.beta == best.beta
    assert outcome.scores == best.test


def test_the_paper_runs_every_beta_from_the_same_start() -> None:
    """The result of a β does not depend on which others are tried."""
    several, _ = fitted(cell_of("pol", "log-joint", "paper", 10))
    alone = cell_of("pol", "log-joint", "paper", 10).replace(betas=(0.1,))
    assert fitted(alone)[0].path[0].test == several.path[-1].test


def test_the_paper_stops_when_the_losses_lie_within_its_tolerance() -> None:
    outcome, _ = fitted(cell_of("banana", "elbo", "paper", 3000))
    assert outcome.status == "converged"
    assert "The last 20 losses" in outcome.reason and "tolerance 0.0001" in outcome.reason


@pytest.mark.parametrize("protocol", ["paper", "best"])
def test_fixed_holds_the_hyperparameters_of_the_elbo_and_begins_q_anew(
    protocol: ProtocolName,
) -> None:
    cell = cell_of("banana", "log-fixed", protocol).replace(betas=(1e9,))
    assert cell.start is not None
    elbo, model = fitted(cell.start)
    rows = ScaledRows.of(paper_rows(cell, problem("classification", n=240)), "classification")
    prior = paper_model(cell, *rows.train)
    prior.load(model)
    prior.posterior.reset()
    # So large a β leaves q(u) at the prior of the ELBO's hyperparameters, where it begins.
    q, labels = prior.posterior.predict(rows.test[0]), 2 * rows.test[1] - 1
    nll = -torch.special.log_ndtr(labels * q.mean / torch.sqrt(1 + q.variance)).mean()
    outcome, _ = fitted(cell)
    assert outcome.scores["nll"] == pytest.approx(float(nll), rel=1e-5)
    assert outcome.scores["nll"] > elbo.scores["nll"] + 0.1


def test_repetitions_of_sampling_draw_other_numbers() -> None:
    """The same rows, so that all that is left to differ is chance."""
    cells = [
        cell_of("abalone", "log-joint", "paper", 5).replace(
            repeat=repeat, rule=RuleFacts(name="bmc", samples=2), betas=(1.0,)
        )
        for repeat in (0, 0, 1)
    ]
    data = paper_rows(cells[0], problem("count", n=240))
    first, again, other = (run_fit(cell, data, b"", "cpu", ()).outcome.history for cell in cells)
    assert first == again != other

"""Fits by both protocols."""

import pytest
import torch
from scipy import stats

from directgp.experiments.paper.cells import FitCell, Protocol
from directgp.experiments.paper.fitting import run_fit
from directgp.experiments.paper.results import FitOutcome
from directgp.experiments.paper.rows import rows_of
from directgp.experiments.paper.starting import scaled, start_of
from tests.unit.experiments.paper.made_up import TASKS, fit_cell
from tests.unit.experiments.small import problem

pytestmark = pytest.mark.usefixtures("without_shape_checks")


def cell_of(dataset: str, method: str, protocol: Protocol, max_steps: int = 40) -> FitCell:
    return fit_cell(
        dataset, method, size=100, num_inducing=10, protocol=protocol, max_steps=max_steps
    )


def fitted(cell: FitCell) -> tuple[FitOutcome, bytes]:
    data = rows_of(problem(TASKS[cell.dataset], n=240), cell)
    start = b"" if cell.start is None else fitted(cell.start)[1]
    return run_fit(cell, data, start, "cpu", ())


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
    dataset: str, method: str, protocol: Protocol
) -> None:
    outcome, model = fitted(cell_of(dataset, method, protocol))
    assert outcome.scores["nll"] < constant_nll(dataset)
    assert bool(model) == (method == "elbo")
    chooses = method not in ("elbo", "fitc")
    assert [p.beta for p in outcome.path] == ([10.0, 1.0, 0.1] if chooses else [])


@pytest.mark.parametrize("protocol", ["paper", "best"])
def test_the_smallest_validation_loss_is_chosen_and_its_scores_are_told(protocol: Protocol) -> None:
    outcome, _ = fitted(cell_of("pol", "square-joint", protocol))
    best = min(outcome.path, key=lambda point: point.validation)
    assert outcome.beta == best.beta
    assert outcome.scores == best.test


def test_the_paper_runs_every_beta_from_the_same_start() -> None:
    """The result of a β does not depend on which others are tried."""
    several, _ = fitted(cell_of("pol", "log-joint", "paper", 10))
    alone = cell_of("pol", "log-joint", "paper", 10).but(betas=(0.1,))
    assert fitted(alone)[0].path[0].test == several.path[-1].test


def test_the_paper_stops_when_the_losses_lie_within_its_tolerance() -> None:
    outcome, _ = fitted(cell_of("banana", "elbo", "paper", 3000))
    assert outcome.status == "converged"
    assert "The last 20 losses" in outcome.reason and "tolerance 0.0001" in outcome.reason


def test_fixed_holds_the_hyperparameters_of_the_elbo() -> None:
    """With β = 1 and the ELBO for its loss it could only find the ELBO solution again.

    So the fit of log loss must change the scores, while the model that it holds is the ELBO's.
    """
    cell = cell_of("banana", "log-fixed", "paper")
    assert cell.start is not None
    elbo, model = fitted(cell.start)
    rows = scaled(rows_of(problem("classification", n=240), cell), "classification")
    held = start_of(cell, *rows.train)
    fresh = start_of(cell, *rows.train)
    held.load(model)
    assert not torch.equal(held.posterior.Z, fresh.posterior.Z)
    outcome, _ = fitted(cell)
    assert outcome.scores["nll"] != elbo.scores["nll"]

"""Fits by both protocols, learning curves, and the rows of a cell."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from directgp.errors import InvalidInputError
from directgp.experiments.paper.cells import (
    CurveCell,
    CurveOutcome,
    FitCell,
    FitOutcome,
    ProtocolName,
    RuleFacts,
)
from directgp.experiments.paper.fit import load_bytes
from directgp.experiments.paper.fits import paper_model, paper_parts, paper_rows, run_curve, run_fit
from directgp.experiments.splits import ScaledRows
from tests.unit.experiments.paper.made_up import TASKS, fit_cell
from tests.unit.experiments.small import problem

pytestmark = pytest.mark.usefixtures("without_shape_checks")


def fit_cell_of(dataset: str, method: str, protocol: ProtocolName, max_steps: int = 15) -> FitCell:
    return fit_cell(
        dataset, method, size=100, num_inducing=10, protocol=protocol, max_steps=max_steps
    )


@cache
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
    outcome, model = fitted(fit_cell_of(dataset, method, protocol))
    assert outcome.scores["nll"] < constant_nll(dataset)
    assert bool(model) == (method == "elbo")
    chooses = method not in ("elbo", "fitc")
    assert [p.beta for p in outcome.path] == ([10.0, 1.0, 0.1] if chooses else [])


@pytest.mark.parametrize("protocol", ["paper", "best"])
def test_the_smallest_validation_loss_is_chosen_and_its_scores_are_told(
    protocol: ProtocolName,
) -> None:
    outcome, _ = fitted(fit_cell_of("pol", "square-joint", protocol))
    best = min(outcome.path, key=lambda point: point.validation)
    assert outcome.beta == best.beta
    assert outcome.scores == best.test


def test_the_paper_runs_every_beta_from_the_same_start() -> None:
    """The result of a β does not depend on which others are tried."""
    several, _ = fitted(fit_cell_of("pol", "log-joint", "paper", 10))
    alone = fit_cell_of("pol", "log-joint", "paper", 10).replace(betas=(0.1,))
    assert fitted(alone)[0].path[0].test == several.path[-1].test


def test_the_paper_stops_when_the_losses_lie_within_its_tolerance() -> None:
    cell = fit_cell_of("banana", "elbo", "paper", 3000).replace(size=50, num_inducing=5)
    outcome, _ = fitted(cell)
    assert outcome.status == "converged"
    assert "The last 20 losses" in outcome.reason and "tolerance 0.0001" in outcome.reason


@pytest.mark.parametrize("protocol", ["paper", "best"])
def test_fixed_holds_the_hyperparameters_of_the_elbo_and_begins_q_anew(
    protocol: ProtocolName,
) -> None:
    cell = fit_cell_of("banana", "log-fixed", protocol).replace(betas=(1e9,))
    assert cell.start is not None
    elbo, model = fitted(cell.start)
    rows = ScaledRows.of(paper_rows(cell, problem("classification", n=240)), "classification")
    prior = paper_model(cell, *rows.train)
    load_bytes(prior, model)
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
        fit_cell_of("abalone", "log-joint", "paper", 5).replace(
            repeat=repeat, rule=RuleFacts(name="bmc", samples=2), betas=(1.0,)
        )
        for repeat in (0, 0, 1)
    ]
    data = paper_rows(cells[0], problem("count", n=240))
    first, again, other = (run_fit(cell, data, b"", "cpu", ()).outcome.history for cell in cells)
    assert first == again != other


GIVEN = problem("classification", n=200)


def curve_cell_of(**changes: Any) -> CurveCell:
    facts: dict[str, Any] = {
        "dataset": "airline",
        "data": "x",
        "task": "classification",
        "size": 100,
        "num_inducing": 6,
        "repeat": 0,
        "seed": 0,
        "objective": "log_loss",
        "hyperparameters": "joint",
        "beta": 0.1,
        "learning_rate": 0.05,
        "batch_size": 20,
        "steps": 40,
        "every": 5,
        "num_test": 30,
    }
    return CurveCell.model_validate({**facts, **changes})


Curve = tuple[CurveOutcome, bytes, NDArray[np.float32]]


def run(cell: CurveCell, start: bytes = b"") -> Curve:
    start = b"" if cell.start is None else start or run(cell.start)[1]
    record = run_curve(cell, paper_rows(cell, GIVEN), start, "cpu", ())
    return record.outcome, record.model, record.arrays["losses"]


@cache
def exact_curve(steps: int = 40) -> Curve:
    return run(curve_cell_of(steps=steps))


def test_every_look_is_told_with_its_epoch_and_the_losses_of_rows() -> None:
    outcome, model, losses = exact_curve()
    assert [point.step for point in outcome.points] == [5, 10, 15, 20, 25, 30, 35, 40]
    assert [point.epoch for point in outcome.points] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert losses.shape == (8, 30) and outcome.num_test == 30
    assert outcome.num_training == 150
    told = [point.scores["nll"] for point in outcome.points]
    np.testing.assert_allclose(losses.mean(1), told, rtol=1e-5)
    assert told[-1] < told[0]
    assert model == b""


def test_the_last_batch_of_an_epoch_has_what_is_left() -> None:
    outcome, _, _ = run(curve_cell_of(batch_size=30, steps=12, every=2))
    # Batches of 30, 30, 30 and 10 rows.
    epochs = [point.epoch for point in outcome.points]
    assert epochs == pytest.approx([0.6, 1, 1.6, 2, 2.6, 3], abs=1e-12)
    whole = run(curve_cell_of(batch_size=None, steps=4, every=2))[0]
    assert [point.epoch for point in whole.points] == [2, 4]


def test_an_exact_curve_tells_of_its_last_step_and_not_of_its_best() -> None:
    """Else it would look better than the curves of sampling, which have no best state."""
    wild = {"batch_size": None, "learning_rate": 2.0, "every": 2}
    short, long = run(curve_cell_of(steps=6, **wild))[0], run(curve_cell_of(steps=8, **wild))[0]
    assert short.points[-1].scores == long.points[-2].scores
    assert len({point.scores["nll"] for point in long.points}) == 4


@pytest.mark.parametrize(
    "rule",
    [
        RuleFacts(name="bmc", samples=3),
        RuleFacts(name="smooth-bmc", samples=3),
        RuleFacts(name="ups", samples=2),
        RuleFacts(name="ups-mixed", samples=1),
    ],
    ids=lambda rule: rule.label,
)
def test_rules_learn_and_are_repeatable(rule: RuleFacts) -> None:
    cell = curve_cell_of(rule=rule, steps=20)
    first, again = run(cell), run(cell)
    nll = [point.scores["nll"] for point in first[0].points]
    assert nll[-1] < nll[0]
    assert nll == [point.scores["nll"] for point in again[0].points]
    assert not np.array_equal(first[2], exact_curve(20)[2])


def test_fixed_trains_q_alone_from_scratch() -> None:
    cell = curve_cell_of(hyperparameters="fixed")
    assert cell.start == curve_cell_of(objective="elbo", beta=1.0)
    _, model, _ = run(cell.start)
    # With a learning rate of next to nothing it stays where it begins: the prior of the ELBO.
    still = curve_cell_of(hyperparameters="fixed", learning_rate=1e-12, steps=5)
    outcome, _, losses = run(still, model)
    rows = ScaledRows.of(paper_rows(still, GIVEN), "classification")
    held = paper_model(still, *rows.train)
    load_bytes(held, model)
    held.posterior.reset()
    q = held.posterior.predict(rows.test[0])
    labels = 2 * rows.test[1] - 1
    expected = -torch.special.log_ndtr(labels * q.mean / torch.sqrt(1 + q.variance))
    np.testing.assert_allclose(losses[-1], expected.detach().numpy(), rtol=1e-4)
    assert outcome.points[-1].step == 5


def test_the_elbo_of_beta_1_is_kept_for_others() -> None:
    _, model, _ = run(curve_cell_of(objective="elbo", beta=1.0))
    rows = ScaledRows.of(paper_rows(curve_cell_of(), GIVEN), "classification")
    loaded = paper_model(curve_cell_of(), *rows.train)
    before = loaded.posterior.Z.detach().clone()
    load_bytes(loaded, model)
    assert not torch.equal(loaded.posterior.Z, before)


def test_regression_is_split_67_8_25() -> None:
    parts = paper_parts("pol", "regression", 15_000)
    assert (parts.training, parts.validation, parts.test) == (10_050, 1_200, 3_750)


def test_song_has_ten_thousand_test_rows_and_no_more_training_rows_for_it() -> None:
    parts = paper_parts("song", "regression", 515_345)
    assert parts.test == 10_000
    assert parts.training == pytest.approx(0.67 * 515_345, abs=1)


def test_labels_and_counts_have_a_tenth_to_validate_and_a_thousand_to_judge() -> None:
    parts = paper_parts("banana", "classification", 5_300)
    assert (parts.validation, parts.test, parts.training) == (530, 1_000, 3_770)


def test_airline_has_a_hundred_thousand_test_rows_and_chooses_nothing() -> None:
    parts = paper_parts("airline", "classification", 2_055_733)
    assert (parts.validation, parts.test, parts.training) == (0, 100_000, 1_955_733)


def test_no_row_is_in_two_parts_and_smaller_sizes_are_parts_of_larger_ones() -> None:
    given = problem(n=100)
    numbered = replace(given, X=np.arange(100.0)[:, None])
    small, large = (
        paper_rows(fit_cell("pol", "elbo", size=size, data="x"), numbered) for size in (20, 60)
    )
    parts = [large.train[0], large.validation[0], large.test[0]]
    assert len(np.unique(np.concatenate(parts))) == 60 + 8 + 25
    assert np.array_equal(small.train[0], large.train[0][:20])
    assert np.array_equal(small.test[0], large.test[0])
    assert large.num_training == 67


def test_repeats_have_other_rows() -> None:
    given = problem(n=100)
    first, second = (
        paper_rows(fit_cell("pol", "elbo", repeat, size=20, data="x"), given) for repeat in (0, 1)
    )
    assert not np.array_equal(first.test[0], second.test[0])


def test_more_rows_than_there_are_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="size must be from 1 to 67"):
        paper_rows(fit_cell("pol", "elbo", size=68), problem(n=100))

"""Learning curves."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from directgp.experiments.fit import GPModel, ScaledRows
from directgp.experiments.paper.cells import CurveCell, CurveOutcome, RuleFacts
from directgp.experiments.paper.fits import paper_model, paper_rows, run_curve
from tests.unit.experiments.small import problem

pytestmark = pytest.mark.usefixtures("without_shape_checks")

GIVEN = problem("classification", n=200)


def cell_of(**changes: Any) -> CurveCell:
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
        "ard": True,
        "learning_rate": 0.05,
        "batch_size": 20,
        "steps": 40,
        "every": 5,
        "num_test": 30,
    }
    return CurveCell.model_validate({**facts, **changes})


def run(cell: CurveCell, start: bytes = b"") -> tuple[CurveOutcome, bytes, NDArray[np.float32]]:
    start = b"" if cell.start is None else start or run(cell.start)[1]
    record = run_curve(cell, paper_rows(cell, GIVEN), start, "cpu", ())
    return record.outcome, record.model, record.arrays["losses"]


def test_every_look_is_told_with_its_epoch_and_the_losses_of_rows() -> None:
    outcome, model, losses = run(cell_of())
    assert [point.step for point in outcome.points] == [5, 10, 15, 20, 25, 30, 35, 40]
    assert [point.epoch for point in outcome.points] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert losses.shape == (8, 30) and outcome.num_test == 30
    assert outcome.num_training == 150
    told = [point.scores["nll"] for point in outcome.points]
    np.testing.assert_allclose(losses.mean(1), told, rtol=1e-5)
    assert told[-1] < told[0]
    assert model == b""


def test_the_last_batch_of_an_epoch_has_what_is_left() -> None:
    outcome, _, _ = run(cell_of(batch_size=30, steps=12, every=2))
    # Batches of 30, 30, 30 and 10 rows.
    epochs = [point.epoch for point in outcome.points]
    assert epochs == pytest.approx([0.6, 1, 1.6, 2, 2.6, 3], abs=1e-12)
    whole = run(cell_of(batch_size=None, steps=4, every=2))[0]
    assert [point.epoch for point in whole.points] == [2, 4]


def test_an_exact_curve_tells_of_its_last_step_and_not_of_its_best() -> None:
    """Else it would look better than the curves of sampling, which have no best state."""
    wild = {"batch_size": None, "learning_rate": 2.0, "every": 2}
    short, long = run(cell_of(steps=6, **wild))[0], run(cell_of(steps=8, **wild))[0]
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
    first, again = run(cell_of(rule=rule)), run(cell_of(rule=rule))
    nll = [point.scores["nll"] for point in first[0].points]
    assert nll[-1] < nll[0]
    assert nll == [point.scores["nll"] for point in again[0].points]
    assert not np.array_equal(first[2], run(cell_of())[2])


def test_fixed_trains_q_alone_from_scratch() -> None:
    cell = cell_of(hyperparameters="fixed")
    assert cell.start == cell_of(objective="elbo", beta=1.0)
    _, model, _ = run(cell.start)
    # With a learning rate of next to nothing it stays where it begins: the prior of the ELBO.
    still = cell_of(hyperparameters="fixed", learning_rate=1e-12, steps=5)
    outcome, _, losses = run(still, model)
    rows = ScaledRows.of(paper_rows(still, GIVEN), "classification")
    held = paper_model(still, *rows.train)
    held.load(model)
    held.posterior.reset()
    q = held.posterior.predict(rows.test[0])
    labels = 2 * rows.test[1] - 1
    expected = -torch.special.log_ndtr(labels * q.mean / torch.sqrt(1 + q.variance))
    np.testing.assert_allclose(losses[-1], expected.detach().numpy(), rtol=1e-4)
    assert outcome.points[-1].step == 5


def test_the_elbo_of_beta_1_is_kept_for_others() -> None:
    _, model, _ = run(cell_of(objective="elbo", beta=1.0))
    rows = ScaledRows.of(paper_rows(cell_of(), GIVEN), "classification")
    loaded: GPModel = paper_model(cell_of(), *rows.train)
    before = loaded.posterior.Z.detach().clone()
    loaded.load(model)
    assert not torch.equal(loaded.posterior.Z, before)

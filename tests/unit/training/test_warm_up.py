"""Adam before L-BFGS: when it runs, its state, and its benefit."""

from typing import Any

import pytest
import torch
from torch import Tensor

import directgp
from directgp.errors import NumericalError
from directgp.likelihoods import Gaussian, Likelihood, NegativeBinomial, Poisson, Probit
from directgp.training import trainer
from directgp.training.data import Data, Model
from directgp.training.result import Status, TrainingResult
from directgp.training.run import LossRange, Recipe
from directgp.training.trainer import Trainer, joint_run
from tests.unit.training.models import (
    StopAt,
    counts,
    labels,
    normal,
    regression,
    seeded,
    start,
    tensors,
)
from tests.unit.training.toys import same

X, Y = regression()

# Half of the time goes into the checks, and what runs here runs checked in test_objectives.py.
pytestmark = pytest.mark.usefixtures("without_shape_checks")


@pytest.fixture(autouse=True)
def rows_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "_WARM_UP_FROM", len(Y))


def fit(likelihood: Likelihood, y: Tensor, **settings: Any) -> TrainingResult:
    how = {"generator": seeded(7), "max_steps": 30, **settings}
    return directgp.train(start(X), likelihood, X, y, **how)


def names(result: TrainingResult) -> list[str]:
    return [stage.stage for stage in result.stages]


LABELS, COUNTS = labels()[1], counts()[1]
WHOLE = ["elbo", "log_loss, warm-up", "log_loss"]


@pytest.mark.parametrize(
    ("likelihood", "y", "stages"),
    [
        (Gaussian(0.1), Y, WHOLE),
        # From the ELBO's lengthscales log loss of labels and counts does not find its way back.
        (Probit(), LABELS, WHOLE[1:]),
        (Poisson(), COUNTS, WHOLE[1:]),
        (NegativeBinomial(), COUNTS, WHOLE[1:]),
    ],
)
def test_log_loss_has_a_warm_up(likelihood: Likelihood, y: Tensor, stages: list[str]) -> None:
    assert names(fit(likelihood.double(), y, max_steps=3)) == stages


def test_few_rows_have_no_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "_WARM_UP_FROM", len(Y) + 1)
    assert names(fit(Gaussian(0.1).double(), Y, max_steps=3)) == ["elbo", "log_loss"]
    assert names(fit(Poisson(), COUNTS, max_steps=3)) == ["elbo", "log_loss"]


def test_the_elbo_has_a_warm_up_where_q_is_free() -> None:
    assert names(fit(Probit(), LABELS, objective="elbo", max_steps=3)) == ["elbo, warm-up", "elbo"]
    assert names(fit(Gaussian(0.1).double(), Y, objective="elbo", max_steps=3)) == ["elbo"]
    fixed = fit(Probit(), LABELS, hyperparameters="fixed", max_steps=3)
    assert names(fixed) == ["elbo, warm-up", "elbo", "log_loss"]


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adam"},
        {"objective": "square_loss"},
        {"rule": "bmc", "optimizer": "lbfgs"},
    ],
)
def test_other_runs_have_no_warm_up(settings: dict[str, Any]) -> None:
    """Where Adam trains anyway, where q(u) has a formula, and where losses are drawn."""
    result = fit(Gaussian(0.1).double(), Y, max_steps=3, **settings)
    assert not any("warm-up" in name for name in names(result))


def test_lbfgs_begins_at_the_best_state_of_adam() -> None:
    result = fit(Probit(), LABELS, start="scratch")
    before, after = result.stages
    assert before.loss == pytest.approx(min(before.losses), abs=1e-12)
    assert after.losses[0] < before.loss


def test_a_warm_up_has_no_more_steps_than_the_run() -> None:
    assert fit(Probit(), LABELS, start="scratch", max_steps=4).stages[0].steps == 4


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"beta": 0.1}, 100),
        ({"beta": 1.0}, 50),
        ({"beta": 1.0, "objective": "elbo"}, 50),
    ],
)
def test_a_small_beta_has_a_longer_warm_up(
    settings: dict[str, Any], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # None of them has settled so early.
    monkeypatch.setattr(trainer, "LossRange", lambda *_: LossRange(200, 0.0))
    soon = [StopAt(most + 1)]
    result = fit(Probit(), LABELS, start="scratch", max_steps=110, monitors=soon, **settings)
    assert [stage.steps for stage in result.stages] == [most, 1]


@pytest.mark.parametrize(("objective", "mode"), [("elbo", "joint"), ("log_loss", "joint")])
def test_a_run_that_ends_in_its_warm_up_has_no_further_stage(objective: str, mode: str) -> None:
    cancel = StopAt(3)
    result = fit(Poisson(), COUNTS, objective=objective, hyperparameters=mode, monitors=[cancel])
    assert names(result) == [f"{objective}, warm-up"] and cancel.seen == 3
    assert result.status is Status.CANCELLED and result.ended


def test_lbfgs_goes_on_from_where_adam_could_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def adam(*_: object, **__: object) -> None:
        raise NumericalError("Not finite.")

    monkeypatch.setattr(trainer, "adam", adam)
    result = fit(Probit(), LABELS, start="scratch")
    assert names(result) == WHOLE[1:] and result.loss < result.history[0]
    assert result.stages[0].status is Status.FAILED


def test_all_examples_are_seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where Adam of its own would train on batches."""
    with monkeypatch.context() as patched:
        patched.setattr("directgp.training.run._FULL_BATCH_ENTRIES", 1)
        few = fit(Probit(), LABELS, start="scratch", optimizer="lbfgs")
    assert same(tensors(few), tensors(fit(Probit(), LABELS, start="scratch", optimizer="lbfgs")))


def test_a_warm_up_leads_to_a_lower_minimum() -> None:
    """Where as many steps of L-BFGS from the same place, without it, end higher."""
    x = normal(200, 2, seed=1)
    latent = torch.sin(2 * x[:, 0]) + torch.cos(2 * x[:, 1])
    trainer = Trainer(Data(x, latent + 0.3 * normal(200, seed=4)), seeded(7))

    def loss(where: str, steps: int) -> float:
        given = start(x, m=12), Gaussian(0.1).double()
        return joint_run(trainer, Recipe(max_steps=steps), Model(*given), 0.1, where).loss

    assert loss("scratch", 60) < loss("near", 60) - 0.02

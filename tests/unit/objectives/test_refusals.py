"""Likelihoods and settings that a loss cannot serve are refused in words that say what would do."""

import pytest
import torch

from directgp import Marginals
from directgp.errors import InvalidInputError, UnsupportedError
from directgp.likelihoods import StudentT
from directgp.objectives import LogLoss, PinballLoss, SquareLoss, ZeroOneCost
from tests.properties.tables import LikelihoodRow
from tests.properties.test_accuracy import named
from tests.unit.objectives.tables import POINT_LOSSES, PointLossRow, refused, served

NAN, INF = float("nan"), float("inf")
REMEDY = {
    "square_loss": "log_loss",
    "absolute_loss": "Use Gaussian, or log_loss.",
    "pinball_loss": "Use Gaussian, or log_loss.",
    "zero_one_cost": "Use Probit or Logistic",
    "crps": "Use Gaussian, or log_loss.",
}


@pytest.mark.parametrize(("loss", "row"), served(POINT_LOSSES), ids=named)
def test_likelihoods_that_are_served(loss: PointLossRow, row: LikelihoodRow) -> None:
    loss.loss.check(row.make())


@pytest.mark.parametrize(("loss", "row"), refused(POINT_LOSSES), ids=named)
def test_likelihoods_that_are_not(loss: PointLossRow, row: LikelihoodRow) -> None:
    likelihood, one = row.make(), torch.ones(1)
    with pytest.raises(UnsupportedError) as checked:
        loss.loss.check(likelihood)
    with pytest.raises(UnsupportedError) as called:
        loss.loss(likelihood, one, Marginals(one, one))
    text = str(checked.value)
    assert text == str(called.value)
    assert text.startswith(type(loss.loss).__name__)
    assert f"Got {type(likelihood).__name__}." in text
    assert REMEDY[loss.loss.name] in text


def test_square_loss_says_why_not_student_t() -> None:
    with pytest.raises(UnsupportedError, match=r"neither the scale nor the tails.*Use Gaussian"):
        SquareLoss().check(StudentT())


def test_log_loss_refuses_an_unknown_rule() -> None:
    with pytest.raises(InvalidInputError, match=r"rule must be 'auto'.*Got 'exact'"):
        LogLoss("exact").check(StudentT())


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 90.0, NAN, INF])
def test_levels(level: float) -> None:
    said = f"level of PinballLoss must be strictly between 0 and 1. Got {level}."
    with pytest.raises(InvalidInputError) as caught:
        PinballLoss(level)
    assert str(caught.value) == said


@pytest.mark.parametrize("cost", [0.0, -1.0, NAN, INF])
@pytest.mark.parametrize("key", ["false_positive", "false_negative"])
def test_costs(key: str, cost: float) -> None:
    said = f"{key} of ZeroOneCost must be positive and finite. Got {cost}."
    with pytest.raises(InvalidInputError) as caught:
        ZeroOneCost(**{key: cost})
    assert str(caught.value) == said

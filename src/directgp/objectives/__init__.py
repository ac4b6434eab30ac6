"""Objectives: a point loss for each example, plus β·KL."""

from directgp.objectives.absolute_loss import AbsoluteLoss
from directgp.objectives.base import PointLoss
from directgp.objectives.crps import CRPSLoss
from directgp.objectives.log_losses import GibbsLoss, LogLoss
from directgp.objectives.names import resolve_point_loss
from directgp.objectives.objective import Objective
from directgp.objectives.pinball_loss import PinballLoss
from directgp.objectives.square_loss import SquareLoss
from directgp.objectives.zero_one_cost import ZeroOneCost

__all__ = [
    "AbsoluteLoss",
    "CRPSLoss",
    "GibbsLoss",
    "LogLoss",
    "Objective",
    "PinballLoss",
    "PointLoss",
    "SquareLoss",
    "ZeroOneCost",
    "resolve_point_loss",
]

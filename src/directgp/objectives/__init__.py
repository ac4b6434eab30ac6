"""Objectives: a point loss for each example, plus β·KL."""

from directgp.objectives.base import GibbsLoss, LogLoss, Objective, PointLoss, resolve_point_loss
from directgp.objectives.pointwise import (
    AbsoluteLoss,
    CRPSLoss,
    PinballLoss,
    SquareLoss,
    ZeroOneCost,
)

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

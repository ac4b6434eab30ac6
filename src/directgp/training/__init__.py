"""Training: to the optimum of an objective, with a reason for stopping."""

from directgp.training.beta_path import beta_grid, beta_path
from directgp.training.callbacks import (
    Cancel,
    EvaluationBudget,
    History,
    ProgressBar,
    StepBudget,
    TimeBudget,
)
from directgp.training.checkpoint import Checkpoints
from directgp.training.distributed import Processes
from directgp.training.result import (
    BetaPath,
    Failure,
    PathPoint,
    Progress,
    StageResult,
    Status,
    Stop,
    TrainingResult,
)
from directgp.training.run import LossRange, Monitor, Observer, RelativeDecrease, SmallGradient
from directgp.training.train import train, train_stream, update
from directgp.training.validation import Folds, Forward, Given, Groups, HoldOut

__all__ = [
    "BetaPath",
    "Cancel",
    "Checkpoints",
    "EvaluationBudget",
    "Failure",
    "Folds",
    "Forward",
    "Given",
    "Groups",
    "History",
    "HoldOut",
    "LossRange",
    "Monitor",
    "Observer",
    "PathPoint",
    "Processes",
    "Progress",
    "ProgressBar",
    "RelativeDecrease",
    "SmallGradient",
    "StageResult",
    "Status",
    "StepBudget",
    "Stop",
    "TimeBudget",
    "TrainingResult",
    "beta_grid",
    "beta_path",
    "train",
    "train_stream",
    "update",
]

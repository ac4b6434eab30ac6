"""Compare methods on a data set, and run the experiments of the paper."""

from directgp.experiments.cell import METHODS, Method
from directgp.experiments.engine import RunCallback, compare
from directgp.experiments.plan import Comparison, Plan, make_plan
from directgp.experiments.ray import RayCluster
from directgp.experiments.stats import ScoreEstimate, Standing, standings
from directgp.experiments.store import Store
from directgp.experiments.workers import InProcess, LocalWorkers

__all__ = [
    "METHODS",
    "Comparison",
    "InProcess",
    "LocalWorkers",
    "Method",
    "Plan",
    "RayCluster",
    "RunCallback",
    "ScoreEstimate",
    "Standing",
    "Store",
    "compare",
    "make_plan",
    "standings",
]

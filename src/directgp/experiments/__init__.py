"""Compare methods on a data set, and run the experiments of the paper."""

from directgp.experiments.cell import METHODS, Method
from directgp.experiments.comparison import compare
from directgp.experiments.engine import RunCallback
from directgp.experiments.plan import Comparison, Plan, make_plan
from directgp.experiments.ray import RayCluster
from directgp.experiments.stats import RankingRow, ScoreEstimate, ranking
from directgp.experiments.store import Store
from directgp.experiments.workers import InProcess, LocalWorkers

__all__ = [
    "METHODS",
    "Comparison",
    "InProcess",
    "LocalWorkers",
    "Method",
    "Plan",
    "RankingRow",
    "RayCluster",
    "RunCallback",
    "ScoreEstimate",
    "Store",
    "compare",
    "make_plan",
    "ranking",
]

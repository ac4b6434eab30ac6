"""Compare methods on a data set; run the cells of an experiment, and store their results.

`Cell`, `Runner` and `Store` serve experiments of other packages, too: a cell is one unit of work,
found in the store by its fields; the runner runs the cells that the store does not have.
"""

from directgp.environment import cores, machine
from directgp.experiments.cell import (
    METHODS,
    Cell,
    Circumstances,
    FailedRecord,
    Frozen,
    Method,
    Outcome,
    Record,
    TrainingOutcome,
    generator_of,
    seed_of,
    suited_methods,
    with_starts,
)
from directgp.experiments.comparison import compare
from directgp.experiments.engine import RunCallback, Runner
from directgp.experiments.plan import Comparison, Plan, make_plan
from directgp.experiments.ray import RayCluster
from directgp.experiments.stats import (
    SIGNIFICANT,
    RankingRow,
    ScoreEstimate,
    corrected_p_value,
    ranking,
)
from directgp.experiments.store import Store, is_store
from directgp.experiments.workers import InProcess, LocalWorkers, Pool

__all__ = [
    "METHODS",
    "SIGNIFICANT",
    "Cell",
    "Circumstances",
    "Comparison",
    "FailedRecord",
    "Frozen",
    "InProcess",
    "LocalWorkers",
    "Method",
    "Outcome",
    "Plan",
    "Pool",
    "RankingRow",
    "RayCluster",
    "Record",
    "RunCallback",
    "Runner",
    "ScoreEstimate",
    "Store",
    "TrainingOutcome",
    "compare",
    "cores",
    "corrected_p_value",
    "generator_of",
    "is_store",
    "machine",
    "make_plan",
    "ranking",
    "seed_of",
    "suited_methods",
    "with_starts",
]

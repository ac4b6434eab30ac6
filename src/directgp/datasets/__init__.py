"""Read tables, prepare them for training, and provide embedded data sets."""

from directgp.errors import require_extra

require_extra("directgp.datasets", "cli", "psutil", "pyarrow")

from directgp.datasets.catalogues import Catalogue, CatalogueEntry
from directgp.datasets.columns import complete_rows
from directgp.datasets.embedded import DatasetInfo, ringnorm, twonorm
from directgp.datasets.encoding import Encoding
from directgp.datasets.problem import TASKS, Problem, prepare
from directgp.datasets.sources import (
    Source,
    data_folder,
    embedded,
    find_in_folder,
    in_folder,
    load_embedded,
    open_problem,
    open_source,
    prepare_source,
)
from directgp.datasets.tables import read_table
from directgp.datasets.targets import coded, guess_task
from directgp.registry import Task

__all__ = [
    "TASKS",
    "Catalogue",
    "CatalogueEntry",
    "DatasetInfo",
    "Encoding",
    "Problem",
    "Source",
    "Task",
    "coded",
    "complete_rows",
    "data_folder",
    "embedded",
    "find_in_folder",
    "guess_task",
    "in_folder",
    "load_embedded",
    "open_problem",
    "open_source",
    "prepare",
    "prepare_source",
    "read_table",
    "ringnorm",
    "twonorm",
]

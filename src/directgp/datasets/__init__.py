"""From a user's file to numbers, and the data sets that come with directgp."""

from directgp.datasets.embedding import DatasetInfo
from directgp.datasets.encoding import Encoding
from directgp.datasets.files import read_table
from directgp.datasets.missing import complete_rows
from directgp.datasets.preparing import prepare
from directgp.datasets.problem import TASKS, Problem, Task
from directgp.datasets.registry import (
    embedded,
    in_folder,
    load_embedded,
    open_problem,
    prepare_source,
)
from directgp.datasets.sources import Source, data_folder, open_source
from directgp.datasets.targets import coded
from directgp.datasets.tasks import guess_task

__all__ = [
    "TASKS",
    "DatasetInfo",
    "Encoding",
    "Problem",
    "Source",
    "Task",
    "coded",
    "complete_rows",
    "data_folder",
    "embedded",
    "guess_task",
    "in_folder",
    "load_embedded",
    "open_problem",
    "open_source",
    "prepare",
    "prepare_source",
    "read_table",
]

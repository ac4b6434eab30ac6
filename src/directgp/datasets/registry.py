"""Which data sets there are, and from the name of one to a problem."""

from collections.abc import Sequence
from pathlib import Path

from directgp.datasets.embedding import EMBEDDED, DatasetInfo
from directgp.datasets.encoding import Encoding
from directgp.datasets.files import open_table, stem_of, tables_in
from directgp.datasets.preparing import prepare
from directgp.datasets.problem import Problem, Task
from directgp.datasets.sources import Source, open_source
from directgp.datasets.tasks import guess_task
from directgp.datasets.wording import suggestion
from directgp.errors import InvalidInputError, refuse

_USUAL_TARGETS = ("y", "target")


def embedded() -> tuple[DatasetInfo, ...]:
    """The data sets that come with directgp."""
    return tuple(row.info for row in EMBEDDED.values())


def in_folder(folder: Path) -> tuple[DatasetInfo, ...]:
    """The tables in the files of a folder; of each, only the likely target is read.

    A file that cannot be used is listed with what is wrong with it.
    """
    return tuple(_info(file, str(folder)) for file in tables_in(folder))


def load_embedded(name: str) -> Problem:
    """An embedded data set, ready for training."""
    if name not in EMBEDDED:
        remedy = suggestion(name, EMBEDDED, "There are")
        refuse("The name", "one of an embedded data set", repr(name), remedy)
    return open_problem(name)[0]


def open_problem(
    data: str,
    *,
    target: str | None = None,
    task: Task | None = None,
    drop: Sequence[str] = (),
    drop_missing: bool = False,
    positive: str | None = None,
    data_dir: Path | None = None,
) -> tuple[Problem, Encoding]:
    """The problem that `data` names, and the encoding that led there.

    Parameters
    ----------
    data : str
        Path of a file, name of an embedded data set, or name of a file in the data folder.
    target : str, optional
        The column to be predicted; embedded data sets know theirs.
    task, drop, drop_missing, positive
        As in `prepare`.
    data_dir : path, optional
        The data folder; else that of the environment variable DIRECTGP_DATA, if it is set.
    """
    return prepare_source(
        open_source(data, data_dir),
        target=target,
        task=task,
        drop=drop,
        drop_missing=drop_missing,
        positive=positive,
    )


def prepare_source(
    source: Source,
    *,
    target: str | None = None,
    task: Task | None = None,
    drop: Sequence[str] = (),
    drop_missing: bool = False,
    positive: str | None = None,
) -> tuple[Problem, Encoding]:
    """The problem in a table that has been found."""
    wanted, task = source.choose(target, task, positive)
    return prepare(
        source.table.read(),
        wanted,
        task=task,
        name=source.name,
        source=source.shown,
        drop=drop,
        drop_missing=drop_missing,
        positive=positive,
        notes=source.notes,
    )


def _info(file: Path, where: str) -> DatasetInfo:
    name = stem_of(file)
    try:
        table = open_table(file)
        target = _likely_target(table.names)
        column = table.read([target]).column(target)
    except InvalidInputError as error:
        return DatasetInfo(name, None, None, None, None, str(error), where)
    rows, features = len(column), len(table.names) - 1
    try:
        task, reason = guess_task(column, target)
    except InvalidInputError as error:
        return DatasetInfo(name, None, rows, features, target, str(error), where)
    about = f"{file.name}; the task is a guess: {reason}."
    return DatasetInfo(name, task, rows, features, target, about, where)


def _likely_target(names: Sequence[str]) -> str:
    usual = (name for name in names if name.casefold() in _USUAL_TARGETS)
    return next(usual, names[-1])

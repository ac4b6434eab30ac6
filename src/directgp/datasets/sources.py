"""Resolve the name of a data set or a file to a problem."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, final

import pyarrow as pa

from directgp.datasets.columns import Encoding
from directgp.datasets.embedded import EMBEDDED, DatasetInfo, Embedded
from directgp.datasets.prepare import prepare
from directgp.datasets.problem import Problem, Task
from directgp.datasets.tables import ReadableTable, open_table, stem_of, suffix_of, tables_in
from directgp.datasets.targets import guess_task
from directgp.datasets.wording import listed, nearest, suggestion
from directgp.errors import InvalidInputError, refuse

FOLDER_VARIABLE = "DIRECTGP_DATA"
"""Environment variable with the folder of data sets."""


@final
@dataclass(frozen=True)
class Source:
    """A table that has been found, and what is known of it before it is read."""

    table: ReadableTable

    name: str
    """Stem of the file, or name of the data set."""

    shown: str
    """What the user named."""

    target: str | None = None
    """Column to be predicted, where that is known."""

    task: Task | None = None
    """Task, where that is known."""

    notes: tuple[str, ...] = ()
    """What the user should hear."""

    def choose(
        self, target: str | None, task: Task | None, positive: str | None
    ) -> tuple[str, Task | None]:
        """Target and task as given, else as known; None leaves the task to be guessed."""
        wanted = target or self.target
        if wanted is None:
            columns = f"The columns of {self.shown!r} are {listed(self.table.names)}."
            refuse("target", "given for a file", "none", columns)
        known = wanted == self.target and positive is None
        return wanted, task or (self.task if known else None)


@final
class EmbeddedTable(ReadableTable):
    """The table of an embedded data set."""

    def __init__(self, embedded: Embedded) -> None:
        super().__init__(f"embedded: {embedded.info.name}")
        self._table = embedded.table()

    def _names(self) -> tuple[str, ...]:
        return tuple(self._table.column_names)

    def _read(self, columns: Sequence[str]) -> pa.Table:
        return self._table.select(list(columns))


def open_source(data: str, data_dir: Path | None = None) -> Source:
    """The table that `data` names, found and not yet read.

    Looked for in this order: a file at that path, an embedded data set, a file in the data folder,
    with or without its suffix.
    """
    if data_dir is not None:
        # An option is never passed over; the variable is looked at where it is needed.
        data_folder(data_dir)
    if suffix_of(data) and Path(data).exists():
        return _file(Path(data), data)
    folder = data_folder(data_dir)
    found = find_in_folder(data, folder)
    if data in EMBEDDED:
        return _embedded(EMBEDDED[data], found)
    if found is not None:
        return _file(found, data)
    _refuse_unknown(data, folder)


def data_folder(option: Path | None) -> Path | None:
    """The folder of data sets: the one given, else that of DIRECTGP_DATA, else None."""
    who, value = ("--data-dir", str(option)) if option else (FOLDER_VARIABLE, _variable())
    if not value:
        return None
    folder = Path(value)
    if not folder.is_dir():
        refuse(who, "a folder that exists", repr(value), "Correct it or leave it out.")
    return folder


def find_in_folder(data: str, folder: Path | None) -> Path | None:
    """The file of that name in the data folder, with or without its suffix, or None."""
    files = tables_in(folder) if folder else []
    return next((file for file in files if data in (file.name, stem_of(file))), None)


def _variable() -> str:
    return os.environ.get(FOLDER_VARIABLE, "")


def _file(path: Path, data: str) -> Source:
    return Source(open_table(path), stem_of(path), data)


def _embedded(embedded: Embedded, found: Path | None) -> Source:
    info = embedded.info
    notes = (f"The data folder has another {info.name!r}: {found.name!r}.",) if found else ()
    shown = f"embedded: {info.name}"
    return Source(EmbeddedTable(embedded), info.name, shown, info.target, info.task, notes)


def _refuse_unknown(data: str, folder: Path | None) -> NoReturn:
    path = Path(data)
    if path.exists() or path.parent != Path("."):
        open_table(path)
    _refuse_missing_paper(data)
    stored = tables_in(folder) if folder else []
    files = [file.name for file in (*tables_in(path.parent), *stored)]
    names = [*EMBEDDED, *map(stem_of, stored)]
    close = nearest(data, dict.fromkeys(files if suffix_of(data) else [*names, *files]))
    remedy = f"Did you mean {' or '.join(map(repr, close))}?" if close else _KNOWN
    refuse("DATA", _ALLOWED, repr(data), remedy)


def _refuse_missing_paper(name: str) -> None:
    """Say of a data set of the paper that is not here where it is to be had."""
    # The paper's sets are opened by way of this module.
    from directgp.datasets.paper.sets import PAPER

    if name in PAPER:
        facts = PAPER[name]
        got = f"{name!r}, one of the paper's data sets, which does not come with directgp"
        refuse("DATA", _ALLOWED, got, f"{facts.remedy} Its source: {facts.source}, {facts.url}")


_ALLOWED = "a file that exists or the name of a data set"
_KNOWN = "Names of data sets are listed by 'directgp datasets'."


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

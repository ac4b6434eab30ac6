"""Find a data set by its name or its path, and open it as a problem."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, final

import pyarrow as pa
from typing_extensions import override

from directgp.datasets.catalogues import PAPER_SETS, catalogues
from directgp.datasets.columns import kind_of
from directgp.datasets.dialect import Reading
from directgp.datasets.embedded import EMBEDDED, DatasetInfo
from directgp.datasets.encoding import LEVEL_KINDS, Encoding
from directgp.datasets.problem import Problem, prepare
from directgp.datasets.readers import ReadableTable
from directgp.datasets.tables import open_table, stem_of, suffix_of, tables_in
from directgp.datasets.targets import guess_task
from directgp.errors import InvalidInputError, refuse
from directgp.registry import ColumnKind, Task
from directgp.text import did_you_mean, listed, suggestion

FOLDER_VARIABLE = "DIRECTGP_DATA"
"""Environment variable with the folder of data sets."""

_USUAL_TARGETS = ("y", "target")
"""Names of columns that are guessed to be the target."""


@final
@dataclass(frozen=True)
class Source:
    """A table that has been found but not read."""

    table: ReadableTable
    """The table."""

    name: str
    """Stem of the file, or name of the data set."""

    shown: str
    """The name that the user gave."""

    target: str | None = None
    """Column to predict, of an embedded data set."""

    task: Task | None = None
    """Kind of prediction, of an embedded data set."""

    notes: tuple[str, ...] = ()
    """Notes for the user."""

    def choose(
        self, target: str | None, task: Task | None, positive: str | None
    ) -> tuple[str, Task | None]:
        """Return target and task as given, or as described; task None means: guess it."""
        wanted = target or self.target
        if wanted is None:
            columns = f"The columns of {self.shown!r} are {listed(self.table.names)}."
            refuse("target", "given for a file", "none", columns)
        is_own_target = wanted == self.target and positive is None
        return wanted, task or (self.task if is_own_target else None)


@final
class EmbeddedTable(ReadableTable):
    """The table of an embedded data set."""

    def __init__(self, name: str) -> None:
        super().__init__(f"embedded: {name}")
        self._table = EMBEDDED[name][1]()

    @override
    def _names(self) -> Sequence[str]:
        return list(self._table.column_names)

    @override
    def _read(self, columns: list[str], as_text: set[str]) -> pa.Table:
        return self._table.select(columns)


def open_source(data: str, data_dir: Path | None = None, reading: Reading | None = None) -> Source:
    """Find the table that `data` names, without reading it.

    Tried in this order: a file at that path, an embedded data set, a file in the data folder, with
    or without its suffix.
    """
    if data_dir is not None:
        # Check an option always, but the environment variable only if it is needed.
        data_folder(data_dir)
    if suffix_of(data) and os.path.exists(data):
        return Source(open_table(data, reading), stem_of(data), data)
    folder = data_folder(data_dir)
    file = find_in_folder(data, folder)
    if data in EMBEDDED:
        info = EMBEDDED[data][0]
        notes = (f"The data folder has another {data!r}: {file.name!r}.",) if file else ()
        table = EmbeddedTable(data)
        return Source(table, data, table.shown, info.target, info.task, notes)
    if file is not None:
        return Source(open_table(file, reading), stem_of(file), data)
    _refuse_unknown(data, folder)


def data_folder(option: Path | None) -> Path | None:
    """Return the folder of data sets: the option, else DIRECTGP_DATA, else None."""
    value = str(option) if option else os.environ.get(FOLDER_VARIABLE, "")
    if not value:
        return None
    folder = Path(value)
    if not folder.is_dir():
        who = "--data-dir" if option else FOLDER_VARIABLE
        refuse(who, "a folder that exists", repr(value), "Correct it or leave it out.")
    return folder


def find_in_folder(data: str, folder: Path | None) -> Path | None:
    """Return the file of that name in the data folder, with or without its suffix, or None."""
    files = tables_in(folder) if folder else []
    return next((file for file in files if data in (file.name, stem_of(file))), None)


def _refuse_unknown(data: str, folder: Path | None) -> NoReturn:
    """Raise `InvalidInputError` for data that is neither a file nor a known name."""
    path = Path(data)
    if os.path.exists(path) or path.parent != Path("."):
        open_table(path)
    allowed = "a file that exists or the name of a data set"
    for catalogue in catalogues():
        for entry in catalogue.entries:
            if entry.name == data:
                got = f"{data!r}, {catalogue.described}, which does not come with directgp"
                refuse("DATA", allowed, got, entry.remedy)
    if data in PAPER_SETS:
        got = f"{data!r}, one of the paper's data sets, which does not come with directgp"
        remedy = "The package directgp-paper knows its source. Run: pip install 'directgp[paper]'."
        refuse("DATA", allowed, got, remedy)
    stored = tables_in(folder) if folder else []
    files = [file.name for file in (*tables_in(path.parent), *stored)]
    names = [] if suffix_of(data) else [*EMBEDDED, *map(stem_of, stored)]
    hint = "Names of data sets are listed by 'directgp datasets'."
    remedy = did_you_mean(data, dict.fromkeys([*names, *files])) or hint
    refuse("DATA", allowed, repr(data), remedy)


def embedded() -> tuple[DatasetInfo, ...]:
    """Describe the data sets that come with directgp."""
    return tuple(info for info, _ in EMBEDDED.values())


def in_folder(folder: Path) -> tuple[DatasetInfo, ...]:
    """Describe the tables in the files of a folder; of each, only the likely target is read.

    The description of a file that cannot be used has the error.
    """
    return tuple(_describe(file, str(folder)) for file in tables_in(folder))


def load_embedded(name: str) -> Problem:
    """Return an embedded data set, ready for training."""
    if name not in EMBEDDED:
        remedy = suggestion(name, EMBEDDED, "The data sets")
        refuse("The name", "that of an embedded data set", repr(name), remedy)
    return open_problem(name)[0]


def open_problem(
    data: str,
    *,
    target: str | None = None,
    task: Task | None = None,
    positive: str | None = None,
    data_dir: Path | None = None,
    reading: Reading | None = None,
    **options: Any,
) -> tuple[Problem, Encoding]:
    """Return the problem that `data` names, and its encoding.

    Parameters
    ----------
    data : str
        Path of a file, name of an embedded data set, or name of a file in the data folder.
    target : str, optional
        The column to predict; embedded data sets have a default.
    data_dir : path, optional
        The data folder; by default the environment variable DIRECTGP_DATA, if it is set.
    reading : Reading, optional
        Decimal mark, encoding, sheet and header of a file; guessed by default.
    task, positive, options
        As in `prepare`: drop, missing, dates, categories, kinds, needed, min_rows.
    """
    source = open_source(data, data_dir, reading)
    return prepare_source(source, target=target, task=task, positive=positive, **options)


def prepare_source(
    source: Source,
    *,
    target: str | None = None,
    task: Task | None = None,
    positive: str | None = None,
    **options: Any,
) -> tuple[Problem, Encoding]:
    """Return the problem of a table that has been found, and its encoding."""
    wanted, task = source.choose(target, task, positive)
    opened = source.table
    table = _with_levels_as_text(
        opened.read(as_text=options.get("categories", ())), opened, options.get("kinds") or {}
    )
    problems = []
    notes = [*source.notes, *opened.notes]
    if opened.irregular:
        if options.get("missing", "error") == "error":
            problems.append(opened.irregular_rows())
        else:
            notes.append(opened.rows_left_out())
    return prepare(
        table,
        wanted,
        task=task,
        name=source.name,
        source=source.shown,
        positive=positive,
        decimals=opened.reading.decimals(opened.decimal),
        notes=notes,
        problems=problems,
        row_numbers=opened.row_numbers(table.num_rows),
        **options,
    )


def _with_levels_as_text(
    table: pa.Table, opened: ReadableTable, kinds: Mapping[str, ColumnKind]
) -> pa.Table:
    """Return the table with dates that are levels as a text file has them."""
    dates = [
        name
        for name in table.column_names
        if kinds.get(name) in LEVEL_KINDS and kind_of(table.column(name).type) == "time"
    ]
    if dates:
        texts = opened.read(dates, as_text=dates)
        for name in dates:
            place = table.column_names.index(name)
            table = table.set_column(place, name, texts.column(name))
    return table


def _describe(file: Path, where: str) -> DatasetInfo:
    """Describe the table in a file, or the error in reading it."""
    info = DatasetInfo(stem_of(file), None, None, None, None, "", where)
    try:
        table = open_table(file)
        usual = (name for name in table.names if name.casefold() in _USUAL_TARGETS)
        target = next(usual, table.names[-1])
        column = table.read([target]).column(target)
        info = replace(info, rows=len(column), features=len(table.names) - 1, target=target)
        task, reason = guess_task(column, target)
        return replace(info, task=task, about=f"{file.name}; the task is a guess: {reason}.")
    except InvalidInputError as error:
        return replace(info, about=str(error))

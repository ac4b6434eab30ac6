"""From the name of a data set of the paper to a problem: a folder, its home, or its formula."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn, final

import pyarrow as pa

from directgp.datasets.files import open_table
from directgp.datasets.paper.facts import Home, PaperDataset
from directgp.datasets.paper.fetching import FetchError, fetch_problem
from directgp.datasets.paper.recognising import differences_of
from directgp.datasets.paper.registry import PAPER
from directgp.datasets.preparing import prepare
from directgp.datasets.problem import Problem
from directgp.datasets.sources import data_folder, find_in_folder
from directgp.datasets.wording import suggestion
from directgp.errors import refuse

Origin = Literal["folder", "fetched", "generated"]

_DRAWN = "Drawn anew from the formula, with a fixed seed: not the rows of DELVE that the paper has."


@final
@dataclass(frozen=True, eq=False)
class PaperData:
    """A data set of the paper, ready for training."""

    problem: Problem

    facts: PaperDataset

    origin: Origin
    """A data folder, the public home, or the formula."""

    differences: str
    """What these numbers have otherwise than the paper's table; empty if nothing."""


def open_paper(name: str, data_dir: Path | None = None, download: bool = True) -> PaperData:
    """A data set of the paper, with what is otherwise than in the paper.

    Parameters
    ----------
    name : str
        One of `PAPER`.
    data_dir : path, optional
        The folder that is looked into first, for a file of that name in any format with the target
        in column ``y``; else that of the environment variable DIRECTGP_DATA, if it is set.
    download : bool
        Whether to fetch what the folder does not have from its public home, into a cache. What has
        a formula is drawn if its home is out of reach.
    """
    facts = _facts(name)
    file = find_in_folder(name, data_folder(data_dir))
    if file is not None:
        return _from_folder(facts, file)
    if download and facts.home is not None:
        try:
            return _from_home(facts, facts.home)
        except FetchError:
            if facts.generator is None:
                raise
    if facts.generator is not None:
        return _from_formula(facts, facts.generator())
    _refuse_missing(facts)


def _facts(name: str) -> PaperDataset:
    if name not in PAPER:
        remedy = suggestion(name, PAPER, "There are")
        refuse("The name", "one of the paper's data sets", repr(name), remedy)
    return PAPER[name]


def _from_folder(facts: PaperDataset, file: Path) -> PaperData:
    table = open_table(file).read()
    problem, _ = prepare(table, "y", task=facts.task, name=facts.name, source=file.name)
    return PaperData(problem, facts, "folder", differences_of(facts, problem))


def _from_home(facts: PaperDataset, home: Home) -> PaperData:
    problem = fetch_problem(facts, home)
    # What is checked against the known copy has its differences; else it is all the paper has.
    return PaperData(problem, facts, "fetched", facts.differences if home.fingerprint else "")


def _from_formula(facts: PaperDataset, drawn: pa.Table) -> PaperData:
    table = drawn.rename_columns([*(f"x{j}" for j in range(facts.features)), "y"])
    problem, _ = prepare(table, "y", task=facts.task, name=facts.name, source="drawn by formula")
    return PaperData(problem, facts, "generated", _DRAWN)


def _refuse_missing(facts: PaperDataset) -> NoReturn:
    why = facts.not_fetched or "nothing is to be fetched"
    refuse(
        f"The data set {facts.name!r}",
        "in the data folder",
        f"no file of that name there, and none is fetched: {why}",
        f"{facts.remedy} Its source: {facts.source}, {facts.url}",
    )

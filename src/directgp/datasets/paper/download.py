"""Open a data set of the paper: a local copy, a download or a formula."""

import socket
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import Literal, NoReturn, final
from urllib.error import HTTPError, URLError

import numpy as np
import pyarrow as pa

from directgp.datasets.paper.sets import PAPER, Download, Home, PaperDataset, size
from directgp.datasets.prepare import prepare
from directgp.datasets.problem import Problem
from directgp.datasets.sources import data_folder, find_in_folder
from directgp.datasets.tables import open_table
from directgp.datasets.wording import suggestion
from directgp.errors import DirectGPError, InvalidInputError, refuse


def numbers_fingerprint(problem: Problem) -> str:
    """Fingerprint of the numbers in single precision, as which the known copies are kept.

    So a copy that went through text, which gives 0.1 for what was 0.1 in single precision, is
    recognised all the same.
    """
    with np.errstate(over="ignore"):
        X, y = (each.astype(np.float32).astype(np.float64) for each in (problem.X, problem.y))
    return replace(problem, X=X, y=y).fingerprint()


def differences_of(facts: PaperDataset, problem: Problem) -> str:
    """What a copy of a user's has otherwise than the paper's table; empty if nothing."""
    if numbers_fingerprint(problem) in facts.copies:
        return facts.differences
    found = size(*problem.X.shape)
    if found == facts.size:
        return f"A copy that is not known, of {found} rows × features, as in the paper."
    return f"A copy that is not known, of {found} rows × features instead of {facts.size}."


_PATIENCE = 20.0
"""Seconds of silence after which a home is out of reach."""


@final
class FetchError(DirectGPError, OSError):
    """The public home of a data set is out of reach."""


def fetch_problem(facts: PaperDataset, home: Home) -> Problem:
    """The data set from its public home, or from the cache, checked against what is known of it."""
    files = [_fetch(facts, each) for each in home.files]
    try:
        problem = _read(facts, home, files)
        _check(facts, home, problem)
    except InvalidInputError:
        # Else the cache would give the wrong files again.
        for file in files:
            file.unlink(missing_ok=True)
        raise
    return problem


def _fetch(facts: PaperDataset, download: Download) -> Path:
    from sklearn.datasets import fetch_file, get_data_home

    url, sha256 = download.url, download.sha256
    folder = Path(get_data_home()) / "directgp"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _impatient():
            return Path(fetch_file(url, folder=folder, sha256=sha256, n_retries=0))
    except (URLError, TimeoutError, ConnectionError, HTTPException) as error:
        if isinstance(error, HTTPError):
            error.close()
        raise _out_of_reach(facts, url, error) from error
    except OSError as error:
        if error.errno is not None:
            raise
        got = f"another file there ({_words(error)})"
        raise _wrong(facts, url, f"the file of sha256 {sha256}", got) from error


@contextmanager
def _impatient() -> Iterator[None]:
    """Wait for a home no longer than a user would, and say nothing before it is sure."""
    before = socket.getdefaulttimeout()
    # scikit-learn passes on no timeout of its own.
    socket.setdefaulttimeout(_PATIENCE)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        socket.setdefaulttimeout(before)


def _read(facts: PaperDataset, home: Home, files: Sequence[Path]) -> Problem:
    url = home.files[0].url
    try:
        table = home.read(files)
    except MemoryError:
        raise
    except Exception as error:
        # Readers of foreign formats raise what they like.
        got = f"a file of which the reader says: {_words(error)}"
        raise _wrong(facts, url, "readable", got) from error
    return prepare(table, "y", task=facts.task, name=facts.name, source=url)[0]


def _check(facts: PaperDataset, home: Home, problem: Problem) -> None:
    url, found = home.files[0].url, size(*problem.X.shape)
    if found != facts.size:
        raise _wrong(facts, url, f"of {facts.size} rows × features, as in the paper", found)
    if home.fingerprint is None:
        return
    numbers = numbers_fingerprint(problem)
    if numbers != home.fingerprint:
        known = f"the numbers of fingerprint {home.fingerprint}"
        raise _wrong(facts, url, known, f"others, of fingerprint {numbers}")


def _wrong(facts: PaperDataset, url: str, allowed: str, got: str) -> InvalidInputError:
    return InvalidInputError(
        f"The data set {facts.name!r} at {url} must be {allowed}. Got {got}."
        f" It may have changed there. {facts.remedy}"
    )


def _out_of_reach(facts: PaperDataset, url: str, error: Exception) -> FetchError:
    return FetchError(
        f"The data set {facts.name!r} must be in the data folder, or its home within reach."
        f" Got an error from {url}: {_words(error)}. {facts.remedy}"
    )


def _words(error: Exception) -> str:
    """What an error says, in one line without the stop."""
    said = error.reason if type(error) is URLError else error
    return " ".join(str(said).split()).rstrip(".") or type(error).__name__


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

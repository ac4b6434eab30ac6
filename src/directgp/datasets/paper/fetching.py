"""From the public home of a data set to a problem, by way of scikit-learn's cache."""

import socket
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import final
from urllib.error import HTTPError, URLError

from directgp.datasets.paper.facts import Download, Home, PaperDataset, size
from directgp.datasets.paper.recognising import numbers_fingerprint
from directgp.datasets.preparing import prepare
from directgp.datasets.problem import Problem
from directgp.errors import DirectGPError, InvalidInputError

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

"""Check that a library computes the loss it is timed on."""

import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import NUGGET, Arrays, Case, read_parameters
from benchmarks.peers.process import LibraryError, Process
from benchmarks.peers.reference import Departures, Expected, expected_loss, marginals

_DRAWS = 400

_RELATIVE = {"float64": 1e-6, "float32": 5e-5}
"""Differences that rounding may make. The variance of f is a difference of numbers near the output
scale, each good to 1e-7 in float32, and a nugget of 1e-5 lets K_uu lose two digits more."""


@dataclass(frozen=True)
class Agreement:
    """A loss and the reference, with and without the library's known changes."""

    loss: float
    difference: float
    """To the reference with the library's departures, in nats an example."""

    departure: float
    """By how much these move the reference."""

    allowed: float


def check(
    process: Process, case: Case, objective: str, file: Path, dtype: str, device: str
) -> Agreement:
    """Set up the library and raise if its loss differs from the reference.

    Raises
    ------
    LibraryError
        If the difference exceeds rounding, or five standard errors for a random loss.
    """
    answer = set_up(process, case, objective, file, dtype, device)
    found = process.ask("loss", draws=_DRAWS)
    arrays, moments = _reference(str(file), NUGGET[dtype])
    departures = Departures(**answer["departures"])
    expected = expected_loss(case, objective, arrays, moments, departures)
    plain = expected_loss(case, objective, arrays, moments, Departures())
    agreement = compare(
        found["loss"], found["error"], expected, plain, _RELATIVE[dtype], departures.inaccuracy
    )
    if not abs(agreement.difference) <= agreement.allowed:
        raise LibraryError(
            f"The {objective} of {process.name} at {case.label()} in {dtype} must be "
            f"{expected.loss:.9g} within {agreement.allowed:.2g}. Got {agreement.loss:.9g}. "
            f"Its departures were taken into account: {asdict(departures)}."
        )
    return agreement


@lru_cache(maxsize=4)
def _reference(file: str, nugget: float) -> tuple[Arrays, tuple[Any, Any]]:
    """Return the parameters of a file and their marginals, common to all libraries."""
    arrays = read_parameters(file, "float64")
    return arrays, marginals(arrays, nugget)


def compare(
    loss: float,
    error: float,
    expected: Expected,
    plain: Expected,
    relative: float,
    inaccuracy: float = 0.0,
) -> Agreement:
    """Return the difference and the tolerance: rounding, standard errors, known inaccuracy."""
    rounding = relative * max(1.0, abs(expected.loss))
    allowed = rounding + 5 * math.hypot(error, expected.error) + inaccuracy
    return Agreement(loss, loss - expected.loss, expected.loss - plain.loss, allowed)


def set_up(
    process: Process, case: Case, objective: str, file: Path, dtype: str, device: str
) -> dict[str, Any]:
    """Let the library build its model from a parameter file."""
    return process.ask(
        "set_up",
        file=str(file),
        likelihood=case.likelihood,
        objective=objective,
        dtype=dtype,
        device=device,
    )

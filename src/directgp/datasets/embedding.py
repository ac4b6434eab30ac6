"""The data sets that come with directgp."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import pyarrow as pa

from directgp.datasets.bundled import breast_cancer, diabetes
from directgp.datasets.generators.friedman import friedman1
from directgp.datasets.generators.norms import ringnorm, twonorm
from directgp.datasets.generators.rentals import rentals
from directgp.datasets.problem import Task


@final
@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a data set before it is opened."""

    name: str

    task: Task | None
    """None where the file cannot be used as it is."""

    rows: int | None
    """None where the file cannot be read."""

    features: int | None
    """Columns beside the target; None where the file cannot be read."""

    target: str | None
    """Column to be predicted; in a file that does not say, a guess."""

    about: str
    """One sentence: what it is, or what is wrong with it."""

    where: str
    """``embedded``, or the folder as the user gave it."""


@final
@dataclass(frozen=True)
class Embedded:
    """A data set that comes with directgp."""

    info: DatasetInfo
    table: Callable[[], pa.Table]


def _row(
    table: Callable[[], pa.Table],
    name: str,
    task: Task,
    rows: int,
    features: int,
    target: str,
    about: str,
) -> Embedded:
    return Embedded(DatasetInfo(name, task, rows, features, target, about, "embedded"), table)


_ROWS = (
    _row(
        diabetes,
        "diabetes",
        "regression",
        442,
        10,
        "progression",
        "Progress of diabetes within a year, from age, sex and eight measurements.",
    ),
    _row(
        friedman1,
        "friedman1",
        "regression",
        1000,
        10,
        "y",
        "Friedman's function of five features, with noise, among five that do not matter.",
    ),
    _row(
        breast_cancer,
        "breast_cancer",
        "classification",
        569,
        30,
        "diagnosis",
        "Malignant or benign tumours, from measurements of their cells.",
    ),
    _row(
        twonorm,
        "twonorm",
        "classification",
        2000,
        20,
        "class",
        "Breiman's two normal clouds beside each other.",
    ),
    _row(
        ringnorm,
        "ringnorm",
        "classification",
        2000,
        20,
        "class",
        "Breiman's normal cloud inside a wider one.",
    ),
    _row(
        rentals,
        "counts",
        "count",
        1500,
        5,
        "rentals",
        "Bicycles rented in an hour, by hour, weather and day; made up.",
    ),
)

EMBEDDED = {row.info.name: row for row in _ROWS}
"""The data sets by name."""

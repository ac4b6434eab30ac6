"""Provide the data sets that come with directgp."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from directgp.registry import Task

Vector = NDArray[np.float64]


def diabetes() -> pa.Table:
    """Return the progress of diabetes within a year in 442 patients, in units of measurement."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    return _table(data.data, {"progression": data.target}, data.feature_names)


def breast_cancer() -> pa.Table:
    """Return the diagnosis of 569 tumours with measurements from images of their cells."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    names = [str(name).replace(" ", "_") for name in data.feature_names]
    diagnosis = [str(data.target_names[k]) for k in data.target]
    return _table(data.data, {"diagnosis": diagnosis}, names)


def _table(
    X: NDArray[np.float64], target: dict[str, Any], names: Sequence[str] | None = None
) -> pa.Table:
    """Return a table of features, ``x1``, ``x2``, … unless named, and a target."""
    columns = names or [f"x{j + 1}" for j in range(X.shape[1])]
    return pa.table(dict(zip(columns, X.T, strict=True)) | target)


def friedman1(rows: int = 1000, seed: int = 1) -> pa.Table:
    """Draw y = 10 sin(π x1 x2) + 20 (x3 − ½)² + 10 x4 + 5 x5 + ε, with ε standard normal.

    Ten features are uniform on [0, 1], and y does not depend on five of them (Friedman,
    "Multivariate adaptive regression splines", 1991).
    """
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(rows, 10))
    return _table(X, {"y": friedman1_mean(X) + rng.standard_normal(rows)})


def friedman1_mean(X: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the target without noise, of shape (n,), for features of shape (n, 10)."""
    waves = 10 * np.sin(np.pi * X[:, 0] * X[:, 1])
    return np.asarray(waves + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4])


# twonorm and ringnorm are from Breiman, "Bias, variance, and arcing classifiers", 1996. The Bayes
# error is 2.3 % for twonorm and 1.3 % for ringnorm.

_DIMENSIONS = 20
_MEAN = 2 / np.sqrt(_DIMENSIONS)


def twonorm(rows: int = 2000, seed: int = 2) -> pa.Table:
    """Draw class 1 from N(−a, I) and class 0 from N(a, I), with a = 2/√20 in every dimension."""
    rng = np.random.default_rng(seed)
    label = rng.integers(2, size=rows)
    X = rng.standard_normal((rows, _DIMENSIONS))
    shift = _MEAN * np.where(label == 1, -1.0, 1.0)
    return _table(X + shift[:, None], {"class": label})


def ringnorm(rows: int = 2000, seed: int = 3) -> pa.Table:
    """Draw class 0 from N(0, 4I) and class 1 from N(a, I), with a = 2/√20 in every dimension.

    The public data of this name have the same a. With a = 1/√20, which is also in print, the Bayes
    error would be 1.5 %.
    """
    rng = np.random.default_rng(seed)
    label = rng.integers(2, size=rows)
    X = rng.standard_normal((rows, _DIMENSIONS))
    return _table(np.where(label[:, None] == 1, X + _MEAN, 2 * X), {"class": label})


def rentals(rows: int = 1500, seed: int = 4) -> pa.Table:
    """Draw Poisson counts of bicycles rented in an hour, given hour, weather and free days."""
    rng = np.random.default_rng(seed)
    features = {
        "hour": rng.uniform(0, 24, rows),
        "temperature": rng.normal(14, 8, rows),
        "wind": rng.gamma(2.0, 2.0, rows),
        "humidity": rng.uniform(30, 100, rows),
        "free_day": (rng.uniform(size=rows) < 2 / 7).astype(np.float64),
    }
    return pa.table(features | {"rentals": rng.poisson(rental_rate(**features))})


def rental_rate(
    hour: Vector, temperature: Vector, wind: Vector, humidity: Vector, free_day: Vector
) -> Vector:
    """Return the expected rentals per hour: two peaks on working days, one on free days."""

    def peak(top: float, width: float) -> Vector:
        return np.asarray(np.exp(-0.5 * ((hour - top) / width) ** 2))

    work = 1.2 * peak(8.0, 1.5) + 1.4 * peak(17.5, 2.0)
    free = 1.2 * peak(14.5, 3.5)
    weather = -(((temperature - 22) / 18) ** 2) - 0.06 * wind - 0.006 * (humidity - 60)
    daytime = 1.6 - 0.8 * np.cos(2 * np.pi * (hour - 2) / 24)
    return np.asarray(np.exp(daytime + np.where(free_day == 1, free, work) + weather))


def solar(rows: int = 600, seed: int = 5) -> pa.Table:
    """Draw the power of a solar plant, whose standard deviation follows the height of the sun.

    With s = max(0, sin(π (hour − 5)/15)) by day, the mean is 3 + 60 s (1 + 0.01 (temperature − 12))
    and the standard deviation 1 + 14 s. Wind has no effect.
    """
    rng = np.random.default_rng(seed)
    hour = rng.uniform(0, 24, rows)
    wind = rng.gamma(2.0, 2.0, rows)
    temperature = rng.normal(12, 7, rows)
    sun = np.where((hour > 5) & (hour < 20), np.sin(np.pi * (hour - 5) / 15), 0.0)
    mean = 3 + 60 * sun * (1 + 0.01 * (temperature - 12))
    power = mean + (1 + 14 * sun) * rng.standard_normal(rows)
    return pa.table({"hour": hour, "temperature": temperature, "wind": wind, "power": power})


def visits(rows: int = 400, seed: int = 6) -> pa.Table:
    """Draw counts with a variance ten times their mean, exp(2.2 + 0.8 sin(2 x1) + 0.4 x2)."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (rows, 3))
    mean = np.exp(2.2 + 0.8 * np.sin(2 * X[:, 0]) + 0.4 * X[:, 1])
    return _table(X, {"visits": rng.poisson(rng.gamma(mean / 9, 9.0))})


@final
@dataclass(frozen=True)
class DatasetInfo:
    """The description of a data set that has not been opened."""

    name: str
    """Name of the data set, or stem of the file."""

    task: Task | None
    """Kind of prediction; None if the file cannot be used as it is."""

    rows: int | None
    """Number of rows; None if the file cannot be read."""

    features: int | None
    """Number of columns besides the target; None if the file cannot be read."""

    target: str | None
    """Column to predict; a guess for a file."""

    about: str
    """One sentence: what it is, or the error."""

    where: str
    """``embedded``, or the folder as the user gave it."""


_ABOUT = {
    "diabetes": "Progress of diabetes within a year, from age, sex and eight measurements.",
    "friedman1": "Friedman's function of five features, with noise, among five that do not matter.",
    "breast_cancer": "Malignant or benign tumours, from measurements of their cells.",
    "twonorm": "Breiman's two normal clouds beside each other.",
    "ringnorm": "Breiman's normal cloud inside a wider one.",
    "solar": "Power of a solar plant, whose noise follows the sun; made up.",
    "visits": "Counts with a variance ten times their mean; made up.",
    "counts": "Bicycles rented in an hour, by hour, weather and day; made up.",
}

_SETS: tuple[tuple[Callable[[], pa.Table], str, Task, int, int, str], ...] = (
    (diabetes, "diabetes", "regression", 442, 10, "progression"),
    (friedman1, "friedman1", "regression", 1000, 10, "y"),
    (breast_cancer, "breast_cancer", "classification", 569, 30, "diagnosis"),
    (twonorm, "twonorm", "classification", 2000, 20, "class"),
    (ringnorm, "ringnorm", "classification", 2000, 20, "class"),
    (rentals, "counts", "count", 1500, 5, "rentals"),
    (solar, "solar", "regression", 600, 3, "power"),
    (visits, "visits", "count", 400, 3, "visits"),
)

EMBEDDED = {
    name: (DatasetInfo(name, task, rows, features, target, _ABOUT[name], "embedded"), make)
    for make, name, task, rows, features, target in _SETS
}
"""Description and generator of each data set, by name."""

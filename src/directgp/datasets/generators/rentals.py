"""Made-up demand for rented bicycles: counts whose rate is a smooth function of the features."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def rentals(rows: int = 1500, seed: int = 4) -> pa.Table:
    """Hourly rentals at a station; Poisson, given hour, temperature, wind, rain and free days."""
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
    hour: NDArray[np.float64],
    temperature: NDArray[np.float64],
    wind: NDArray[np.float64],
    humidity: NDArray[np.float64],
    free_day: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Expected rentals an hour: two peaks on working days, one on free days."""
    work = 1.2 * _peak(hour, 8.0, 1.5) + 1.4 * _peak(hour, 17.5, 2.0)
    free = 1.2 * _peak(hour, 14.5, 3.5)
    weather = -(((temperature - 22) / 18) ** 2) - 0.06 * wind - 0.006 * (humidity - 60)
    daytime = 1.6 - 0.8 * np.cos(2 * np.pi * (hour - 2) / 24)
    return np.asarray(np.exp(daytime + np.where(free_day == 1, free, work) + weather))


def _peak(hour: NDArray[np.float64], top: float, width: float) -> NDArray[np.float64]:
    return np.asarray(np.exp(-0.5 * ((hour - top) / width) ** 2))

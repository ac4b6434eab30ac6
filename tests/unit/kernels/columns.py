"""Inputs with columns of every kind, and expressions over them."""

import torch
from torch import Tensor

from directgp.kernels import ColumnFacts

COLUMNS = [
    ColumnFacts("x"),
    ColumnFacts("z"),
    ColumnFacts("date", kind="time", scale=100.0, unit="days"),
    ColumnFacts("city", kind="category", num_levels=4),
    ColumnFacts("lat", kind="place", shift=10.0, scale=20.0),
    ColumnFacts("lon", kind="place", shift=-3.0, scale=-30.0),
]

PARTS = (
    "RBF('x', 'z')",
    "RBF('x', 'z', ard=False)",
    "Matern12('x', 'z', 'city')",
    "Matern32('x')",
    "Matern52()",
    "Matern52('city')",
    "RationalQuadratic('x', 'date')",
    "RationalQuadratic('city', 'z', ard=False)",
    "Linear('x')",
    "Linear('x', 'z', origin=2.0)",
    "Periodic('date')",
    "Periodic('date', period='1mo')",
    "Categorical('city')",
    "Categorical('city', rank=2)",
    "Group('city')",
    "Sphere('lat', 'lon')",
    "Sphere('lat', 'lon', nu=2.5)",
    "Additive('x', 'z', 'date')",
    "Additive('x', 'z', order=2)",
)

EXPRESSIONS = (
    "Matern52('x', 'z') + Periodic('date', period='1y') * RBF('date') + Group('city')",
    "(Linear('x') + RBF('z')) * Categorical('city', rank=1) + Sphere('lat', 'lon')",
    "Additive('x', 'date', order=2) * Group('city') + Linear('z', origin=0.5) * RBF('x')",
)


def inputs(n: int, seed: int = 0) -> Tensor:
    """Return scaled inputs with these columns; one row has an unseen city."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, len(COLUMNS), generator=generator, dtype=torch.float64)
    X[:, 3] = torch.randint(0, 4, (n,), generator=generator).double()
    X[n // 2, 3] = -1.0
    # Latitudes lie between −90 and 90 degrees.
    X[:, 4] = X[:, 4].clamp(-3.5, 3.5)
    return X

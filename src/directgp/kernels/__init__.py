"""Kernels as sums and products of parts, each over some columns."""

from directgp.kernels.columns import ColumnFacts
from directgp.kernels.expression import Expression, Product, Sum
from directgp.kernels.parsing import parse
from directgp.kernels.parts import (
    PARTS,
    RBF,
    Additive,
    Categorical,
    Group,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    Sphere,
)

__all__ = [
    "PARTS",
    "RBF",
    "Additive",
    "Categorical",
    "ColumnFacts",
    "Expression",
    "Group",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "Product",
    "RationalQuadratic",
    "Sphere",
    "Sum",
    "parse",
]

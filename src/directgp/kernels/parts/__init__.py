"""Parts of kernels: a file for each kind, and a row for each part."""

from directgp.kernels.parts.additive import Additive
from directgp.kernels.parts.base import Part
from directgp.kernels.parts.categorical import Categorical, Group
from directgp.kernels.parts.linear import Linear
from directgp.kernels.parts.periodic import Periodic
from directgp.kernels.parts.sphere import Sphere
from directgp.kernels.parts.stationary import RBF, Matern12, Matern32, Matern52, RationalQuadratic

PARTS: dict[str, type[Part]] = {
    part.__name__: part
    for part in (
        RBF,
        Matern12,
        Matern32,
        Matern52,
        RationalQuadratic,
        Linear,
        Periodic,
        Categorical,
        Group,
        Sphere,
        Additive,
    )
}
"""Maps the name of a part in an expression to its class."""

__all__ = [
    "PARTS",
    "RBF",
    "Additive",
    "Categorical",
    "Group",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "Part",
    "Periodic",
    "RationalQuadratic",
    "Sphere",
]

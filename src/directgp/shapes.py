"""Define shape annotations and `Marginals`."""

from dataclasses import dataclass

from jaxtyping import Bool, Float, Num
from torch import Tensor

__all__ = [
    "BatchedRow",
    "Inputs",
    "Marginals",
    "Row",
    "Targets",
    "Values",
]

# Axis names in shape annotations:
#
# n       examples of the batch
# m, d    inducing points; input features
# *batch  leading axes carried by every operation, for instance a grid of β
# p       latent functions of a likelihood that has several, always next to the examples
# k       nodes or samples of a rule, always the first axis

Values = Float[Tensor, "..."]
"""Any shape; the arguments of a function broadcast unless it says otherwise."""

Targets = Num[Tensor, "..."] | Bool[Tensor, "..."]
"""Observed y of any shape and dtype."""

Row = Float[Tensor, " n"]
"""One number for each example."""

BatchedRow = Float[Tensor, "*batch n"]
"""One number for each example, with leading batch axes."""

Points = Float[Tensor, "k n"]
"""Nodes or samples for each example."""

Latents = Float[Tensor, "p n"]
"""One number for each latent function and example."""

LatentPoints = Float[Tensor, "k *#p n"]
"""Nodes or samples for each example, of one or several latent functions."""

Inputs = Float[Tensor, "n d"]
"""The inputs of the examples."""


@dataclass(frozen=True)
class Marginals:
    """Mean μ_i and variance v_i > 0 of q(f_i) = N(μ_i, v_i), one pair per example.

    With P latent functions, independent under q, shape (..., P, n).
    """

    mean: BatchedRow
    variance: BatchedRow

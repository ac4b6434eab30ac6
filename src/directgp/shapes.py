"""Define shape annotations, `Marginals` and a check of tensor values."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Num
from torch import Tensor

from directgp.errors import refuse

# Axis names in shape annotations:
#
# n       examples of the batch
# m, d    inducing points; input features
# *batch  leading axes carried by every operation, for instance a grid of β
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

Inputs = Float[Tensor, "n d"]
"""The inputs of the examples."""


@dataclass(frozen=True)
class Marginals:
    """Mean and variance of q(f_i) = N(μ_i, v_i), one pair per example."""

    mean: BatchedRow
    """μ_i."""

    variance: BatchedRow
    """v_i > 0."""


def require_all(mask: Tensor, values: Tensor, who: str, allowed: str, remedy: str = "") -> None:
    """Raise `InvalidInputError` with value and index of the first element whose mask is False."""
    if bool(mask.all()):
        return
    bad = torch.nonzero(~mask)
    first = tuple(bad[0].tolist())
    index = first[0] if len(first) == 1 else first
    others = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    refuse(who, allowed, f"{values[first].item()!r} at index {index}{others}", remedy)

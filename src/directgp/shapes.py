"""Name the tensor axes; define `Marginals` and the checks of tensors."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.errors import refuse

# Axis names, used in every shape annotation:
#
# ``n``
# examples of the batch.
# ``m``, ``d``
# inducing points; input features.
# ``*batch``
# leading axes carried by every operation, for instance a grid of β.
# ``k``
# nodes or samples of a rule, always the first axis.


@dataclass(frozen=True)
class Marginals:
    """Mean and variance of q(f_i) = N(μ_i, v_i), one pair per example."""

    mean: Float[Tensor, "*batch n"]
    """μ_i."""

    variance: Float[Tensor, "*batch n"]
    """v_i > 0."""


def require_all(mask: Tensor, values: Tensor, who: str, allowed: str, remedy: str = "") -> None:
    """Refuse the first value whose mask is False, naming its value and index."""
    if bool(mask.all()):
        return
    bad = torch.nonzero(~mask)
    first = tuple(bad[0].tolist())
    index = first[0] if len(first) == 1 else first
    others = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    refuse(who, allowed, f"{values[first].item()!r} at index {index}{others}", remedy)

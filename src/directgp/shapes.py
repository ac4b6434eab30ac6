"""The axis vocabulary and the one object that crosses from posteriors to objectives.

Axis names, used in every shape annotation:

``n``
    examples of the batch.
``m``, ``d``
    inducing points; input features.
``*batch``
    leading axes carried by every operation, for instance a grid of β.
``k``
    nodes or samples of a rule, always the first axis.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Marginals:
    """Mean and variance of q(f_i) = N(μ_i, v_i), one pair per example."""

    mean: Float[Tensor, "*batch n"]
    """μ_i."""

    variance: Float[Tensor, "*batch n"]
    """v_i > 0."""

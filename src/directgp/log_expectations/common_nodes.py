"""Nodes that all examples have in common, measured in standard deviations of their q."""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from directgp.likelihoods.base import Derivatives
from directgp.log_expectations.estimate import Points, Row

_MOST = 64
"""More nodes than this are for few of the examples, and these are better taken apart."""

_WIDEST = 1e30
"""Standard deviations from where on powers of them overflow."""

_GRAIN = 4
"""Nodes end at whole quarters, so that they stay the same for many steps of training."""

Array = NDArray[np.floating]


class CommonNodes(NamedTuple):
    """E_q[g(f)] ≈ Σ_k w_k g(μ + z_k·√v) for every example."""

    z: Float[Tensor, "k 1"]
    weights: Float[Tensor, " k"]

    def places(self, mean: Row, deviation: Row) -> Points:
        """μ + z_k·√v."""
        return torch.addcmul(mean, self.z, deviation)

    def averages(self, at: Derivatives) -> tuple[Row, Row, Row]:
        """E_q[ℓ] with its slopes, E_q[ℓ′] in the mean and ½E_q[ℓ″] in the variance."""
        return (
            self.weights @ at.value,
            self.weights @ at.first,
            (self.weights @ at.second).mul_(0.5),
        )


def common_nodes(mean: Row, deviation: Row, strip: float, nats: float) -> CommonNodes | None:
    """Equal steps over q that err by e^−nats for every example; None if they would be many.

    They reach far enough for q alone, and for q·|ℓ| where ℓ is nearly 0 at the mean and its mass
    lies towards f = 0, at most |μ| away. The widest q needs the smallest step in its own measure.
    """
    towards_zero = torch.minimum(deviation, deviation.reciprocal()).mul_(mean)
    extremes = torch.stack([deviation.amax(), *towards_zero.aminmax()])
    widest, lowest, highest = extremes.tolist()
    if not 0 < widest < _WIDEST:
        return None
    step = _step(widest, strip, nats)
    reach = math.sqrt(2 * nats)
    # In this order NaN stays NaN, and compares as false.
    left, right = reach + max(highest, 0.0), reach + max(-lowest, 0.0)
    if not left + right <= (_MOST - 1) * step:
        return None
    left, right = (math.ceil(_GRAIN * side) / _GRAIN for side in (left, right))
    # What is kept there must not be written to.
    z, weights = _rule(math.ceil((left + right) / step), left, right)
    return CommonNodes(torch.from_numpy(z).to(mean), torch.from_numpy(weights).to(mean))


def _step(widest: float, strip: float, nats: float) -> float:
    """The step of `step_for` over the widest q, in its standard deviation."""
    more = nats + 1.5 * math.log1p(widest**4)
    d = min(math.sqrt(2 * more), strip / widest)
    return 2 * math.pi * d / (more + 0.5 * d * d)


@lru_cache(maxsize=64)
def _rule(number: int, left: float, right: float) -> tuple[Array, Array]:
    """The middles of equal steps from −left to right, as a column, and their share of N(0, 1)."""
    z: Array = (np.arange(number) + 0.5) * ((left + right) / number) - left
    weights: Array = np.exp(-0.5 * z * z)
    weights /= weights.sum()
    return z[:, None], weights

"""What a rule finds out about each example, before it becomes part of a graph."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from directgp.likelihoods.base import Likelihood
from directgp.numerics.special import log1mexp

Row = Float[Tensor, " n"]
Points = Float[Tensor, "k n"]


@dataclass(frozen=True)
class Estimate:
    """log E_q[p] and its derivatives, one of each per example.

    Only the parameter term is part of a graph, and stays so whatever is done with the estimate.
    """

    value: Row
    """log E_q[p(y given f)]."""

    mean_slope: Row
    """Its derivative in the mean."""

    variance_slope: Row
    """Its derivative in the variance."""

    parameter_term: Row | None = None
    """E_q̃[log p(y given f)], whose graph leads to the likelihood's parameters, where asked for."""

    def complement(self) -> "Estimate":
        """log(1 − E_q[p]) from log E_q[p]."""
        return self.through(log1mexp(-self.value), -1 / torch.expm1(-self.value))

    def through(self, value: Row, factor: Row) -> "Estimate":
        """An estimate of a function of the value, with the derivative of that function."""
        with torch.enable_grad():
            columns = [factor * column for column in self._columns()[1:]]
        return Estimate(value, *columns)

    def otherwise(self, mask: Bool[Tensor, " n"], other: "Estimate") -> "Estimate":
        """This estimate where the mask holds, the other one elsewhere."""
        pairs = zip(self._columns(), other._columns(), strict=True)
        with torch.enable_grad():
            return Estimate(*(torch.where(mask, a, b) for a, b in pairs))

    @staticmethod
    def join(parts: "Iterable[Estimate]") -> "Estimate":
        """One estimate from those of successive examples."""
        one, *more = parts
        if not more:
            return one
        columns = zip(*(estimate._columns() for estimate in (one, *more)), strict=True)
        with torch.enable_grad():
            return Estimate(*(torch.cat(column) for column in columns))

    @staticmethod
    def gather(parts: "list[tuple[Int[Tensor, ' _'], Estimate]]") -> "Estimate":
        """One estimate from those of parts of the examples, given with their indices."""
        index = torch.cat([index for index, _ in parts])
        order = torch.empty_like(index)
        order[index] = torch.arange(len(index), device=index.device)
        columns = zip(*(estimate._columns() for _, estimate in parts), strict=True)
        with torch.enable_grad():
            return Estimate(*(torch.cat(column)[order] for column in columns))

    def _columns(self) -> list[Row]:
        columns = [self.value, self.mean_slope, self.variance_slope]
        return columns if self.parameter_term is None else [*columns, self.parameter_term]


def without_overflow(weights: Points, first: Points, second: Points) -> tuple[Points, Points]:
    """Slopes at points of these weights, 0 where a point so far out that they overflow has none."""
    # On a device the question would cost more than the answer saves.
    if not second.is_cuda and math.isfinite(second.sum()):
        return first, second
    weightless = weights == 0
    return first.masked_fill(weightless, 0.0), second.masked_fill(weightless, 0.0)


def parameter_term(likelihood: Likelihood, y: Row, f: Points, weights: Points) -> Row | None:
    """Σ_k w_k log p(y given f_k), for its gradient in the likelihood's parameters, if asked for.

    Fisher's identity: ∂_θ log E_q[p] = E_q̃[∂_θ log p(y given f)], with f_k and w_k standing for q̃.
    """
    if not likelihood.trainable:
        return None
    with torch.enable_grad():
        kernel = (weights * likelihood.log_kernel(y, f)).sum(0)
        return kernel + weights.sum(0) * likelihood.log_base(y)

"""Integrals for many examples, each with the nodes it needs, in bounded memory."""

from collections.abc import Callable
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.nodes import groups_by_nodes

Values = Float[Tensor, "..."]
SomeLikelihood = TypeVar("SomeLikelihood", bound=Likelihood)

_MOST_AT_ONCE = 2**21
"""Nodes of all examples that are held in memory together."""


def integrate_in_batches(
    integral: Callable[..., Values],
    likelihood: SomeLikelihood,
    needed: Values,
    *examples: Values,
) -> Values:
    """Call ``integral(number, likelihood, *examples)`` on examples that need about `number` nodes.

    Parameters
    ----------
    integral
        Returns one value for each of its examples, shape ``(batch,)``.
    needed
        Nodes that each example needs, shape ``(..., n)``.
    examples
        Tensors that broadcast with `needed`.
    """
    wide = [example.expand(needed.shape) for example in examples]
    value = torch.zeros_like(needed)
    for number, mask in groups_by_nodes(needed):
        chosen = torch.ones_like(needed, dtype=torch.bool) if mask is None else mask
        group = likelihood.take(chosen)
        columns = [example[chosen] for example in wide]
        parts = [
            integral(number, group.take(index), *(column[index] for column in columns))
            for index in torch.arange(len(columns[0])).split(max(1, _MOST_AT_ONCE // number))
        ]
        value = value.masked_scatter(chosen, torch.cat(parts))
    return value

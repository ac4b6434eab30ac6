"""Integrals for many examples, each with about the nodes it needs, in bounded memory."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.nodes import blocks_by_nodes

Values = Float[Tensor, "..."]


def integrate_in_batches(
    integral: Callable[..., Float[Tensor, " r"]],
    likelihood: Likelihood,
    needed: Values,
    *examples: Values,
) -> Values:
    """Call ``integral(number, likelihood, *examples)`` on examples that need about `number` nodes.

    Parameters
    ----------
    integral
        Returns one value for each of its examples.
    likelihood
        For examples of the shape of `needed`.
    needed
        Nodes that each example needs, shape ``(..., n)``.
    examples
        Tensors that broadcast with `needed`.
    """
    flat = likelihood.take(torch.ones_like(needed, dtype=torch.bool))
    columns = [example.expand(needed.shape).reshape(-1) for example in examples]
    order, parts = [], []
    for number, index in blocks_by_nodes(needed.reshape(-1)):
        order.append(index)
        parts.append(integral(number, flat.take(index), *(column[index] for column in columns)))
    values = torch.cat(parts)
    return torch.empty_like(values).index_copy(0, torch.cat(order), values).reshape(needed.shape)

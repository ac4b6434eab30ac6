"""Weight the members of a mixture by validation rows, and judge it by rows left out."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

Losses = Float[Tensor, "c v"]
"""Losses of candidates, a row each, of the validation examples."""

Weights = Float[Tensor, " c"]

_STEPS = 200
"""Steps of the weights' fixed-point iteration."""

_PRIOR = 5.0
"""Validation rows that equal weights count as."""

_SMALLEST = 0.02
"""Members of less weight are dropped."""

_PARTS = 5
"""Parts of the validation rows; the loss of each is that with the weights of the others."""


class Standing(NamedTuple):
    """Weights of candidates, and the loss of their mixture."""

    weights: Weights
    """Not negative; they sum to 1."""

    loss: float
    """Mean loss of the mixture on the rows that weighted it."""


def mixed(losses: Losses, weights: Weights) -> Float[Tensor, " v"]:
    """Return −log Σ_k w_k p_k of each row, from −log p_k."""
    return -torch.logsumexp(weights.log()[:, None] - losses, 0)


def mixture_weights(losses: Losses, share: Float[Tensor, " v"] | None = None) -> Weights:
    """Minimise −Σ_i log Σ_k w_k p_k(y_i) over weights, by the EM algorithm.

    The objective is convex. `share` are weights of the rows. Equal weights count as a few rows,
    so that few rows do not decide alone; a candidate with an infinite loss has the weight 0.
    """
    number = len(losses)
    usable = torch.isfinite(losses).all(-1)
    if number == 1 or int(usable.sum()) <= 1:
        best = losses.mean(-1).nan_to_num(torch.inf, torch.inf).argmin()
        return torch.zeros(number, dtype=torch.float64).index_fill_(0, best.cpu(), 1.0)
    log_p = -losses[usable].double().cpu()
    p = torch.exp(log_p - log_p.max(0).values)
    rows = torch.ones(p.shape[1], dtype=torch.float64) if share is None else share.double().cpu()
    w = torch.full((len(p),), 1 / len(p), dtype=torch.float64)
    prior = _PRIOR / len(p)
    for _ in range(_STEPS):
        joint = w[:, None] * p
        w = (joint / joint.sum(0)) @ rows + prior
        w = w / w.sum()
    weights = torch.zeros(number, dtype=torch.float64)
    weights[usable.cpu()] = w
    return weights


def largest(weights: Weights, most: int) -> Weights:
    """Return the weights of at most that many members, none of them tiny; the others are 0."""
    kept = weights >= min(_SMALLEST, float(weights.max()))
    order = weights.argsort(descending=True, stable=True)
    kept[order[most:]] = False
    chosen = torch.where(kept, weights, 0.0)
    return chosen / chosen.sum()


def cross_fitted(
    losses: Losses, share: Float[Tensor, " v"] | None, most: int
) -> Float[Tensor, " v"]:
    """Return the loss of each row in a mixture whose weights have not seen the row.

    Losses are multiplied by the weights of the rows.
    """
    number = losses.shape[1]
    part = torch.arange(number, device=losses.device) % min(_PARTS, number)
    found = torch.empty_like(losses[0])
    for k in range(int(part.max()) + 1):
        inside = part == k
        rest = ~inside if number > 1 else inside
        rows = None if share is None else share[rest]
        weights = largest(mixture_weights(losses[:, rest], rows), most).to(losses)
        found[inside] = mixed(losses[:, inside], weights)
    return found if share is None else share * found

"""Rejection sampling of a whole batch: what is refused is proposed again, and only that."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from directgp.errors import NumericalError

Proposal = Callable[
    [Int[Tensor, " r"] | None, int], tuple[Float[Tensor, "j r"], Bool[Tensor, "j r"]]
]
"""Examples (None for all) and a number of tries → proposals and which of them are accepted."""

_TRIES = 4
"""Proposals made at once for each draw that the first round refused."""


def draw_by_rejection(
    propose: Proposal, num_samples: int, max_rounds: int
) -> tuple[Float[Tensor, "k n"], Bool[Tensor, "k n"]]:
    """Draws, and which of them are still missing after the last round."""
    draws, accepted = propose(None, num_samples)
    missing = torch.nonzero(~accepted.reshape(-1)).squeeze(-1)
    flat = draws.reshape(-1)
    for _ in range(max_rounds - 1):
        if missing.numel() == 0:
            break
        tries, hits = propose(missing % draws.shape[-1], _TRIES)
        first = hits.to(torch.int8).argmax(0, keepdim=True)
        found = hits.any(0)
        flat[missing[found]] = tries.gather(0, first).squeeze(0)[found]
        missing = missing[~found]
    unfinished = torch.zeros_like(flat, dtype=torch.bool)
    unfinished[missing] = True
    return flat.reshape(draws.shape), unfinished.reshape(draws.shape)


def require_finished(unfinished: Bool[Tensor, "k n"], who: str) -> None:
    """Raise where a sampler that always ends has not."""
    if bool(unfinished.any()):
        examples = int(unfinished.any(0).sum())
        raise NumericalError(
            f"{who} could not draw from q(f)·p(y given f) for {examples} examples. "
            f"Check their mean, variance and target for NaN or infinity, or for a target absurdly "
            f"far from the mean; the rule 'quadrature' needs no draws."
        )

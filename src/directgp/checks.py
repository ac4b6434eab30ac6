"""Checks of tensors; apart from the errors, which can be had without torch."""

import torch
from torch import Tensor

from directgp.errors import refuse


def require_all(mask: Tensor, values: Tensor, who: str, allowed: str, remedy: str = "") -> None:
    """Refuse the first value whose mask is False, naming its value and index."""
    if bool(mask.all()):
        return
    bad = torch.nonzero(~mask)
    first = tuple(bad[0].tolist())
    index = first[0] if len(first) == 1 else first
    others = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    refuse(who, allowed, f"{values[first].item()!r} at index {index}{others}", remedy)

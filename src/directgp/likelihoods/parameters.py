"""Positive parameters of likelihoods, stored without constraint."""

import torch
from torch import Tensor, nn

from directgp.checks import require_all
from directgp.numerics.softplus import softplus, softplus_inverse


def unconstrained(value: float | Tensor, who: str) -> nn.Parameter:
    """Return the raw parameter ρ with `positive(ρ)` = value, in float64.

    A tensor of shape (..., 1) gives one parameter for each member of a batch of models.
    """
    tensor = torch.as_tensor(value, dtype=torch.float64).detach().clone()
    allowed = torch.isfinite(tensor) & (tensor > 0)
    require_all(allowed.reshape(-1), tensor.reshape(-1), who, "positive and finite")
    return nn.Parameter(softplus_inverse(tensor))


def positive(raw: Tensor) -> Tensor:
    """Return log(1 + e^ρ), the positive value of a raw parameter ρ."""
    return softplus(raw)

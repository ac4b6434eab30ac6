"""The Matérn correlation of inputs with themselves."""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def matern_gram(a: Float[Tensor, "*batch m d"], nu: float) -> Float[Tensor, "*batch m m"]:
    """p(r)·e^−r with r = √(2ν)·‖a_i − a_j‖, for inputs already divided by the lengthscale.

    p is 1, 1 + r or 1 + r + r²/3 for ν = ½, 1½ or 2½. Distances come from differences, as in
    `rbf_gram`: gpytorch's are off by √eps times the distance from the mean.
    """
    r = math.sqrt(2 * nu) * torch.cdist(a, a, compute_mode="donot_use_mm_for_euclid_dist")
    if nu == 0.5:
        return torch.exp(-r)
    polynomial = 1 + r if nu == 1.5 else 1 + r + r.square() / 3
    return polynomial * torch.exp(-r)

"""Compute covariances that depend on a distance alone: RBF and Matérn."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.numerics.arrays import Array, exp_in_place, library_of

RBF = math.inf
"""The smoothness ν of the RBF kernel, the limit of the Matérn kernels."""


def farthest(dtype: torch.dtype) -> float:
    """Return the distance, in lengthscales, beyond which squares overflow; κ is 0 long before."""
    limit: float = 1e-3 * torch.finfo(dtype).max ** 0.5
    return limit


def of_distance(D: Float[Tensor, "..."], nu: float) -> Float[Tensor, "..."]:
    """Compute κ at distances D in lengthscales, with a tape.

    κ = exp(−½D²) for RBF. For Matérn kernels κ = p(r)·e^−r with r = √(2ν)·D, and p is 1, 1 + r or
    1 + r + r²/3 for ν = ½, 1½ or 2½.
    """
    if nu == RBF:
        return torch.exp(-0.5 * D.square())
    r = math.sqrt(2 * nu) * D
    if nu == 0.5:
        return torch.exp(-r)
    polynomial = 1 + r if nu == 1.5 else 1 + r + r.square() / 3
    return polynomial * torch.exp(-r)


def stationary(
    a: Float[Tensor, "*#batch m d"], b: Float[Tensor, "*#batch n d"], nu: float
) -> Float[Tensor, "*batch m n"]:
    """Compute κ(‖a_i − b_j‖) for inputs already divided by the lengthscale, with a tape.

    Distances come from differences: gpytorch's are off by √eps times the distance from the mean.
    """
    return of_distance(distances(a, b), nu)


def distances(
    a: Float[Tensor, "*#batch m d"], b: Float[Tensor, "*#batch n d"]
) -> Float[Tensor, "*batch m n"]:
    """Compute ‖a_i − b_j‖ from differences, with a tape."""
    # Clamp distances whose squares overflow; κ is 0 long before.
    reach = farthest(a.dtype)
    centre = a.detach().median(-2, keepdim=True).values
    a, b = ((x - centre).clamp(-reach, reach) for x in (a, b))
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def write_matern(xp: Any, r: Array, nu: float, K: Array, E: Array) -> None:
    """Write the covariance κ at −½D² = r to K, and its slope to E; r is overwritten.

    With r = √(2ν)·D: κ = p(r) e^−r with p = 1, 1 + r, 1 + r + r²/3 for ν = ½, 1½, 2½, and
    E = −2 dκ/dD².
    """
    r *= -4 * nu
    xp.sqrt(r.clip(0), out=r)
    exp_in_place(xp.negative(r, out=K))
    if nu == 0.5:
        E[...] = xp.where(r > 0, K / xp.where(r > 0, r, 1.0), 0.0)
    elif nu == 1.5:
        xp.multiply(K, 3, out=E)
        r += 1
        K *= r
    else:
        xp.multiply(K, r, out=E)
        r *= E
        r /= 3
        E += K
        xp.add(E, r, out=K)
        E *= 5 / 3


def value_and_slope(half: Array, nu: float) -> tuple[Array, Array]:
    """Return κ and E = −2 dκ/dD² at −½D² = `half`, which is overwritten."""
    xp = library_of(half)
    if nu == RBF:
        K = exp_in_place(half)
        return K, K
    K = xp.empty_like(half)
    E = xp.empty_like(half)
    write_matern(xp, half, nu, K, E)
    return K, E

"""Compute Gaussian densities, divergences and Gauss–Hermite nodes in log space."""

import math
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from directgp.errors import require
from directgp.shapes import Values


def log_density(y: Values, mean: Values, variance: Values) -> Values:
    """Compute log N(y; mean, variance) = −½ (log 2π + log variance + (y − mean)²/variance).

    Elementwise; the three broadcast.
    """
    return -0.5 * (math.log(2 * math.pi) + torch.log(variance) + (y - mean) ** 2 / variance)


def kl_from_standard(
    u_mean: Float[Tensor, "*batch m"], u_chol: Float[Tensor, "*batch m m"]
) -> Float[Tensor, "*batch"]:
    """Compute KL[N(u_mean, u_chol u_cholᵀ) ‖ N(0, I)] of each batch element.

    ½ (‖u_chol‖² + ‖u_mean‖² − m) − Σ log |diag u_chol|, for a lower triangular factor.
    """
    squares = u_chol.square().sum((-2, -1)) + u_mean.square().sum(-1)
    log_scale = u_chol.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
    return 0.5 * (squares - u_mean.shape[-1]) - log_scale


Array = NDArray[np.float64]
"""A float64 vector of nodes or weights."""


def gauss_hermite(
    num_nodes: int, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None
) -> tuple[Float[Tensor, " k"], Float[Tensor, " k"]]:
    """Return nodes z_k and log weights with E[g(z)] ≈ Σ_k exp(log w_k) g(z_k), z ~ N(0, 1).

    Both have shape (K,), nodes ascending. The rule is exact for polynomials up to degree 2K − 1.
    It is computed in float64 and works for several hundred nodes, whose outer weights underflow.
    """
    require(num_nodes >= 1, "num_nodes", "at least 1", num_nodes)
    nodes, log_weights = (
        torch.tensor(values, dtype=dtype, device=device) for values in _rule(num_nodes)
    )
    return nodes, log_weights


@lru_cache(maxsize=64)
def _rule(num_nodes: int) -> tuple[Array, Array]:
    """Return Golub and Welsch's nodes (1969) after a Newton step; w_k = 1 / (K h_{K−1}(z_k)²)."""
    # Build the Jacobi matrix: √1, √2, … next to a diagonal of 0.
    beside = np.sqrt(np.arange(1, num_nodes, dtype=np.float64))
    nodes = np.linalg.eigvalsh(np.diag(beside, -1))
    nodes = nodes - _hermite(nodes, num_nodes)[0] / num_nodes**0.5
    nodes = (nodes - nodes[::-1]) / 2
    log_weights = -np.log(num_nodes) - 2 * _hermite(nodes, num_nodes)[1]
    return nodes, (log_weights + log_weights[::-1]) / 2


def _hermite(z: Array, degree: int) -> tuple[Array, Array]:
    """Compute h_K(z) / h_{K−1}(z) and log |h_{K−1}(z)| for the orthonormal polynomials h.

    The ratio over √K = h_K / h_K′ is Newton's step towards a root of h_K. The recurrence is
    √(n+1) h_{n+1} = z h_n − √n h_{n−1}; each step divides by the larger of the pair, since h_n(z)
    overflows for large n.
    """
    previous = np.zeros_like(z)
    current = np.ones_like(z)
    log_scale = np.zeros_like(z)
    for n in range(degree):
        following = (z * current - n**0.5 * previous) / (n + 1) ** 0.5
        size = np.maximum(np.abs(current), np.abs(following))
        previous = current / size
        current = following / size
        log_scale = log_scale + np.log(size)
    return current / previous, log_scale + np.log(np.abs(previous))

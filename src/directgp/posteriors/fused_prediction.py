"""Predictions under an RBF prior: what does not depend on the rows is computed once.

With W = (L⁻¹; SᵀL⁻¹; mᵀL⁻¹) in float64, the parts of W K_uf are A, SᵀA and the mean: two
products for a block of rows, and no solve.
"""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.numerics.workspace import Workspace
from directgp.posteriors.fused import (
    covariance,
    factorise,
    in_lengthscales,
    log_factors,
    residual_given,
)
from directgp.shapes import Marginals

_CPU_ENTRIES = 2**17
_DEVICE_ENTRIES = 2**24
"""Entries of K_uf that one block holds; on a CPU they are to stay in a near cache."""


@final
class FusedPrediction:
    """Marginals, less the prior mean, at any rows; see `rbf_marginals` for the arguments."""

    def __init__(
        self,
        Z: Float[Tensor, "*#batch m d"],
        lengthscale: Float[Tensor, "*#batch 1 k"],
        log_scale: Float[Tensor, "*#batch"],
        u_mean: Float[Tensor, "*#batch m"],
        u_chol: Float[Tensor, "*#batch m m"],
        nugget: float,
    ) -> None:
        self._centre = Z.median(-2, keepdim=True).values
        self._lengthscale, self._top = lengthscale, log_scale[..., None, None]
        self._a = in_lengthscales(Z, self._centre, lengthscale)
        inverse = factorise(self._a, log_scale, nugget, checked=True).inverse
        S, m = u_chol.tril().double(), u_mean.double().unsqueeze(-1)
        shape = torch.broadcast_shapes(inverse.shape, S.shape)
        stacked = [inverse.expand(shape), S.mT @ inverse, (inverse.mT @ m).mT]
        self._weights = torch.cat(stacked, -2)
        self._workspace = Workspace()

    def block_size(self) -> int:
        """Rows to ask for at once."""
        most = _CPU_ENTRIES if self._weights.device.type == "cpu" else _DEVICE_ENTRIES
        batch = self._weights.shape[:-2].numel()
        return max(1, most // (batch * self._weights.shape[-1]))

    def __call__(self, X: Float[Tensor, "n d"]) -> Marginals:
        """Mean and variance of f, less the prior mean, at the rows of one block."""
        W, m = self._weights, self._weights.shape[-1]
        b = in_lengthscales(X, self._centre, self._lengthscale)
        left, features = log_factors(self._a, b, self._top)
        prior = torch.broadcast_shapes(left.shape[:-2], self._top.shape[:-2])
        Kuf = self._workspace.take("Kuf", (*prior, m, len(X)), b)
        found = self._workspace.take("found", (*W.shape[:-2], 2 * m + 1, len(X)), W)
        torch.matmul(W, covariance(left, features, self._top, out=Kuf).to(W.dtype), out=found)
        mean = found[..., -1, :].to(b.dtype, copy=True)
        squares = found[..., :-1, :].square_()
        told, known = squares[..., :m, :].sum(-2), squares[..., m:, :].sum(-2)
        residual = residual_given(self._top.exp().squeeze(-1), told)
        return Marginals(mean, residual + known.to(b.dtype))

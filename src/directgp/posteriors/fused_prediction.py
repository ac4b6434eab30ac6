"""Predictions under an RBF prior: what does not depend on the rows is computed once."""

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
    whiten_fast,
)
from directgp.posteriors.projection import residual_given
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
        self._inducing = factorise(self._a, log_scale, nugget, checked=True)
        self._q = torch.cat([u_chol.tril(), u_mean.unsqueeze(-1)], -1)
        self._workspace = Workspace()

    def block_size(self) -> int:
        """Rows to ask for at once."""
        most = _CPU_ENTRIES if self._q.device.type == "cpu" else _DEVICE_ENTRIES
        return max(1, most // self._q.shape[:-1].numel())

    def __call__(self, X: Float[Tensor, "n d"]) -> Marginals:
        """Mean and variance of f, less the prior mean, at the rows of one block."""
        b = in_lengthscales(X, self._centre, self._lengthscale)
        left, features = log_factors(self._a, b, self._top)
        prior = torch.broadcast_shapes(left.shape[:-2], self._top.shape[:-2])
        shape = *prior, self._q.shape[-2], len(X)
        Kuf, A = (self._workspace.take(name, shape, b) for name in ("Kuf", "A"))
        covariance(left, features, self._top, out=Kuf)
        _, _, L, inverse, _ = self._inducing
        told = whiten_fast(L, inverse, Kuf, self._workspace, out=A)
        known = self._q.mT @ A
        mean, squares = known[..., -1, :].clone(), known[..., :-1, :].square_()
        residual = residual_given(self._top.exp().squeeze(-1), told)
        return Marginals(mean, residual + squares.sum(-2))

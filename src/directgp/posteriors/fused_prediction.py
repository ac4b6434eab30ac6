"""Predictions under an RBF prior: what does not depend on the rows is computed once."""

from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from directgp.numerics.workspace import Workspace
from directgp.posteriors.fused import whiten_fast
from directgp.posteriors.projection import residual_given
from directgp.posteriors.rbf_features import (
    centre_of,
    complete,
    covariance,
    in_lengthscales,
    input_features,
)
from directgp.posteriors.rbf_inducing import factorise
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
        (m, d), self._centre, self._workspace = Z.shape[-2:], centre_of(Z), Workspace()
        self._lengthscale, self._top = lengthscale, log_scale[..., None, None]
        batch = np.broadcast_shapes(Z.shape[:-2], lengthscale.shape[:-2], log_scale.shape)
        self._left = self._workspace.take("left", (*batch, m, 2 * d + 1), Z)
        a = in_lengthscales(Z, self._centre, lengthscale, out=self._left[..., :d])
        complete(self._left, self._top)
        self._inducing = factorise(a, log_scale, nugget, checked=True, workspace=self._workspace)
        self._q = torch.cat([u_chol.tril(), u_mean.unsqueeze(-1)], -1)

    def block_size(self) -> int:
        """Rows to ask for at once."""
        most = _CPU_ENTRIES if self._q.device.type == "cpu" else _DEVICE_ENTRIES
        return max(1, most // self._q.shape[:-1].numel())

    def __call__(self, X: Float[Tensor, "n d"]) -> Marginals:
        """Mean and variance of f, less the prior mean, at the rows of one block."""
        features = input_features(X, self._centre, self._lengthscale, self._workspace)
        shape = *self._left.shape[:-1], len(X)
        Kuf, A = (self._workspace.take(name, shape, X) for name in ("Kuf", "A"))
        covariance(self._left, features, self._top, out=Kuf)
        L, inverse = self._inducing.L, self._inducing.inverse
        told = whiten_fast(L, inverse, Kuf, self._workspace, out=A)
        known = self._q.mT @ A
        mean, squares = known[..., -1, :].clone(), known[..., :-1, :].square_()
        residual = residual_given(self._top.exp().squeeze(-1), told)
        return Marginals(mean, residual + squares.sum(-2))

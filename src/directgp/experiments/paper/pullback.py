"""From gradients of the marginals to gradients of the objective in q(u), for many draws at once.

With A = L_uu⁻¹ K_uf and S = u_chol, q(f) has the means Aᵀm and the variances diag(AᵀSSᵀA), up to
constants. A draw (g_μ, g_v) of the gradient of Σ_i log E_q[p(y_i given f)] gives the objective per
example, −(1/n)·Σ_i log E_q[p(y_i given f)] + (β/n)·KL, the gradients

    u_mean:  −A g_μ / n + (β/n)·∂_m KL
    u_chol:  −2 tril(A diag(g_v) Aᵀ S) / n + (β/n)·∂_S KL.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.posteriors.sparse import SparsePosterior

Draws = Float[Tensor, "r n"]


@final
@dataclass(frozen=True)
class ObjectivePullback:
    """What is constant of a posterior while gradients are drawn; a `Pullback` of diagnostics."""

    A: Float[Tensor, "m n"]
    u_chol: Float[Tensor, "m m"]
    kl: tuple[Float[Tensor, " m"], Float[Tensor, "m m"]]
    """β times the gradients of KL in u_mean and u_chol."""

    @classmethod
    def of(
        cls, posterior: SparsePosterior, X: Float[Tensor, "n d"], beta: float
    ) -> "ObjectivePullback":
        """At a posterior as it is, for examples X."""
        with torch.enable_grad():
            kl = torch.autograd.grad(beta * posterior.kl(), (posterior.u_mean, posterior.u_chol))
        A = posterior.features(X).A
        return cls(A, posterior.u_chol.detach().tril(), (kl[0], kl[1].tril()))

    def __call__(self, by_mean: Draws, by_variance: Draws) -> dict[str, Float[Tensor, "r ..."]]:
        """Draws of the gradients in ``u_mean`` and ``u_chol``."""
        n = self.A.shape[-1]
        by_u_mean = self.kl[0] - by_mean @ self.A.mT
        by_u_chol = torch.stack([self.kl[1] - self._chol_slope(g) for g in by_variance])
        return {"u_mean": by_u_mean / n, "u_chol": by_u_chol / n}

    def _chol_slope(self, g: Float[Tensor, " n"]) -> Float[Tensor, "m m"]:
        return 2 * ((self.A * g) @ (self.A.mT @ self.u_chol)).tril()

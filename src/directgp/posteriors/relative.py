"""q(u) as seen from another q(u), which takes the place of the prior.

With q₀(w) = N(m₀, S₀S₀ᵀ) and w = m₀ + S₀w′, q(w′) = N(m′, S′S′ᵀ),

    KL[q(u) ‖ q₀(u)] = KL[q(w′) ‖ N(0, I)]
    mean_i     = prior mean_i + a_iᵀm₀ + a′_iᵀm′,     A′ = S₀ᵀA
    variance_i = residual_i + ‖S′ᵀa′_i‖²
    m = m₀ + S₀m′,     S = S₀S′

so whatever is done with features and N(0, I) as the prior is done with A′, and q₀ as the prior.
"""

from directgp.posteriors.collapsed import Whitened
from directgp.posteriors.sparse import Features


def seen_from(before: Whitened, features: Features) -> Features:
    """A′ = S₀ᵀA, and the mean of q₀ in the place of the prior's."""
    A, residual, mean = features
    known = (before.u_mean.unsqueeze(-2) @ A).squeeze(-2)
    return Features(before.u_chol.mT @ A, residual, mean + known)


def composed(before: Whitened, relative: Whitened) -> Whitened:
    """The whitened moments of u: m₀ + S₀m′ and S₀S′, lower triangular as both factors are."""
    S = before.u_chol
    moved = (S @ relative.u_mean.unsqueeze(-1)).squeeze(-1)
    return Whitened(before.u_mean + moved, S @ relative.u_chol)

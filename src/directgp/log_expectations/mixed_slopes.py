"""The gradient of log E_q[p] from points of q̃, with as little variance as Stein's identity allows.

With S = (f−μ)/v and P = ℓ′(f), E_q̃[S] = E_q̃[P] and E_q̃[S² − 1/v] = E_q̃[S·P] = E_q̃[P² + ℓ″]. So
for any weight w that does not depend on f, g = w·S + (1−w)·P gives

    ∂_μ log E_q[p] = E_q̃[g],   ∂_v log E_q[p] = ½E_q̃[g² − w²/v + (1−w)²·ℓ″].

w = 1 is the paper's score form, w = 0 the pathwise form; for a Gaussian likelihood of curvature
h = −ℓ″ the weight vh/(1+vh) makes g a constant.
"""

import torch
from jaxtyping import Float
from torch import Tensor

Values = Float[Tensor, "..."]


def balanced_weight(curvature: Values, variance: Values) -> Values:
    """w = vh/(1+vh), which balances score and pathwise form for curvature h = −ℓ″ ≥ 0."""
    gain = variance * curvature
    return gain / (1 + gain)


def mixed_slopes(
    delta: Float[Tensor, "k ..."],
    first: Float[Tensor, "k ..."],
    second: Float[Tensor, "k ..."],
    variance: Values,
    weight: Values,
) -> tuple[Float[Tensor, "k ..."], Float[Tensor, "k ..."]]:
    """Slopes in mean and variance at each point f = μ + δ, whose averages over q̃ are exact."""
    rest = 1 - weight
    slope = torch.addcmul(rest * first, weight / variance, delta)
    bend = torch.addcmul(slope * slope, rest * rest, second)
    return slope, 0.5 * (bend - weight * weight / variance)

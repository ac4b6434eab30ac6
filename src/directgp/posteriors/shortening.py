"""Shorter lengthscales to start from, where the usual ones see nothing but noise."""

import torch
from jaxtyping import Float
from torch import Tensor

_ROWS = 500
"""Rows that are predicted from each other."""

_FEWEST = 20
_FACTORS = (1 / 4, 1 / 16)
_NOISE = 0.1
"""Noise variance, in that of the values."""

_NOTHING, _MUCH = 0.1, 0.4
"""Shares of the variance: explained by less, a start leads to a model of noise alone; a shorter one
that explains more does not."""


def shortening(
    X: Float[Tensor, "n d"], values: Float[Tensor, " n"], lengthscale: Float[Tensor, "..."]
) -> float:
    """A factor of the lengthscale, 1 unless values vary much faster than that and can be foretold.

    From a start at which f cannot follow the values, training ends in the optimum where all is
    noise.
    """
    if len(X) < _FEWEST or not bool(values.std() > 0):
        return 1.0
    rows = torch.linspace(0, len(X) - 1, min(len(X), _ROWS), device=X.device).long()
    distances = torch.cdist(*2 * (X[rows].double() / lengthscale.double(),)).square()
    centred = values[rows].double() - values[rows].double().mean()
    if _foretold(distances, centred) > _NOTHING:
        return 1.0
    shares = {_foretold(distances / factor**2, centred): factor for factor in _FACTORS}
    return shares[max(shares)] if max(shares) > _MUCH else 1.0


def _foretold(distances: Float[Tensor, "n n"], values: Float[Tensor, " n"]) -> float:
    """Share of the variance that each value's prediction from the others explains.

    With P = (K + noise)⁻¹, the error of leaving out row i is (P y)_i / P_ii.
    """
    K = torch.exp(-0.5 * distances)
    precision = torch.linalg.inv(K + _NOISE * torch.eye(len(K)).to(K))
    errors = (precision @ values) / precision.diagonal()
    return float(1 - errors.square().mean() / values.square().mean())

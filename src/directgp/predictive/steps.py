"""How far and how fine a trapezoid sum must be for predictions: each errs by e^−32 of its mass.

With step h the sum errs by growth(d)·e^{−2πd/h} for any d, where growth says how much larger the
integrand is on the line Im = d than on the real one (Trefethen and Weideman, SIAM Review 56, 2014).
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

Values = Float[Tensor, "..."]

DROP = 32.0
"""Nodes reach to where a density has fallen by e^−32."""


def log_gamma_step(width: Values) -> Values:
    """The step for a density like that of log G, G ~ Gamma(a), of width τ = 1/√a at its mode.

    growth(d) = (cos d)^−a for d up to π/2, nearly best at d = arctan 8τ.
    """
    x = math.sqrt(2 * DROP) * width
    return 2 * math.pi * torch.arctan(x) / (DROP * (1 + torch.log1p(x**2) / x**2))

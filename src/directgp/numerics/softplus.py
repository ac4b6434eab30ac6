"""log of the softplus s(f) = log(1 + e^f) and its derivatives, right where s underflows."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

Values = Float[Tensor, "*shape"]

# Below this e^f is so small that log s = f − e^f/2 to the last digit.
_SMALL = -20.0
# Above this s(f) = f to the last digit; torch's own default of 20 is off by 1e-10.
_LINEAR_FROM = 40.0


def softplus(f: Values) -> Values:
    """log(1 + e^f), linear only from where that is exact."""
    return functional.softplus(f, threshold=_LINEAR_FROM)


def log_softplus(f: Values) -> Values:
    """log log(1 + e^f), which tends to f for f → −∞; differentiable."""
    small = f < _SMALL
    inner = torch.where(small, 0.0, f)
    series = torch.where(small, f, 0.0)
    return torch.where(
        small,
        series - 0.5 * torch.exp(series),
        torch.log(softplus(inner)),
    )


def log_softplus_derivatives(f: Values) -> tuple[Values, Values, Values]:
    """log s, its slope ρ = σ(f)/s(f), and ρ′ = ρ(1 − σ(f) − ρ).

    With x = e^f, 1 − σ − ρ = (s − x) / ((1 + x)s), and s − x = −x²/2 + x³/3 − … where x is small.
    """
    x = torch.exp(torch.clamp(f, max=0.0))
    s = softplus(f)
    rho = torch.where(f < _SMALL, 1 - 0.5 * x, torch.sigmoid(f) / torch.where(s > 0, s, 1.0))
    excess = torch.where(x < 0.01, -_small_deficit(x), torch.sigmoid(-f) - rho)
    return log_softplus(f), rho, rho * excess


def softplus_inverse(s: Values) -> Values:
    """The f with s(f) = s ≥ 0; −∞ at 0."""
    return s + torch.log(-torch.expm1(-s))


def _small_deficit(x: Values) -> Values:
    """(x − log(1+x)) / ((1+x) log(1+x)) for 0 ≤ x < 0.01, by series."""
    tail = x * (1 / 5 - x * (1 / 6 - x * (1 / 7 - x * (1 / 8 - x / 9))))
    deficit = x * (1 / 2 - x * (1 / 3 - x * (1 / 4 - tail)))
    return deficit / ((1 + x) * (1 - deficit))

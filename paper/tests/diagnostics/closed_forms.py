"""The extrema of φ, φ′ and φ″ from closed-form roots of φ″ and φ‴, to compare a search with."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.likelihoods import Gaussian, Likelihood, Logistic, NegativeBinomial, Probit, StudentT
from directgp.likelihoods.base import UnimodalInF
from directgp.likelihoods.counts import CountLikelihood, PoissonExp
from directgp.shapes import Values
from directgp_paper.diagnostics.bounds import DerivativeBounds, density_derivatives


@torch.no_grad()
def closed_form_bounds(likelihood: UnimodalInF, y: Values) -> DerivativeBounds | None:
    """Return the exact bounds; None if the roots have no closed form."""
    points = critical_points(likelihood, y)
    if points is None:
        return None
    ranges = []
    for order, f in enumerate(points, 1):
        finite = torch.isfinite(f)
        values = density_derivatives(likelihood, y, torch.where(finite, f, 0.0))[order]
        values = torch.where(finite, values, 0.0)
        # φ′ and φ″ have the limit 0 at ±∞.
        ranges += [values.amin(dim=0).clamp(max=0.0), values.amax(dim=0).clamp(min=0.0)]
    return DerivativeBounds(torch.exp(likelihood.log_max(y)), *ranges)


Points = Float[Tensor, "_ ..."]
"""Values of f along the first axis, for each target."""


def critical_points(likelihood: Likelihood, y: Values) -> tuple[Points, Points] | None:
    """Return the roots of φ″ and of φ‴ in f; None if they have no closed form.

    They are all the f where φ′ or φ″ can be extreme. An infinite f means the limit 0.
    """
    zero, root = torch.zeros_like(y), math.sqrt(3)
    # A bell around y has φ″ = 0 at one width, and φ‴ = 0 at y and at √3 widths.
    bell = (-1.0, 1.0), (-root, 0.0, root)
    match likelihood:
        case Probit():
            return _around(zero, 1.0, (0.0,), (-1.0, 1.0))
        case Logistic():
            # φ‴ ∝ 1 − 6σ(1−σ), zero at σ = ½ ± 1/(2√3).
            end = math.log(2 + root)
            return _around(zero, 1.0, (0.0,), (-end, end))
        case Gaussian(noise=noise):
            return _around(y, torch.sqrt(noise), *bell)
        case StudentT(df=df, scale=scale):
            return _around(y, scale * torch.sqrt(df / (df + 2)), *bell)
        case PoissonExp():
            return _poisson(likelihood, y)
        case NegativeBinomial():
            return _negative_binomial(likelihood, y)
    return None


def _around(
    centre: Values, width: float | Values, slope: Sequence[float], curvature: Sequence[float]
) -> tuple[Points, Points]:
    """Return points at multiples of a width from a centre."""
    points = [torch.stack([centre + k * width for k in steps]) for steps in (slope, curvature)]
    return points[0], points[1]


def _poisson(likelihood: PoissonExp, y: Values) -> tuple[Points, Points]:
    """Solve, with ′ = λ d/dλ, φ″ = ((y−λ)² − λ)φ and φ‴ = ((y−λ)³ − 3λ(y−λ) − λ)φ.

    The quadratic has roots λ = y + ½ ± √(y + ¼); the cubic, in t = λ − y − 1, is
    t³ − (3y+2)t − (2y+1).
    """
    spread = torch.sqrt(y + 0.25)
    quadratic = torch.stack([y + 0.5 - spread, y + 0.5 + spread])
    cubic = y + 1 + _cubic_roots(-(3 * y + 2), -(2 * y + 1))
    return _f_of_rate(likelihood, quadratic), _f_of_rate(likelihood, cubic)


def _negative_binomial(likelihood: NegativeBinomial, y: Values) -> tuple[Points, Points]:
    """Solve with p = λ/(r+λ), N = y + r, ℓ′ = y − Np, ℓ″ = −Np(1−p), ℓ‴ = −Np(1−p)(1−2p).

    ℓ″ + ℓ′² has roots p = (2y + 1 ± √(1 + 4ry/N)) / (2(N+1)). ℓ‴ + 3ℓ′ℓ″ + ℓ′³ is, in
    t = (N+2)p − y − 1, the cubic t³ + at + b below; both tend to Poisson's as r → ∞.
    """
    r = likelihood.dispersion
    N = y + r
    spread = torch.sqrt(1 + 4 * r * y / N)
    quadratic = torch.stack([2 * y + 1 - spread, 2 * y + 1 + spread]) / (2 * (N + 1))
    inner = 3 * y**2 + 3 * y + 1
    a = inner / (N + 1) - (3 * y + 2)
    b = inner * (y + 1) / (N + 1) - y**3 * (3 * N + 4) / (N * (N + 1)) - (2 * y + 1)
    cubic = (y + 1 + _cubic_roots(a, b)) / (N + 2)
    rates = [p / (1 - p) * r for p in (quadratic, cubic)]
    return _f_of_rate(likelihood, rates[0]), _f_of_rate(likelihood, rates[1])


def _cubic_roots(a: Values, b: Values) -> Float[Tensor, "3 ..."]:
    """Solve t³ + at + b = 0 where all three roots are real, by Viète's cosines."""
    radius = 2 * torch.sqrt(-a / 3)
    # Rounding may carry the cosine of a nearly double root past ±1.
    cosine = torch.clamp(3 * b / (a * radius), -1.0, 1.0)
    angle = torch.arccos(cosine) / 3
    return torch.stack([radius * torch.cos(angle - 2 * math.pi * k / 3) for k in range(3)])


def _f_of_rate(likelihood: CountLikelihood, rate: Values) -> Values:
    """Return the f of a mean count, where that count is most likely."""
    # The root 0 of y = 0 may be rounded below 0.
    return likelihood.argmax(torch.clamp(rate, min=0.0))

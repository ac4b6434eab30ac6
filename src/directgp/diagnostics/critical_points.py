"""Where φ″ and φ‴ vanish: the places of the extrema of φ′ and φ″, family by family."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.diagnostics.bounds import Values
from directgp.likelihoods import Gaussian, Likelihood, Logistic, NegativeBinomial, Probit, StudentT
from directgp.likelihoods.counts import CountLikelihood
from directgp.likelihoods.poisson import PoissonExp


@dataclass(frozen=True)
class CriticalPoints:
    """All f where φ′ or φ″ can be extreme; an infinite f stands for the limit 0."""

    slope: Float[Tensor, "k ..."]
    """Roots of φ″."""

    curvature: Float[Tensor, "j ..."]
    """Roots of φ‴."""


def critical_points(likelihood: Likelihood, y: Values) -> CriticalPoints | None:
    """Roots of φ″ and φ‴ in closed form; None for a family that has no closed form."""
    match likelihood:
        case Probit():
            return _at(torch.zeros_like(y), 1.0, (0.0,), (-1.0, 1.0))
        case Logistic():
            # φ‴ ∝ 1 − 6σ(1−σ), zero at σ = ½ ± 1/(2√3).
            outer = math.log(2 + math.sqrt(3))
            return _at(torch.zeros_like(y), 1.0, (0.0,), (-outer, outer))
        case Gaussian():
            return _bell(y, torch.sqrt(likelihood.noise))
        case StudentT():
            df = likelihood.df
            return _bell(y, likelihood.scale * torch.sqrt(df / (df + 2)))
        case PoissonExp():
            return _poisson(likelihood, y)
        case NegativeBinomial():
            return _negative_binomial(likelihood, y)
    return None


def _at(
    centre: Values, width: float | Values, slope: tuple[float, ...], curvature: tuple[float, ...]
) -> CriticalPoints:
    """Points at multiples of a width from a centre."""
    return CriticalPoints(
        torch.stack([centre + step * width for step in slope]),
        torch.stack([centre + step * width for step in curvature]),
    )


def _bell(y: Values, width: Values) -> CriticalPoints:
    """Of a bell around y: φ″ = 0 at one width, φ‴ = 0 at y and at √3 widths."""
    outer = math.sqrt(3)
    return _at(y, width, (-1.0, 1.0), (-outer, 0.0, outer))


def _poisson(likelihood: PoissonExp, y: Values) -> CriticalPoints:
    """With ′ = λ d/dλ: φ″ = ((y−λ)² − λ)φ, φ‴ = ((y−λ)³ − 3λ(y−λ) − λ)φ.

    The quadratic has roots λ = y + ½ ± √(y + ¼); the cubic, in t = λ − y − 1, is
    t³ − (3y+2)t − (2y+1).
    """
    spread = torch.sqrt(y + 0.25)
    quadratic = torch.stack([y + 0.5 - spread, y + 0.5 + spread])
    cubic = y + 1 + _cubic_roots(-(3 * y + 2), -(2 * y + 1))
    return CriticalPoints(_f_of_rate(likelihood, quadratic), _f_of_rate(likelihood, cubic))


def _negative_binomial(likelihood: NegativeBinomial, y: Values) -> CriticalPoints:
    """With p = λ/(r+λ), N = y + r: ℓ′ = y − Np, ℓ″ = −Np(1−p), ℓ‴ = −Np(1−p)(1−2p).

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
    return CriticalPoints(*(_f_of_rate(likelihood, _odds(p) * r) for p in (quadratic, cubic)))


def _cubic_roots(a: Values, b: Values) -> Float[Tensor, "3 ..."]:
    """Solve t³ + at + b = 0 where all three roots are real, by Viète's cosines."""
    radius = 2 * torch.sqrt(-a / 3)
    # Rounding may carry the cosine of a nearly double root past ±1.
    cosine = torch.clamp(3 * b / (a * radius), -1.0, 1.0)
    angle = torch.arccos(cosine) / 3
    return torch.stack([radius * torch.cos(angle - 2 * math.pi * k / 3) for k in range(3)])


def _odds(p: Values) -> Values:
    return p / (1 - p)


def _f_of_rate(likelihood: CountLikelihood, rate: Values) -> Values:
    """Return the f of a mean count, which is where that count would be most likely."""
    # The root 0, there when y = 0, may be rounded below.
    return likelihood.argmax(torch.clamp(rate, min=0.0))

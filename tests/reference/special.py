"""Special functions of the normal distribution and their relatives in 60 digits, by mpmath.

Each takes a Python float, which mpmath reads exactly, and returns an `mpf`.
"""

from collections.abc import Callable, Sequence

import mpmath
from mpmath import mpf
from torch import Tensor

Reference = Callable[[float], mpf]

_context = mpmath.mp.clone()
_context.dps = 60


def log_ndtr(x: float) -> mpf:
    """Compute log Φ(x)."""
    tail = _context.erfc(_context.mpf(abs(x)) / _context.sqrt(2)) / 2
    return _context.log(tail) if x < 0 else _context.log1p(-tail)


def inverse_mills(x: float) -> mpf:
    """Compute λ(x) = φ(x)/Φ(x)."""
    log_density = -(_context.mpf(x) ** 2) / 2 - _context.log(2 * _context.pi) / 2
    return _context.exp(log_density - log_ndtr(x))


def mills_excess(x: float) -> mpf:
    """Compute x + λ(x)."""
    return x + inverse_mills(x)


def inverse_mills_slope(x: float) -> mpf:
    """Compute −λ(x) (x + λ(x)), the second derivative of log Φ."""
    return -inverse_mills(x) * mills_excess(x)


def log1mexp(x: float) -> mpf:
    """Compute log(1 − exp(−x))."""
    survival = -_context.expm1(-_context.mpf(x))
    return _context.log(survival) if x < 1 else _context.log1p(-_context.exp(-x))


def log1mexp_slope(x: float) -> mpf:
    """Compute 1 / (exp(x) − 1)."""
    return 1 / _context.expm1(x)


def wright_omega(x: float) -> mpf:
    """Compute ω(x) = W(exp(x))."""
    return _context.lambertw(_context.exp(x)).real


def wright_omega_slope(x: float) -> mpf:
    """Compute ω(x) / (1 + ω(x))."""
    omega = wright_omega(x)
    return omega / (1 + omega)


def relative_errors(values: Tensor, points: Tensor, reference: Reference) -> list[float]:
    """Compare each value with the reference at the same point: |value − exact| / |exact|."""
    pairs: Sequence[tuple[float, float]] = list(zip(values.tolist(), points.tolist(), strict=True))
    return [_relative_error(value, reference(point)) for value, point in pairs]


def _relative_error(value: float, exact: mpf) -> float:
    return float(abs((_context.mpf(value) - exact) / exact))

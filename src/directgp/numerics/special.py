"""Compute special functions and their gradients accurately in the far tails."""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function, forward_ad
from torch.nn import functional

from directgp.numerics.fixed_sizes import recording

Elements = Float[Tensor, "*shape"]
"""Arguments and results of elementwise functions."""

Elementwise = Callable[[Tensor], Tensor]
"""A function of each element."""

# φ and Φ are the standard normal density and distribution function.


_DEEP = -10.0
"""Left of this x, x + λ(x) cancels, and a CPU uses a continued fraction."""

_SMALL_EXCESS = 0.01
"""|x| below which e^x − 1 − x is a series."""

_LARGE = 50.0
"""x from which four terms of Stirling's series are right to the last digit."""

_SHIFTS = 7
"""Steps of the recurrence after which the series of ψ′ is right to the last digit."""

_VERY_DEEP = -25.0
"""Left of this x five levels of the fraction suffice; right of it x + λ(x) does not cancel."""


def log_ndtr(x: Elements) -> Elements:
    """Compute log Φ(x), with gradient λ(x) from `inverse_mills`.

    PyTorch's own gradient, exp(−x²/2 − log Φ(x)), cancels two large numbers in the left tail.
    """
    return with_slope(x, torch.special.log_ndtr, inverse_mills)


def inverse_mills(x: Elements) -> Elements:
    """Compute λ(x) = φ(x) / Φ(x) = √(2/π) / erfcx(−x/√2), with gradient −λ(x) (x + λ(x))."""
    return with_slope(x, _inverse_mills, lambda x: -_mills_product(x))


def log_ndtr_derivatives(x: Elements) -> tuple[Elements, Elements, Elements]:
    """Compute log Φ(x) and its first two derivatives, λ(x) and −λ(x) (x + λ(x)), at once.

    On a CPU one erfcx serves all three down to x = −10, and from there the continued fraction of
    `_tail_fraction`. Not differentiable.
    """
    if x.is_cuda or recording():
        return _by_erfcx(x)
    log_p, slope = _near_slope(x)
    log_p, slope, bend = _with_deep(x, (log_p, slope, (x + slope).mul_(slope).neg_()))
    return log_p, slope, bend


def log_ndtr_and_slope(x: Elements) -> tuple[Elements, Elements]:
    """Compute log Φ(x) and λ(x) at once, in the fewest operations; not differentiable."""
    if x.is_cuda or recording():
        return torch.special.log_ndtr(x), _inverse_mills(x)
    log_p, slope = _with_deep(x, _near_slope(x))
    return log_p, slope


def log1mexp(x: Elements) -> Elements:
    """Compute log(1 − exp(−x)) for x > 0, with gradient 1 / (exp(x) − 1).

    The switch at log 2 is that of Mächler, "Accurately computing log(1 − exp(−|a|))" (2012).
    """
    return with_slope(x, _log1mexp, lambda x: -torch.exp(-x) / torch.expm1(-x))


def log_ndtri(log_p: Elements) -> Elements:
    """Compute the x with log Φ(x) = log_p, for any log_p < 0, with gradient 1 / λ(x)."""
    return with_slope(log_p, _log_ndtri, lambda log_p: 1 / inverse_mills(log_ndtri(log_p)))


def exp_excess(x: Elements) -> Elements:
    """Compute e^x − 1 − x ≥ 0, by its series where the difference cancels; differentiable."""
    series = 0.5 * x**2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6))))
    return torch.where(x.abs() < _SMALL_EXCESS, series, torch.expm1(x) - x)


def stirling(x: Elements) -> Elements:
    """Compute x log x − x − log Γ(x) for x > 0, with gradient log x − ψ(x)."""
    return with_slope(x, _stirling, log_minus_digamma)


def log_minus_digamma(x: Elements) -> Elements:
    """Compute log x − ψ(x) for x > 0, with gradient 1/x − ψ′(x)."""
    return with_slope(x, _log_minus_digamma, lambda x: 1 / x - trigamma(x))


def log_gamma(x: Elements) -> Elements:
    """Compute log Γ(x) for x > 0, with accurate second derivatives, too."""
    return with_slope(x, torch.lgamma, lambda x: with_slope(x, torch.digamma, trigamma))


def trigamma(x: Elements) -> Elements:
    """Compute ψ′(x) for x > 0 by recurrence and series; torch's function errs by 5e-10."""
    total = torch.zeros_like(x)
    for step in range(_SHIFTS):
        total = total + (x + step) ** -2
    inverse = 1 / (x + _SHIFTS)
    square = inverse * inverse
    series = 5 / 66 - square * (691 / 2730 - square * 7 / 6)
    series = 1 / 6 - square * (1 / 30 - square * (1 / 42 - square * (1 / 30 - square * series)))
    return total + inverse + square * (0.5 + inverse * series)


def wright_omega(x: Elements, refinements: int = 2) -> Elements:
    """Compute the ω > 0 with ω + log ω = x, for any real x, with gradient ω / (1 + ω).

    ω(x) = W(exp(x)) with W the principal branch of Lambert's function. The relative error after one
    refinement is 1e-5.
    """
    return with_slope(x, lambda x: _wright_omega(x, refinements), _wright_omega_slope)


def _near_slope(x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute log Φ and λ for x > −10.

    With E = erfcx(|x|/√2)·e^{−max(x, 0)²/2}, Φ(x) = E/2 left of 0 and 1 − E/2 right of it.
    """
    right = x.clamp(min=0.0)
    density = (right * right).mul_(-0.5).exp_()
    half = torch.special.erfcx(x.abs().mul_(math.sqrt(0.5))).mul_(density).mul_(0.5)
    rest = torch.where(x < 0, half - 1, half.neg_())
    slope = density.mul_(1 / math.sqrt(2 * math.pi)).div_(1 + rest)
    left = right.sub_(x)
    return rest.log1p_().addcmul_(left, left, value=-0.5), slope


def _by_erfcx(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute log Φ and its derivatives by functions accurate everywhere, in few operations."""
    log_p = torch.special.log_ndtr(x)
    slope = _inverse_mills(x)
    excess = _tail_fraction((-x).clamp_(min=-_VERY_DEEP), levels=5)
    excess = torch.where(x < _VERY_DEEP, excess, x + slope)
    return log_p, slope, excess.mul_(slope).neg_()


def _with_deep(x: Tensor, near: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Replace log Φ and its derivatives where x < −10, by the fraction of e = λ(x) − |x|."""
    if x.numel() and not x.amin() >= _DEEP:
        deep = x < _DEEP
        t = x[deep]
        excess = _tail_fraction(-t)
        slope = excess - t
        log_p = -0.5 * t * t - 0.5 * math.log(2 * math.pi) - torch.log(slope)
        for column, value in zip(near, (log_p, slope, -slope * excess), strict=False):
            column[deep] = value
    return near


def _inverse_mills(x: Tensor) -> Tensor:
    ratio: Tensor = math.sqrt(2 / math.pi) / torch.special.erfcx(x * -math.sqrt(0.5))
    return ratio


def mills_and_excess(x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute λ(x), and e = x + λ(x) without cancellation in the left tail."""
    ratio = _inverse_mills(x)
    start = 7.0 if x.dtype == torch.float64 else 3.0  # from here 13 levels beat the plain sum
    fraction = _tail_fraction((-x).clamp(min=start))
    return ratio, torch.where(-x > start, fraction, x + ratio)


def _mills_product(x: Tensor) -> Tensor:
    """Compute λ(x) e(x), which falls from 1 to 0."""
    finite = x.clamp(-1e30, 1e30)  # avoids 0·∞ for infinite x
    return with_slope(finite, lambda x: torch.mul(*mills_and_excess(x)), _mills_product_slope)


def _mills_product_slope(x: Tensor) -> Tensor:
    """Compute λ (1 − λe − e²), which loses digits in the far left tail."""
    ratio, excess = mills_and_excess(x)
    return ratio * (1 - ratio * excess - excess**2)


def _tail_fraction(t: Tensor, levels: int = 13) -> Tensor:
    """Evaluate λ(−t) − t = 1/(t + 2/(t + 3/(t + …))), Laplace's continued fraction.

    The levels left out are replaced by the fixed point of s = k/(t + s), which halves their number.
    """
    k = levels + 1
    remainder = 2 * k / (t + torch.sqrt(t * t + 4 * k))
    for level in range(levels, 1, -1):
        remainder = level / (t + remainder)
    return 1 / (t + remainder)


def _log1mexp(x: Tensor) -> Tensor:
    return torch.where(x < math.log(2), torch.log(-torch.expm1(-x)), torch.log1p(-torch.exp(-x)))


def _log_ndtri(log_p: Tensor) -> Tensor:
    """Invert in float64 by `ndtri` on the smaller tail, below exp's range by Newton's method."""
    log_p64 = log_p.double()
    upper = -torch.special.ndtri(-torch.expm1(log_p64))
    lower = torch.special.ndtri(torch.exp(log_p64))
    central = torch.where(log_p64 > -math.log(2), upper, lower)
    deepest = -700.0  # exp(−700) is still a normal number
    in_tail = (log_p64 < deepest) & log_p64.isfinite()
    # In the tail Φ(x) ≈ φ(x)/|x| is the start of two Newton steps on log Φ(x) = log_p.
    bounded = log_p64.clamp(max=deepest)
    square = -2 * bounded - math.log(2 * math.pi)
    tail = -torch.sqrt(square - torch.log(square))
    for _ in range(2):
        tail = tail - (torch.special.log_ndtr(tail) - bounded) / _inverse_mills(tail)
    return torch.where(in_tail, tail, central).to(log_p.dtype)


def _stirling(x: Tensor) -> Tensor:
    inverse = 1 / x.clamp(min=_LARGE)
    square = inverse * inverse
    series = inverse / 12 * (1 - square / 30 * (1 - square * 2 / 7 * (1 - square * 3 / 4)))
    far = 0.5 * torch.log(x / (2 * math.pi)) - series
    return torch.where(x > _LARGE, far, x * torch.log(x) - x - torch.lgamma(x))


def _log_minus_digamma(x: Tensor) -> Tensor:
    inverse = 1 / x.clamp(min=_LARGE)
    square = inverse * inverse
    series = square / 12 * (1 - square / 10 * (1 - square * 10 / 21 * (1 - square * 21 / 20)))
    return torch.where(x > _LARGE, 0.5 * inverse + series, torch.log(x) - torch.digamma(x))


def _wright_omega(x: Tensor, refinements: int) -> Tensor:
    """Refine a starting value; left of log ε, and at infinity, ω = exp(x) to the last digit.

    The start is exp(x) / (1 + 0.6 exp(x)) left of 1 and x − log x right of it; a step is of fourth
    order (Fritsch, Shafer and Crowley, CACM algorithm 443, 1973).
    """
    finfo = torch.finfo(x.dtype)
    lowest = math.log(finfo.eps)
    inner = x.clamp(lowest, finfo.max)
    left = torch.exp(inner.clamp(max=1.0))
    right = inner.clamp(min=1.0)
    omega = torch.where(inner < 1, left / (1 + left * 0.6), right - torch.log(right))
    for _ in range(refinements):
        residual = inner - omega - torch.log(omega)
        slope = 1 + omega
        shifted = slope + 2 * residual / 3
        ratio = residual / slope
        omega = omega * (1 + ratio * (shifted - ratio / 2) / (shifted - ratio))
    return torch.where((x > lowest) & x.isfinite(), omega, torch.exp(x))


def _wright_omega_slope(x: Tensor) -> Tensor:
    omega = wright_omega(x)
    return omega / (1 + omega)


_SMALL = -20.0
"""Below this f, log s = f − e^f/2 to the last digit."""

_LINEAR_FROM = 40.0
"""Above this f, s(f) = f to the last digit; torch's default of 20 is off by 1e-10."""


def softplus(f: Elements) -> Elements:
    """Compute log(1 + e^f), as f only where that is exact."""
    return functional.softplus(f, threshold=_LINEAR_FROM)


def log_softplus(f: Elements) -> Elements:
    """Compute log log(1 + e^f), which tends to f for f → −∞; differentiable."""
    small = f < _SMALL
    inner = torch.where(small, 0.0, f)
    series = torch.where(small, f, 0.0)
    return torch.where(small, series - 0.5 * torch.exp(series), torch.log(softplus(inner)))


def sigmoids(z: Elements) -> tuple[Elements, Elements, Elements]:
    """Compute σ(z), σ(−z) and log(1 + e^−|z|) at once; not differentiable."""
    growth = torch.exp(z)
    decay = growth.reciprocal()
    rest = torch.minimum(growth, decay).log1p_()
    return decay.add_(1).reciprocal_(), growth.add_(1).reciprocal_(), rest


_LOWEST = -700.0
"""Above this f, e^f is a normal number; below it log s = f."""

_SERIES_BELOW = 0.001
"""Below this e^f a difference loses digits, and a series is used."""


def softplus_derivatives(f: Elements) -> tuple[Elements, Elements, Elements, Elements, Elements]:
    """Compute s, σ(−f), log s, its slope ρ = σ(f)/s(f), and ρ′ = ρ(σ(−f) − ρ).

    With x = e^f, σ(−f) − ρ = (s − x) / ((1 + x)s), and s − x = −x²/2 + x³/3 − … where x is small.
    """
    bounded = f.clamp(min=_LOWEST)
    rho, failure, s = sigmoids(bounded)
    s.add_(f.clamp(min=0.0))
    rho.div_(s)
    excess = failure - rho
    small = s < _SERIES_BELOW
    if f.is_cuda or recording():
        excess = torch.where(small, -_small_deficit(torch.exp(bounded)), excess)
    else:
        excess[small] = -_small_deficit(torch.exp(bounded[small]))
    return s, failure, torch.log(s).add_(f).sub_(bounded), rho, excess.mul_(rho)


def softplus_inverse(s: Elements) -> Elements:
    """Compute the f with s(f) = s ≥ 0; −∞ at 0."""
    return s + torch.log(-torch.expm1(-s))


def _small_deficit(x: Elements) -> Elements:
    """Compute (x − log(1+x)) / ((1+x) log(1+x)) for 0 ≤ x < 0.001, to 1e-12, by series."""
    deficit = x * (1 / 2 - x * (1 / 3 - x * (1 / 4 - x / 5)))
    return deficit / ((1 + x) * (1 - deficit))


# Functions with hand-written derivatives.


def with_slope(x: Tensor, value: Elementwise, slope: Elementwise) -> Tensor:
    """Evaluate ``value(x)`` and let autograd use ``slope(x)`` as its derivative.

    Differentiable as often as `slope` is; works under `torch.func` transforms.
    """
    transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    if not transformed and not (x.requires_grad and torch.is_grad_enabled()):
        return value(x)
    apply: Callable[..., Tensor] = _KnownSlope.apply
    return apply(x, value, slope)


class _KnownSlope(Function):
    """Chain rule with a given derivative, in reverse and forward mode and under vmap."""

    @staticmethod
    def forward(x: Tensor, value: Elementwise, slope: Elementwise) -> Tensor:
        return value(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, _, ctx.slope = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return grads[0] * ctx.slope(x), None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, *functions: Elementwise
    ) -> tuple[Tensor, int | None]:
        # Apply the function to the whole batch: it is elementwise, and some operations
        # (torch.special.log_ndtr) have no batching rule.
        return with_slope(x, *functions), in_dims[0]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        (x,) = ctx.saved_tensors
        tangent: Tensor = tangents[0] * ctx.slope(x)
        return tangent

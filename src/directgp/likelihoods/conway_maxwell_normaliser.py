"""Compute L = log Σ_k exp(ν(k f − log k!)), the log normaliser of Conway–Maxwell–Poisson counts.

L is the cumulant function of an exponential family, so its derivatives in f are ν·E[y given f] and
ν²·Var[y given f]. It is a sum for small f and an expansion for large f. For a given ν it is a
function of one variable, and so it is tabulated: every point of a quadrature then costs a
polynomial in place of a sum.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from directgp.likelihoods.counts import log_factorial
from directgp.shapes import Values

_LOG_2PI = math.log(2 * math.pi)

# The expansion of L for large e^f, in s = e^−f/ν:
#
# L = ν e^f − ½(ν−1)(f + log 2π) − ½log ν + Σ_k d_k(ν²) s^k.
#
# For whole ν, Z = e^L satisfies (1/ν ∂_f)^ν Z = e^{νf} Z, which gives the d_k one by one; they are
# polynomials in ν². Rows are k = 1, 2, …, columns powers of ν².
_EXPANSION = (
    (-1 / 24, 1 / 24),
    (-1 / 48, 1 / 48),
    (-161 / 5760, 17 / 576, -1 / 640),
    (-367 / 5760, 41 / 576, -43 / 5760),
    (-120257 / 580608, 33667 / 138240, -5107 / 138240, 305 / 580608),
    (-39793 / 45360, 37303 / 34560, -3611 / 17280, 4987 / 725760),
    (
        *(-6389072441 / 1393459200, 81830645 / 13934592, -45075959 / 33177600),
        *(998141 / 13934592, -87983 / 199065600),
    ),
    (
        *(-993607187 / 34836480, 8243537 / 217728, -8342147 / 829440),
        *(635009 / 870912, -388919 / 34836480),
    ),
    (
        *(-5048071877071 / 24524881920, 3145388274757 / 11147673600, -6228520591 / 74317824),
        *(42839559653 / 5573836800, -443737409 / 2229534720, 339849 / 504627200),
    ),
    (
        *(-9718190078959 / 5748019200, 1246771561279 / 522547200, -25401674807 / 32659200),
        *(5596907179 / 65318400, -1662741499 / 522547200, 159995659 / 5748019200),
    ),
)


def _largest_summed(nu: float) -> float:
    """Return the f from which on the expansion is used: then its last term is below 1e-15."""
    return math.log(max(60 / nu, 20.0, 2.5 * nu))


def _half_window(nu: float) -> int:
    """Return the distance from the mode at which the terms of a sum end, below e^−45 of the top."""
    return math.ceil(9.5 * math.sqrt(math.exp(_largest_summed(nu)) / nu)) + 20


class Cumulants(NamedTuple):
    """L and its first two derivatives in f."""

    value: Values
    first: Values
    second: Values


Coefficients = Sequence[float | Tensor]
"""d_k, from k = 1 on."""


def _coefficients(nu: Any) -> tuple[list[Any], list[Any]]:
    """Return d_k and ν times their derivatives in ν, for a number or a tensor ν."""
    powers = [nu ** (2 * j) for j in range(len(_EXPANSION))]
    values = [sum(c * powers[j] for j, c in enumerate(row)) for row in _EXPANSION]
    slopes = [sum(2 * j * c * powers[j] for j, c in enumerate(row)) for row in _EXPANSION]
    return values, slopes


def _polynomial(coefficients: Coefficients, s: Values) -> Values:
    """Return Σ_k c_k s^k, from k = 1 on, by Horner's scheme."""
    value = torch.zeros_like(s)
    for c in reversed(coefficients):
        value = (value + c) * s
    return value


def expanded(f: Values, nu: Values) -> Cumulants:
    """Compute L by its expansion, for f of at least `_largest_summed`; differentiable."""
    rate = nu * torch.exp(f)
    d = _coefficients(nu)[0]
    s = rate.reciprocal()
    excess = 0.5 * (nu - 1)
    # ∂_f s^k = −k s^k.
    return Cumulants(
        rate - excess * (f + _LOG_2PI) - 0.5 * torch.log(nu) + _polynomial(d, s),
        rate - excess + _polynomial([-k * c for k, c in enumerate(d, 1)], s),
        rate + _polynomial([k * k * c for k, c in enumerate(d, 1)], s),
    )


def _expanded_slope(f: Values, nu: float) -> Values:
    """Compute the derivative of the expansion in ν."""
    rate = torch.exp(f)
    pairs = zip(*_coefficients(nu), strict=True)
    # ∂_ν (d_k s^k) = (d_k′ − k·d_k/ν) s^k.
    slopes = [(slope - k * d) / nu for k, (d, slope) in enumerate(pairs, 1)]
    return rate - 0.5 * (f + _LOG_2PI) - 0.5 / nu + _polynomial(slopes, (nu * rate).reciprocal())


def terms_around_mode(f: Values, nu: Values, half: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return k − m and the terms of the sum over that of the mode m, k along axis 0, and m."""
    mode = torch.floor(torch.exp(f.detach()))
    first = (mode - half).clamp(min=0.0)
    steps = torch.arange(2 * half + 1, dtype=f.dtype, device=f.device)
    k = first + steps.reshape(-1, *([1] * f.dim()))
    largest = int(k.max()) if k.numel() else 0
    logs = log_factorial(torch.arange(largest + 1, dtype=f.dtype, device=f.device))
    offset = k - mode
    return offset, torch.exp(nu * (offset * f - (logs[k.long()] - logs[mode.long()]))), mode


def summed(f: Values, nu: Values, half: int) -> Cumulants:
    """Compute L as the sum, for f up to `_largest_summed`; differentiable.

    The term of the mode m is left out of the sum, so that L = log(1 + …) keeps its digits for a
    mean near 0; and so do the moments about m.
    """
    offset, terms, mode = terms_around_mode(f, nu, half)
    others = terms.masked_fill(offset == 0, 0.0).sum(0)
    total = 1 + others
    shift = (terms * offset).sum(0) / total
    square = (terms * offset * offset).sum(0) / total
    value = nu * (mode * f - log_factorial(mode)) + torch.log1p(others)
    return Cumulants(value, nu * (mode + shift), nu * nu * (square - shift * shift))


# Between the smallest and the largest f, V = L″ is a polynomial on each of many pieces, and L′ and
# L are its integrals. Below, where x = e^{νf} is small, L is a power series in x.

_SMALL = 0.05
"""Largest x of the power series."""

_SERIES = 14
"""Number of terms of the power series."""

_ORDER = 7
"""Degree of the polynomials."""

_PIECES_PER_STRIP = 16
"""Number of pieces in the distance of the nearest zero of Z."""

LARGEST_NU = 64.0
"""Largest ν: beyond it zeros of Z come near."""


def nearest_zero(nu: float) -> float:
    """Return the distance from the real line of the zeros of Z: π/ν, or π/2 for ν < 2."""
    return math.pi / max(nu, 2.0)


class Table(NamedTuple):
    """Polynomials for one ν."""

    start: float
    """The smallest f of the table."""

    end: float
    """The largest f of the table."""

    step: float
    """The length h of a piece."""

    middle: Float[Tensor, "2 p"]
    """L and ½hL′ in the middle of each piece."""

    bend: Float[Tensor, "c p"]
    """Coefficients of V in u = 2(f − middle)/h."""

    by_nu: Float[Tensor, "c p"]
    """Coefficients of the slope of L in ν, in u."""

    series: Float[Tensor, "4 k"]
    """Coefficients of Σ_k x^{k−1}/(k!)^ν times 1, k, k² and log k!, from k = 1 on."""

    expansion: tuple[list[float], list[float], list[float]]
    """d_k, −k·d_k and k²·d_k: the coefficients of L, L′ and L″ in the expansion."""

    def place(self, f: Values) -> tuple[Int[Tensor, " _"], Values]:
        """Return the pieces of the flat f, and u."""
        place = f.clamp(self.start, self.end).sub_(self.start).mul_(1 / self.step)
        # NaN stays in u; as an index it would be any number.
        piece = place.floor().clamp_(max=self.bend.shape[1] - 1).nan_to_num_(0.0)
        return piece.long(), place.sub_(piece).mul_(2).sub_(1)


@lru_cache(maxsize=16)
def table_of(nu: float) -> Table:
    """Return the table for this ν; not to be written to."""
    start = math.log(_SMALL) / nu
    end = _largest_summed(nu)
    number = math.ceil((end - start) * _PIECES_PER_STRIP / nearest_zero(nu))
    step = (end - start) / number
    u = np.cos(math.pi * (np.arange(_ORDER + 1) + 0.5) / (_ORDER + 1))
    middles = start + step * (np.arange(number) + 0.5)
    points = torch.as_tensor(np.concatenate([middles[None], middles + 0.5 * step * u[:, None]]))
    value, first, second, by_nu = _moments(points.reshape(-1), nu).reshape(4, *points.shape)
    inverse = torch.as_tensor(np.linalg.inv(np.vander(u, increasing=True)))
    k = torch.arange(1, _SERIES + 1, dtype=torch.float64)
    logs = log_factorial(k)
    d = _coefficients(nu)[0]
    return Table(
        start=start,
        end=end,
        step=step,
        middle=torch.stack([value[0], 0.5 * step * first[0]]),
        bend=inverse @ second[1:],
        by_nu=inverse @ by_nu[1:],
        series=torch.exp(-nu * logs) * torch.stack([torch.ones_like(k), k, k * k, logs]),
        expansion=(
            d,
            [-k * c for k, c in enumerate(d, 1)],
            [k * k * c for k, c in enumerate(d, 1)],
        ),
    )


def _moments(f: Float[Tensor, " r"], nu: float) -> Float[Tensor, "4 r"]:
    """Compute L, L′, L″ and the slope in ν as sums over all counts, by one product of matrices.

    Powers of k, not of k − m, lose a digit or two of L″: up to `_largest_summed` its mean is at
    most some ten standard deviations.
    """
    largest = math.ceil(math.exp(_largest_summed(nu))) + _half_window(nu)
    k = torch.arange(largest + 1, dtype=f.dtype)
    logs = log_factorial(k)
    mode = torch.floor(torch.exp(f)).long()
    top = nu * (mode * f - logs[mode])
    terms = torch.outer(k, f).sub_(logs[:, None]).mul_(nu).sub_(top).exp_()
    total, first, second, by_nu = torch.stack([torch.ones_like(k), k, k * k, logs]) @ terms
    mean = first / total
    value = top + torch.log(total)
    bend = nu * nu * (second / total - mean * mean)
    return torch.stack([value, nu * mean, bend, f * mean - by_nu / total])


def tabled(f: Values, nu: float) -> Cumulants:
    """Compute L and its derivatives in f from the table of ν, without a graph."""
    table = table_of(nu)
    flat = f.reshape(-1)
    piece, u = table.place(flat)
    bend = table.bend.to(f.device)
    middle = table.middle.to(f.device)
    at = bend[_ORDER].index_select(0, piece)
    second = at
    first = at * (1 / (_ORDER + 1))
    value = at * (1 / ((_ORDER + 1) * (_ORDER + 2)))
    for j in range(_ORDER - 1, -1, -1):
        at = bend[j].index_select(0, piece)
        second = (second * u).add_(at)
        first.mul_(u).add_(at, alpha=1 / (j + 1))
        value.mul_(u).add_(at, alpha=1 / ((j + 1) * (j + 2)))
    half = 0.5 * table.step
    slope = middle[1].index_select(0, piece)
    value.mul_(half * half).mul_(u).add_(slope).mul_(u).add_(middle[0].index_select(0, piece))
    first.mul_(u).mul_(half).add_(slope, alpha=1 / half)
    cumulants = Cumulants(value, first, second)
    low = flat < table.start
    high = flat > table.end
    for outside, compute in ((low, _power_series), (high, _expansion)):
        if bool(outside.any()):
            for column, values in zip(cumulants, compute(flat[outside], nu), strict=True):
                column[outside] = values
    return Cumulants(*(column.reshape(f.shape) for column in cumulants))


def tabled_slope(f: Values, nu: float) -> Values:
    """Compute the derivative of L in ν from the table of ν, without a graph."""
    table = table_of(nu)
    flat = f.reshape(-1)
    piece, u = table.place(flat)
    by_nu = table.by_nu.to(f.device)
    slope = by_nu[_ORDER].index_select(0, piece)
    for j in range(_ORDER - 1, -1, -1):
        slope.mul_(u).add_(by_nu[j].index_select(0, piece))
    low = flat < table.start
    high = flat > table.end
    for outside, compute in ((low, _power_series_slope), (high, _expanded_slope)):
        if bool(outside.any()):
            slope[outside] = compute(flat[outside], nu)
    return slope.reshape(f.shape)


def _expansion(f: Values, nu: float) -> Cumulants:
    """Compute `expanded` for one ν, without a graph."""
    rate = torch.exp(f).mul_(nu)
    s = rate.reciprocal()
    excess = 0.5 * (nu - 1)
    rows = table_of(nu).expansion
    sums = []
    for row in rows:
        value = torch.full_like(s, row[-1]).mul_(s)
        for c in row[-2::-1]:
            value.add_(c).mul_(s)
        sums.append(value)
    constant = excess * _LOG_2PI + 0.5 * math.log(nu)
    value = sums[0].add_(rate).add_(f, alpha=-excess).sub_(constant)
    return Cumulants(value, sums[1].add_(rate).sub_(excess), sums[2].add_(rate))


def _power_sums(f: Values, nu: float) -> tuple[Values, ...]:
    """Compute Σ_k x^k/(k!)^ν times 1, k, k² and log k! from k = 1 on, for x of at most `_SMALL`."""
    x = torch.exp(nu * f)
    sums = [torch.zeros_like(x) for _ in range(4)]
    for column in table_of(nu).series.T.flip(0).tolist():
        sums = [total * x + term for total, term in zip(sums, column, strict=True)]
    return tuple(x * total for total in sums)


def _power_series(f: Values, nu: float) -> Cumulants:
    others, first, second, _ = _power_sums(f, nu)
    total = 1 + others
    mean = first / total
    return Cumulants(torch.log1p(others), nu * mean, nu * nu * (second / total - mean**2))


def _power_series_slope(f: Values, nu: float) -> Values:
    others, first, _, logs = _power_sums(f, nu)
    return (f * first - logs) / (1 + others)


def for_each_nu(
    compute: Callable[[Values, float], Sequence[Values]], z: Values, nu: Values
) -> list[Values]:
    """Compute functions of f and ν, of which there is one, or one for each of a few models."""
    if nu.numel() == 1:
        return [*compute(z, float(nu))]
    z, nu = torch.broadcast_tensors(z, nu)
    parts = [(nu == one, compute(z[nu == one], one)) for one in torch.unique(nu).tolist()]
    columns = [torch.empty_like(z) for _ in parts[0][1]]
    for mask, results in parts:
        for column, values in zip(columns, results, strict=True):
            column[mask] = values
    return columns


def sum_or_expansion(z: Values, nu: Values) -> Cumulants:
    """Compute L by the sum or the expansion, whichever is right, at every f; differentiable."""
    unique = torch.unique(nu.detach()).tolist()
    border = nu.detach().clone()
    for one in unique:
        border[border == one] = _largest_summed(one)
    half = max(map(_half_window, unique))
    large = z > border
    # Arguments of the formula that is not taken must give finite gradients, too.
    low = torch.where(large, border, z)
    high = torch.where(large, z, border)
    pairs = zip(expanded(high, nu), summed(low, nu, half), strict=True)
    return Cumulants(*(torch.where(large, series, total) for series, total in pairs))

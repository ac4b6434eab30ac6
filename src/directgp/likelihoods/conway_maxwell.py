"""Counts that vary less, or more, than Poisson counts: the Conway–Maxwell–Poisson family.

log p(y given f) = ν(y f − log y!) − L(f), L = log Σ_k exp(ν(k f − log k!)).

L is the cumulant function of an exponential family, so its derivatives in f are ν·E[y given f] and
ν²·Var[y given f]. For a given ν it is a function of one variable, and so it is tabulated: every
point of a quadrature then costs a polynomial in place of a sum.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from directgp.errors import require
from directgp.integration.contract import Derivatives
from directgp.integration.trapezoid import TrapezoidSums
from directgp.likelihoods.base import unconstrained
from directgp.likelihoods.capabilities import ParameterText
from directgp.likelihoods.counts import CountLikelihood, log_factorial
from directgp.likelihoods.numeric import Draws
from directgp.numerics.autograd import Slopes
from directgp.shapes import Values

_SMALLEST_NU = 0.1
"""The sums of smaller ν are long, and such counts are nearly geometric."""

_LARGEST_NU = 50.0
"""Training ends here: p(y given f) is nearly a staircase, and q(f) alone describes the spread."""

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
    own = [sum(c * powers[j] for j, c in enumerate(row)) for row in _EXPANSION]
    slopes = [sum(2 * j * c * powers[j] for j, c in enumerate(row)) for row in _EXPANSION]
    return own, slopes


def _polynomial(coefficients: Coefficients, s: Values) -> Values:
    """Return Σ_k c_k s^k, from k = 1 on, by Horner's scheme."""
    value = torch.zeros_like(s)
    for c in reversed(coefficients):
        value = (value + c) * s
    return value


def expanded(f: Values, nu: Values) -> Cumulants:
    """Compute L by its expansion, for f of at least `_largest_summed`; differentiable."""
    rate, d = nu * torch.exp(f), _coefficients(nu)[0]
    s, excess = rate.reciprocal(), 0.5 * (nu - 1)
    return Cumulants(
        rate - excess * (f + _LOG_2PI) - 0.5 * torch.log(nu) + _polynomial(d, s),
        rate - excess + _polynomial([-k * each for k, each in enumerate(d, 1)], s),
        rate + _polynomial([k * k * each for k, each in enumerate(d, 1)], s),
    )


def _expanded_slope(f: Values, nu: float) -> Values:
    """Compute the derivative of the expansion in ν."""
    rate, (d, slopes) = torch.exp(f), _coefficients(nu)
    both = [
        (slope - k * each) / nu for k, (each, slope) in enumerate(zip(d, slopes, strict=True), 1)
    ]
    return rate - 0.5 * (f + _LOG_2PI) - 0.5 / nu + _polynomial(both, (nu * rate).reciprocal())


def _terms(f: Values, nu: Values, half: int) -> tuple[Tensor, Tensor, Tensor]:
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
    offset, terms, mode = _terms(f, nu, half)
    others = terms.masked_fill(offset == 0, 0.0).sum(0)
    total = 1 + others
    shift = (terms * offset).sum(0) / total
    square = (terms * offset * offset).sum(0) / total
    value = nu * (mode * f - log_factorial(mode)) + torch.log1p(others)
    return Cumulants(value, nu * (mode + shift), nu * nu * (square - shift * shift))


# Between the smallest and the largest f, V = L″ is a polynomial on each of many pieces, and L′ and
# L are its integrals. Below, where x = e^{νf} is small, L is a power series in x.

_SMALL = 0.05
_SERIES = 14
"""Largest x of the power series, and its number of terms."""

_ORDER = 7
_PIECES_PER_STRIP = 16
"""Degree of the polynomials, and the number of pieces in the distance of the nearest zero of Z."""

_LARGEST_TABLED = 64.0
"""Largest ν with a table: zeros of Z come near, but few terms are left of the sum."""


def _nearest_zero(nu: float) -> float:
    """Return the distance from the real line of the zeros of Z: π/ν, or π/2 for ν < 2."""
    return math.pi / max(nu, 2.0)


class Table(NamedTuple):
    """Polynomials for one ν."""

    start: float
    end: float
    step: float
    middle: Float[Tensor, "2 p"]
    """L and ½hL′ in the middle of each piece, of length h."""

    bend: Float[Tensor, "c p"]
    by_nu: Float[Tensor, "c p"]
    """Coefficients of V and of the slope of L in ν, in u = 2(f − middle)/h."""

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
    start, end = math.log(_SMALL) / nu, _largest_summed(nu)
    number = math.ceil((end - start) * _PIECES_PER_STRIP / _nearest_zero(nu))
    step = (end - start) / number
    u = np.cos(math.pi * (np.arange(_ORDER + 1) + 0.5) / (_ORDER + 1))
    middles = start + step * (np.arange(number) + 0.5)
    points = torch.as_tensor(np.concatenate([middles[None], middles + 0.5 * step * u[:, None]]))
    value, first, second, by_nu = _moments(points.reshape(-1), nu).reshape(4, *points.shape)
    inverse = torch.as_tensor(np.linalg.inv(np.vander(u, increasing=True)))
    k = torch.arange(1, _SERIES + 1, dtype=torch.float64)
    logs, d = log_factorial(k), _coefficients(nu)[0]
    return Table(
        *(start, end, step),
        torch.stack([value[0], 0.5 * step * first[0]]),
        inverse @ second[1:],
        inverse @ by_nu[1:],
        torch.exp(-nu * logs) * torch.stack([torch.ones_like(k), k, k * k, logs]),
        (d, [-k * c for k, c in enumerate(d, 1)], [k * k * c for k, c in enumerate(d, 1)]),
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
    table, flat = table_of(nu), f.reshape(-1)
    piece, u = table.place(flat)
    bend, middle = table.bend.to(f.device), table.middle.to(f.device)
    at = bend[_ORDER].index_select(0, piece)
    second, first = at, at * (1 / (_ORDER + 1))
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
    found = Cumulants(value, first, second)
    low, high = flat < table.start, flat > table.end
    for outside, compute in ((low, _power_series), (high, _expansion)):
        if bool(outside.any()):
            for column, values in zip(found, compute(flat[outside], nu), strict=True):
                column[outside] = values
    return Cumulants(*(column.reshape(f.shape) for column in found))


def tabled_slope(f: Values, nu: float) -> Values:
    """Compute the derivative of L in ν from the table of ν, without a graph."""
    table, flat = table_of(nu), f.reshape(-1)
    piece, u = table.place(flat)
    by_nu = table.by_nu.to(f.device)
    found = by_nu[_ORDER].index_select(0, piece)
    for j in range(_ORDER - 1, -1, -1):
        found.mul_(u).add_(by_nu[j].index_select(0, piece))
    low, high = flat < table.start, flat > table.end
    for outside, compute in ((low, _power_series_slope), (high, _expanded_slope)):
        if bool(outside.any()):
            found[outside] = compute(flat[outside], nu)
    return found.reshape(f.shape)


def _expansion(f: Values, nu: float) -> Cumulants:
    """Compute `expanded` for one ν, without a graph."""
    rate = torch.exp(f).mul_(nu)
    s, excess, rows = rate.reciprocal(), 0.5 * (nu - 1), table_of(nu).expansion
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
        sums = [each * x + at for each, at in zip(sums, column, strict=True)]
    return tuple(x * each for each in sums)


def _power_series(f: Values, nu: float) -> Cumulants:
    others, first, second, _ = _power_sums(f, nu)
    total = 1 + others
    mean = first / total
    return Cumulants(torch.log1p(others), nu * mean, nu * nu * (second / total - mean**2))


def _power_series_slope(f: Values, nu: float) -> Values:
    others, first, _, logs = _power_sums(f, nu)
    return (f * first - logs) / (1 + others)


_FEW = 256
"""Largest count whose distribution function is a sum from 0 on."""

_LARGEST_LOG = 600.0
"""e^L and its reciprocal are normal numbers up to here."""

_WIDEST = 300.0
"""Standard deviation of a count from which on sums over counts are integrals."""


@final
class ConwayMaxwellPoisson(CountLikelihood):
    """p(y given f) ∝ (e^{yf}/y!)^ν: ν > 1 for counts that vary less than Poisson's, ν < 1 for more.

    For large e^f the mean is about e^f − ½(1 − 1/ν) and the variance e^f/ν; ν = 1 is Poisson.

    Parameters
    ----------
    dispersion : float or tensor
        s > 0 to start from, with ν = 1/s + 0.1; `with_nu` takes ν. The variance of a large count is
        about s times its mean, and for any s the family stays inside 0.1 < ν.

    Examples
    --------
    >>> import torch
    >>> likelihood = ConwayMaxwellPoisson.with_nu(4.0)
    >>> f = torch.tensor([3.0], dtype=torch.float64)
    >>> round((likelihood.conditional_variance(f) / likelihood.conditional_mean(f)).item(), 3)
    0.255
    """

    rows = replace(CountLikelihood.rows, proportional=False)
    parameter_texts = (
        ParameterText(
            "raw_dispersion",
            "The dispersion of the Conway–Maxwell–Poisson counts",
            "The counts vary little around their mean, which the model may describe by the "
            "variance of f instead; compare with objective='elbo'.",
            True,
        ),
    )

    def __init__(self, dispersion: float | Tensor = 1.0) -> None:
        super().__init__()
        self.raw_dispersion = unconstrained(dispersion, "dispersion of ConwayMaxwellPoisson")

    @classmethod
    def with_nu(cls, nu: float) -> "ConwayMaxwellPoisson":
        """Return the likelihood of this ν > 0.1."""
        allowed = f"above {_SMALLEST_NU} and finite"
        finite = _SMALLEST_NU < nu < math.inf
        require(finite, "nu of ConwayMaxwellPoisson.with_nu", allowed, nu)
        return cls(1 / (nu - _SMALLEST_NU))

    @classmethod
    def from_targets(
        cls, y: Float[Tensor, " n"], unit: float = 1.0, offset: float = 0.0
    ) -> "ConwayMaxwellPoisson":
        """Training starts from Poisson counts."""
        return cls.with_nu(1.0)

    @property
    def dispersion(self) -> Tensor:
        """s = 1/(ν − 0.1)."""
        return self._positive(self.raw_dispersion)

    @property
    def nu(self) -> Tensor:
        """ν."""
        return self.dispersion.reciprocal() + _SMALLEST_NU

    @property
    @override
    def integration(self) -> TrapezoidSums:
        # 1/Z has poles at the zeros of Z. The work is not fixed: values are read, to find the
        # pieces of a table.
        strip = 0.9 * _nearest_zero(float(self.nu.detach().max()))
        return TrapezoidSums(strip=strip, growth=1.0)

    def floors(self, deviation: float) -> dict[str, float]:
        """Return the smallest allowed value of positive parameters, by name."""
        return {"raw_dispersion": 1 / (_LARGEST_NU - _SMALLEST_NU)}

    def description(self, unit: float) -> dict[str, float]:
        """Return the parameters to print in `summary()`."""
        return {"exponent ν (1 for Poisson)": float(self.nu)}

    def _cumulants(self, f: Values) -> Cumulants:
        """Return L and its derivatives at f plus the log exposure, with a graph if needed."""
        z, nu = self._plus_log_exposure(f), self.nu
        if torch.is_grad_enabled() and (z.requires_grad or nu.requires_grad):
            return _sum_or_expansion(z, nu)
        return Cumulants(*_for_each_nu(_cumulants_at, z, nu.detach()))

    @override
    def log_kernel(self, y: Values, f: Values) -> Values:
        return self.nu * y * self._plus_log_exposure(f) - self._cumulants(f).value

    @override
    def log_base(self, y: Values) -> Values:
        return -self.nu * log_factorial(y)

    @override
    @torch.no_grad()
    def derivatives(self, y: Values, f: Values) -> Derivatives:
        value, first, second = self._cumulants(f)
        pull = self.nu * y
        value = torch.addcmul(-value, pull, self._plus_log_exposure(f))
        return Derivatives(value, pull - first, -second)

    @torch.no_grad()
    def parameter_slopes(self, y: Values, f: Values) -> Slopes | None:
        """(y f − log y!) − E[Y f − log Y!] in ν, times −1/s² in s."""
        if self.log_exposure is not None and self.log_exposure.requires_grad:
            return None
        z = self._plus_log_exposure(f)
        (slope,) = _for_each_nu(_slope_at, z, self.nu)
        return ((slope - y * z + log_factorial(y)) / self.dispersion.square(),)

    @override
    def log_mean(self, f: Values) -> Values:
        return torch.log(self.conditional_mean(f))

    @override
    def conditional_mean(self, f: Values) -> Values:
        return self._cumulants(f).first / self.nu

    @override
    def conditional_variance(self, f: Values) -> Values:
        return self._cumulants(f).second / self.nu**2

    @override
    def doubt(self, y: Values, f: Values) -> tuple[Values, Values]:
        """log x ≥ log(1 − 1/Z) for y = 0, where x = e^{νf} is small."""
        nu = self.nu.detach()
        log_x = nu * self._plus_log_exposure(f)
        return torch.where(y == 0, log_x, 0.0), nu.expand(f.shape)

    @override
    @torch.no_grad()
    def argmax(self, y: Values) -> Values:
        """The f with E[y given f] = y, by Newton's method for its log inside a bracket."""
        shift = self._plus_log_exposure(torch.zeros_like(y))
        nu = self.nu
        # E lies between those of ν = 0 and of a staircase: e^f − 1 ≤ E ≤ e^f + 1/ν, and E ≤ 1 for
        # x ≤ ½, where it is at least ½x.
        target = y.clamp(min=1e-300)
        low = torch.minimum(torch.log(target) / nu, torch.log(target)) - 3 - 1 / nu
        high = torch.maximum(torch.log(2 * target) / nu, torch.log(target + 1)) + 1
        z = torch.log((y + 0.5 - 0.5 / nu).clamp(min=0.1)).clamp(low, high)
        for _ in range(100):
            _, first, second = self._cumulants(z - shift)
            excess = torch.log(first / (nu * target))
            low, high = torch.where(excess < 0, z, low), torch.where(excess > 0, z, high)
            step = excess * first / second
            moved = z - step
            inside = (moved >= low) & (moved <= high)
            z = torch.where(inside, moved, 0.5 * (low + high))
            if bool((step.abs() < 1e-12).all()):
                break
        return torch.where(y > 0, z - shift, -torch.inf)

    def window_centre(self, count: Values) -> Values:
        """Return the f that maximises p(k + ½ given f)."""
        return self.argmax(count + 0.5)

    @override
    @torch.no_grad()
    def cdf(self, y: Values, f: Values) -> Values:
        z = self._plus_log_exposure(f)
        y, z, nu = torch.broadcast_tensors(y.to(z), z, self.nu.to(z))
        value, log_z = torch.empty_like(z), self._cumulants(f).value.expand(z.shape)
        few = (y <= _FEW) & (log_z < _LARGEST_LOG)
        narrow = torch.exp(0.5 * z) * nu.rsqrt() < _WIDEST
        if bool(few.any()):
            value[few] = _recurrent_cdf(y[few], z[few], nu[few], log_z[few])
        for mask, compute in ((~few & narrow, _summed_cdf), (~few & ~narrow, _integrated_cdf)):
            if bool(mask.any()):
                value[mask] = compute(y[mask], z[mask], nu[mask])
        return value

    @torch.no_grad()
    def draw(self, f: Draws, mean: Draws, random: np.random.RandomState) -> Draws:
        """Return draws of y given f, with numpy."""
        z = self._plus_log_exposure(torch.as_tensor(f).to(self.raw_dispersion.device))
        nu = self.nu.double().expand(z.shape)
        spread = torch.sqrt(self.conditional_variance(torch.as_tensor(f).to(z))).cpu().numpy()
        # Beyond, a normal variable, which is far narrower than its distance from 0.
        drawn = np.floor(mean + spread * random.standard_normal(f.shape) + 0.5)
        share = torch.as_tensor(random.random_sample(f.shape)).to(z)
        narrow = torch.exp(0.5 * z) * nu.rsqrt() < _WIDEST
        if bool(narrow.any()):
            parts = zip(*(each[narrow].split(_ROWS) for each in (z, nu, share)), strict=True)
            found = torch.cat([_inverse(*part) for part in parts])
            drawn[narrow.cpu().numpy()] = found.cpu().numpy()
        return np.asarray(np.maximum(drawn, 0.0))


def _for_each_nu(
    compute: Callable[[Values, float], Sequence[Values]], z: Values, nu: Values
) -> list[Values]:
    """Compute functions of f and ν, of which there is one, or one for each of a few models."""
    if nu.numel() == 1:
        return [*compute(z, float(nu))]
    z, nu = torch.broadcast_tensors(z, nu)
    parts = [(nu == one, compute(z[nu == one], one)) for one in torch.unique(nu).tolist()]
    columns = [torch.empty_like(z) for _ in parts[0][1]]
    for mask, found in parts:
        for column, values in zip(columns, found, strict=True):
            column[mask] = values
    return columns


def _cumulants_at(z: Values, nu: float) -> Cumulants:
    return tabled(z, nu) if nu <= _LARGEST_TABLED else _sum_or_expansion(z, z.new_tensor(nu))


def _slope_at(z: Values, nu: float) -> list[Values]:
    if nu <= _LARGEST_TABLED:
        return [tabled_slope(z, nu)]
    with torch.enable_grad():
        at = z.new_tensor(nu).expand(z.shape).clone().requires_grad_()
        total = _sum_or_expansion(z, at).value.sum()
    return [torch.autograd.grad(total, at)[0]]


def _sum_or_expansion(z: Values, nu: Values) -> Cumulants:
    """Compute L by the sum or the expansion, whichever is right, at every f; differentiable."""
    all_nu = nu.detach().reshape(-1)
    unique = torch.unique(all_nu).tolist()
    border = nu.detach().clone()
    for one in unique:
        border[border == one] = _largest_summed(one)
    half = max(map(_half_window, unique))
    large = z > border
    # Arguments of the formula that is not taken must give finite gradients, too.
    low, high = torch.where(large, border, z), torch.where(large, z, border)
    pairs = zip(expanded(high, nu), summed(low, nu, half), strict=True)
    return Cumulants(*(torch.where(large, one, other) for one, other in pairs))


_ROWS = 4096
"""Examples whose terms are summed at once."""


def _recurrent_cdf(y: Values, z: Values, nu: Values, log_z: Values) -> Values:
    """Sum the probabilities of 0, 1, …, y, each from the one before it."""
    one = nu.reshape(-1)[0]
    power = float(one) if bool((nu == one).all()) else nu
    x, term = torch.exp(power * z), torch.exp(-log_z)
    total = term.clone()
    for k in range(1, int(y.max()) + 1):
        term.mul_(x).mul_(k**-power)
        total.add_(torch.where(y >= k, term, 0.0))
    return total.clamp_(max=1.0)


def _summed_cdf(y: Values, z: Values, nu: Values) -> Values:
    """Sum the terms around the mode up to y, over all of them."""
    parts = zip(*(each.split(_ROWS) for each in (y, z, nu)), strict=True)
    found = []
    for count, f, power in parts:
        offset, terms, mode = _terms(f, power, _window(f, power))
        found.append((terms * (offset <= count - mode)).sum(0) / terms.sum(0))
    return torch.cat(found)


def _inverse(z: Values, nu: Values, share: Values) -> Values:
    """Return the smallest counts with at least this probability."""
    offset, terms, mode = _terms(z, nu, _window(z, nu))
    cumulative = terms.cumsum(0)
    below = (cumulative < share * cumulative[-1]).sum(0)
    return mode + offset[0] + below


def _window(z: Values, nu: Values) -> int:
    """Return the half-width of a window around the mode that holds all of the mass.

    Of a mean near 1 the mass ends at the k with ν log k! = 45, and k < 2 + 45/ν.
    """
    widest = float((torch.exp(0.5 * z) * nu.rsqrt()).max())
    return math.ceil(9.5 * widest + min(45 / float(nu.min()), 200.0)) + 20


_NODES = 64
_REACH = 9.5


def _integrated_cdf(y: Values, z: Values, nu: Values) -> Values:
    """Integrate over real counts on either side of y, with the terms of Euler and Maclaurin.

    Σ_{k ≤ y} g(k) = ∫^y g + g(y)/2 + g′(y)/12 up to the third derivative, of order 1e-10 here.
    """
    mode, spread = torch.exp(z), torch.exp(0.5 * z) * nu.rsqrt()
    end = _REACH * spread
    cut = torch.minimum(torch.maximum(y - mode, -end), end)
    x, weights = (
        torch.as_tensor(each).to(z)[:, None] for each in np.polynomial.legendre.leggauss(_NODES)
    )

    def density(offset: Values) -> Values:
        # log of m^t/t! at t = m + offset over that at m, by Stirling's series: no digit is lost.
        share = offset / mode
        return torch.exp(-nu * (mode * _excess(share) + 0.5 * torch.log1p(share)))

    left, right = (
        0.5 * (b - a) * (weights * density(a + 0.5 * (b - a) * (1 + x))).sum(0)
        for a, b in ((-end, cut), (cut, end))
    )
    edge = density(cut) * (0.5 - nu * torch.log1p(cut / mode) / 12)
    return (left + edge) / (left + right)


def _excess(x: Values) -> Values:
    """Compute (1 + x) log(1 + x) − x, by series where the difference cancels."""
    series = torch.zeros_like(x)
    for n in range(14, 1, -1):
        series = (series + (-1) ** n / (n * (n - 1))) * x
    return torch.where(x.abs() < 0.05, series * x, (1 + x) * torch.log1p(x) - x)

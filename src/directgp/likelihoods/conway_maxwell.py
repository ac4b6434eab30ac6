"""Counts that vary less, or more, than Poisson counts: the Conway–Maxwell–Poisson family.

log p(y given f) = ν(y f − log y!) − L(f), L = log Σ_k exp(ν(k f − log k!)).

`directgp.likelihoods.conway_maxwell_normaliser` computes L.
"""

import math
from dataclasses import replace
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.errors import require, require_all
from directgp.integration.contract import Derivatives
from directgp.integration.trapezoid import TrapezoidSums
from directgp.likelihoods.base import unconstrained
from directgp.likelihoods.capabilities import ParameterText
from directgp.likelihoods.conway_maxwell_normaliser import (
    LARGEST_NU,
    Cumulants,
    for_each_nu,
    nearest_zero,
    sum_or_expansion,
    tabled,
    tabled_slope,
    terms_around_mode,
)
from directgp.likelihoods.counts import CountLikelihood, log_factorial
from directgp.likelihoods.numeric import Draws
from directgp.numerics.autograd import Slopes
from directgp.shapes import Values

_SMALLEST_NU = 0.1
"""The sums of smaller ν are long, and such counts are nearly geometric."""

_SMALLEST_DISPERSION = 1 / (LARGEST_NU - _SMALLEST_NU)
"""s of the largest ν."""

_LARGEST_TRAINED_NU = 50.0
"""Training ends here: p(y given f) is nearly a staircase, and q(f) alone describes the spread."""

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
        values = self.dispersion.detach().reshape(-1)
        # A softplus and its inverse round.
        enough = values >= _SMALLEST_DISPERSION * (1 - 1e-12)
        allowed = f"at least {_SMALLEST_DISPERSION:.5f}, with ν up to {LARGEST_NU:g}"
        require_all(enough, values, "dispersion of ConwayMaxwellPoisson", allowed)

    @classmethod
    def with_nu(cls, nu: float) -> "ConwayMaxwellPoisson":
        """Return the likelihood of this ν, above 0.1 and up to 64."""
        allowed = f"above {_SMALLEST_NU}, and at most {LARGEST_NU:g}"
        inside = _SMALLEST_NU < nu <= LARGEST_NU
        require(inside, "nu of ConwayMaxwellPoisson.with_nu", allowed, nu)
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
        strip = 0.9 * nearest_zero(float(self.nu.detach().max()))
        return TrapezoidSums(strip=strip, growth=1.0)

    def floors(self, deviation: float) -> dict[str, float]:
        """Return the smallest allowed value of positive parameters, by name."""
        return {"raw_dispersion": 1 / (_LARGEST_TRAINED_NU - _SMALLEST_NU)}

    def description(self, unit: float) -> dict[str, float]:
        """Return the parameters to print in `summary()`."""
        return {"exponent ν (1 for Poisson)": float(self.nu)}

    def _cumulants(self, f: Values) -> Cumulants:
        """Return L and its derivatives at f plus the log exposure, with a graph if needed."""
        z = self._plus_log_exposure(f)
        nu = self.nu
        if torch.is_grad_enabled() and (z.requires_grad or nu.requires_grad):
            return sum_or_expansion(z, nu)
        return Cumulants(*for_each_nu(tabled, z, nu.detach()))

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
        (slope,) = for_each_nu(lambda at, nu: [tabled_slope(at, nu)], z, self.nu)
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
            low = torch.where(excess < 0, z, low)
            high = torch.where(excess > 0, z, high)
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
        value = torch.empty_like(z)
        log_z = self._cumulants(f).value.expand(z.shape)
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
        # A wide count is drawn as a normal variable, far narrower than its distance from 0.
        drawn = np.floor(mean + spread * random.standard_normal(f.shape) + 0.5)
        share = torch.as_tensor(random.random_sample(f.shape)).to(z)
        narrow = torch.exp(0.5 * z) * nu.rsqrt() < _WIDEST
        if bool(narrow.any()):
            blocks = zip(*(column[narrow].split(_ROWS) for column in (z, nu, share)), strict=True)
            counts = torch.cat([_inverse(*block) for block in blocks])
            drawn[narrow.cpu().numpy()] = counts.cpu().numpy()
        return np.asarray(np.maximum(drawn, 0.0))


_ROWS = 4096
"""Examples whose terms are summed at once."""


def _recurrent_cdf(y: Values, z: Values, nu: Values, log_z: Values) -> Values:
    """Sum the probabilities of 0, 1, …, y, each from the one before it."""
    one = nu.reshape(-1)[0]
    power = float(one) if bool((nu == one).all()) else nu
    x = torch.exp(power * z)
    term = torch.exp(-log_z)
    total = term.clone()
    for k in range(1, int(y.max()) + 1):
        term.mul_(x).mul_(k**-power)
        total.add_(torch.where(y >= k, term, 0.0))
    return total.clamp_(max=1.0)


def _summed_cdf(y: Values, z: Values, nu: Values) -> Values:
    """Sum the terms around the mode up to y, over all of them."""
    parts = []
    for count, f, power in zip(*(column.split(_ROWS) for column in (y, z, nu)), strict=True):
        offset, terms, mode = terms_around_mode(f, power, _window(f, power))
        parts.append((terms * (offset <= count - mode)).sum(0) / terms.sum(0))
    return torch.cat(parts)


def _inverse(z: Values, nu: Values, share: Values) -> Values:
    """Return the smallest counts with at least this probability."""
    offset, terms, mode = terms_around_mode(z, nu, _window(z, nu))
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
"""Gauss–Legendre nodes on either side of y."""

_REACH = 9.5
"""Standard deviations of a count from its mode at which the integral ends."""


def _integrated_cdf(y: Values, z: Values, nu: Values) -> Values:
    """Integrate over real counts on either side of y, with the terms of Euler and Maclaurin.

    Σ_{k ≤ y} g(k) = ∫^y g + g(y)/2 + g′(y)/12 up to the third derivative, of order 1e-10 here.
    """
    mode = torch.exp(z)
    spread = torch.exp(0.5 * z) * nu.rsqrt()
    end = _REACH * spread
    cut = torch.minimum(torch.maximum(y - mode, -end), end)
    x, weights = (
        torch.as_tensor(column).to(z)[:, None] for column in np.polynomial.legendre.leggauss(_NODES)
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

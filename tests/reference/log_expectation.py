"""log E_q[p(y given f)], E_q[log p(y given f)] and their slopes, by mpmath from the definitions.

Slow and obvious: the only facts used of a likelihood are its density and where it peaks. With
z = (f − μ)/√v, differentiating q under the integral gives, for g = p or g = log p,

    ∂_μ E_q[g] = E_q[g·z] / √v,   ∂_v E_q[g] = E_q[g·(z² − 1)] / (2v),

which cancel many digits where v is tiny; thirty are carried. Integrals are Gauss–Legendre sums over
pieces on which the integrand bends little, found by walking.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import mpmath
from mpmath import mpf

Function = Callable[[mpf], mpf]
LogProb = Callable[..., mpf]
"""log p(y given f), called with y, f and the likelihood's parameters by name."""

_mp = mpmath.mp.clone()
_mp.dps = 30

_REACH = 13
"""Deviations of q beyond which e^{−z²/2} < 1e-36 is nothing."""

_LONGEST = 6
"""Length in f of the longest piece; the densities bend on scales of 1 and more."""


class Truth(NamedTuple):
    """An expectation and its derivatives in the mean and in the variance of q."""

    value: mpf
    mean_slope: mpf
    variance_slope: mpf


def gaussian(y: mpf, f: mpf, noise: mpf) -> mpf:
    """Compute log N(y; f, noise)."""
    return -_log(2 * _mp.pi * noise) / 2 - (y - f) ** 2 / (2 * noise)


def probit(y: mpf, f: mpf) -> mpf:
    """Compute log Φ((2y−1)f)."""
    x = (2 * y - 1) * f / _mp.sqrt(2)
    return _mp.log1p(-_mp.erfc(x) / 2) if x > 0 else _mp.log(_mp.erfc(-x) / 2)


def logistic(y: mpf, f: mpf) -> mpf:
    """Compute −log(1 + e^{−(2y−1)f})."""
    return -_mp.log1p(_mp.exp(-(2 * y - 1) * f))


def poisson(y: mpf, rate: mpf) -> mpf:
    """Compute log(e^{−λ} λ^y / y!)."""
    return y * _mp.log(rate) - rate - _log_gamma(y + 1)


def poisson_exp(y: mpf, f: mpf, exposure: float = 1) -> mpf:
    """Compute the Poisson log probability for the rate e^f times the exposure."""
    return poisson(y, exposure * _mp.exp(f))


def poisson_softplus(y: mpf, f: mpf, exposure: float = 1) -> mpf:
    """Compute the Poisson log probability for the rate log(1 + e^f) times the exposure."""
    return poisson(y, exposure * _mp.log1p(_mp.exp(f)))


def negative_binomial(y: mpf, f: mpf, dispersion: mpf, exposure: float = 1) -> mpf:
    """Compute log(Γ(y+r)/(y! Γ(r)) (r/(r+λ))^r (λ/(r+λ))^y), λ = e^f times the exposure."""
    r, rate = dispersion, exposure * _mp.exp(f)
    ways = _log_gamma(y + r) - _log_gamma(y + 1) - _log_gamma(r)
    return ways - r * _mp.log1p(rate / r) - y * _mp.log1p(r / rate)


def binomial(y: mpf, f: mpf, trials: int = 60) -> mpf:
    """Compute log(C(n, y) σ(f)^y σ(−f)^(n−y))."""
    ways = _log_gamma(trials + _mp.one) - _log_gamma(y + 1) - _log_gamma(trials - y + 1)
    return ways - y * _mp.log1p(_mp.exp(-f)) - (trials - y) * _mp.log1p(_mp.exp(f))


def com_poisson(y: mpf, f: mpf, dispersion: mpf, exposure: float = 1) -> mpf:
    """Compute ν(y f − log y!) − log Σ_k (e^{kf}/k!)^ν, with ν = 1/s + 0.1, f plus log exposure."""
    z, nu = f + _mp.log(exposure), 1 / dispersion + _mp.mpf(0.1)
    nu = _mp.mpf(2) if abs(nu - 2) < 1e-12 else nu
    return nu * (y * z - _log_gamma(y + 1)) - log_partition(z, nu)


def log_partition(z: mpf, nu: mpf) -> mpf:
    """Compute log Σ_k (e^{kz}/k!)^ν; for ν = 2 that is log I₀(2e^z)."""
    rate = _mp.exp(z)
    if nu == 2 and z > 0:
        return _mp.log(_mp.besseli(0, 2 * rate))
    spread = _mp.sqrt(rate / nu)
    if spread < 20 or nu * rate < 400:
        x, term, total, k = _mp.exp(nu * z), _mp.one, _mp.zero, 0
        while k < rate or term > total * _mp.eps / 100:
            k += 1
            term *= x * _constant_power(k, nu, _mp.prec)
            total += term
        return _mp.log1p(total)
    # The sum over all counts equals the one over steps of half a deviation, up to e^−79.
    step, top = spread / 2, nu * (rate * z - _mp.loggamma(rate + 1))
    terms = (
        _mp.exp(nu * (t * z - _mp.loggamma(t + 1)) - top)
        for t in (rate + i * step for i in range(-35, 36))
    )
    return top + _mp.log(step * sum(terms))


@cache
def _constant_power(k: int, nu: mpf, precision: int) -> mpf:
    return _mp.mpf(k) ** -nu


def zero_inflated_poisson(y: mpf, f: mpf, zero_odds: mpf, exposure: float = 1) -> mpf:
    """Compute log(π·1{y = 0} + (1 − π)·Poisson), π = ω/(1 + ω)."""
    return _inflated(y, poisson_exp(y, f, exposure), zero_odds)


def zero_inflated_negative_binomial(
    y: mpf, f: mpf, zero_odds: mpf, dispersion: mpf, exposure: float = 1
) -> mpf:
    """Compute the same for the negative binomial."""
    return _inflated(y, negative_binomial(y, f, dispersion, exposure), zero_odds)


def _inflated(y: mpf, log_prob: mpf, odds: mpf) -> mpf:
    if y > 0:
        return log_prob - _log(1 + odds)
    return _mp.log1p(_mp.expm1(log_prob) / (1 + odds))


def student_t(y: mpf, f: mpf, df: mpf, scale: mpf) -> mpf:
    """Compute log of Student's density with df degrees at (y−f)/scale, over scale."""
    constant = _log_gamma((df + 1) / 2) - _log_gamma(df / 2)
    constant -= _log(df * _mp.pi) / 2 + _log(scale)
    return constant - (df + 1) / 2 * _mp.log1p(((y - f) / scale) ** 2 / df)


def gaussian_known_noise(y: mpf, f: mpf, extra: mpf) -> mpf:
    """Compute log N(y; f, 0.2 + extra), with the double 0.2."""
    return gaussian(y, f, _mp.mpf(0.2) + extra)


def gamma(y: mpf, f: mpf, shape: mpf) -> mpf:
    """Compute the log density of the gamma distribution of mean e^f and the given shape."""
    free = shape * _log(shape) + (shape - 1) * _log(y) - _log_gamma(shape)
    return free - shape * f - shape * y * _mp.exp(-f)


def weibull(y: mpf, f: mpf, shape: mpf) -> mpf:
    """Compute the log density of the Weibull distribution of scale e^f and the given shape."""
    return _log(shape / y) + shape * (_log(y) - f) + weibull_censored(y, f, shape)


def weibull_censored(y: mpf, f: mpf, shape: mpf) -> mpf:
    """Compute the log of the probability of a longer time, −(y e^−f)^k."""
    return -_mp.exp(shape * (_log(y) - f))


def log_normal(y: mpf, f: mpf, noise: mpf) -> mpf:
    """Compute log(N(log y; f, noise)/y)."""
    return gaussian(_log(y), f, noise) - _log(y)


def beta(y: mpf, f: mpf, precision: mpf) -> mpf:
    """Compute the log density of the beta distribution of mean 1/(1 + e^−f)."""
    a, b = precision / (1 + _mp.exp(-f)), precision / (1 + _mp.exp(f))
    ways = _log_gamma(precision) - _mp.loggamma(a) - _mp.loggamma(b)
    return ways + (a - 1) * _log(y) + (b - 1) * _log(1 - y)


TOBIT_LIMITS = -1, 2.25


def tobit(y: mpf, f: mpf, noise: mpf) -> mpf:
    """Compute log N(y; f, noise) between the limits, and the log probability beyond them."""
    low, high = TOBIT_LIMITS
    if low < y < high:
        return gaussian(y, f, noise)
    return probit(_mp.one, ((low - f) if y <= low else (f - high)) / _mp.sqrt(noise))


def ordinal(y: mpf, f: mpf, **theta: mpf) -> mpf:
    """Compute log(Φ(b_{y+1} − f) − Φ(b_y − f)), in the smaller tail."""
    edges, k = [theta["first"]], int(y)
    for i in range(1, len(theta)):
        edges.append(edges[-1] + theta[f"gap_{i}"])
    if k == 0:
        return probit(_mp.one, edges[0] - f)
    if k == len(edges):
        return probit(_mp.one, f - edges[-1])
    low, high = edges[k - 1] - f, edges[k] - f
    if low + high > 0:
        low, high = -high, -low
    with _mp.extraprec(200):
        return _mp.log(_mp.erfc(-high / _mp.sqrt(2)) - _mp.erfc(-low / _mp.sqrt(2))) - _mp.log(2)


def _log_gamma(x: mpf) -> mpf:
    return _constant(_mp.loggamma, _mp.prec, x)


def _log(x: mpf) -> mpf:
    return _constant(_mp.log, _mp.prec, x)


@cache
def _constant(function: Function, precision: int, x: mpf) -> mpf:
    """A term of a density that is free of f: costly, and the same at every node."""
    return function(x)


LOG_PROBS: Mapping[str, LogProb] = {
    "gaussian": gaussian,
    "probit": probit,
    "logistic": logistic,
    "poisson_exp": poisson_exp,
    "poisson_softplus": poisson_softplus,
    "negative_binomial": negative_binomial,
    "binomial": binomial,
    "com_poisson": com_poisson,
    "zero_inflated_poisson": zero_inflated_poisson,
    "zero_inflated_negative_binomial": zero_inflated_negative_binomial,
    "student_t": student_t,
    "gaussian_known_noise": gaussian_known_noise,
    "gamma": gamma,
    "log_normal": log_normal,
    "weibull": weibull,
    "weibull_censored": weibull_censored,
    "beta": beta,
    "tobit": tobit,
    "ordinal": ordinal,
}

_DISCRETE = LOG_PROBS.keys() - {
    *{"gaussian", "student_t", "gaussian_known_noise", "gamma", "log_normal", "beta", "tobit"},
    "weibull",
}

_SHORT = {"beta", "tobit", "ordinal"}
"""Densities that bend on scales below 1: their pieces are at most of length 1 in f."""


def _is_chance(name: str, y: float) -> bool:
    """Whether p(y given f) is a probability, and no density."""
    return name in _DISCRETE or (name == "tobit" and not TOBIT_LIMITS[0] < y < TOBIT_LIMITS[1])


@cache
def log_expectation(name: str, y: float, mean: float, variance: float, **theta: float) -> Truth:
    """log E_q[p(y given f)] and its slopes, for q = N(mean, variance)."""
    if name.startswith("zero_inflated_"):
        return _inflated_truth(name, y, mean, variance, **theta)
    log_prob = bind(name, y, **theta)
    mu, v = _mp.mpf(mean), _mp.mpf(variance)
    # A nearly certain outcome keeps its digits as 1 − E_q[1 − p].
    if _is_chance(name, y) and log_prob(mu) > -_mp.log(2):
        miss = _moments(lambda f: -_mp.expm1(log_prob(f)), mu, v, _short(name, _peak_pieces))
        hit = 1 - miss[0]
        return Truth(_mp.log1p(-miss[0]), *_slopes(-miss[1] / hit, -miss[2] / hit, v))
    pieces: Pieces = _peak_pieces
    if name == "student_t":
        pieces = _two_peak_pieces(_mp.mpf(y), theta["scale"])
    pieces = _short(name, _q_pieces if name == "beta" else pieces)
    mass, first, second = _moments(lambda f: _mp.exp(log_prob(f)), mu, v, pieces)
    return Truth(_mp.log(mass), *_slopes(first / mass, second / mass, v))


_BASES = {
    "zero_inflated_poisson": "poisson_exp",
    "zero_inflated_negative_binomial": "negative_binomial",
}


def _inflated_truth(
    name: str, y: float, mean: float, variance: float, zero_odds: float, **theta: float
) -> Truth:
    """log E_q[p] is that of the base, and E_q[p(0)] = (ω + E_q[p₀(0)])/(1 + ω)."""
    value, *slopes = log_expectation(_BASES[name], y, mean, variance, **theta)
    odds = _mp.mpf(zero_odds)
    share = 1 / (1 + odds * _mp.exp(-value)) if y == 0 else _mp.one
    return Truth(_inflated(_mp.mpf(y), value, odds), *(share * slope for slope in slopes))


@cache
def expected_log_prob(name: str, y: float, mean: float, variance: float, **theta: float) -> Truth:
    """E_q[log p(y given f)] and its slopes, for q = N(mean, variance)."""
    mu, v = _mp.mpf(mean), _mp.mpf(variance)
    pieces: Pieces = _fine_pieces if name.startswith("zero_inflated") else _q_pieces
    if name == "student_t":
        pieces = _two_peak_pieces(_mp.mpf(y), theta["scale"])
    pieces = _short(name, pieces)
    if name == "com_poisson":
        # The part that is linear in f has no share in the slope in v, which may be tiny.
        value, slope, bend = _moments(lambda f: com_poisson(_mp.zero, f, **theta), mu, v, pieces)
        nu = 1 / _mp.mpf(theta["dispersion"]) + _mp.mpf(0.1)
        mean_slope, variance_slope = _slopes(slope, bend, v)
        linear = nu * (y * mu - _log_gamma(_mp.mpf(y) + 1))
        return Truth(value + linear, mean_slope + nu * y, variance_slope)
    mass, first, second = _moments(bind(name, y, **theta), mu, v, pieces)
    return Truth(mass, *_slopes(first, second, v))


def bind(name: str, y: float, **theta: float) -> Function:
    """log p(y given f) as a function of f alone."""
    exact = {key: _mp.mpf(value) for key, value in theta.items()}
    log_prob, target = LOG_PROBS[name], _mp.mpf(y)
    return lambda f: log_prob(target, f, **exact)


def log_prob(name: str, y: float, f: float, **theta: float) -> mpf:
    """log p(y given f)."""
    return bind(name, y, **theta)(_mp.mpf(f))


def log_prob_slopes(name: str, y: float, f: float, **theta: float) -> tuple[mpf, mpf]:
    """ℓ′ and ℓ″ by central differences of log p(y given f), in digits enough for e^−700."""
    with _mp.workdps(420):
        at, step = bind(name, y, **theta), _mp.mpf(10) ** -30
        below, here, above = at(f - step), at(_mp.mpf(f)), at(f + step)
        return (above - below) / (2 * step), (above - 2 * here + below) / step**2


def parameter_slope(
    name: str, y: float, mean: float, variance: float, parameter: str, **theta: float
) -> mpf:
    """∂ log E_q[p] / ∂ parameter, by a central difference of `log_expectation`."""
    at = theta[parameter]
    below, above = at * (1 - 2.0**-30), at * (1 + 2.0**-30)
    low, high = (
        log_expectation(name, y, mean, variance, **{**theta, parameter: value}).value
        for value in (below, above)
    )
    return (high - low) / (_mp.mpf(above) - _mp.mpf(below))


def _slopes(first: mpf, second: mpf, v: mpf) -> tuple[mpf, mpf]:
    return first / _mp.sqrt(v), second / (2 * v)


Pieces = Callable[[Function, mpf, mpf], Sequence[mpf]]
"""g·q as a function of z, μ and √v → the ends of the pieces to integrate over, in z."""


def _moments(g: Function, mu: mpf, v: mpf, pieces: Pieces) -> tuple[mpf, mpf, mpf]:
    """E_q[g], E_q[g·z] and E_q[g·(z²−1)]."""
    deviation = _mp.sqrt(v)

    def product(z: mpf) -> mpf:
        return g(mu + deviation * z) * _mp.exp(-z * z / 2)

    ends = pieces(product, mu, deviation)
    total = first = second = _mp.zero
    for a, b in pairwise(ends):
        middle, half = (a + b) / 2, (b - a) / 2
        for x, weight in _legendre():
            z = middle + half * x
            mass = half * weight * product(z)
            total, first, second = total + mass, first + mass * z, second + mass * (z * z - 1)
    scale = _mp.sqrt(2 * _mp.pi)
    return total / scale, first / scale, second / scale


@cache
def _legendre() -> list[tuple[mpf, mpf]]:
    """24 nodes and weights on (−1, 1)."""
    rule = mpmath.calculus.quadrature.GaussLegendre(_mp)
    nodes: list[tuple[mpf, mpf]] = rule.calc_nodes(4, _mp.prec)
    return nodes


def _peak_pieces(product: Function, mu: mpf, deviation: mpf) -> list[mpf]:
    """Pieces that double in length away from the one peak of the product, down to e^−80 of it."""
    mode = _climb(product)
    top = product(mode)
    ends = [mode]
    for side in (-1, 1):
        length = _mp.one
        while product(mode + side * length) < top * _mp.exp(-0.5):
            length /= 2
        while product(mode + side * length) > top * _mp.exp(-80):
            ends.append(mode + side * length)
            length *= 2
        ends.append(mode + side * length)
    return _cut(sorted(ends), _LONGEST / deviation)


def _climb(product: Function) -> mpf:
    """The peak of a function with one peak: walk uphill from 0, then trisect."""
    side = 1 if product(_mp.mpf("1e-6")) > product(_mp.mpf("-1e-6")) else -1
    length = _mp.mpf(2) ** -10
    while product(2 * side * length) > product(side * length):
        length *= 2
    low, high = sorted([_mp.zero, 2 * side * length])
    while high - low > _mp.mpf(2) ** -12 * max(1, abs(low)) / 64:
        third = (high - low) / 3
        if product(low + third) < product(high - third):
            low += third
        else:
            high -= third
    return (low + high) / 2


def _q_pieces(product: Function, mu: mpf, deviation: mpf) -> list[mpf]:
    """Pieces of about two deviations of q, out to where nothing is left of q·|log p|.

    Where log p is nearly 0 at μ, its mass lies towards f = 0, at most |μ| away.
    """
    reach = _REACH + abs(mu) / max(1, 1 / deviation)
    number = int(_mp.ceil(reach))
    return _cut(
        [reach * (2 * _mp.mpf(i) / number - 1) for i in range(number + 1)], _LONGEST / deviation
    )


def _fine_pieces(product: Function, mu: mpf, deviation: mpf) -> list[mpf]:
    """Pieces of a deviation of q, and at most ½ in f: with extra zeros q·p may have two peaks."""
    return _cut([_mp.mpf(z) for z in range(-_REACH, _REACH + 1)], _mp.mpf(0.5) / deviation)


def _two_peak_pieces(y: mpf, scale: float) -> Pieces:
    """Pieces of two deviations of q, and pieces that double in length away from y."""

    def pieces(product: Function, mu: mpf, deviation: mpf) -> list[mpf]:
        ends = [_mp.mpf(i) for i in range(-_REACH, _REACH + 1, 2)]
        offsets = [side * scale * _mp.mpf(2) ** i for side in (-1, 1) for i in range(-1, 80)]
        ends += [(y - mu + offset) / deviation for offset in [0, *offsets]]
        return sorted({end for end in ends if abs(end) <= _REACH})

    return pieces


def _short(name: str, pieces: Pieces) -> Pieces:
    """The same pieces, cut to a length of 1 in f where the density needs it."""
    if name not in _SHORT:
        return pieces
    return lambda product, mu, dev: _cut(list(pieces(product, mu, dev)), 1 / dev)


def _cut(ends: list[mpf], longest: mpf) -> list[mpf]:
    """The same pieces, those too long cut into equal parts."""
    cut = [ends[0]]
    for a, b in pairwise(ends):
        parts = int(_mp.ceil((b - a) / longest))
        cut += [a + (b - a) * (i + 1) / parts for i in range(parts)]
    return cut

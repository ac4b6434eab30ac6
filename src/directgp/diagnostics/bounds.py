"""Bound p(y|f) and its first two derivatives in f, and check table 1 of the paper."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Num
from torch import Tensor

from directgp.errors import UnsupportedError
from directgp.likelihoods import Gaussian, Likelihood, Logistic, NegativeBinomial, Probit, StudentT
from directgp.likelihoods.base import UnimodalInF
from directgp.likelihoods.counts import CountLikelihood, PoissonExp, PoissonSoftplus
from directgp.shapes import Values
from directgp.text import text_table


@dataclass(frozen=True)
class DerivativeBounds:
    """0 ≤ φ ≤ B, b′ ≤ φ′ ≤ B′ and b″ ≤ φ″ ≤ B″ for every f, one number of each per target."""

    density_upper: Float[Tensor, "*shape"]
    """B."""

    slope_lower: Float[Tensor, "*shape"]
    """b′."""

    slope_upper: Float[Tensor, "*shape"]
    """B′."""

    curvature_lower: Float[Tensor, "*shape"]
    """b″."""

    curvature_upper: Float[Tensor, "*shape"]
    """B″."""

    @property
    def slope_range(self) -> Values:
        """B′ − b′."""
        return self.slope_upper - self.slope_lower

    @property
    def curvature_range(self) -> Values:
        """B″ − b″."""
        return self.curvature_upper - self.curvature_lower

    def stacked(self) -> Float[Tensor, "5 ..."]:
        """Return B, b′, B′, b″, B″ along a new first axis."""
        return torch.stack(list(vars(self).values()))


def density_derivatives(
    likelihood: Likelihood, y: Values, f: Values
) -> tuple[Values, Values, Values]:
    """Compute φ = e^ℓ, φ′ = ℓ′ e^ℓ and φ″ = (ℓ″ + ℓ′²) e^ℓ, with products in log space."""
    kernel, first, second = likelihood.derivatives(y, f)
    log_density = kernel + likelihood.log_base(y)
    return (
        torch.exp(log_density),
        _times_exp(first, log_density),
        _times_exp(second + first**2, log_density),
    )


def _times_exp(factor: Values, exponent: Values) -> Values:
    """Multiply by e^exponent, which is 0 for exponent −∞ whatever the factor."""
    product = torch.sign(factor) * torch.exp(torch.log(torch.abs(factor)) + exponent)
    return torch.where(exponent == -torch.inf, 0.0, product)


@dataclass(frozen=True)
class CriticalPoints:
    """All f where φ′ or φ″ can be extreme; an infinite f means the limit 0."""

    slope: Float[Tensor, "k ..."]
    """Roots of φ″."""

    curvature: Float[Tensor, "j ..."]
    """Roots of φ‴."""


def critical_points(likelihood: Likelihood, y: Values) -> CriticalPoints | None:
    """Return the roots of φ″ and φ‴ in closed form; None if there is no closed form."""
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
    """Return points at multiples of a width from a centre."""
    return CriticalPoints(
        torch.stack([centre + step * width for step in slope]),
        torch.stack([centre + step * width for step in curvature]),
    )


def _bell(y: Values, width: Values) -> CriticalPoints:
    """Return the roots for a bell around y: φ″ = 0 at one width, φ‴ = 0 at y and at √3 widths."""
    outer = math.sqrt(3)
    return _at(y, width, (-1.0, 1.0), (-outer, 0.0, outer))


def _poisson(likelihood: PoissonExp, y: Values) -> CriticalPoints:
    """Solve, with ′ = λ d/dλ, φ″ = ((y−λ)² − λ)φ and φ‴ = ((y−λ)³ − 3λ(y−λ) − λ)φ.

    The quadratic has roots λ = y + ½ ± √(y + ¼); the cubic, in t = λ − y − 1, is
    t³ − (3y+2)t − (2y+1).
    """
    spread = torch.sqrt(y + 0.25)
    quadratic = torch.stack([y + 0.5 - spread, y + 0.5 + spread])
    cubic = y + 1 + _cubic_roots(-(3 * y + 2), -(2 * y + 1))
    return CriticalPoints(_f_of_rate(likelihood, quadratic), _f_of_rate(likelihood, cubic))


def _negative_binomial(likelihood: NegativeBinomial, y: Values) -> CriticalPoints:
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
    return CriticalPoints(*(_f_of_rate(likelihood, p / (1 - p) * r) for p in (quadratic, cubic)))


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


_REACH = 200.0
"""Half-width of the grid in widths of the peak; beyond it every likelihood is flat or 0."""

_ZOOM_NODES = 17
_ZOOMS = 10
"""Each zoom divides the bracket by 8: ten bring it below 1e-9 widths, and the error of the value at
an extremum is the square of that."""


@torch.no_grad()
def searched_bounds(likelihood: UnimodalInF, y: Values, num_nodes: int = 257) -> DerivativeBounds:
    """Search for sup φ and for inf and sup of φ′ and φ″ over f, on a grid and around its best node.

    The grid is centre + width·sinh(x) for equispaced x: dense within the peak, out to 200 widths.
    """
    nodes = _nodes(likelihood, y, num_nodes)

    def extreme(order: int, sign: int) -> Values:
        return _largest(lambda f: sign * density_derivatives(likelihood, y, f)[order], nodes)

    # φ′ and φ″ vanish at ±∞, so that neither range excludes 0.
    return DerivativeBounds(
        extreme(0, 1),
        -extreme(1, -1).clamp(min=0.0),
        extreme(1, 1).clamp(min=0.0),
        -extreme(2, -1).clamp(min=0.0),
        extreme(2, 1).clamp(min=0.0),
    )


def _nodes(likelihood: UnimodalInF, y: Values, num_nodes: int) -> Float[Tensor, "k ..."]:
    centre = _first_finite(likelihood.argmax(y), likelihood.argmax(torch.ones_like(y)))
    width = torch.rsqrt(-likelihood.derivatives(y, centre).second)
    last = math.asinh(_REACH)
    x = torch.linspace(-last, last, num_nodes, dtype=y.dtype, device=y.device)
    return centre + width * torch.sinh(x).reshape(-1, *(1 for _ in centre.shape))


def _first_finite(peak: Values, of_one: Values) -> Values:
    """Return the peak; if infinite, that of target 1 (counts of 0), else 0 (labels)."""
    fallback = torch.where(torch.isfinite(of_one), of_one, 0.0)
    return torch.where(torch.isfinite(peak), peak, fallback)


def _largest(function: Callable[[Values], Values], nodes: Float[Tensor, "k ..."]) -> Values:
    """Maximise a smooth function over f, zooming in on the best node between its neighbours."""
    fractions = torch.linspace(0, 1, _ZOOM_NODES, dtype=nodes.dtype, device=nodes.device)
    fractions = fractions.reshape(-1, *(1 for _ in nodes.shape[1:]))
    for _ in range(_ZOOMS):
        best = function(nodes).argmax(dim=0, keepdim=True).clamp(1, len(nodes) - 2)
        lower, upper = nodes.gather(0, best - 1), nodes.gather(0, best + 1)
        nodes = lower + (upper - lower) * fractions
    return function(nodes).amax(dim=0)


@torch.no_grad()
def tight_bounds(likelihood: Likelihood, y: Num[Tensor, "..."]) -> DerivativeBounds:
    """Compute B = sup φ, [b′, B′] = range of φ′ and [b″, B″] = range of φ″ for each target.

    Exact, from closed-form roots of φ″ and φ‴, for Gaussian, probit, logistic, Student's t,
    Poisson with exponential link and negative binomial; by a search over f, good to about
    1e-12, for Poisson with softplus link and any further likelihood with one peak.

    Parameters
    ----------
    likelihood : Likelihood
        Any likelihood whose density is bounded and has one peak over f.
    y : tensor
        Targets (..., n); the range of φ′ of a label has one sign.

    Examples
    --------
    >>> import torch
    >>> from directgp.likelihoods import Poisson
    >>> tight_bounds(Poisson(), torch.tensor([0.0])).slope_lower
    tensor([-0.3679], dtype=torch.float64)
    """
    if not isinstance(likelihood, UnimodalInF):
        raise UnsupportedError(
            f"tight_bounds needs a likelihood with one peak over f. "
            f"Got {type(likelihood).__name__}. Derive it from UnimodalInF."
        )
    likelihood.check_targets(y)
    y = y.double()
    points = critical_points(likelihood, y)
    if points is None:
        return searched_bounds(likelihood, y)
    density_upper = torch.exp(likelihood.log_max(y))
    slopes = _at_points(likelihood, y, points.slope, 1)
    curvatures = _at_points(likelihood, y, points.curvature, 2)
    return DerivativeBounds(density_upper, *_range_with_zero(slopes), *_range_with_zero(curvatures))


def _at_points(
    likelihood: Likelihood, y: Values, f: Float[Tensor, "k ..."], order: int
) -> Float[Tensor, "k ..."]:
    """Evaluate φ, φ′ or φ″ (order 0, 1, 2) at each f, 0 at an infinite one."""
    finite = torch.isfinite(f)
    values = density_derivatives(likelihood, y, torch.where(finite, f, 0.0))[order]
    return torch.where(finite, values, 0.0)


def _range_with_zero(values: Float[Tensor, "k ..."]) -> tuple[Values, Values]:
    """Return the smallest and largest of the values and of the limit 0 at ±∞."""
    return values.amin(dim=0).clamp(max=0.0), values.amax(dim=0).clamp(min=0.0)


@torch.no_grad()
def paper_bounds(likelihood: Likelihood, y: Num[Tensor, "..."]) -> DerivativeBounds:
    """Compute the published B, [b′, B′] and [b″, B″] for each target.

    Parameters
    ----------
    likelihood : Likelihood
        One of the six of the paper's table 1.
    y : tensor
        Targets (..., n). Only the exponential link's bounds depend on them.

    Raises
    ------
    UnsupportedError
        Where the paper gives no bound: use `tight_bounds`.
    """
    likelihood.check_targets(y)
    y = y.double()
    match likelihood:
        case Logistic():
            return _symmetric(y, 1.0, 1 / 4, 1 / 4)
        case Probit():
            return _symmetric(
                y, 1.0, 1 / math.sqrt(2 * math.pi), 1 / math.sqrt(2 * math.pi * math.e)
            )
        case Gaussian():
            return _gaussian(likelihood, y)
        case StudentT():
            return _student_t(likelihood, y)
        case PoissonExp():
            one = torch.ones_like(y)
            return DerivativeBounds(one, -y - 1, y, -y - 1 / 4, 2 * y**2 + 3 * y + 2)
        case PoissonSoftplus(log_exposure=None):
            return _symmetric(y, 1.0, 1.0, 2.25)
    raise UnsupportedError(
        f"paper_bounds knows the six likelihoods of the paper's table 1, softplus counts without "
        f"exposure. Got {type(likelihood).__name__}. Use tight_bounds."
    )


def _symmetric(y: Values, density: float, slope: float, curvature: float) -> DerivativeBounds:
    """Return the same ± bounds for every target."""
    one = torch.ones_like(y)
    return DerivativeBounds(
        density * one, -slope * one, slope * one, -curvature * one, curvature * one
    )


def _gaussian(likelihood: Gaussian, y: Values) -> DerivativeBounds:
    c = torch.exp(likelihood.log_base(y))
    variance = likelihood.noise
    slope = c / torch.sqrt(math.e * variance)
    return DerivativeBounds(c, -slope, slope, -c / variance, 2 * c / (variance * math.exp(3 / 2)))


def _student_t(likelihood: StudentT, y: Values) -> DerivativeBounds:
    c = torch.exp(likelihood.log_base(y))
    df, scale = likelihood.df, likelihood.scale
    factor = c * (df + 1) / df
    slope = factor / scale * torch.sqrt(df / (df + 2)) / ((df + 3) / (df + 2)) ** ((df + 3) / 2)
    curvature = 2 * factor / scale**2 * ((df + 2) / (df + 5)) ** ((df + 5) / 2)
    return DerivativeBounds(c, -slope, slope, -factor / scale**2, curvature)


BOUND_NAMES = ("B", "b′", "B′", "b″", "B″")
_IS_UPPER = (True, False, True, False, True)

_TOLERANCE = 1e-9
"""Relative difference up to which a published bound is tight; the search errs by 1e-11."""

_SEARCH_NODES = 2001

MISPRINTS = (
    "Table 1, both Poisson rows, and twice in the text: e^{g(f)} should be e^{−g(f)}.",
    "Table 1, Gaussian row: the factor c = 1/(√(2π)σ) is missing from the likelihood.",
    "Gaussian text: φ′ at f = y ± σ is ±c/(σ√e), as in the table, not ±(c/σ)√e.",
    "Probit text: the second φ′, equal to y²h′(yf), is φ″.",
    "Poisson text, exponential link, upper bound of φ″: λ^y e^{−y} should be λ^y e^{−λ}.",
    "Poisson text, softplus link: dp_y/dλ = p_{y−1} − p_y; the sign is reversed in φ′ and in the "
    "g″ term of φ″ (the bounds do not change).",
)
"""Misprints around the paper's table 1; none of them changes a bound."""


@dataclass(frozen=True)
class BoundCheck:
    """A published bound and the extremum of φ, φ′ or φ″."""

    likelihood: str
    targets: tuple[float, ...]
    """The targets that share this published bound."""

    bound: str
    """One of `BOUND_NAMES`."""

    published: float
    extremum: float
    """The extremum over every f and over the targets."""

    @property
    def looseness(self) -> float:
        """Ratio published / extremum: 1 is tight, below 1 violated, ∞ where the extremum is 0."""
        if self.published == self.extremum:
            return 1.0
        if self.published * self.extremum < 0:
            return -math.inf
        return abs(self.published / self.extremum) if self.extremum else math.inf

    @property
    def verdict(self) -> str:
        """``tight``, ``loose ×k`` or ``violated``."""
        excess = self.looseness - 1
        if abs(excess) <= _TOLERANCE:
            return "tight"
        return f"loose ×{_short(self.looseness)}" if excess > 0 else "violated"


@torch.no_grad()
def check_bounds(likelihood: UnimodalInF, y: Num[Tensor, " n"]) -> tuple[BoundCheck, ...]:
    """Compare each published bound with the extremum of φ, φ′, φ″ over f, by search.

    Targets with the same published bounds are one case, as in the paper: both labels of a binary
    likelihood are one case, each count of the exponential link is one.

    Parameters
    ----------
    likelihood : UnimodalInF
        One of the six of the paper's table 1.
    y : tensor
        The targets (n,) to check.

    Returns
    -------
    tuple of BoundCheck
        Five for each case, in the order of `BOUND_NAMES`.
    """
    published = paper_bounds(likelihood, y).stacked().T.tolist()
    y = y.double()
    attained = searched_bounds(likelihood, y, _SEARCH_NODES).stacked()
    cases: dict[tuple[float, ...], list[int]] = {}
    for index, bounds in enumerate(published):
        cases.setdefault(tuple(bounds), []).append(index)
    return tuple(
        BoundCheck(type(likelihood).__name__, tuple(y[members].tolist()), *row)
        for bounds, members in cases.items()
        for row in zip(BOUND_NAMES, bounds, _extrema(attained[:, members]), strict=True)
    )


def bounds_table() -> tuple[BoundCheck, ...]:
    """Return `check_bounds` for the six likelihoods of the paper's table 1."""
    labels = torch.tensor([0.0, 1.0])
    counts = torch.tensor([0.0, 1.0, 10.0, 100.0, 1000.0])
    anywhere = torch.tensor([0.0])
    rows: list[tuple[UnimodalInF, Tensor]] = [
        (Logistic(), labels),
        (Gaussian(noise=0.25), anywhere),
        (Probit(), labels),
        (PoissonSoftplus(), counts),
        (PoissonExp(), counts),
        (StudentT(df=4.0, scale=0.3), anywhere),
    ]
    return tuple(check for likelihood, y in rows for check in check_bounds(likelihood, y))


def format_checks(checks: Sequence[BoundCheck]) -> str:
    """Format checks as a plain text table, one line for each bound."""
    head = ("likelihood", "y", "bound", "published", "extremum", "verdict")
    return text_table([head, *(_cells(check) for check in checks)])


def _extrema(attained: Float[Tensor, "5 n"]) -> list[float]:
    """Return the maximum over the targets for upper bounds, the minimum for lower ones."""
    pairs = zip(attained, _IS_UPPER, strict=True)
    return [float(row.max() if is_upper else row.min()) for row, is_upper in pairs]


def _cells(check: BoundCheck) -> tuple[str, ...]:
    targets = ", ".join(f"{target:g}" for target in check.targets)
    # Adding 0.0 prints −0.0 without its sign.
    numbers = (f"{check.published:.6g}", f"{check.extremum + 0.0:.6g}")
    return (check.likelihood, targets, check.bound, *numbers, check.verdict)


def _short(ratio: float) -> str:
    """Format with two digits, or as a whole number from 100 on."""
    if math.isinf(ratio):
        return "∞"
    return f"{ratio:.2g}" if ratio < 99.5 else f"{ratio:.0f}"

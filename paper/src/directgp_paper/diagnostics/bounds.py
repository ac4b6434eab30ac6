"""Bound p(y|f) and its first two derivatives in f, and check table 1 of the paper."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Num
from torch import Tensor

from directgp.errors import UnsupportedError
from directgp.likelihoods import (
    Gaussian,
    Likelihood,
    Logistic,
    PoissonExp,
    PoissonSoftplus,
    Probit,
    StudentT,
    UnimodalInF,
)
from directgp.shapes import Values
from directgp.text import text_table


@dataclass(frozen=True)
class DerivativeBounds:
    """0 ≤ φ ≤ B, b′ ≤ φ′ ≤ B′ and b″ ≤ φ″ ≤ B″ for every f, one number of each per target.

    The fields are B, b′, B′, b″ and B″.
    """

    density_upper: Float[Tensor, "*shape"]
    slope_lower: Float[Tensor, "*shape"]
    slope_upper: Float[Tensor, "*shape"]
    curvature_lower: Float[Tensor, "*shape"]
    curvature_upper: Float[Tensor, "*shape"]

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
    """Multiply by e^exponent, which is 0 for exponent −∞ and any factor."""
    product = torch.sign(factor) * torch.exp(torch.log(torch.abs(factor)) + exponent)
    return torch.where(exponent == -torch.inf, 0.0, product)


_REACH = 200.0
"""Half-width of the grid in widths of the peak; beyond it every likelihood is flat or 0."""

_ZOOM_NODES = 17
"""Nodes of a zoom, which divides the bracket by 8."""

_ZOOMS = 10
"""Zooms that bring the bracket below 1e-9 widths.

The error of the value at an extremum is the square of that.
"""


@torch.no_grad()
def searched_bounds(likelihood: UnimodalInF, y: Values, num_nodes: int = 257) -> DerivativeBounds:
    """Search for sup φ and for inf and sup of φ′ and φ″ over f, on a grid and around its best node.

    The grid is centre + width·sinh(x) for equispaced x: dense within the peak, out to 200 widths.
    """
    # Replace a peak at ±∞ by the peak of target 1 (counts of 0), or by 0 (labels).
    of_one = likelihood.argmax(torch.ones_like(y))
    fallback = torch.where(torch.isfinite(of_one), of_one, 0.0)
    peak = likelihood.argmax(y)
    centre = torch.where(torch.isfinite(peak), peak, fallback)
    width = torch.rsqrt(-likelihood.derivatives(y, centre).second)
    last = math.asinh(_REACH)
    x = torch.linspace(-last, last, num_nodes, dtype=y.dtype, device=y.device)
    nodes = centre + width * torch.sinh(x).reshape(-1, *(1 for _ in centre.shape))

    def extreme(order: int, sign: int) -> Values:
        return _largest(lambda f: sign * density_derivatives(likelihood, y, f)[order], nodes)

    # φ′ and φ″ vanish at ±∞, so that neither range excludes 0.
    ranges = [sign * extreme(order, sign).clamp(min=0.0) for order in (1, 2) for sign in (-1, 1)]
    return DerivativeBounds(extreme(0, 1), *ranges)


def _largest(function: Callable[[Values], Values], nodes: Float[Tensor, "k ..."]) -> Values:
    """Maximise a smooth function over f, zooming in on the best node between its neighbours."""
    fractions = torch.linspace(0, 1, _ZOOM_NODES, dtype=nodes.dtype, device=nodes.device)
    fractions = fractions.reshape(-1, *(1 for _ in nodes.shape[1:]))
    for _ in range(_ZOOMS):
        best = function(nodes).argmax(dim=0, keepdim=True).clamp(1, len(nodes) - 2)
        lower = nodes.gather(0, best - 1)
        upper = nodes.gather(0, best + 1)
        nodes = lower + (upper - lower) * fractions
    return function(nodes).amax(dim=0)


@torch.no_grad()
def tight_bounds(likelihood: Likelihood, y: Num[Tensor, "..."]) -> DerivativeBounds:
    """Compute B = sup φ, [b′, B′] = range of φ′ and [b″, B″] = range of φ″ for each target.

    By a search over f, good to about 1e-12, for any likelihood whose density is bounded and has one
    peak over f. Targets have any shape; the range of φ′ of a label has one sign.

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
    return searched_bounds(likelihood, y.double())


@torch.no_grad()
def paper_bounds(likelihood: Likelihood, y: Num[Tensor, "..."]) -> DerivativeBounds:
    """Compute the published B, [b′, B′] and [b″, B″] for each target, of any shape.

    The paper has bounds for the six likelihoods of its table 1; only the bounds of the exponential
    link depend on the targets. Other likelihoods raise `UnsupportedError`: use `tight_bounds`.
    """
    likelihood.check_targets(y)
    y = y.double()
    bounds: tuple[Tensor | float, ...]
    match likelihood:
        case Logistic():
            bounds = 1.0, -1 / 4, 1 / 4, -1 / 4, 1 / 4
        case Probit():
            slope = 1 / math.sqrt(2 * math.pi)
            curvature = 1 / math.sqrt(2 * math.pi * math.e)
            bounds = 1.0, -slope, slope, -curvature, curvature
        case Gaussian(noise=variance):
            c = torch.exp(likelihood.log_base(y))
            steepest = c / torch.sqrt(math.e * variance)
            upper = 2 * c / (variance * math.exp(3 / 2))
            bounds = c, -steepest, steepest, -c / variance, upper
        case StudentT(df=df, scale=scale):
            c = torch.exp(likelihood.log_base(y))
            factor = c * (df + 1) / df
            power = ((df + 3) / (df + 2)) ** ((df + 3) / 2)
            steepest = factor / scale * torch.sqrt(df / (df + 2)) / power
            upper = 2 * factor / scale**2 * ((df + 2) / (df + 5)) ** ((df + 5) / 2)
            bounds = c, -steepest, steepest, -factor / scale**2, upper
        case PoissonExp():
            bounds = 1.0, -y - 1, y, -y - 1 / 4, 2 * y**2 + 3 * y + 2
        case PoissonSoftplus(log_exposure=None):
            bounds = 1.0, -1.0, 1.0, -2.25, 2.25
        case _:
            raise UnsupportedError(
                f"paper_bounds knows the six likelihoods of the paper's table 1, softplus counts"
                f" without exposure. Got {type(likelihood).__name__}. Use tight_bounds."
            )
    return DerivativeBounds(*(bound * torch.ones_like(y) for bound in bounds))


BOUND_NAMES = ("B", "b′", "B′", "b″", "B″")
"""Capital letters are upper bounds."""

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
    """Class of the likelihood."""

    targets: tuple[float, ...]
    """The targets that share this published bound."""

    bound: str
    """One of `BOUND_NAMES`."""

    published: float
    """The bound of the paper's table 1."""

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
        ratio = self.looseness
        if abs(ratio - 1) <= _TOLERANCE:
            return "tight"
        if ratio < 1:
            return "violated"
        short = f"{ratio:.2g}" if ratio < 99.5 else f"{ratio:.0f}"
        return f"loose ×{'∞' if math.isinf(ratio) else short}"


@torch.no_grad()
def check_bounds(likelihood: UnimodalInF, y: Num[Tensor, " n"]) -> tuple[BoundCheck, ...]:
    """Compare each published bound with the extremum of φ, φ′, φ″ over f, by search.

    Targets with the same published bounds are one case, as in the paper: both labels of a binary
    likelihood are one case, each count of the exponential link is one. There are five checks for
    each case, in the order of `BOUND_NAMES`. The likelihoods are the six of the paper's table 1.
    """
    published = paper_bounds(likelihood, y).stacked().T.tolist()
    y = y.double()
    attained = searched_bounds(likelihood, y, _SEARCH_NODES).stacked()
    cases: dict[tuple[float, ...], list[int]] = {}
    for index, bounds in enumerate(published):
        cases.setdefault(tuple(bounds), []).append(index)
    checks = []
    for bounds, members in cases.items():
        targets = tuple(y[members].tolist())
        for name, bound, values in zip(BOUND_NAMES, bounds, attained[:, members], strict=True):
            extremum = float(values.max() if name.startswith("B") else values.min())
            checks.append(BoundCheck(type(likelihood).__name__, targets, name, bound, extremum))
    return tuple(checks)


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
    rows = [("likelihood", "y", "bound", "published", "extremum", "verdict")]
    for check in checks:
        targets = ", ".join(f"{target:g}" for target in check.targets)
        # Adding 0.0 prints −0.0 without its sign.
        numbers = (f"{check.published:.6g}", f"{check.extremum + 0.0:.6g}")
        rows.append((check.likelihood, targets, check.bound, *numbers, check.verdict))
    return text_table(rows)

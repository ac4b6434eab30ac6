"""The paper's table of derivative bounds against the true extrema."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Num
from torch import Tensor

from directgp.diagnostics.extremum_search import searched_bounds
from directgp.diagnostics.published_bounds import paper_bounds
from directgp.diagnostics.text_table import text_table
from directgp.likelihoods import Gaussian, Logistic, Probit, StudentT
from directgp.likelihoods.poisson import PoissonExp, PoissonSoftplus
from directgp.likelihoods.unimodal import UnimodalInF

BOUND_NAMES = ("B", "b′", "B′", "b″", "B″")
_IS_UPPER = (True, False, True, False, True)

# The search is good to about 1e-11; a published constant that agrees to 1e-9 is the extremum.
_TOLERANCE = 1e-9
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
"""What is misprinted around the paper's table 1; none of it changes a bound."""


@dataclass(frozen=True)
class BoundCheck:
    """One published bound beside what φ, φ′ or φ″ attains."""

    likelihood: str
    targets: tuple[float, ...]
    """The targets that share this published bound."""

    bound: str
    """One of `BOUND_NAMES`."""

    published: float
    extremum: float
    """Of φ, φ′ or φ″ over every f and over the targets."""

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
    likelihood together, each count of the exponential link apart.

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
    """`check_bounds` for the six likelihoods of the paper's table 1 and a range of targets."""
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
    """Lay out checks as a plain text table, one line for each bound."""
    head = ("likelihood", "y", "bound", "published", "extremum", "verdict")
    return text_table([head, *(_cells(check) for check in checks)])


def _extrema(attained: Float[Tensor, "5 n"]) -> list[float]:
    """Largest over the targets of each upper bound's quantity, smallest of each lower one's."""
    pairs = zip(attained, _IS_UPPER, strict=True)
    return [float(row.max() if is_upper else row.min()) for row, is_upper in pairs]


def _cells(check: BoundCheck) -> tuple[str, ...]:
    targets = ", ".join(f"{target:g}" for target in check.targets)
    # Adding 0.0 prints −0.0 without its sign.
    numbers = (f"{check.published:.6g}", f"{check.extremum + 0.0:.6g}")
    return (check.likelihood, targets, check.bound, *numbers, check.verdict)


def _short(ratio: float) -> str:
    """Two digits, or whole from 100 on."""
    if math.isinf(ratio):
        return "∞"
    return f"{ratio:.2g}" if ratio < 99.5 else f"{ratio:.0f}"

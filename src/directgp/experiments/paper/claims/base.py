"""A claim of the paper, and what results say of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

from directgp.experiments.paper.cells import PaperCell
from directgp.experiments.paper.results import Results

Verdict = Literal["held", "not held", "not decided"]


@final
@dataclass(frozen=True)
class Part:
    """One comparison within a claim."""

    what: str
    """In words: "pol, 2,000 rows: log-loss DLM, joint, against the ELBO"."""

    verdict: Verdict
    effect: float
    """Mean difference over the repeats, negative where the claim is right; NaN if not run."""

    error: float
    """Its standard error; NaN for one repeat."""

    p_value: float
    """Of the paired test, two-sided; NaN where there is none."""

    unit: str
    """Of the effect: "NLL", "MSE", "log10 β", …"""

    note: str = ""
    """What should be known besides."""

    decides: bool = True
    """False for comparisons that are told beside the claim."""


@final
@dataclass(frozen=True)
class Finding:
    """What results say of a claim."""

    verdict: Verdict
    sentence: str
    """Why, in one or two sentences, with the figures."""

    parts: tuple[Part, ...]


@final
@dataclass(frozen=True)
class Claim:
    """One of C1 to C14."""

    id: str
    statement: str
    """What the paper says."""

    where: str
    """In the paper: "fig. 1a"."""

    criterion: str
    """When it counts as held, as not held; fixed before anything was run."""

    figures: tuple[str, ...]
    """That show it, by their names in `directgp.reports.paper`: "1a", "2", …"""

    uses: Callable[[PaperCell], bool]
    """Whether it needs a cell."""

    judge: Callable[[Results], Finding]

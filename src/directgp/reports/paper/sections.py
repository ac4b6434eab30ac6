"""Claims and their figures, in the order of the page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from directgp.experiments.paper.claims.base import Claim, Finding, Part
from directgp.reports.figures.rendering import Drawn
from directgp.reports.paper.figures.base import Figure
from directgp.reports.paper.figures.registry import FIGURES


@final
@dataclass(frozen=True)
class Shown:
    """A figure that was drawn."""

    figure: Figure
    drawn: Drawn


@final
@dataclass(frozen=True)
class Section:
    """A claim, what was found, and its figures."""

    claim: Claim
    finding: Finding
    shown: tuple[Shown, ...]
    elsewhere: tuple[Figure, ...]
    """Figures that an earlier claim has shown."""

    absent: tuple[str, ...]
    """Figures of which nothing was run."""

    @property
    def deciding(self) -> list[Part]:
        """Comparisons on which the verdict hangs."""
        return [part for part in self.finding.parts if part.decides]

    @property
    def beside(self) -> list[Part]:
        """Comparisons that are only told."""
        return [part for part in self.finding.parts if not part.decides]

    @property
    def anchor(self) -> str:
        """Its place on the page."""
        return f"claim-{self.claim.id.lower()}"


def sections(
    findings: Sequence[tuple[Claim, Finding]], pictures: Mapping[str, Drawn]
) -> tuple[list[Section], list[Shown]]:
    """Every claim with the figures that no earlier one has shown; and the remaining figures."""
    left = dict(pictures)
    found = []
    for claim, finding in findings:
        drawn = [name for name in claim.figures if name in pictures]
        here = tuple(Shown(FIGURES[name], left.pop(name)) for name in drawn if name in left)
        new = {each.figure.name for each in here}
        elsewhere = tuple(FIGURES[name] for name in drawn if name not in new)
        absent = tuple(name for name in claim.figures if name not in pictures)
        found.append(Section(claim, finding, here, elsewhere, absent))
    return found, [Shown(FIGURES[name], each) for name, each in left.items()]

"""A figure of the paper, and when it can be drawn."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

from directgp.datasets.wording import joined, several
from directgp.experiments.paper.cells import PaperCell
from directgp.experiments.paper.results import Results
from directgp.reports.figures.picture import Picture
from directgp.reports.paper.figures.panel import Layout, Panel, arranged

MAIN, APPENDIX = "main text", "appendix"
"""Where a figure is in the paper."""

Slots = dict[str, Panel | None]
"""The panels that a figure of the paper has, by what is in them; None where it was not run."""


@final
@dataclass(frozen=True)
class Figure:
    """What it shows, what it needs, and how its panels come from results."""

    name: str
    """As the paper numbers it: "1a", "2"; ours begin with S."""

    title: str
    caption: str
    where: str
    """In the paper."""

    uses: Callable[[PaperCell], bool]
    """Whether it shows a cell."""

    slots: Callable[[Results], Slots]
    """Its panels, given the cells that it shows."""

    layout: Layout = field(default_factory=Layout)

    @property
    def file(self) -> str:
        """Name of its files, and of its place on the page."""
        return f"figure-{self.name.lower()}"

    def picture(self, results: Results) -> Picture | None:
        """None where nothing of it was run."""
        shown = Results(tuple(record for record in results.records if self.uses(record.cell)))
        slots = self.slots(shown)
        panels = [panel for panel in slots.values() if panel]
        if not panels:
            return None
        return Picture(
            name=self.file,
            title=f"Figure {self.name}. {self.title}",
            short=self.name,
            caption=self.caption
            + _absent([name for name, panel in slots.items() if not panel])
            + self._open(results),
            alt=" ".join(f"{panel.title}: {panel.words}." for panel in panels),
            draw=lambda width: arranged(panels, self.layout, width),
        )

    def _open(self, results: Results) -> str:
        """How many of its cells lines lack, so that they are not taken for the whole."""
        failed = sum(self.uses(each.cell) for each in results.failed)
        missing = sum(map(self.uses, results.missing))
        lacking = [
            f"{several(number, 'cell')} {what}"
            for number, what in ((missing, "not run"), (failed, "failed"))
            if number
        ]
        return f" Of this figure, {joined(lacking)}." if lacking else ""


def _absent(names: list[str]) -> str:
    return f" Not run: {joined(names)}." if names else ""

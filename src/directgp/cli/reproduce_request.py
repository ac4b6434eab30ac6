"""What was typed of `directgp reproduce`, and which cells it means."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

from directgp.cli.errors import WrongUsageError
from directgp.cli.reproduce_folder import STORE, store_in
from directgp.datasets.paper.registry import PAPER
from directgp.datasets.wording import suggestion
from directgp.experiments.paper.cells import PaperCell, Protocol
from directgp.experiments.paper.claims.registry import CLAIMS
from directgp.experiments.paper.scales import SCALES, Scale
from directgp.reports.paper.figures.registry import FIGURES


@final
@dataclass(frozen=True)
class ReproduceRequest:
    """The options of `directgp reproduce`."""

    claims: tuple[str, ...]
    figures: tuple[str, ...]
    datasets: tuple[str, ...]
    scale: str
    protocol: Protocol | None
    data_dir: Path | None
    download: bool
    engine: str
    jobs: int | None
    address: str | None
    cpus: float
    gpus: float
    seed: int
    device: str
    out: Path
    force: bool
    report_only: bool
    merge: tuple[Path, ...]

    @property
    def sizes(self) -> Scale:
        """The scale."""
        return SCALES[self.scale]

    def check(self) -> None:
        """Refuse what can be told to be wrong without the data."""
        for option, given, known in (
            ("--claim", self.claims, CLAIMS),
            ("--figure", self.figures, FIGURES),
            ("--dataset", self.datasets, PAPER),
        ):
            for name in given:
                if name not in known:
                    remedy = suggestion(name, known, "There are")
                    raise WrongUsageError(
                        f"{option} must be one that exists. Got {name!r}. {remedy}"
                    )
        for place in self.merge:
            if not store_in(place).is_file():
                raise WrongUsageError(
                    f"--merge must be a folder with {STORE}, or such a file. Got {str(place)!r}."
                )
            if _is_same(store_in(place), self.out / STORE):
                raise WrongUsageError(
                    f"--merge must be another folder than --out. Got {str(place)!r} for both."
                )

    def wanted(self) -> list[Callable[[PaperCell], bool]]:
        """What chooses cells: any claim or figure that is named, or everything."""
        named = [CLAIMS[name].uses for name in self.claims]
        named += [FIGURES[name].uses for name in self.figures]
        every = named or [lambda cell: True]
        if not self.datasets:
            return every
        return [lambda cell: cell.dataset in self.datasets and any(uses(cell) for uses in every)]


def _is_same(one: Path, other: Path) -> bool:
    return other.exists() and one.samefile(other)

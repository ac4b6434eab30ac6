"""The data sets of the paper that a request needs, and the cells on them."""

from collections.abc import Sequence

from directgp.cli.errors import WrongUsageError
from directgp.cli.reproduce_request import ReproduceRequest
from directgp.cli.terminal import Terminal
from directgp.datasets.paper.opening import PaperData, open_paper
from directgp.datasets.paper.registry import PAPER
from directgp.datasets.wording import joined
from directgp.errors import DirectGPError, InvalidInputError
from directgp.experiments.paper.cells import PaperCell
from directgp.experiments.paper.reproduction import DataRow
from directgp.experiments.paper.sweep import SweepData, chosen, sweep

_ORIGINS = {
    "folder": "the data folder",
    "fetched": "its public home",
    "generated": "its formula",
}


def cells_of(request: ReproduceRequest, data: Sequence[SweepData]) -> tuple[PaperCell, ...]:
    """What the request means on these data sets."""
    every = sweep(request.sizes, data, request.protocol, request.seed)
    return chosen(every, request.wanted())


def open_all(request: ReproduceRequest, terminal: Terminal) -> dict[str, PaperData]:
    """Every data set that is needed and can be had; one that is named must be."""
    opened: dict[str, PaperData] = {}
    needed = _needed(request)
    if not needed:
        raise WrongUsageError(_nothing_there(request))
    for name in needed:
        try:
            opened[name] = open_paper(name, request.data_dir, request.download)
        except DirectGPError as error:
            if name in request.datasets:
                raise
            terminal.warn(f"Left out: {error}")
    if not opened:
        raise InvalidInputError(
            "At least one data set must be there. Got none. Name the folder that has them by "
            "--data-dir."
        )
    return opened


def _nothing_there(request: ReproduceRequest) -> str:
    named = [f"claim {each}" for each in request.claims]
    named += [f"figure {each}" for each in request.figures]
    on = f" on {joined(request.datasets)}" if request.datasets else ""
    return (
        f"There is no experiment of {joined(named) or 'the paper'}{on} at scale {request.scale}. "
        "Name others, or another scale."
    )


def sweep_data(opened: PaperData) -> SweepData:
    """What cells must know of a data set."""
    problem = opened.problem
    return SweepData(
        name=opened.facts.name,
        task=opened.facts.task,
        num_rows=len(problem.y),
        fingerprint=problem.fingerprint(),
        num_inducing=opened.facts.num_inducing,
    )


def data_row(opened: PaperData) -> DataRow:
    """What the report tells of a data set."""
    facts = opened.facts
    rows, features = opened.problem.X.shape
    return DataRow(
        name=facts.name,
        task=facts.task,
        rows=rows,
        features=features,
        paper_rows=facts.rows,
        paper_features=facts.features,
        num_inducing=facts.num_inducing,
        origin=_ORIGINS[opened.origin],
        licence=facts.licence,
        source=facts.source,
        differences=opened.differences,
    )


def _needed(request: ReproduceRequest) -> list[str]:
    """Names of the data sets that any wanted cell is about, as far as the paper's table tells."""
    table = [
        SweepData(facts.name, facts.task, facts.rows, "", facts.num_inducing)
        for facts in PAPER.values()
    ]
    used = {cell.dataset for cell in cells_of(request, table)}
    return [name for name in PAPER if name in used]

"""The figures of methods trained until they have converged: 1a to 1e and 2 to 7."""

from collections.abc import Callable, Sequence

from directgp.experiments.paper.cells import FitCell, PaperCell
from directgp.experiments.paper.results import Results
from directgp.reports.paper.figures.base import APPENDIX, MAIN, Figure, Slots
from directgp.reports.paper.figures.betas import CHOOSING, beta_panel, largest_size, small_size
from directgp.reports.paper.figures.sizes import shows_fits, size_panel

REGRESSION = ("pol", "cadata", "sarcos", "song")
CLASSIFICATION = ("banana", "thyroid", "twonorm", "ringnorm")
COUNT = ("abalone", "peds1_dir0", "peds1_dir1", "peds1_dir2")
PEDESTRIANS = ("peds1_dir2", "peds1", "peds1_dir0", "peds1_dir1")
"""The one of fig. 1e first; "peds1" is a direction that is not known."""

LOG = ("elbo", "beta-elbo", "fitc", "log-joint", "log-fixed")
ALL = (*LOG, "square-joint", "square-fixed")

_SMALL_AT_MOST = 1382
"""Training rows; twice those of fig. 1c."""

_MEANS = "Means over the repeats that were run, with bars of one standard error; lower is better."
_RINGS = "Rings are at the values of β that repeats chose, the dotted line at β = 1."


def _sizes(
    name: str, title: str, caption: str, datasets: Sequence[str], score: str, label: str
) -> Figure:
    methods = ALL if score == "mse" else LOG
    where = MAIN if name.startswith("1") else APPENDIX
    slots = _one(datasets, score, label) if name == "1e" else _each(datasets, score, label)
    uses = shows_fits((*datasets, "peds1") if datasets == COUNT else datasets, methods)
    return Figure(name, title, f"{caption} {_MEANS}", where, uses, slots)


def _each(datasets: Sequence[str], score: str, label: str) -> Callable[[Results], Slots]:
    def slots(results: Results) -> Slots:
        found = {each: size_panel(results, each, score, label) for each in datasets}
        beside = size_panel(results, "peds1", score, label) if datasets == COUNT else None
        return {**found, "peds1": beside} if beside else found

    return slots


def _one(datasets: Sequence[str], score: str, label: str) -> Callable[[Results], Slots]:
    """The first of the sets that was run."""

    def slots(results: Results) -> Slots:
        found = {each: size_panel(results, each, score, label) for each in datasets}
        return next(({each: panel} for each, panel in found.items() if panel), {})

    return slots


def _shows_small_cadata(cell: PaperCell) -> bool:
    near = isinstance(cell, FitCell) and cell.size <= _SMALL_AT_MOST
    return near and shows_fits(("cadata",), CHOOSING)(cell)


def _small_cadata(results: Results) -> Slots:
    return {"cadata": beta_panel(results, "cadata", small_size(results, "cadata"))}


def _regression_and_betas(results: Results) -> Slots:
    small, large = small_size(results, "cadata"), largest_size(results, "cadata")
    found = _each(REGRESSION, "nll", "NLL")(results)
    return {
        "pol": found["pol"],
        "cadata": found["cadata"],
        "cadata against β with few rows": beta_panel(results, "cadata", small),
        "sarcos": found["sarcos"],
        "song": found["song"],
        "cadata against β with many rows": beta_panel(results, "cadata", large),
    }


_SARCOS, _RINGNORM = ("sarcos",), ("ringnorm",)
_TEST = "of test rows against the number of training rows"

FIT_FIGURES = (
    _sizes("1a", "Regression: log loss", f"NLL {_TEST}.", _SARCOS, "nll", "NLL"),
    _sizes("1b", "Regression: square loss", f"MSE {_TEST}.", _SARCOS, "mse", "MSE"),
    Figure(
        "1c",
        "The values of β that are selected",
        "NLL of validation rows against β, with few training rows: the size nearest to the "
        f"paper's 691. {_RINGS} {_MEANS}",
        MAIN,
        _shows_small_cadata,
        _small_cadata,
    ),
    _sizes("1d", "Classification: log loss", f"NLL {_TEST}.", _RINGNORM, "nll", "NLL"),
    _sizes("1e", "Count regression: log loss", f"NLL {_TEST}.", PEDESTRIANS, "nll", "NLL"),
    Figure(
        "2",
        "Regression: log loss of four sets, and loss against β",
        f"NLL {_TEST}; and of validation rows of cadata against β, with few and with many "
        f"training rows. {_RINGS} {_MEANS}",
        APPENDIX,
        shows_fits(REGRESSION, LOG),
        _regression_and_betas,
    ),
    _sizes("3", "Regression: square loss of four sets", f"MSE {_TEST}.", REGRESSION, "mse", "MSE"),
    _sizes(
        "4", "Classification: log loss of four sets", f"NLL {_TEST}.", CLASSIFICATION, "nll", "NLL"
    ),
    _sizes(
        "5",
        "Classification: error of four sets",
        f"Error {_TEST}.",
        CLASSIFICATION,
        "error",
        "error",
    ),
    _sizes("6", "Counts: log loss of four sets", f"NLL {_TEST}.", COUNT, "nll", "NLL"),
    _sizes(
        "7",
        "Counts: relative error of four sets",
        f"Mean relative error {_TEST}.",
        COUNT,
        "mre",
        "MRE",
    ),
)

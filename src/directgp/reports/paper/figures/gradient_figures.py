"""The figures of gradients and samplers: 1g, 1h, 9 and ours."""

from directgp.experiments.paper.results import Results
from directgp.reports.paper.figures.base import APPENDIX, MAIN, Figure, Slots
from directgp.reports.paper.figures.histograms import (
    DATASET,
    Statistic,
    histogram_panel,
    shows_gradients,
)
from directgp.reports.paper.figures.panel import Layout
from directgp.reports.paper.figures.samplers import sampler_slots, shows_samplers

_ROWS = {"ups": "uPS", "bmc": "bMC", "smooth-bmc": "smooth-bMC"}
_COLUMNS: dict[Statistic, str] = {
    "alignment": "(i)",
    "squared_norm": "(ii)",
    "squared_error": "error",
}
_DRAWS = (
    "Gradients in the mean of q(u), drawn again and again right after initialisation, against the "
    "exact gradient g*; draws beyond the axis are counted in its last bins."
)
_NOT_BIAS = (
    "What the paper calls bias is the squared error of single draws: variance and squared bias "
    "together."
)


def _single(name: str, rule: str, beside: str) -> Figure:
    def slots(results: Results) -> Slots:
        panel = histogram_panel(results, DATASET, rule, "squared_error", [beside])
        return {DATASET: panel}

    return Figure(
        name,
        f"The paper's estimate of bias: {_ROWS[rule]}",
        f"{_DRAWS} {_NOT_BIAS} Figures 1g and 1h have the same horizontal axis.",
        MAIN,
        shows_gradients,
        slots,
    )


def _grid(results: Results) -> Slots:
    return {
        f"{title} {column}": histogram_panel(
            results, f"{title}: {column}", rule, statistic, list(_ROWS)
        )
        for rule, title in _ROWS.items()
        for statistic, column in _COLUMNS.items()
    }


GRADIENT_FIGURES = (
    _single("1g", "bmc", "ups"),
    _single("1h", "ups", "bmc"),
    Figure(
        "9",
        "Gradients drawn by uPS, bMC and smooth-bMC",
        f"{_DRAWS} Condition (i) is ⟨g, g*⟩/‖g*‖², which is 1 for the exact gradient as is "
        "condition (ii), ‖g‖²/‖g*‖². The three rules have the same horizontal axes. "
        f"{_NOT_BIAS}",
        APPENDIX,
        shows_gradients,
        _grid,
        Layout(height=2.1, least=3.0, least_narrow=1.9),
    ),
    Figure(
        "S1",
        "Product samplers along training",
        "First, how often the samplers propose for one draw; then the processor time of a draw "
        "for every example by the paper's sampler; last, the time of a gradient times its squared "
        "error, over the squared norm of the exact one: what a given accuracy costs. Means over "
        "the repeats, with bars of one standard error where there are several; lower is better.",
        "not in the paper, which tells of it in words",
        shows_samplers,
        sampler_slots,
    ),
)

"""The figures of learning curves: 1f, 1i, 8 and 10 to 16."""

from collections.abc import Callable, Sequence

from directgp.experiments.paper.results import Results
from directgp.reports.paper.figures.base import APPENDIX, MAIN, Figure, Slots
from directgp.reports.paper.figures.curve_looks import by_objective, by_rule
from directgp.reports.paper.figures.curves import (
    curve_panel,
    curves_of,
    shows_objectives,
    shows_rules,
)
from directgp.reports.paper.figures.fit_figures import COUNT, REGRESSION

AIRLINE = "airline"
_SAMPLED = ("exact", "bmc", "ups", "ups-mixed")
_SMOOTH = ("exact", "bmc", "smooth-bmc")
_BANDS = (
    "Means over the repeats that were run, with bands of one standard error where there are "
    "several; lower is better. The beginning may lie above the axis."
)


def _objectives(name: str, where: str, *scores: str) -> Figure:
    def slots(results: Results) -> Slots:
        curves = curves_of(results, AIRLINE)
        return {s: curve_panel(AIRLINE, curves, s, "epoch", by_objective) for s in scores}

    return Figure(
        name,
        "Airline: ELBO and DLM",
        f"{' and '.join(scores)} of test rows by the epoch. {_BANDS}",
        where,
        shows_objectives(AIRLINE),
        slots,
    )


def _sampling(name: str, beta: float, where: str, *scores: str) -> Figure:
    def slots(results: Results) -> Slots:
        curves = curves_of(results, AIRLINE)
        return {s: curve_panel(AIRLINE, curves, s, "epoch", by_rule) for s in scores}

    return Figure(
        name,
        f"Airline, β = {beta:g}: exact gradients and sampling",
        f"Log-loss DLM, joint, by the epoch: {' and '.join(scores)} of test rows. {_BANDS}",
        where,
        shows_rules([AIRLINE], _SAMPLED, [beta]),
        slots,
    )


def _smooth_airline(results: Results) -> Slots:
    """At the values of β of which there are smoothed curves."""
    betas = {cell.beta for cell, _, _ in results.curves() if cell.rule.name == "smooth-bmc"}
    found: Slots = {}
    for beta in sorted(betas):
        curves, title = curves_of(results, AIRLINE, beta), f"{AIRLINE}, β = {beta:g}"
        for score in ("NLL", "error"):
            found[f"{score}, β = {beta:g}"] = curve_panel(title, curves, score, "epoch", by_rule)
    return found


def _by_set(datasets: Sequence[str], named: Sequence[str] = ()) -> Callable[[Results], Slots]:
    """A panel for every data set and β; those of the named that were not run are missed."""

    def slots(results: Results) -> Slots:
        found: Slots = {}
        for dataset in datasets:
            betas = sorted({cell.beta for cell, _ in curves_of(results, dataset)})
            for beta in betas:
                curves, title = curves_of(results, dataset, beta), f"{dataset}, β = {beta:g}"
                found[title] = curve_panel(title, curves, "NLL", "step", by_rule)
            if not betas and dataset in named:
                found[dataset] = None
        return found

    return slots


def _rules(
    name: str,
    title: str,
    datasets: Sequence[str],
    rules: Sequence[str],
    named: Sequence[str] = (),
) -> Figure:
    return Figure(
        name,
        title,
        f"Log-loss DLM, joint, by the step of Adam: NLL of test rows. {_BANDS}",
        APPENDIX,
        shows_rules(datasets, rules),
        _by_set(datasets, named),
    )


_COUNTS = (*COUNT, "peds1")

CURVE_FIGURES = (
    _objectives("1f", MAIN, "NLL"),
    _sampling("1i", 0.1, MAIN, "NLL"),
    _objectives("8", APPENDIX, "NLL", "error"),
    _sampling("10", 0.1, APPENDIX, "NLL", "error"),
    _sampling("11", 1.0, APPENDIX, "NLL", "error"),
    _sampling("12", 10.0, APPENDIX, "NLL", "error"),
    Figure(
        "13",
        "Airline: bMC and smooth-bMC",
        f"Log-loss DLM, joint, by the epoch: NLL and error of test rows. {_BANDS}",
        APPENDIX,
        shows_rules([AIRLINE], _SMOOTH),
        _smooth_airline,
    ),
    _rules("14", "Counts: uPS and bMC", _COUNTS, _SAMPLED),
    _rules("15", "Counts: bMC and smooth-bMC", _COUNTS, _SMOOTH),
    _rules(
        "16", "Regression: exact gradients and bMC", REGRESSION, ("exact", "bmc"), named=REGRESSION
    ),
)

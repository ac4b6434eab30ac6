import io
import math
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from directgp.experiments.cell import FailedRecord
from directgp.plots.curves import Line
from directgp.plots.rendering import NARROW, WIDE, Picture, render
from directgp.plots.style import DARK, INK, Mark
from directgp_paper.experiments.cells import (
    EXACT,
    PAPER_METHODS,
    CurveCell,
    FitCell,
    GradientCell,
    PaperRecord,
    Results,
    RuleFacts,
)
from directgp_paper.reports.drawing import bin_edges, ratio_axis
from directgp_paper.reports.figures import FIGURES, beta_mark, rule_mark
from paper.tests.reports.made import (
    EVERYTHING,
    MIXED,
    PAPER_SAMPLER,
    PRODUCT,
    SAMPLED,
    SMOOTH,
    Recipe,
    odd,
    results,
)

ALL = results(replace(EVERYTHING, repeats=2, sizes=(346, 691, 1383)))
LOG = ["ELBO", "β-ELBO", "FITC", "log-loss DLM, joint", "log-loss DLM, fixed"]
SQUARE = ["square-loss DLM, joint", "square-loss DLM, fixed"]
SCRIPT = "FITC, ELBO's hyperparameters"


def shown(name: str, found: Results = ALL) -> Picture:
    picture = FIGURES[name].picture(found)
    assert picture is not None
    return picture


def titles(figure: Figure) -> list[str]:
    return [ax.get_title(loc="left") for ax in figure.axes]


def lines(ax: Axes) -> dict[str, Any]:
    """By their names."""
    return {str(x.get_label()): x for x in ax.lines if not str(x.get_label()).startswith("_")}


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


PANELS = {
    "1a": ["sarcos"],
    "1b": ["sarcos"],
    "1c": ["cadata, 691 rows"],
    "1d": ["ringnorm"],
    "1e": ["peds1"],
    "1f": ["airline"],
    "1g": ["abalone"],
    "1h": ["abalone"],
    "1i": ["airline"],
    "2": ["pol", "cadata", "cadata, 691 rows", "cadata, 1,383 rows", "sarcos", "song"],
    "3": ["pol", "cadata", "sarcos", "song"],
    "4": ["banana", "thyroid", "twonorm", "ringnorm"],
    "5": ["banana", "thyroid", "twonorm", "ringnorm"],
    "6": ["abalone", "peds1"],
    "7": ["abalone", "peds1"],
    "8": ["airline", "airline"],
    "9": [
        f"{rule}: {column}"
        for rule in ("uPS", "bMC", "smooth-bMC")
        for column in ("(i)", "(ii)", "error")
    ],
    "10": ["airline", "airline"],
    "11": ["airline", "airline"],
    "12": ["airline", "airline"],
    "13": ["airline, β = 0.1", "airline, β = 0.1"],
    "14": ["abalone, β = 0.1", "peds1, β = 0.1"],
    "15": ["abalone, β = 0.1", "peds1, β = 0.1"],
    "16": ["pol, β = 0.1", "cadata, β = 0.1", "sarcos, β = 0.1", "song, β = 0.1"],
    "S1": ["abalone"] * 3 + ["banana"] * 3,
    "S2": ["airline"],
    "S3": ["abalone", "peds1"],
}


def test_figures_are_those_of_the_paper_and_ours() -> None:
    assert list(FIGURES) == list(PANELS)
    assert all(figure.name == name for name, figure in FIGURES.items())


@pytest.mark.parametrize("name", list(PANELS))
def test_panels_are_those_of_the_paper(name: str) -> None:
    picture = shown(name)
    assert titles(picture.draw(WIDE)) == PANELS[name]
    assert picture.name == f"figure-{name.lower()}"
    assert re.search(r"\d", picture.alt)


@pytest.mark.parametrize("name", list(FIGURES))
def test_a_figure_shows_the_cells_that_it_uses_and_no_others(name: str) -> None:
    figure = FIGURES[name]
    own = Results(tuple(r for r in ALL.records if figure.uses(r.cell)))
    others = Results(tuple(r for r in ALL.records if not figure.uses(r.cell)))
    assert 0 < len(own.records) < len(ALL.records)
    assert shown(name, own).alt == shown(name).alt
    assert figure.picture(others) is None
    assert figure.picture(Results(())) is None


@pytest.mark.parametrize(
    ("name", "score", "labels"), [("1a", "nll", [*LOG, SCRIPT]), ("1b", "mse", LOG + SQUARE)]
)
def test_lines_are_means_over_repeats(name: str, score: str, labels: list[str]) -> None:
    axes: Any = shown(name).draw(WIDE).axes
    (ax,) = axes
    found = lines(ax)
    assert list(found) == labels
    label = {method.label: method.name for method in PAPER_METHODS.values()}
    for text, line in found.items():
        for size, mean in zip(line.get_xdata(), line.get_ydata(), strict=True):
            values = [
                outcome.scores[score]
                for cell, outcome in ((r.cell, r.outcome) for r in ALL.of(FitCell))
                if (cell.dataset, cell.method, cell.size) == ("sarcos", label[text], size)
            ]
            assert len(values) == 2 and mean == pytest.approx(sum(values) / 2)
    bars = {
        tuple(np.round(segment[:, 1], 9)) for c in ax.collections for segment in c.get_segments()
    }
    first = sorted(
        outcome.scores[score]
        for cell, outcome in ((r.cell, r.outcome) for r in ALL.of(FitCell))
        if (cell.dataset, cell.method, cell.size) == ("sarcos", "elbo", 691)
    )
    # Of two values the mean plus and minus one standard error are the values themselves.
    assert tuple(np.round(first, 9)) in bars


def test_the_standard_error_is_that_of_the_mean() -> None:
    pairs = [(2.0, 1.0), (1.0, 5.0), (2.0, 2.0), (2.0, 6.0), (3.0, 1.0), (3.0, math.inf)]
    found = Line.of("a", Mark(INK, "o", "-"), pairs)
    assert found.x.tolist() == [1, 2, 3]
    assert found.mean.tolist() == [5, 3, math.inf]
    assert math.isnan(found.error[0]) and found.error[1] == pytest.approx(math.sqrt(7 / 3))


def test_rules_and_protocols_are_not_averaged_over() -> None:
    recipe = Recipe(fits=("abalone",), sizes=(100,), methods=("elbo", "log-joint"), repeats=2)
    once = results(recipe).records
    sampled = [r for r in once if r.cell.dataset == "abalone"]
    again = tuple(
        replace(r, cell=r.cell.replace(rule=RuleFacts(name="bmc", samples=10)))
        for r in sampled
        if getattr(r.cell, "method", "") == "log-joint"
    )
    assert texts(shown("6", Results(once)).draw(WIDE)) == ["ELBO", "log-loss DLM, joint"]
    assert texts(shown("6", Results(once + again)).draw(WIDE)) == [
        "ELBO",
        "log-loss DLM, joint (bMC-10)",
        "log-loss DLM, joint (exact)",
    ]


def test_protocols_have_lines_of_beta_of_their_own() -> None:
    once = results(Recipe(fits=("cadata",), sizes=(691,), methods=("log-joint",))).records
    again = tuple(replace(r, cell=r.cell.replace(protocol="paper")) for r in once)
    assert texts(shown("1c", Results(once + again)).draw(WIDE)) == [
        "log-loss DLM, joint",
        "log-loss DLM, joint (paper protocol)",
    ]


def test_the_small_size_is_the_nearest_by_ratio_and_rings_are_at_what_was_chosen() -> None:
    found = results(Recipe(fits=("cadata",), sizes=(400, 1000, 5000), repeats=3))
    (ax,) = shown("1c", found).draw(WIDE).axes
    assert ax.get_title(loc="left") == "cadata, 1,000 rows"
    assert list(lines(ax)) == ["β-ELBO", "log-loss DLM, joint", "log-loss DLM, fixed"]
    assert ax.get_xscale() == "log"
    rings = [line for line in ax.lines if line.get_markersize() == 8]
    for method, ring in zip(("beta-elbo", "log-joint", "log-fixed"), rings, strict=True):
        chosen = {
            r.outcome.beta
            for r in found.of(FitCell)
            if (r.cell.method, r.cell.size) == (method, 1000)
        }
        assert set(np.asarray(ring.get_xdata(), dtype=float)) == chosen


def test_airline_has_every_objective_and_every_rule() -> None:
    names = [f"{x}, β = {b}" for x in ("DLM joint", "DLM fixed") for b in ("0.1", "1", "10")]
    bounds = ["β-ELBO, β = 0.1", "ELBO, β = 1", "β-ELBO, β = 10"]
    assert list(lines(shown("1f").draw(WIDE).axes[0])) == [*bounds, *names]
    rules = ["exact", "bMC-1", "bMC-10", "bMC-100", "uPS-1", "uPS-10"]
    assert list(lines(shown("1i").draw(WIDE).axes[0])) == rules
    left, right = shown("11").draw(WIDE).axes
    assert (left.get_ylabel(), right.get_ylabel()) == ("NLL", "error")
    ends: dict[str, list[float]] = {label: [] for label in rules}
    for cell, outcome in ((r.cell, r.outcome) for r in ALL.of(CurveCell)):
        wanted = ("airline", 1.0, "log_loss", "joint")
        if (cell.dataset, cell.beta, cell.objective, cell.hyperparameters) == wanted:
            ends[cell.rule.label].append(outcome.points[-1].scores["error"])
    for label, line in lines(right).items():
        assert line.get_ydata()[-1] == pytest.approx(np.mean(ends[label]))
        assert line.get_xdata()[-1] == 20


@pytest.mark.parametrize(("name", "whitened"), [("1i", True), ("S2", False)])
def test_forms_of_q_are_not_averaged_over(name: str, whitened: bool) -> None:
    found = lines(shown(name).draw(WIDE).axes[0])
    for label in ("exact", "bMC-10", "uPS-1", "uPS-10"):
        ends = [
            r.outcome.points[-1].scores["nll"]
            for r in ALL.of(CurveCell)
            if (r.cell.dataset, r.cell.beta, r.cell.method) == ("airline", 0.1, "log-joint")
            and (r.cell.rule.label, r.cell.whitened) == (label, whitened)
        ]
        assert len(ends) == 2 and found[label].get_ydata()[-1] == pytest.approx(np.mean(ends))
    assert len(found) == (6 if whitened else 4)


def test_time_to_converge_is_against_the_mean_seconds_of_the_repeats() -> None:
    def slower(record: PaperRecord) -> PaperRecord:
        """The second repeat takes twice as long."""
        outcome: Any = record.outcome
        points = tuple(
            each.model_copy(update={"seconds": (1 + record.cell.repeat) * each.seconds})
            for each in outcome.points
        )
        return replace(record, outcome=outcome.model_copy(update={"points": points}))

    own = [slower(r) for r in ALL.of(CurveCell) if r.cell.dataset == "abalone"]
    (ax,) = shown("S3", Results(tuple(own))).draw(WIDE).axes
    assert ax.get_xlabel() == "seconds"
    found = lines(ax)
    assert list(found) == [
        *("bMC-1", "bMC-10", "bMC-100"),
        *("uPS (ours)-1", "uPS-10 with the paper's sampler"),
    ]
    # Times of another machine are not comparable.
    elsewhere = own[0].circumstances.model_copy(update={"device": "NVIDIA H200"})
    moved = [
        replace(r, circumstances=elsewhere) if r.cell.rule.label == "bMC-1" else r
        for r in Results(tuple(own)).of(CurveCell)
    ]
    (other,) = shown("S3", Results(tuple(moved))).draw(WIDE).axes
    assert list(lines(other)) == [label for label in found if label != "bMC-1"]
    # 20 looks of 3 and of 6 seconds; the paper's sampler takes four times as long.
    assert found["bMC-10"].get_xdata()[[0, -1]].tolist() == [0, 90]
    assert found["uPS-10 with the paper's sampler"].get_xdata()[-1] == 360
    ends = [
        r.outcome.points[-1].scores["nll"]
        for r in Results(tuple(own)).of(CurveCell)
        if r.cell.rule == SAMPLED[1]
    ]
    assert found["bMC-10"].get_ydata()[-1] == pytest.approx(np.mean(ends))


def test_counts_are_against_steps() -> None:
    ax = shown("14").draw(WIDE).axes[0]
    assert ax.get_xlabel() == "step" and lines(ax)["exact"].get_xdata()[-1] == 2000
    assert "smooth-bMC-1" not in lines(ax)
    assert "smooth-bMC-1" in lines(shown("15").draw(WIDE).axes[0])


def test_histograms_count_every_draw_on_one_axis() -> None:
    biased: Any
    unbiased: Any
    biased, unbiased = (shown(name).draw(WIDE).axes[0] for name in ("1g", "1h"))
    assert biased.get_xlim() == unbiased.get_xlim() and biased.get_xscale() == "log"
    heights = [patch.get_data().values for patch in biased.patches]
    assert len(heights) == 6
    assert all(sum(each) == pytest.approx(1) for each in heights)
    (record,) = [r for r in ALL.of(GradientCell) if r.cell.repeat == 0]
    median = float(np.median(record.arrays["squared_error.bMC-10.u_mean"]))
    edges = biased.patches[2].get_data().edges
    values = biased.patches[2].get_data().values
    middle = edges[int(np.searchsorted(np.cumsum(values), 0.5))]
    assert middle == pytest.approx(median, rel=0.5)


def test_bins_are_logarithmic_where_values_span_decades() -> None:
    random = np.random.default_rng(0)
    wide = bin_edges(10 ** random.uniform(-3, 2, 1000))
    assert np.ptp(wide[1:] / wide[:-1]) == pytest.approx(0, abs=1e-9)
    signed = bin_edges(random.normal(0, 10, 1000))
    assert np.ptp(np.diff(np.arcsinh(signed))) == pytest.approx(0, abs=1e-9)
    assert np.diff(signed)[0] > 5 * np.diff(signed).min()
    for values in (random.normal(1, 0.1, 1000), random.normal(0, 2, 1000), np.ones(5)):
        edges = bin_edges(values)
        assert np.ptp(np.diff(edges)) == pytest.approx(0, abs=1e-9) and edges[0] < edges[-1]
    assert np.isfinite(bin_edges(np.array([math.nan, math.inf]))).all()


def test_what_is_missing_is_named() -> None:
    assert "Not run: peds1_dir0, peds1_dir1 and peds1_dir2." in shown("6").caption
    assert "Not run" not in shown("3").caption
    assert "Not run: cadata, sarcos and song." in shown("3", results(Recipe(fits=("pol",)))).caption
    one = shown("16", results(Recipe(regression=("pol",))))
    assert one.caption.endswith("Not run: cadata, sarcos and song.")


def test_cells_that_lines_lack_are_counted() -> None:
    whole = results(Recipe(fits=("sarcos",), sizes=(100,), methods=("elbo",), repeats=4))
    kept, failed, *missing = whole.records
    found = Results(
        (kept,),
        (FailedRecord(failed.cell, "out of memory", 1),),
        (*(record.cell for record in missing), missing[0].cell.replace(dataset="pol")),
    )
    assert shown("1a", found).caption.endswith("Of this figure, 2 cells not run and 1 cell failed.")
    assert "Of this figure" not in shown("1a", whole).caption


def test_vertical_axes_within_a_decade_have_ticks() -> None:
    for low, high in ((1.0, 2.1), (0.13, 0.29), (1.0, 12.0), (0.41, 0.43), (1e-9, 10.0)):
        ax = Figure().subplots()
        ax.plot([0, 1], [low, high])
        ratio_axis(ax)
        ticks = [tick for tick in ax.get_yticks() if ax.get_ylim()[0] <= tick <= ax.get_ylim()[1]]
        assert len(ticks) >= 3 and ax.get_yscale() == "log"


def test_steps_have_commas() -> None:
    figure = shown("14").draw(WIDE)
    figure.draw_without_rendering()
    assert "2,000" in [label.get_text() for label in figure.axes[0].get_xticklabels()]


def test_the_direction_of_the_paper_comes_first() -> None:
    found = results(Recipe(fits=("peds1", "peds1_dir0", "peds1_dir2"), sizes=(100,), repeats=1))
    assert titles(shown("1e", found).draw(WIDE)) == ["peds1_dir2"]


def test_rules_differ_in_more_than_colour() -> None:
    rules = [EXACT, *SAMPLED, *SMOOTH, *PRODUCT, MIXED, PAPER_SAMPLER]
    looks = [(rule_mark(r).marker, rule_mark(r).line, rule_mark(r).filled) for r in rules]
    assert len(set(looks)) == len(rules)
    ways = [beta_mark(m, b) for m in ("elbo", "log-joint", "log-fixed") for b in (0.1, 1.0, 10.0)]
    assert len({(way.marker, way.line, way.color) for way in ways}) == len(ways)


@pytest.mark.parametrize("name", ["1c", "1i"])
def test_all_inks_have_a_dark_one(name: str) -> None:
    svg = render(shown(name))
    assert set(re.findall(r"#[0-9a-f]{6}\b", svg.wide)) <= set(DARK)
    assert set(re.findall(r"#[0-9a-f]{6}\b", svg.narrow_dark)) <= set(DARK.values())


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("name", ["1f", "9", "S1"])
def test_nothing_is_cut_off(name: str, width: float) -> None:
    with rc_context({"font.size": 9.0, "axes.titlesize": 9.0}):
        figure = shown(name).draw(width)
        figure.draw_without_rendering()
    whole = figure.bbox
    boxes = [figure.legends[0].get_window_extent()]
    boxes += [box for ax in figure.axes if (box := ax.get_tightbbox()) is not None]
    for box in boxes:
        assert box.x0 >= whole.x0 - 1 and box.x1 <= whole.x1 + 1
        assert box.y0 >= whole.y0 - 1 and box.y1 <= whole.y1 + 1


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_ticks_of_sizes_do_not_touch(width: float) -> None:
    found = results(Recipe(fits=("pol", "cadata"), sizes=EVERYTHING.sizes, repeats=1))
    with rc_context({"font.size": 9.0}):
        figure = shown("2", found).draw(width)
        figure.draw_without_rendering()
    for ax in figure.axes:
        labels = [label for label in ax.get_xticklabels() if label.get_text()]
        boxes = sorted((label.get_window_extent() for label in labels), key=lambda box: box.x0)
        assert len(boxes) >= 2
        assert all(one.x1 < other.x0 for one, other in pairwise(boxes))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["1a", "1i", "1g"])
def test_odd_numbers_are_drawn(name: str, value: float) -> None:
    recipe = Recipe(fits=("sarcos",), sizes=(5,), airline=True, gradients=True, repeats=1, points=1)
    own = [r for r in results(recipe).records if FIGURES[name].uses(r.cell)]
    for records in ([odd(r, value) for r in own], [odd(own[0], value), *own[1:]]):
        buffer = io.StringIO()
        shown(name, Results(tuple(records))).draw(NARROW).savefig(buffer, format="svg")
        ElementTree.fromstring(buffer.getvalue())
        assert not re.search(r"\b(nan|inf)\b", buffer.getvalue())

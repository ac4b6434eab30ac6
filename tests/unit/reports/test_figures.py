import io
import math
import re
import struct
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from directgp.experiments.cell import METHODS
from directgp.experiments.compare_cell import Predictions
from directgp.plots.rendering import NARROW, WIDE, Picture, dimensions, render
from directgp.plots.style import clear_range, method_mark, widened
from directgp.reports.figures import make_pictures, predicted_numbers
from directgp.reports.findings import Findings, pooled
from directgp.reports.folder import is_figure
from directgp.reports.verdict import verdict
from tests.unit.reports.made import NLL, Recipe, comparison


def pictures(recipe: Recipe) -> dict[str, Picture]:
    findings = Findings(comparison(recipe))
    return {each.name: each for each in make_pictures(findings, verdict(findings).method)}


CLASSES = Recipe(task="classification", classes=("red", "green", "blue"))


def titles(figure: Figure) -> list[str]:
    return [ax.get_title(loc="left") for ax in figure.axes]


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_panels_are_those_of_the_methods(width: float) -> None:
    found = pictures(Recipe(sizes=(500, 5000), num_test=60, repeats=2))
    labels = [method.label for method in METHODS.values()]
    names = ["scores", "learning", "calibration", "predicted", "importance", "dependence", "beta"]
    assert list(found) == names
    assert all(is_figure(f"{name}.svg") for name in names)
    assert len(found["scores"].draw(width).axes) == 2
    assert len(found["learning"].draw(width).axes) == 2
    choosing = [method.label for method in METHODS.values() if method.chooses_beta]
    assert titles(found["beta"].draw(width)) == choosing
    assert titles(found["calibration"].draw(width)) == labels
    assert titles(found["predicted"].draw(width)) == ["log-loss DLM, joint", "ELBO"]
    assert len(found["importance"].draw(width).axes) == 2
    assert len(found["dependence"].draw(width).axes) == 2


def test_pictures_that_have_nothing_to_show_are_left_out() -> None:
    shown = ["scores", "calibration", "predicted", "importance", "dependence"]
    assert list(pictures(Recipe(methods=("elbo",)))) == shown
    bare = Recipe(methods=("elbo",), explained=False)
    assert list(pictures(bare)) == shown[:3]
    nothing = Recipe(methods=("elbo",), repeats=1, failed=[("elbo", 0, 5000, "x")])
    assert pictures(nothing) == {}


def test_beside_the_elbo_the_next_best_is_shown() -> None:
    found = pictures(Recipe(nll={**NLL, "elbo": -1.0}, num_test=20))["predicted"]
    assert titles(found.draw(WIDE)) == ["ELBO", "log-loss DLM, joint"]
    alone = pictures(Recipe(methods=("fitc",), num_test=20))["predicted"]
    assert titles(alone.draw(WIDE)) == ["FITC"]


def predicted(actual: list[float], mean: list[float], counts: bool) -> Figure:
    y, centre = np.array(actual), np.array(mean)
    rows = Predictions(y, centre, centre - 1, centre + 1, y, y)
    return predicted_numbers({METHODS["elbo"]: rows}, "y", counts).draw(WIDE)


def test_a_prediction_far_off_stays_at_the_edge() -> None:
    (ax,) = predicted([0.0, 1.0, 2.0], [0.1, 1.0, 1e9], counts=False).axes
    low, high = ax.get_ylim()
    assert low < 0 and 2 < high < 4 and (low, high) == ax.get_xlim()
    points = np.concatenate([np.asarray(cloud.get_offsets()) for cloud in ax.collections])
    assert len(points) == 3 and (points[:, 1] <= high).all()


def test_skewed_counts_have_logarithmic_axes_without_negative_numbers() -> None:
    (ax,) = predicted([0.0, 1.0, 2.0, 500.0], [0.5, 1.0, 2.0, 400.0], counts=True).axes
    assert ax.get_xscale() == ax.get_yscale() == "symlog"
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["0", "1", "10", "100"]
    assert ax.get_xlim()[0] > -1 and ax.get_xlim()[1] > 500
    (plain,) = predicted([0.0, 3.0, 9.0], [1.0, 3.0, 8.0], counts=True).axes
    assert plain.get_xscale() == "linear"


def test_many_classes_have_a_matrix_of_probabilities_and_a_line_each() -> None:
    found = pictures(CLASSES)
    ax = Figure().subplots()
    found["predicted"].panels[0].draw(ax)
    rows = pooled(Findings(comparison(CLASSES)).runs("log-joint")[:1])
    assert rows.chances is not None
    texts = {t.get_position(): t.get_text() for t in ax.texts}
    for k, j in ((0, 0), (2, 1)):
        share = rows.chances[rows.actual == k, j].mean()
        assert texts[j, k] == f"{100 * share:.0f}"
    assert [label.get_text() for label in ax.get_yticklabels()] == ["red", "green", "blue"]
    assert "each of which counts once for every class" in found["calibration"].caption
    ax = Figure().subplots()
    found["dependence"].panels[0].draw(ax)
    assert ax.get_legend_handles_labels()[1] == ["red", "green", "blue"]
    assert "red from 0 to 0, green from 0 to 0.9" in found["dependence"].panels[0].alt


def test_of_very_many_classes_those_that_vary_most_are_drawn() -> None:
    names = tuple(f"class {k}" for k in range(30))
    found = pictures(replace(CLASSES, classes=names))
    ax = Figure().subplots()
    found["dependence"].panels[0].draw(ax)
    assert ax.get_legend_handles_labels()[1] == list(names[-8:])
    assert "that varies most, of 30, when" in found["dependence"].caption
    ax = Figure().subplots()
    found["predicted"].panels[0].draw(ax)
    assert len(ax.texts) == 0 and len(ax.patches) == 900
    assert len(ax.get_xticks()) == 15


def test_scores_have_a_point_a_repeat_and_the_mean() -> None:
    made = comparison(Recipe(repeats=5, methods=("elbo", "log-joint")))
    figure = pictures(Recipe(repeats=5, methods=("elbo", "log-joint")))["scores"].draw(WIDE)
    ax = figure.axes[0]
    values = [run.outcome.scores["nll"] for run in made.runs if run.cell.method == "elbo"]
    lines = [np.asarray(line.get_xdata(), dtype=float) for line in ax.lines]
    assert any(len(line) == 5 and line.tolist() == pytest.approx(values) for line in lines)
    means = [float(line[0]) for line in lines if len(line) == 1]
    assert any(math.isclose(mean, sum(values) / 5) for mean in means)


def test_the_first_method_is_on_top() -> None:
    ax = pictures(Recipe())["scores"].draw(WIDE).axes[0]
    bottom, top = ax.get_ylim()
    assert ax.get_yticklabels()[0].get_text() == "ELBO" and top < bottom


def test_rings_are_at_the_chosen_beta() -> None:
    recipe = Recipe(repeats=4, methods=("log-joint",), betas=(100.0, 10.0, 1.0, 0.1, 0.0))
    (ax,) = pictures(recipe)["beta"].draw(WIDE).axes
    (rings,) = (np.asarray(line.get_xdata()) for line in ax.lines if line.get_marker() == "o")
    chosen = sorted(run.outcome.beta for run in comparison(recipe).runs)
    assert sorted(rings) == pytest.approx(chosen)
    assert ax.get_xticklabels()[0].get_text() == "0"


def test_alt_texts_have_the_numbers() -> None:
    found = pictures(Recipe(repeats=3, sizes=(500, 5000)))
    assert "log-loss DLM, joint −0.086 ± 0.022" in found["scores"].alt
    assert "5,000 rows" in found["learning"].alt
    assert "β = 0.305" in found["beta"].alt
    assert "bars from" in found["calibration"].alt
    assert "inside their interval" in found["predicted"].alt
    assert "increase of NLL if shuffled: c 0.3; b 0.2; a 0.1." in found["importance"].alt
    assert "c: from 0 to 9; b: from 0 to 18." in found["dependence"].alt


ODD = [
    Recipe(
        methods=("elbo", "log-joint", "log-fixed"),
        repeats=2,
        nll={**NLL, "log-fixed": math.inf, "elbo": 1e12},
        num_test=10,
    ),
    Recipe(methods=("log-joint",), repeats=1, num_test=1, betas=(0.0,), sizes=(3,)),
    Recipe(
        task="classification",
        classes=("$x^2$ <&>", "long name " * 9),
        target="数据 $",
        methods=("log-joint",),
        nll={"log-joint": math.inf},
        repeats=1,
        num_test=30,
    ),
]


@pytest.mark.filterwarnings("ignore:Glyph .* missing from font")
@pytest.mark.parametrize("recipe", ODD)
@pytest.mark.slow_for("recipe0")
def test_odd_numbers_and_names_are_drawn(recipe: Recipe) -> None:
    for picture in pictures(recipe).values():
        buffer = io.StringIO()
        picture.draw(NARROW).savefig(buffer, format="svg")
        ElementTree.fromstring(buffer.getvalue())
        assert not re.search(r"\b(nan|inf)\b", buffer.getvalue())


def test_names_of_classes_that_look_like_labels_or_colours_stay() -> None:
    recipe = Recipe(task="classification", classes=("#0072b2", "_a"), methods=("elbo",), repeats=1)
    found = pictures(recipe)["predicted"]
    (legend,) = found.draw(WIDE).legends
    assert [text.get_text() for text in legend.get_texts()] == ["#0072b2", "\u200b_a"]
    written = render(found)
    for svg in (written.wide, written.wide_dark, written.narrow, written.narrow_dark):
        assert ">#0072b2<" in svg
    assert "#0072b2" not in written.wide_dark.replace(">#0072b2<", "")


def test_files_are_pictures_of_the_right_size() -> None:
    result = render(pictures(Recipe(methods=("elbo", "log-joint"), num_test=60))["scores"])
    assert result.png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", result.png[16:24])
    shown = dimensions(result.wide)
    assert shown[0] == round(WIDE * 96) and dimensions(result.narrow)[0] == round(NARROW * 96)
    assert width / height == pytest.approx(shown[0] / shown[1], rel=0.01)


def test_methods_differ_in_more_than_colour() -> None:
    marks = [method_mark(name) for name in METHODS]
    assert len({(mark.marker, mark.filled) for mark in marks}) == len(METHODS)


def test_ranges_leave_out_what_is_far_off() -> None:
    assert clear_range([1.0, 2.0, 3.0, 1e9]) == (1.0, 3.0)
    assert clear_range([1.0, 2.0, 3.0, 12.0]) == (1.0, 12.0)
    assert clear_range([1.0, 2.0, math.inf, math.nan]) == (1.0, 2.0)
    assert clear_range([5.0, 5.0]) == (5.0, 5.0)
    assert clear_range([math.inf]) == (0.0, 1.0)
    low, high = widened(5.0, 5.0)
    assert low < 5.0 < high
    assert widened(0.0, 0.0)[0] < widened(0.0, 0.0)[1]
    low, high = widened(1.0, 1.0 + 1e-9)
    assert high - low > 1e-3
    assert widened(0.0, 1.0, share=0.1) == (-0.1, 1.1)

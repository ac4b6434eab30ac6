"""Pictures of the terms of a kernel."""

import io
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from directgp.errors import InvalidInputError
from directgp.plots.parts import (
    TermCloud,
    TermCurve,
    TermImage,
    TermLevels,
    TermLines,
    TermMap,
    TermPicture,
    plot_term_pictures,
)

X = np.linspace(0, 10, 50)
GRID = np.linspace(0, 1, 5)
NAMES = tuple(f"shop ${k}" for k in range(60))
EFFECTS = np.linspace(-1, 1, 60)
SURFACE = np.where(np.eye(5) > 0, np.nan, np.outer(GRID, GRID))

PICTURES: dict[str, TermPicture] = {
    "curve": TermCurve("effect of x", "y", "x", X, np.sin(X), np.sin(X) - 1, np.sin(X) + 1, "", X),
    "dates": TermCurve("trend", "y", "day", 3000 * X, X, X - 1, X + 1, "auto"),
    "season": TermCurve("season", "y", "day", 11323 + 36.5 * X, X, X - 1, X + 1, "%b"),
    "week": TermCurve("season", "y", "day", 11323 + 0.7 * X, X, X - 1, X + 1, "%a"),
    "day": TermCurve("season", "y", "day", 11323 + 0.1 * X, X, X - 1, X + 1, "%H:%M"),
    "periods": TermLines("season", "y", "x", X, np.stack([X, -X]), ("1959", "1996")),
    "lines": TermLines("slope", "y", "x", X, np.outer(EFFECTS, X), NAMES),
    "levels": TermLevels(
        "effect of shop", "y", "shop", NAMES, EFFECTS, EFFECTS - 1, EFFECTS + 1, 4711
    ),
    "map": TermMap("place", "y", ("lat", "lon"), GRID, GRID, GRID, GRID, GRID, SURFACE),
    "image": TermImage("pair", "y", ("a", "b"), GRID, GRID, np.nan_to_num(SURFACE), (GRID, GRID)),
    "cloud": TermCloud("effect of 3 columns", "log y", "x", X, np.cos(X)),
}


@pytest.fixture(autouse=True)
def agg() -> None:
    matplotlib.use("Agg")


def drawn(ax: Axes) -> Axes:
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.savefig(io.BytesIO(), format="png")
    return ax


def ticks(axis: Any) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


@pytest.mark.parametrize("picture", PICTURES.values(), ids=PICTURES.keys())
def test_given_axes_are_used_and_no_figure_is_opened(picture: TermPicture) -> None:
    from matplotlib import pyplot

    ax = Figure(figsize=(4, 3)).subplots()
    assert plot_term_pictures([picture], ax) == [ax]
    drawn(ax)
    assert pyplot.get_fignums() == []
    assert ax.get_xlabel() and ax.get_ylabel()
    assert ax.get_title() == picture.title.replace("$", r"\$")


def test_a_curve_has_band_and_marks_of_data() -> None:
    (ax,) = plot_term_pictures([PICTURES["curve"]], Figure().subplots())
    _, mean, marks = ax.lines
    np.testing.assert_array_equal(mean.get_ydata(), np.sin(X))
    np.testing.assert_array_equal(marks.get_xdata(), X)
    (band,) = ax.collections
    corners = np.asarray(band.get_paths()[0].vertices)
    assert corners[:, 1].min() == pytest.approx(np.sin(X).min() - 1)
    assert ax.get_ylabel() == "part of y"


def test_dates_within_a_period_have_their_own_format() -> None:
    months = ["Jan", "Mar", "May", "Jul", "Sep", "Nov"]
    assert ticks(drawn(plot_term_pictures([PICTURES["season"]])[0]).xaxis)[:6] == months
    assert "Wed" in ticks(drawn(plot_term_pictures([PICTURES["week"]])[0]).xaxis)
    assert "12:00" in ticks(drawn(plot_term_pictures([PICTURES["day"]])[0]).xaxis)
    assert "2000" in ticks(drawn(plot_term_pictures([PICTURES["dates"]])[0]).xaxis)


def test_levels_are_points_with_intervals_and_some_names() -> None:
    (ax,) = plot_term_pictures([PICTURES["levels"]], Figure(figsize=(4, 3)).subplots())
    drawn(ax)
    (intervals,) = ax.collections
    segments: Any = intervals
    assert len(segments.get_segments()) == 60
    assert ax.get_ylabel() == "shop, 60 of 4,711 levels"
    names = ticks(ax.yaxis)
    assert 5 < len(names) < 40 and names[0] == r"shop \$0"
    tall = Figure(figsize=(4, 20)).subplots()
    plot_term_pictures([PICTURES["levels"]], tall)
    assert len(ticks(tall.yaxis)) == 60


def test_few_lines_are_named() -> None:
    (ax,) = plot_term_pictures([PICTURES["periods"]], Figure().subplots())
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["1959", "1996"]
    (ax,) = plot_term_pictures([PICTURES["lines"]], Figure().subplots())
    assert ax.get_legend() is None and len(ax.lines) == 61


@pytest.mark.parametrize("kind", ["map", "image"])
def test_colours_have_their_middle_at_zero(kind: str) -> None:
    (ax,) = plot_term_pictures([PICTURES[kind]], Figure().subplots())
    for shown in ax.collections:
        low, high = shown.get_clim()
        assert low is not None and low == -(high or 0.0)
    flat = TermImage("pair", "y", ("a", "b"), GRID, GRID, np.zeros((5, 5)))
    drawn(plot_term_pictures([flat], Figure().subplots())[0])


def test_panels_of_a_new_figure() -> None:
    from matplotlib import pyplot

    axes = plot_term_pictures([*PICTURES.values()][:4])
    drawn(axes[0])
    assert pyplot.get_fignums() == [1] and pyplot.gcf().axes == axes
    with pytest.raises(InvalidInputError, match=r"one for each of 2 pictures\. Got 1"):
        plot_term_pictures([*PICTURES.values()][:2], Figure().subplots())

"""The content and the axes of plots."""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from scipy import stats

from directgp import plots
from directgp.errors import InvalidInputError
from directgp.plots.calibration import wilson
from directgp.training.result import BetaPath, PathPoint

X = np.linspace(-1, 1, 50)
RNG = np.random.default_rng(0)
UNIFORM = RNG.uniform(size=400)


def point(beta: float, mode: str, loss: float, error: float = 0.01) -> PathPoint:
    return PathPoint(beta, mode, None, loss, 0.03, 0.0, error)


def path(points: Sequence[PathPoint], chosen: int, loss: str) -> BetaPath:
    return BetaPath(tuple(points), chosen, loss, seconds=1.0)


def entrant(label: str, weight: float, loss: float, mode: str = "joint") -> PathPoint:
    return PathPoint(1.0, mode, None, loss, 0.03, 0.0, 0.01, label=label, weight=weight)


RACE = [
    entrant("rbf, gaussian", 0.0, 0.6),
    entrant("rbf, student_t", 0.7, 0.45),
    entrant("matern52, student_t", 0.3, 0.5, "elbo"),
    entrant("costs $5", 0.0, 0.4),
    entrant("diverged", 0.0, math.inf),
    entrant("unknown", 0.0, math.nan),
]


def race(points: Sequence[PathPoint], chosen: int, loss: str) -> BetaPath:
    return BetaPath(tuple(points), chosen, loss, 1.0, mixture_loss=0.38, mixture_error=0.02)


LOSSES = {100.0: 0.6, 10.0: 0.5, 1.0: 0.44, 0.1: 0.4, 0.0: 0.45}
PATH = [
    point(1.0, "elbo", 0.48),
    *(point(beta, "fixed", loss + 0.02) for beta, loss in LOSSES.items()),
    *(point(beta, "joint", loss) for beta, loss in LOSSES.items()),
]

SMOOTH = plots.PartialDependence("size", "P(yes)", X, X**2, X**2 - 0.1, X**2 + 0.2, 0.9)
VALUES = np.array([0.0, 10.0])
COARSE = plots.PartialDependence("sex", "P(yes)", VALUES, VALUES, VALUES - 1, VALUES + 2, 0.9, True)

PICTURES: dict[str, Callable[[Axes | None], Axes]] = {
    "path": lambda ax: plots.plot_beta_path(path(PATH, 9, "log_loss"), ax=ax),
    "race": lambda ax: plots.plot_beta_path(race(RACE, 1, "log_loss"), ax=ax),
    "pit": lambda ax: plots.plot_pit(UNIFORM, ax=ax),
    "reliability": lambda ax: plots.plot_reliability(
        np.where(UNIFORM > 0.5, 1.0, 0.0), UNIFORM, ax=ax
    ),
    "curve": lambda ax: plots.plot_curve(X, X, X - 1, X + 1, 0.9, ax=ax, data=(X, X)),
    "actual": lambda ax: plots.plot_predicted_against_actual(X, X, X - 1, X + 1, 0.9, ax=ax),
    "dependence": lambda ax: plots.plot_partial_dependence([SMOOTH], ax)[0],
    "labels": lambda ax: plots.plot_label_curve(
        X, (1 + X) / 2, data=(X, np.where(X > 0, 1.0, 0.0)), ax=ax
    ),
}


@pytest.fixture(autouse=True)
def agg() -> None:
    matplotlib.use("Agg")


def fresh() -> Axes:
    return Figure(figsize=(6, 3.8)).subplots()


def line(ax: Axes, label: str) -> Line2D:
    return next(found for found in ax.lines if found.get_label() == label)


def xs(drawn: Line2D) -> NDArray[np.float64]:
    return np.asarray(drawn.get_xdata(), dtype=np.float64)


def ys(drawn: Line2D) -> NDArray[np.float64]:
    return np.asarray(drawn.get_ydata(), dtype=np.float64)


def legend(ax: Axes) -> list[str]:
    found = ax.get_legend()
    return [] if found is None else [text.get_text() for text in found.get_texts()]


def texts(ax: Axes) -> str:
    return "\n".join(text.get_text() for text in ax.texts)


def draw(ax: Axes) -> None:
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.savefig(io.BytesIO(), format="png")


@pytest.mark.parametrize("picture", PICTURES.values(), ids=PICTURES.keys())
def test_given_axes_are_used_and_no_figure_is_opened(
    picture: Callable[[Axes | None], Axes],
) -> None:
    from matplotlib import pyplot

    ax = fresh()
    assert picture(ax) is ax
    draw(ax)
    assert pyplot.get_fignums() == []
    assert ax.get_xlabel() and ax.get_ylabel()


@pytest.mark.parametrize("picture", PICTURES.values(), ids=PICTURES.keys())
def test_without_axes_one_figure_is_made(picture: Callable[[Axes | None], Axes]) -> None:
    from matplotlib import pyplot

    ax = picture(None)
    assert pyplot.get_fignums() == [1]
    assert pyplot.gcf() is ax.figure


def test_path_draws_curves_elbo_and_ring() -> None:
    ax = plots.plot_beta_path(path(PATH, 9, "log_loss"), ax=fresh())
    assert legend(ax) == ["fixed", "joint", "ELBO", "± s.e. against best"]
    assert ax.get_ylabel() == "validation log loss"
    joint = line(ax, "joint")
    np.testing.assert_allclose(ys(joint), [0.45, 0.4, 0.44, 0.5, 0.6])
    np.testing.assert_allclose(xs(joint)[1:], [0.1, 1, 10, 100])
    rings = [found for found in ax.lines if found.get_markersize() == 12]
    assert [(*xs(ring), *ys(ring)) for ring in rings] == [(0.1, 0.4)]
    assert "chosen: joint, β = 0.1\n0.400 ± 0.030" in texts(ax)
    assert any(ys(found).tolist() == [0.48, 0.48] for found in ax.lines)


def test_beta_zero_stands_left_of_a_break() -> None:
    ax = plots.plot_beta_path(path(PATH, 9, "log_loss"), ax=fresh())
    place = float(xs(line(ax, "joint"))[0])
    ticks = dict(zip(ax.get_xticks(), (t.get_text() for t in ax.get_xticklabels()), strict=True))
    assert 0 < ax.get_xlim()[0] < place < 0.1
    assert ticks[place] == "0"
    assert [ticks[tick] for tick in (0.1, 1.0, 10.0, 100.0)] == ["0.1", "1", "10", "100"]
    assert "//" in texts(ax)


@pytest.mark.parametrize("absurd", [1e30, math.inf])
def test_absurd_losses_are_arrows_and_do_not_flatten_the_rest(absurd: float) -> None:
    points = [*PATH, point(1000.0, "joint", absurd), point(2000.0, "joint", absurd)]
    ax = plots.plot_beta_path(path(points, 9, "log_loss"), ax=fresh())
    draw(ax)
    assert ax.get_ylim()[1] < 1
    arrows = [found for found in ax.lines if found.get_marker() == "^" and len(xs(found))]
    assert [xs(arrow).tolist() for arrow in arrows] == [[1000.0, 2000.0]]
    assert ys(arrows[0])[0] > 0.6
    # The arrows are not joined, and have no other mark.
    curve = line(ax, "joint")
    assert np.isnan(ys(curve)).sum() == 1
    assert curve.get_markevery() == [0, 1, 2, 3, 4]


def test_path_with_nan_losses() -> None:
    points = [
        point(1.0, "joint", math.nan),
        PathPoint(0.1, "joint", None, 0.5, math.inf, 0.0, math.inf),
    ]
    ax = plots.plot_beta_path(path(points, 1, "crps"), ax=fresh())
    draw(ax)
    assert "0.5" in texts(ax) and "±" not in texts(ax)
    nothing = plots.plot_beta_path(path(points[:1], 0, "crps"), ax=fresh())
    assert "no validation loss is finite" in texts(nothing)
    not_chosen = plots.plot_beta_path(path(points, 0, "crps"), ax=fresh())
    draw(not_chosen)
    assert "chosen" not in texts(not_chosen)


def test_path_of_one_candidate() -> None:
    ax = plots.plot_beta_path(path([point(1.0, "elbo", 0.5)], 0, "log_loss"), ax=fresh())
    assert "chosen: ELBO" in texts(ax)
    assert ax.get_ylim()[0] < 0.5 < ax.get_ylim()[1]


def test_a_race_has_a_row_for_each_candidate_and_rings_for_members() -> None:
    ax = plots.plot_beta_path(race(RACE, 1, "log_loss"))
    draw(ax)
    assert legend(ax) == ["mixture 0.380 ± 0.020", "joint", "ELBO"]
    assert ax.get_xlabel() == "validation log loss"
    names = [text.get_text() for text in ax.texts if not text.get_text().endswith("%")]
    assert names == [
        "unknown",
        "diverged",
        "rbf, gaussian",
        "matern52, student_t",
        "rbf, student_t",
        r"costs \$5",
    ]
    heights = [text.get_position()[1] for text in ax.texts if text.get_text() in names]
    assert heights == sorted(heights)
    rings = [each for each in ax.collections if isinstance(each, PathCollection)]
    places = {float(np.ravel(ring.get_offsets())[0]): ring for ring in rings}
    assert set(places) == {0.45, 0.5}
    assert places[0.45].get_sizes()[0] > places[0.5].get_sizes()[0]
    assert {"70 %", "30 %"} <= {text.get_text() for text in ax.texts}
    arrows = [found for found in ax.lines if found.get_marker() == ">"]
    assert len(arrows) == 2
    marks = [found for found in ax.lines if found.get_marker() in ("s", "D") and len(xs(found))]
    assert sorted(float(xs(mark)[0]) for mark in marks) == [0.4, 0.45, 0.5, 0.6]


def test_small_axes_keep_the_members_of_a_race() -> None:
    many = [*RACE, *(entrant(f"other {k}", 0.0, 0.4 + 0.01 * k) for k in range(40))]
    ax = plots.plot_beta_path(race(many, 1, "log_loss"), Figure(figsize=(4, 3)).subplots())
    draw(ax)
    words = texts(ax)
    assert "rbf, student_t" in words and "matern52, student_t" in words
    assert "other 0" in words and "other 39" not in words
    shown = len([text for text in ax.texts if not text.get_text().endswith("%")])
    assert f"({len(many) - shown} more above)" in ax.get_ylabel()


def test_a_race_without_finite_losses_is_drawn() -> None:
    alone = replace(race([RACE[4]], 0, "log_loss"), mixture_loss=None, mixture_error=None)
    ax = plots.plot_beta_path(alone)
    draw(ax)
    assert texts(ax) == "diverged"


def test_pit_bars_and_band() -> None:
    ax = plots.plot_pit(UNIFORM, ax=fresh(), bins=10)
    heights, edges, _ = ax.patches[0].get_data()  # type: ignore[attr-defined]
    assert len(heights) == 10 and edges[-1] == 1
    assert heights.mean() == pytest.approx(1)
    low, high = stats.binom.interval(0.95, 400, 0.1)
    band = ax.patches[-1]
    assert band.get_y() == pytest.approx(low / 40)  # type: ignore[attr-defined]
    assert band.get_height() == pytest.approx((high - low) / 40)  # type: ignore[attr-defined]
    assert legend(ax)[0].startswith("n = 400, KS p = ")
    assert legend(plots.plot_pit(UNIFORM**3, ax=fresh()))[0] == "n = 400, KS p < 0.001"


@pytest.mark.parametrize(("n", "bars"), [(1, 5), (400, 10), (10_000, 20)])
def test_pit_chooses_bins_by_the_number_of_values(n: int, bars: int) -> None:
    ax = plots.plot_pit(np.linspace(0, 1, n), ax=fresh())
    assert len(ax.patches[0].get_data().values) == bars  # type: ignore[attr-defined]


def test_reliability_points_and_scores() -> None:
    p, y = (
        np.array([0.1, 0.1, 0.8, 1.0]),
        np.array([0.0, 1, 1, 1]),
    )  # square errors 0.01, 0.81, 0.04, 0
    ax = plots.plot_reliability(y, p, ax=fresh(), bins=2)
    points = next(found for found in ax.lines if found.get_marker() == "o")
    np.testing.assert_allclose(xs(points), [0.1, 0.9])
    np.testing.assert_allclose(ys(points), [0.5, 1.0])
    assert texts(ax) == "n = 4   ECE 0.250   Brier score 0.215"
    assert max(bar.get_y() + bar.get_height() for bar in ax.patches) < 0  # type: ignore[attr-defined]


def test_wilson_interval_agrees_with_scipy() -> None:
    for k, n in ((0, 5), (3, 10), (40, 40)):
        truth = stats.binomtest(k, n).proportion_ci(0.95, method="wilson")
        found = wilson(np.array([k / n]), np.array([float(n)]))
        np.testing.assert_allclose(np.ravel(found), [truth.low, truth.high], atol=1e-8)


def test_curve_is_sorted_and_named() -> None:
    x = np.array([2.0, 0.0, 1.0])
    name = "income in $ per $ of " + "something " * 6
    ax = plots.plot_curve(
        x, x**2, x - 9, x + 9, 0.95, fresh(), (x[:2], np.array([1.0, 30.0])), name
    )
    draw(ax)
    np.testing.assert_allclose(ys(line(ax, "mean")), [0, 1, 4])
    assert legend(ax) == ["data", "95 % interval", "mean"]
    assert ax.get_ylim()[1] > 30
    assert "\n" in ax.get_xlabel() and ax.get_ylabel() == "y"


def test_two_curves_share_axes() -> None:
    ax = fresh()
    for scale in (1.0, 50.0):
        plots.plot_curve(X, scale * X, scale * X - 1, scale * X + 1, 0.9, ax=ax)
    assert ax.get_ylim()[0] < -50 and ax.get_ylim()[1] > 50


@pytest.mark.parametrize(("n", "intervals", "density"), [(100, 2, 0), (300, 0, 0), (6000, 0, 1)])
def test_actual_by_number_of_examples(n: int, intervals: int, density: int) -> None:
    y = RNG.normal(size=n)
    shift = np.where(np.arange(n) < n // 4, 3.0, 0.5)
    ax = plots.plot_predicted_against_actual(
        y, y + shift, y + shift - 1, y + shift + 1, 0.9, fresh()
    )
    draw(ax)
    kinds = [type(found).__name__ for found in ax.collections]
    assert kinds.count("LineCollection") == intervals
    assert [name.startswith("Poly") for name in kinds].count(True) == density
    said = [*legend(ax), texts(ax)]
    assert f"90 % intervals cover 75.0 % of {n}" in said
    assert ("missed" in said) == (not density)


def test_wide_intervals_do_not_dwarf_the_points() -> None:
    wide = np.full(50, 1e6)
    ax = plots.plot_predicted_against_actual(X, X, -wide, wide, 0.9, ax=fresh())
    assert ax.get_xlim()[1] < 3 and legend(ax) == ["90 % intervals cover 100.0 % of 50"]


def test_label_marks_lie_outside_the_probabilities() -> None:
    ax = plots.plot_label_curve(
        X, (1 + X) / 2, (X, np.where(X > 0, 1.0, 0.0)), fresh(), name="dose", label="cured"
    )
    marks = np.asarray(ax.collections[0].get_offsets())
    assert (marks[X > 0, 1] > 1).all() and (marks[X <= 0, 1] < 0).all()
    bottom, top = ax.get_ylim()
    assert bottom < marks[:, 1].min() and marks[:, 1].max() < top
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("dose", "P(cured)")
    assert max(ax.get_yticks()) == 1


# Partial dependence


def test_dependence_on_a_feature_of_many_values_is_a_curve_with_a_band() -> None:
    ax = fresh()
    plots.draw_partial_dependence(ax, SMOOTH, (-1.0, 2.0))
    np.testing.assert_array_equal(ys(line(ax, "average over rows")), X**2)
    (band,) = ax.collections
    corners = np.asarray(band.get_paths()[0].vertices)
    assert corners[:, 1].min() == pytest.approx(np.min(X**2) - 0.1)
    assert corners[:, 1].max() == pytest.approx(1.2)
    assert band.get_label() == "90 % posterior interval"
    assert ax.get_ylim() == (-1.0, 2.0) and ax.get_xlabel() == "size"


def test_dependence_on_a_feature_of_few_values_has_a_mark_at_each() -> None:
    ax = fresh()
    plots.draw_partial_dependence(ax, COARSE, (-2.0, 13.0))
    bars: list[Any] = [*ax.patches]
    assert [(bar.get_y(), bar.get_height()) for bar in bars] == [(-1.0, 3.0), (9.0, 3.0)]
    assert [bar.get_center()[0] for bar in bars] == [0.0, 10.0]
    assert bars[0].get_width() == pytest.approx(6.0)
    marks: Any = ax.collections[0]
    means = [segment[:, 1].tolist() for segment in marks.get_segments()]
    assert means == [[0.0, 0.0], [10.0, 10.0]]
    assert ax.get_xticks().tolist() == [0.0, 10.0]
    alone = plots.PartialDependence("one", "y", *4 * (np.ones(1),), 0.9, True)
    draw(plots.plot_partial_dependence([alone], ax=fresh())[0])


def test_many_classes_have_a_line_each_and_those_that_vary_most_are_drawn() -> None:
    names = tuple("abcdefghij")
    mean = np.linspace(0, 1, 10)[::-1, None] * X
    found = plots.PartialDependence("x", "p", X, mean, mean - 0.1, mean + 0.1, 0.9, classes=names)
    (ax,) = plots.plot_partial_dependence([found], fresh())
    assert [each.get_label() for each in ax.lines] == [*names[:8]]
    np.testing.assert_array_equal(ys(line(ax, "c")), mean[2])
    assert len({(each.get_color(), each.get_linestyle()) for each in ax.lines}) == 8
    low, high = ax.get_ylim()
    assert low < -1.1 and high > 1.1


def test_names_that_begin_with_an_underscore_are_in_the_legend() -> None:
    """matplotlib leaves such labels out."""
    x = np.linspace(0, 1, 5)
    chances = np.stack([x, 1 - x, 0 * x], 1)
    ax = plots.plot_label_curve(x, chances, classes=["_other", "low", "_high"], ax=fresh())
    draw(ax)
    assert legend(ax) == ["\u200b_other", "low", "\u200b_high"]


def test_panels_share_a_range_and_a_legend() -> None:
    found = [SMOOTH, COARSE, SMOOTH, SMOOTH]
    axes = plots.plot_partial_dependence(found)
    draw(axes[0])
    assert len(axes) == 4 and len(axes[0].figure.axes) == 4
    assert {ax.get_ylim() for ax in axes} == {plots.dependence_limits(found)}
    low, high = axes[0].get_ylim()
    assert low < -1 and high > 12
    assert [ax.get_ylabel() for ax in axes] == ["P(yes)", "", "P(yes)", ""]
    (names,) = axes[0].figure.legends
    assert len(names.get_texts()) == 2


def test_panels_on_given_axes() -> None:
    given = Figure(figsize=(8, 3)).subplots(1, 2)
    axes = plots.plot_partial_dependence([SMOOTH, COARSE], given)
    assert axes == list(given)
    draw(axes[0])
    assert axes[0].get_ylim() == axes[1].get_ylim()
    assert legend(axes[0]) == ["average over rows", "90 % posterior interval"]
    assert legend(axes[1]) == []
    with pytest.raises(InvalidInputError, match=r"one for each of 1 feature\. Got 2"):
        plots.plot_partial_dependence([SMOOTH], given)

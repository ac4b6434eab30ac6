"""Draw figures of estimators and reports from plain arrays; matplotlib loads on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from directgp.plots.beta import BetaAxis, draw_rings, plot_beta_path
from directgp.plots.calibration import plot_pit, plot_reliability
from directgp.plots.dependence import (
    PartialDependence,
    dependence_limits,
    draw_partial_dependence,
    plot_partial_dependence,
)
from directgp.plots.predictions import plot_curve, plot_label_curve, plot_predicted_against_actual
from directgp.plots.style import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, Mark, method_mark

if TYPE_CHECKING:
    from directgp.plots.curves import Line, draw_lines, draw_sizes, line_range
    from directgp.plots.rendering import Layout, Panel, Picture, RenderedPicture, render

__all__ = [
    "BLUE",
    "GREEN",
    "GREY",
    "INK",
    "ORANGE",
    "PURPLE",
    "BetaAxis",
    "Layout",
    "Line",
    "Mark",
    "Panel",
    "PartialDependence",
    "Picture",
    "RenderedPicture",
    "dependence_limits",
    "draw_lines",
    "draw_partial_dependence",
    "draw_rings",
    "draw_sizes",
    "line_range",
    "method_mark",
    "plot_beta_path",
    "plot_curve",
    "plot_label_curve",
    "plot_partial_dependence",
    "plot_pit",
    "plot_predicted_against_actual",
    "plot_reliability",
    "render",
]

_NEEDS_MATPLOTLIB = {
    "Layout": "rendering",
    "Line": "curves",
    "Panel": "rendering",
    "Picture": "rendering",
    "RenderedPicture": "rendering",
    "draw_lines": "curves",
    "draw_sizes": "curves",
    "line_range": "curves",
    "render": "rendering",
}
"""Names whose modules import matplotlib, by module: they are imported on first use."""


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_MATPLOTLIB:
        raise AttributeError(f"module 'directgp.plots' has no attribute {name!r}")
    return getattr(import_module(f"directgp.plots.{_NEEDS_MATPLOTLIB[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Every figure of the paper by its number, and ours."""

from directgp.reports.paper.figures.base import Figure
from directgp.reports.paper.figures.curve_figures import CURVE_FIGURES
from directgp.reports.paper.figures.fit_figures import FIT_FIGURES
from directgp.reports.paper.figures.gradient_figures import GRADIENT_FIGURES

_ORDER = [*(f"1{letter}" for letter in "abcdefghi"), *map(str, range(2, 17)), "S1"]

_EVERY = {figure.name: figure for figure in (*FIT_FIGURES, *CURVE_FIGURES, *GRADIENT_FIGURES)}

FIGURES: dict[str, Figure] = {name: _EVERY[name] for name in _ORDER}
"""In the paper's order, ours last."""

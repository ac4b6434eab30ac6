"""The probability of a class along one input."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from directgp.estimators.plots.canvas import BLUE, GREY, INK, axis_name, canvas
from directgp.estimators.plots.checks import Array, finite, labels, shares
from directgp.estimators.plots.cloud import draw_cloud

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AWAY, _JITTER = 0.09, 0.045
"""Marks of labels lie this far outside [0, 1], give or take the jitter."""


def plot_label_curve(
    x: ArrayLike,
    probability: ArrayLike,
    data: tuple[ArrayLike, ArrayLike] | None = None,
    ax: "Axes | None" = None,
    name: str = "x",
    label: str = "1",
) -> "Axes":
    """Probability of a class along one input; the labels are marks below 0 and above 1.

    Parameters
    ----------
    x
        Inputs in any order, shape ``(n,)``.
    probability
        Probability of the class at each of them.
    data
        Inputs and labels 0 and 1 of examples.
    ax
        Axes to draw on; a new figure unless given.
    name, label
        Names of the input and of the class.
    """
    inputs = finite(x, "x")
    p = shares(probability, "probability", len(inputs))
    marks = None if data is None else _marks(*data)
    ax = canvas(ax)
    if marks is not None:
        draw_cloud(ax, *marks, INK)
    order = np.argsort(inputs, kind="stable")
    ax.axhline(0.5, color=GREY, linewidth=0.8, linestyle="--")
    ax.plot(inputs[order], p[order], color=BLUE, linewidth=1.8)
    ax.margins(x=0.02)
    edge = 0.03 if data is None else _AWAY + 2 * _JITTER
    ax.set(ylim=(-edge, 1 + edge), yticks=np.linspace(0, 1, 6))
    ax.set(xlabel=axis_name(name), ylabel=axis_name(f"P({label})", 32))
    return ax


def _marks(x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    inputs = finite(x, "x of the data")
    ones = labels(y, "y of the data", len(inputs))
    jitter = np.random.default_rng(0).uniform(-_JITTER, _JITTER, len(inputs))
    return inputs, np.where(ones == 1, 1 + _AWAY, -_AWAY) + jitter

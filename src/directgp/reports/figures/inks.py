"""Colours, markers and lines of the methods, and the dark colours that stand for light ones."""

from dataclasses import dataclass
from typing import final

from directgp.estimators.plots.canvas import BLUE, GREEN, ORANGE
from directgp.experiments.methods import Method

INK, GREY, PALE, PAPER = "#262626", "#737373", "#ebebeb", "#ffffff"
"""Those of `directgp.estimators.plots.canvas`, as they are written in a picture."""

PURPLE = "#CC79A7"
"""Of the palette by Okabe and Ito, as the others are."""

DARK = {
    INK: "#e4e4e1",
    GREY: "#a3a6a8",
    PALE: "#2d3236",
    PAPER: "#16191b",
    BLUE.lower(): "#5bb0ea",
    ORANGE.lower(): "#f5894a",
    GREEN.lower(): "#38c79b",
    PURPLE.lower(): "#de9cc1",
    "#000000": "#e4e4e1",
}
"""For each colour on white paper, the one on dark paper."""


@final
@dataclass(frozen=True)
class Mark:
    """How a method is drawn."""

    color: str
    marker: str
    line: str
    filled: bool = True


_MARKS = {
    "elbo": Mark(INK, "D", "-"),
    "beta-elbo": Mark(GREEN, "o", "-"),
    "fitc": Mark(PURPLE, "^", "-"),
    "log-joint": Mark(BLUE, "s", "-"),
    "log-fixed": Mark(BLUE, "s", "--", filled=False),
    "square-joint": Mark(ORANGE, "v", "-"),
    "square-fixed": Mark(ORANGE, "v", "--", filled=False),
}
"""The colour says what is optimised; fixed hyperparameters are hollow and dashed."""


def mark_of(method: Method) -> Mark:
    """The same in every picture."""
    return _MARKS.get(method.name, Mark(GREY, "P", ":"))


def face_of(method: Method) -> str:
    """What markers are filled with."""
    mark = mark_of(method)
    return mark.color if mark.filled else PAPER

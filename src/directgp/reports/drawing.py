"""Render pictures in light and dark colours, as files and inline."""

import base64
import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from directgp.experiments.cell import Method
from directgp.plots.style import BLUE, GREEN, ORANGE, axis_name, canvas

INK, GREY, PALE, PAPER = "#262626", "#737373", "#ebebeb", "#ffffff"
"""Those of `directgp.plots.style`, as they are written in a picture."""

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


_WIDEST = 4.8
"""Of a panel, in inches."""


def panels(count: int, width: float, height: float, least: float) -> tuple[Figure, list[Axes]]:
    """So many axes of a height, none narrower than the least, in rows of nearly equal length."""
    most = max(1, int(width / least))
    rows = math.ceil(count / most)
    columns = math.ceil(count / rows)
    size = min(width, columns * _WIDEST), rows * height
    figure = Figure(figsize=size, layout="constrained")
    every = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for ax in every[count:]:
        ax.remove()
    return figure, [canvas(ax) for ax in every[:count]]


def label_edges(figure: Figure, x: str, y: str) -> None:
    """One name for all horizontal axes, and one for all vertical ones."""
    figure.supxlabel(axis_name(x), fontsize="medium")
    figure.supylabel(axis_name(y), fontsize="medium")


def head(ax: Axes, title: str) -> None:
    """The name of a panel, set left above it."""
    ax.set_title(axis_name(title, 30), loc="left")


def leave_empty(ax: Axes) -> None:
    """Say why nothing is drawn."""
    ax.text(0.5, 0.5, "not finite", transform=ax.transAxes, ha="center", va="center")


@final
@dataclass(frozen=True)
class Picture:
    """One figure of the page."""

    name: str
    """Of its files."""

    title: str
    short: str
    """The title in the contents."""

    caption: str
    alt: str
    """What it shows, in numbers."""

    draw: Callable[[float], Figure]
    """Given the width, in inches."""

    draw_dark: Callable[[float], Figure] | None = None
    """The same for dark paper, where some of it is drawn in pixels, whose colours are final."""


_FAR = 4.0
"""A value is far off this many usual distances above the lowest."""

_LEAST = 1e-3
"""Of a range, as a share of its values."""


def clear_range(values: Sequence[float]) -> tuple[float, float]:
    """From the lowest finite value up to where one is far above most others."""
    finite = np.array([value for value in values if math.isfinite(value)])
    if not len(finite):
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    usual = _FAR * float(np.quantile(finite - low, 0.6))
    if 0 < 2 * usual < high - low:
        high = float(finite[finite <= low + usual].max())
    return low, high


def widened(low: float, high: float, share: float = 0.06) -> tuple[float, float]:
    """With a margin, and never so narrow that noise looks like a difference."""
    least = _LEAST * max(abs(low), abs(high)) or 1.0
    extra = max(0.0, least - (high - low)) / 2
    margin = share * max(high - low, least)
    return low - extra - margin, high + extra + margin


WIDE, NARROW = 9.6, 3.9
"""Inches: beside a page of text, and on a phone."""

_DPI = 200

_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "directgp",
    "font.size": 9.0,
    "axes.titlesize": 9.0,
    "legend.fontsize": 8.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.unicode_minus": True,
    "axes.formatter.useoffset": False,
}

_RASTER_DPI = 128
"""Of clouds of points within a drawing."""

_FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"


@final
@dataclass(frozen=True)
class Drawn:
    """A picture in every form that is written."""

    picture: Picture
    png: bytes
    wide: str
    """SVG, on light paper, as the next."""

    narrow: str
    wide_dark: str
    narrow_dark: str


def drawn(picture: Picture) -> Drawn:
    """Draw it at both widths."""
    with _style():
        wide = _laid_out(picture.draw(WIDE))
        png = _saved(wide, "png", facecolor="white", dpi=_DPI)
        light = _svg(wide), _svg(picture.draw(NARROW))
        again = picture.draw_dark
        dark = light if again is None else (_svg(again(WIDE)), _svg(again(NARROW)))
        return Drawn(picture, png, *light, *map(_darkened, dark))


def _darkened(svg: str) -> str:
    """The same picture for dark paper: each colour is exchanged for its dark one."""
    return re.sub(r"#[0-9a-f]{6}\b", lambda found: DARK.get(found[0], found[0]), svg)


def address(svg: str) -> str:
    """A data URI."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def dimensions(svg: str) -> tuple[int, int]:
    """Width and height, in pixels."""
    ((width, height),) = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    return round(float(width) * 96 / 72), round(float(height) * 96 / 72)


@contextmanager
def _style() -> Iterator[None]:
    """Our style, and no warning of letters that only browsers have."""
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


def _laid_out(figure: Figure) -> Figure:
    """With everything in its place, so that it is not placed again for every file."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def _svg(figure: Figure) -> str:
    """Without what a page does not need; the font is that of the page."""
    text = _saved(figure, "svg", transparent=True, dpi=_RASTER_DPI).decode()
    body = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    body = re.sub(r" font-family: 'DejaVu Sans'[^;\"]*;?", "", body)
    body = re.sub(r' (?:d|x|y)="[^"]*"', lambda found: _rounded(found[0]), body)
    return body.replace("<svg", f'<svg style="font-family: {_FONT}"', 1)


def _rounded(coordinates: str) -> str:
    """Hundredths of a point are enough."""
    return re.sub(r"(\.\d\d)\d+", r"\1", coordinates)


def _saved(figure: Figure, kind: str, **options: Any) -> bytes:
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, metadata=metadata, **options)
    return buffer.getvalue()

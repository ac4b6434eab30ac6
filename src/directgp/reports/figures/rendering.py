"""Pictures as files and as addresses that hold them."""

import base64
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import matplotlib
from matplotlib.figure import Figure

from directgp.reports.figures.inks import DARK, GREY, INK
from directgp.reports.figures.picture import Picture

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

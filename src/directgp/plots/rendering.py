"""Arrange panels in a figure, and render it in light and dark colours as SVG and PNG."""

import base64
import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from directgp.plots.style import DARK, GREY, INK, axis_name, canvas

WIDE, NARROW = 9.6, 3.9
"""Widths of a figure on a page of text and on a phone, in inches."""

_MAX_PANEL = 4.8
"""Width of a panel, in inches."""

_LETTER, _HANDLE, _ROW = 0.068, 0.55, 0.18
"""Size of a letter, of the line before a name, and of a row of a legend, in inches."""

_BESIDE = 4.5
"""Width of a figure of one panel that has its legend on the right, in inches."""

_PNG_DPI, _CLOUD_DPI = 200, 128
"""Pixels per inch of PNG files, and of clouds of points within SVG files."""

_FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"

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


class Panel(NamedTuple):
    """One pair of axes of a figure."""

    title: str
    draw: Callable[[Axes], None]
    alt: str = ""
    """The content in numbers."""


@final
@dataclass(frozen=True)
class Layout:
    """Sizes of panels, in inches, and the names of axes that all panels share."""

    height: float = 2.6
    min_width: float = 3.0
    min_width_narrow: float = 3.0
    """On a page of text, and on a phone."""

    max_width: float = _MAX_PANEL
    x_label: str = ""
    y_label: str = ""
    share_y: bool = False
    """Whether panels side by side have one vertical axis."""


@final
@dataclass(frozen=True)
class Picture:
    """A figure of a page that is not drawn yet."""

    name: str
    title: str
    caption: str
    alt: str
    """`name` is that of its files, `alt` the content in numbers."""

    panels: Sequence[Panel]
    layout: Layout = field(default_factory=Layout)
    short: str = ""
    """Title in the table of contents; the title if empty."""

    dark_panels: Sequence[Panel] = ()
    """The same in dark colours; needed for points stored as pixels, which cannot be recoloured."""

    def draw(self, width: float, dark: bool = False) -> Figure:
        """Return the figure at a width in inches: panels in rows, one legend above them all."""
        shown = (self.dark_panels if dark else ()) or self.panels
        layout = self.layout
        least = layout.min_width if width > 6 else layout.min_width_narrow
        rows = math.ceil(len(shown) / max(1, int(width / least)))
        columns = math.ceil(len(shown) / rows)
        size = min(width, columns * layout.max_width), rows * layout.height
        figure = Figure(figsize=size, layout="constrained")
        share_y = layout.share_y and rows == 1
        axes = figure.subplots(rows, columns, squeeze=False, sharey=share_y).ravel().tolist()
        for ax in axes[len(shown) :]:
            ax.remove()
        for ax, panel in zip(axes, shown, strict=False):
            panel.draw(canvas(ax))
            ax.set_title(axis_name(panel.title, 30), loc="left")
        draw_legend(figure, axes[: len(shown)])
        if layout.x_label:
            figure.supxlabel(axis_name(layout.x_label), fontsize="medium")
        if layout.y_label:
            figure.supylabel(axis_name(layout.y_label), fontsize="medium")
        return figure


def draw_legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """Draw every name once: on the right of a single wide panel, otherwise above the panels."""
    found: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if not found:
        return
    letters = max(len(line) for label in found for line in label.splitlines())
    width, total = _HANDLE + _LETTER * letters, figure.get_figwidth()
    style: Any = {"frameon": False, "handlelength": 2.4}
    if len(axes) == 1 and total > _BESIDE:
        figure.set_figwidth(total + width)
        figure.legend(list(found.values()), list(found), loc="outside right upper", **style)
        return
    columns = max(1, min(len(found), int(total / width)))
    figure.set_figheight(figure.get_figheight() + _ROW * math.ceil(len(found) / columns))
    style |= {"loc": "outside upper left", "ncols": columns}
    figure.legend(list(found.values()), list(found), **style)


class RenderedPicture(NamedTuple):
    """A picture in every form that is written."""

    picture: Picture
    png: bytes
    wide: str
    """SVG in light colours, as `narrow`."""

    narrow: str
    wide_dark: str
    narrow_dark: str


def render(picture: Picture) -> RenderedPicture:
    """Draw a picture at both widths, in light and in dark colours."""
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # Browsers have letters that the font of matplotlib lacks.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        wide = picture.draw(WIDE)
        # The layout is computed once for both files.
        wide.draw_without_rendering()
        wide.set_layout_engine("none")
        png = _saved(wide, "png", facecolor="white", dpi=_PNG_DPI)
        light = _svg(wide), _svg(picture.draw(NARROW))
        dark = light
        if picture.dark_panels:
            dark = _svg(picture.draw(WIDE, dark=True)), _svg(picture.draw(NARROW, dark=True))
        recoloured = [
            re.sub(r"#[0-9a-f]{6}\b", lambda c: DARK.get(c[0], c[0]), svg) for svg in dark
        ]
        return RenderedPicture(picture, png, *light, *recoloured)


def _svg(figure: Figure) -> str:
    """Return SVG without metadata, in the font of the page, with coordinates of two decimals."""
    text = _saved(figure, "svg", transparent=True, dpi=_CLOUD_DPI).decode()
    body = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    body = re.sub(r" font-family: 'DejaVu Sans'[^;\"]*;?", "", body)
    rounded = re.compile(r"(\.\d\d)\d+")
    body = re.sub(r' (?:d|x|y)="[^"]*"', lambda found: rounded.sub(r"\1", found[0]), body)
    return body.replace("<svg", f'<svg style="font-family: {_FONT}"', 1)


def _saved(figure: Figure, kind: str, **options: Any) -> bytes:
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, metadata=metadata, **options)
    return buffer.getvalue()


def data_uri(svg: str) -> str:
    """Return the SVG as a data URI."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def dimensions(svg: str) -> tuple[int, int]:
    """Return width and height in pixels."""
    ((width, height),) = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    return round(float(width) * 96 / 72), round(float(height) * 96 / 72)

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

WIDE = 9.6
"""Width of a figure on a page of text, in inches."""

NARROW = 3.9
"""Width of a figure on a phone, in inches."""

_MAX_PANEL = 4.8
"""Width of a panel, in inches."""

_LETTER = 0.068
"""Width of a letter of a legend, in inches."""

_HANDLE = 0.55
"""Width of the line before a name of a legend, in inches."""

_ROW = 0.18
"""Height of a row of a legend, in inches."""

_BESIDE = 4.5
"""Width of a figure of one panel that has its legend on the right, in inches."""

_PNG_DPI = 200
"""Pixels per inch of PNG files."""

_CLOUD_DPI = 128
"""Pixels per inch of clouds of points within SVG files."""

_FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
"""Fonts of SVG files, the first that is installed."""

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
    """Title above the axes."""

    draw: Callable[[Axes], None]
    """Draws the content."""

    alt: str = ""
    """The content in numbers, for readers who do not see it."""


@final
@dataclass(frozen=True)
class Layout:
    """Sizes of panels, in inches, and the names of axes that all panels share."""

    height: float = 2.6
    """Height of a panel."""

    min_width: float = 3.0
    """Smallest width of a panel on a page of text."""

    min_width_narrow: float = 3.0
    """Smallest width of a panel on a phone."""

    max_width: float = _MAX_PANEL
    """Largest width of a panel."""

    x_label: str = ""
    """Name of the horizontal axis."""

    y_label: str = ""
    """Name of the vertical axis."""

    share_y: bool = False
    """Whether panels side by side have one vertical axis."""


@final
@dataclass(frozen=True)
class Picture:
    """A figure of a page that is not drawn yet."""

    name: str
    """Stem of the files."""

    title: str
    """Title above the figure."""

    caption: str
    """Text below the figure."""

    alt: str
    """The content in numbers, for readers who do not see it."""

    panels: Sequence[Panel]
    """Panels in light colours."""

    layout: Layout = field(default_factory=Layout)
    """Sizes of the panels."""

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
    handles: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if not handles:
        return
    letters = max(len(line) for label in handles for line in label.splitlines())
    width = _HANDLE + _LETTER * letters
    total = figure.get_figwidth()
    style: Any = {"frameon": False, "handlelength": 2.4}
    if len(axes) == 1 and total > _BESIDE:
        figure.set_figwidth(total + width)
        figure.legend(list(handles.values()), list(handles), loc="outside right upper", **style)
        return
    columns = max(1, min(len(handles), int(total / width)))
    figure.set_figheight(figure.get_figheight() + _ROW * math.ceil(len(handles) / columns))
    style |= {"loc": "outside upper left", "ncols": columns}
    figure.legend(list(handles.values()), list(handles), **style)


class RenderedPicture(NamedTuple):
    """A picture in every form that is written."""

    picture: Picture
    """The picture."""

    png: bytes
    """PNG file."""

    wide: str
    """SVG for a page of text, in light colours."""

    narrow: str
    """SVG for a phone, in light colours."""

    wide_dark: str
    """SVG for a page of text, in dark colours."""

    narrow_dark: str
    """SVG for a phone, in dark colours."""


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
        return RenderedPicture(picture, png, *light, *map(_recoloured, dark))


def _recoloured(svg: str) -> str:
    """Return SVG with dark colours in its attributes; text, such as a name "#0072b2", stays."""
    # Of the alternatives, the first matches all text between two tags.
    return re.sub(r">[^<]*<|#[0-9a-f]{6}\b", lambda match: DARK.get(match[0], match[0]), svg)


def _svg(figure: Figure) -> str:
    """Return SVG without metadata, in the font of the page, with coordinates of two decimals."""
    text = _saved(figure, "svg", transparent=True, dpi=_CLOUD_DPI).decode()
    body = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    body = re.sub(r" font-family: 'DejaVu Sans'[^;\"]*;?", "", body)
    rounded = re.compile(r"(\.\d\d)\d+")
    body = re.sub(r' (?:d|x|y)="[^"]*"', lambda match: rounded.sub(r"\1", match[0]), body)
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

"""A picture: what it shows in words, and how it is drawn at any width."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from matplotlib.figure import Figure


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

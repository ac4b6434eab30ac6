"""Figures, entries and tables as plain text of at most 100 columns."""

import math
import textwrap
from collections.abc import Sequence
from statistics import median

WIDTH = 100
_NAMES = 14
_LONGEST_CELL = 40


def figure(value: float) -> str:
    """Four significant digits at most, and no exponent where it can be read without."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if 1000 <= round(abs(value), 1) < 1e7:
        return f"{value:,.0f}"
    return f"{value:.4g}" if 1e-4 <= abs(value) < 1e7 else f"{value:.3g}"


def with_errors(values: Sequence[float], errors: Sequence[float]) -> list[str]:
    """Each value ± its error, all with as many decimals as a typical error calls for."""
    known = [error for error in errors if math.isfinite(error) and error > 0]
    decimals = _decimals(median(known)) if known else None

    def words(value: float) -> str:
        return figure(value) if decimals is None or abs(value) >= 1e7 else f"{value:.{decimals}f}"

    def cell(value: float, error: float) -> str:
        if not math.isfinite(value):
            return "not finite"
        return f"{words(value)} ± {words(error)}" if math.isfinite(error) else words(value)

    return [cell(*pair) for pair in zip(values, errors, strict=True)]


def count(number: int, what: str) -> str:
    """So many of it."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def entry(name: str, text: str) -> str:
    """A name in the margin, and what is said of it."""
    return _wrapped(text, f"  {name:<{_NAMES}}", " " * (_NAMES + 2))


def item(text: str) -> str:
    """One of a list."""
    return _wrapped(text, "  - ", "    ")


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int]) -> str:
    """Columns under a header, set right but for those in `left`."""
    cells = [[_cell(text) for text in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]

    def line(row: Sequence[str]) -> str:
        padded = [
            text.ljust(width) if j in left else text.rjust(width)
            for j, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        return ("  " + "   ".join(padded)).rstrip()

    return "\n".join(line(row) for row in cells)


def _cell(text: str) -> str:
    """On one line, and not too long."""
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_CELL else text[: _LONGEST_CELL - 1] + "…"


def _decimals(error: float) -> int:
    """Those that show two digits of it."""
    return min(max(1 - math.floor(math.log10(error)), 0), 6)


def _wrapped(text: str, first: str, others: str) -> str:
    """Lines that do not end within "a ± b" or "a = b"."""
    kept = text.replace(" ± ", "\xa0±\xa0").replace(" = ", "\xa0=\xa0")
    filled = textwrap.fill(
        kept, WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False
    )
    return filled.replace("\xa0", " ")

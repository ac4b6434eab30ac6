"""Plain text tables."""

from collections.abc import Sequence


def text_table(lines: Sequence[Sequence[str]]) -> str:
    """Lay out rows of cells, the head first, in columns as wide as they need."""
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
